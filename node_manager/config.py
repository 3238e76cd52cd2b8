"""A NodeManager's file (YAML): who it is, where the Controller is, and how an engine is started.

    pod_ip: 10.0.0.1
    controller_url: http://controller:1026
    journal: /var/lib/autotomy/journal.sqlite
    log_dir: /var/log/autotomy
    engines:
      - command: [vllm, serve, MODEL, --port, "{port}", --data-parallel-rank, "{rank}", --data-parallel-size, "{dp_size}"]
        environment: {VLLM_DP_MASTER_IP: "{master_ip}"}
      - rank: 3                 # overrules the entry without a rank, for this one
        command: [...]

Which ranks are this Pod's comes with the start command. In `command` and `environment` these words in braces are
replaced, everything else stays as it is: rank, ip, port, dp_size, master_ip, master_port, local_index, log_dir.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError, field_validator, model_validator

from domain.config import Seconds
from domain.errors import ConfigError
from domain.model import NotBool, Rank, Strict
from service.settings import HttpUrl, read_yaml_mapping

PLACEHOLDERS: Final = ("rank", "ip", "port", "dp_size", "master_ip", "master_port", "local_index", "log_dir")
_PLACEHOLDER: Final = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
_PortOrAny = Annotated[int, Field(strict=True, ge=0, le=65535)]


class EngineSpec(Strict):
    """How one rank's engine (or, without `rank`, every other rank's) is started, and how long things may take."""

    rank: Rank | None = None
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    environment: dict[str, str] = {}
    """On top of the NodeManager's own environment, which engines inherit."""

    api_key: str | None = None
    """For `/v1/…`, where the engine wants one."""

    ready_timeout_sec: Seconds = 1800.0
    """From its start to the first 200 of `/health`; an engine that needs longer is stopped and reported as gone."""

    stop_grace_sec: Annotated[float, NotBool, Field(ge=0, le=600)] = 10.0
    """Between SIGTERM and SIGKILL."""

    def filled_in(self, values: Mapping[str, object]) -> "EngineSpec":
        """With the placeholders replaced by this rank's values."""

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda match: str(values[match.group(1)]), text)

        return self.model_copy(
            update={
                "command": tuple(fill(part) for part in self.command),
                "environment": {name: fill(text) for name, text in self.environment.items()},
            }
        )


class NodeManagerConfig(Strict):
    """The whole file."""

    pod_ip: str = Field(min_length=1)
    """This Pod's address as the topology names it; reports carry it, and it selects this Pod's endpoints."""

    host: str | None = None
    """Where to listen, if not at pod_ip."""

    port: _PortOrAny = 1026
    """0 takes a free one."""

    node_name: str = ""
    controller_url: HttpUrl = "http://127.0.0.1:1026"
    journal: Path
    log_dir: Path
    engines: tuple[EngineSpec, ...] = ()

    enable_dp_scale_down_proxy: Annotated[bool, Field(strict=True)] = True
    """Whether the FT routes answer before a start command has said so; off: 404."""

    poll_interval_sec: Annotated[float, NotBool, Field(ge=0.02, le=60)] = 1.0
    engine_request_timeout_sec: Annotated[float, NotBool, Field(gt=0, le=60)] = 4.0
    """These two hold until a start command brings others."""

    dead_after_poll_failures: Annotated[int, NotBool, Field(ge=1, le=100)] = 1
    """How many polls in a row an engine may leave unanswered before that is reported as evidence of its death."""

    engine_recovery_timeout_sec: Seconds = 120.0
    """The engines' own setting: not recovered so long after a fault, they exit. A guard holds as long after an apply."""

    report_timeout_sec: Seconds = 5.0
    """One report or heartbeat to the Controller."""

    heartbeat: Annotated[bool, Field(strict=True)] = True
    heartbeat_interval_sec: Seconds = 1.0

    keep_engines: Annotated[bool, Field(strict=True)] = False
    """Leave the engines running on SIGTERM and SIGINT too, as SIGKILL does: for an upgrade of the NodeManager alone."""

    worker_title: str = r"VLLM::(EngineCore|Worker)|autotomy-sim-worker"
    """Regular expression: what the command lines of an engine's worker processes contain."""

    @field_validator("worker_title")
    @classmethod
    def _is_pattern(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return text

    @model_validator(mode="after")
    def _one_entry_per_rank(self) -> "NodeManagerConfig":
        ranks = [spec.rank for spec in self.engines]
        twice = {rank for rank in ranks if ranks.count(rank) > 1}
        if twice:
            named = ", ".join("the entry without a rank" if rank is None else f"rank {rank}" for rank in sorted(twice, key=str))
            raise ValueError(f"engines describes {named} more than once")
        return self

    def engine_for(self, rank: int) -> EngineSpec | None:
        """The entry of this rank, else the one without a rank, else None."""
        by_rank = {spec.rank: spec for spec in self.engines}
        return by_rank.get(rank) or by_rank.get(None)


def load_config(path: Path, overrides: Mapping[str, object]) -> NodeManagerConfig:
    """Reads the file; `overrides` come from the command line. Raises `ConfigError`: key, value, why."""
    values = {**read_yaml_mapping(path), **overrides}
    try:
        return NodeManagerConfig.model_validate(values)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            key = ".".join(str(part) for part in detail["loc"])
            why = "no such setting" if detail["type"] == "extra_forbidden" else detail["msg"].removeprefix("Value error, ")
            value = "" if isinstance(detail["input"], Mapping) else f" = {detail['input']!r}"
            problems.append(f"{key}{value}: {why}" if key else why)
        raise ConfigError(f"{path}: " + "; ".join(problems)) from None
