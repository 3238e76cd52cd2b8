"""What a process is told before it starts: a YAML file, the environment, its command line.

Precedence, highest first: overrides (command line), environment, file, defaults. The file comes from `--config` or
`AUTOTOMY_CONFIG`; the environment reaches every nested key:

    AUTOTOMY_FAULT_TOLERANCE_CONFIG__ENABLE_DP_SCALE_DOWN=true
    AUTOTOMY_FAULT_TOLERANCE_CONFIG__DP_SCALE_DOWN_CONFIG__POLL_INTERVAL_SEC=0.5

Models and their cross-checks live in `domain.config`. Here every problem becomes one ConfigError that names key, value,
reason and the place the value came from; a misspelt key or variable is a problem too, never silently a default.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from domain.address import peer_url
from domain.config import FaultToleranceConfig
from domain.errors import ConfigError
from domain.messages.fault_manager import TASK_QUEUE
from domain.secrecy import HIDDEN, is_secret
from service.variables import ENV_PREFIX, NESTED, refuse_unknown_variables

CONFIG_VARIABLE: Final = "AUTOTOMY_CONFIG"
_MAX_SHOWN_VALUE: Final = 80

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$"), AfterValidator(peer_url)]


class Settings(BaseSettings):
    """Everything that Autotomy's processes read; each takes the part it needs."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=NESTED, extra="forbid", frozen=True, strict=True
    )

    fault_tolerance_config: FaultToleranceConfig = FaultToleranceConfig()

    controller_url: HttpUrl = "http://127.0.0.1:1026"
    """Where NodeManagers, Coordinators and the command line find the Controller API."""

    task_queue: Annotated[str, Field(min_length=1)] = TASK_QUEUE
    """The Temporal task queue of the Controller workers."""


def load_settings(path: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Read file and environment, lay `overrides` (same nesting as the file) on top, check everything.

    Without `path`, `AUTOTOMY_CONFIG` names the file; without either there is none. Raises ConfigError: file missing or
    not a YAML mapping, key given twice, unknown key, value out of range, two values that contradict each other.
    """
    if path is None and os.environ.get(CONFIG_VARIABLE):
        path = Path(os.environ[CONFIG_VARIABLE])
    from_file = read_yaml_mapping(path) if path is not None else {}
    refuse_unknown_variables()

    class _Sourced(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            from_command_line = InitSettingsSource(settings_cls, init_kwargs=dict(overrides or {}))
            return from_command_line, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file)

    try:
        checked = _Sourced()
    except ValidationError as error:
        raise ConfigError(_explain(error, path, from_file, overrides or {})) from None
    except SettingsError as error:
        raise ConfigError(f"environment: {error}: {error.__cause__ or 'cannot be read'}") from None
    return Settings.model_construct(**dict(checked))


def read_yaml_mapping(path: Path, what: str = "config file") -> dict[str, object]:
    """The mapping that the YAML file `path` holds; an empty file is an empty one. `what` it is called in errors.

    Raises ConfigError: unreadable, not YAML, not a mapping, or a key given twice (YAML itself would drop the first).
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} {path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{what} {path} must hold a mapping of names, not {type(content).__name__}")
    return content


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys; a person who wrote both should hear of it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    "in a mapping", node.start_mark, f"key {key!r} is given twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _explain(error: ValidationError, path: Path | None, from_file: Mapping[str, object], overrides: Mapping[str, object]) -> str:
    return "; ".join(_explain_one(detail, path, from_file, overrides) for detail in error.errors(include_url=False))


def _explain_one(
    detail: ErrorDetails, path: Path | None, from_file: Mapping[str, object], overrides: Mapping[str, object]
) -> str:
    keys = [str(part) for part in detail["loc"]]
    name = ".".join(keys)
    why = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        why = "no such setting"
    value = detail.get("input")
    shown = "" if isinstance(value, Mapping) else f" = {HIDDEN if any(map(is_secret, keys)) else _short(value)}"
    return f"{name}{shown}: {why}{_origin(keys, path, from_file, overrides)}"


def _origin(keys: list[str], path: Path | None, from_file: Mapping[str, object], overrides: Mapping[str, object]) -> str:
    variable = ENV_PREFIX + NESTED.join(keys).upper()
    if _reaches(overrides, keys):
        return " (given on the command line)"
    if variable in os.environ:
        return f" (from {variable})"
    if _reaches(from_file, keys):
        return f" (from {path})"
    return ""


def _reaches(mapping: Mapping[str, object], keys: list[str]) -> bool:
    here: object = mapping
    for key in keys:
        if not isinstance(here, Mapping) or key not in here:
            return False
        here = here[key]
    return True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_VALUE else text[: _MAX_SHOWN_VALUE - 1] + "…"
