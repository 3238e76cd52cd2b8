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
replaced, everything else stays as it is: rank, ip, port, dp_size, master_ip, master_port, local_index, devices, log_dir.

With a `registration` the Pod registers itself; without one somebody declares the instance. `deploy/examples/` has both
a simulated and a real file, with comments.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError, field_validator, model_validator

from domain.address import Host
from domain.config import Seconds
from domain.engine import Dialect, FtCapability
from domain.errors import ConfigError
from domain.messages.registration import DEFAULT_DP_MASTER_PORT, PodRegistration
from domain.model import Name, NotBool, Port, Rank, Strict
from domain.secrecy import HIDDEN, is_secret
from domain.topology import ParallelConfig, Role
from node_manager.capability import derived_capability
from service.settings import HttpUrl, read_yaml_mapping

PLACEHOLDERS: Final = ("rank", "ip", "port", "dp_size", "master_ip", "master_port", "local_index", "devices", "log_dir")
_PLACEHOLDER: Final = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
_MAX_SHOWN: Final = 200
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


class RegistrationSpec(Strict):
    """Which seat of which instance this Pod takes. Ranks come from `node_rank`: equally many in each of the `nnodes` Pods."""

    job_name: Name
    """The instance: Pods with the same job_name belong together."""

    model_name: Name
    role: Role = Role.UNION
    node_rank: Annotated[int, Field(strict=True, ge=0, le=4095)] = 0
    """Differs in each Pod, so usually given on the command line (`--node-rank`)."""

    nnodes: Annotated[int, Field(strict=True, ge=1, le=4096)]
    parallel_config: ParallelConfig
    business_ports: tuple[Port, ...] = ()
    """The engines' ports, one for each rank of this Pod; without them 10000 + rank."""

    device_ids: tuple[tuple[str, ...], ...] = ()
    """The chips of each rank of this Pod: hardware faults are mapped by them, `{devices}` names them to the engine."""

    dp_master_port: Port = DEFAULT_DP_MASTER_PORT
    """Of the group's store on the master's Pod; that of node_rank 0 counts."""

    ft_dialect: Dialect | None = None
    """The FT API that the engines speak. None: `legacy`, which released vLLM has and which cannot scale down."""

    engine_auto_recovery: Annotated[bool, Field(strict=True)] = False
    """Whether engines recover by themselves: the gate refuses that."""

    ft_capability: FtCapability | None = None
    """Said outright instead of derived from the engines' flags; for engines whose flags are not vLLM's."""


class NodeManagerConfig(Strict):
    """The whole file."""

    pod_ip: Host
    """This Pod's address as the topology names it; reports carry it, and it selects this Pod's endpoints."""

    host: Host | None = None
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

    registration: RegistrationSpec | None = None
    """None: somebody declares the instance (`autotomy instance declare`)."""

    suicide_grace_sec: Annotated[float, NotBool, Field(ge=0, le=86_400)] = 240.0
    """How long the Controller has to come for a Pod with an ended engine, before the Pod ends itself: above the collection
    timeout and a round together."""

    suicide_rounds: Annotated[int, NotBool, Field(ge=0, le=1000)] = 5
    """So many looks in a row after that; 0 switches it off."""

    suicide_interval_sec: Seconds = 5.0

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

    @model_validator(mode="after")
    def _registration_fits(self) -> "NodeManagerConfig":
        if self.registration is not None:
            _ = self.pod
        return self

    @property
    def pod(self) -> PodRegistration | None:
        """What this Pod says of itself; None without a `registration`. Raises `ValueError` where it contradicts itself."""
        spec = self.registration
        if spec is None:
            return None
        try:
            return self._pod(spec)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    def _pod(self, spec: RegistrationSpec) -> PodRegistration:
        local = max(1, spec.parallel_config.dp_size // spec.nnodes)
        said = spec.model_dump(include=set(PodRegistration.model_fields) & set(RegistrationSpec.model_fields))
        first = local * spec.node_rank
        return PodRegistration.model_validate(
            said
            | {
                "pod_ip": self.pod_ip,
                "nm_port": self.port or 1026,
                "node_name": self.node_name,
                "business_ports": spec.business_ports or tuple(10000 + first + index for index in range(local)),
                "ft_capability": spec.ft_capability or self._capability(spec, first),
            }
        )

    def _capability(self, spec: RegistrationSpec, rank: int) -> FtCapability | None:
        engine = self.engine_for(rank)
        if engine is None:
            return None
        return derived_capability(
            engine.command,
            dialect=spec.ft_dialect or Dialect.LEGACY,
            auto_recovery=spec.engine_auto_recovery,
            engine_recovery_timeout_sec=self.engine_recovery_timeout_sec,
        )

    def engine_for(self, rank: int) -> EngineSpec | None:
        """The entry of this rank, else the one without a rank, else None."""
        by_rank = {spec.rank: spec for spec in self.engines}
        return by_rank.get(rank) or by_rank.get(None)


def _with_node_rank(path: Path, registration: object, node_rank: object) -> dict[str, object]:
    if not isinstance(registration, dict):
        raise ConfigError(f"{path}: --node-rank {node_rank} needs a `registration` in this file")
    return {**registration, "node_rank": node_rank}


def load_config(path: Path, overrides: Mapping[str, object]) -> NodeManagerConfig:
    """Reads the file; `overrides` come from the command line. Raises `ConfigError`: key, value, why."""
    values = {**read_yaml_mapping(path), **overrides}
    node_rank = values.pop("node_rank", None) if "node_rank" in overrides else None
    if node_rank is not None:
        values["registration"] = _with_node_rank(path, values.get("registration"), node_rank)
    try:
        return NodeManagerConfig.model_validate(values)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            key = ".".join(str(part) for part in detail["loc"])
            why = "no such setting" if detail["type"] == "extra_forbidden" else detail["msg"].removeprefix("Value error, ")
            secret = any(is_secret(str(part)) for part in detail["loc"])
            shown = HIDDEN if secret else repr(detail["input"])[:_MAX_SHOWN]
            value = "" if isinstance(detail["input"], Mapping) else f" = {shown}"
            problems.append(f"{key}{value}: {why}" if key else why)
        raise ConfigError(f"{path}: " + "; ".join(problems)) from None
