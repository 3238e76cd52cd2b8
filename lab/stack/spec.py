"""What a local installation should look like: its shape, its engines, its timers.

The default is the smallest shape that shows everything: one instance of four ranks, in two Pods of two. A `StackSpec`
is written to the run directory as `spec.json` and never changes while the stack lives; which ports and pids it got is
in `stack.json` (`lab.stack.record`).

Local stacks switch DP scale-down on and shorten what real hardware needs half a minute for; every timer that differs
from a production default is listed by `non_default_timers`, and reports print that list.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from pydantic import Field, JsonValue, model_validator

from domain.config import FaultToleranceConfig
from domain.engine import Dialect, FtCapability
from domain.errors import ConfigError
from domain.model import InstanceId, Port, Rank, Strict
from domain.topology import Role

Seconds = Annotated[float, Field(gt=0, le=86_400)]

REAL_DETECTION_SEC: Final = 30.0
"""How long real engines take to notice a dead peer (vLLM, nixl_ep)."""

REAL_RECOVERY_SEC: Final = 1.0
"""How long real engines take to shrink."""

USUAL_STORE_TIMEOUT_SEC: Final = 30.0
"""How long an engine waits at the store for its peers: the simulator's own default."""


FIRST_REGISTERED_ID: Final = 1
"""The number that an empty registry gives to the first job that registers."""


class EngineSpec(Strict):
    """The simulated engines of a stack; all ranks alike, but for `rank_arguments` and `rank_env`."""

    command: tuple[str, ...] | None = None
    """Another program instead of the simulator, e.g. one whose FT API somebody else serves (`bench`)."""

    dialect: Dialect = Dialect.V1
    detection_sec: Seconds = 2.0
    """The communication timeout: from a step with a dead peer to `unhealthy`."""

    recovery_sec: Annotated[float, Field(ge=0, le=3600)] = 0.5
    """How long the rebuild of the group takes once all survivors have joined."""

    engine_recovery_timeout_sec: Seconds = 120.0
    """After this long without recovery an engine exits by itself."""

    store_timeout_sec: Seconds = USUAL_STORE_TIMEOUT_SEC
    """How long a survivor waits at the rendezvous for the others."""

    num_logical_experts: Annotated[int, Field(ge=1)] = 64
    num_redundant_experts: Annotated[int, Field(ge=0)] = 192
    """Enough for the loss of three ranks of four: R ≥ L·d/(N−d)."""

    eplb_enabled: bool = True
    external_lb: bool = True
    auto_recovery: bool = False
    arguments: tuple[str, ...] = ()
    """Further arguments for every engine."""

    rank_arguments: Mapping[Rank, tuple[str, ...]] = {}
    """Further arguments for one rank, e.g. `("--misbehave", "apply-400")`."""

    rank_env: Mapping[Rank, Mapping[str, str]] = {}

    def capability(self) -> FtCapability:
        """What the instance declares about its engines (contracts §5)."""
        return FtCapability(
            enabled=True,
            scale_down_supported=self.dialect is Dialect.V1,
            retry_supported=True,
            external_lb=self.external_lb,
            auto_recovery=self.auto_recovery,
            eplb_enabled=self.eplb_enabled,
            num_redundant_experts=self.num_redundant_experts,
            engine_recovery_timeout_sec=self.engine_recovery_timeout_sec,
            dialect=self.dialect,
        )


class FixedPorts(Strict):
    """Ports that a person wants to know beforehand; None takes a free one."""

    temporal: Port | None = None
    web_ui: Port | None = None
    controller: Port | None = None
    coordinator: Port | None = None
    management: Port | None = None


class StackSpec(Strict):
    """One installation. Raises a pydantic `ValidationError` (a `ValueError`) where it contradicts itself."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "local"
    instance_id: InstanceId = 7
    job_name: str = "local"
    model_name: str = "simulated-moe"
    role: Role = Role.UNION

    pods: Annotated[tuple[tuple[Rank, ...], ...], Field(min_length=1, max_length=200)] = ((0, 1), (2, 3))
    """The ranks of each Pod; together 0..dp_size-1. Each Pod has a NodeManager."""

    pod_ips: tuple[str, ...] | None = None
    """One loopback address a Pod, 127.0.0.2, 127.0.0.3, … unless given; two Pods may share one."""

    workers: Annotated[int, Field(ge=0, le=16)] = 1
    coordinators: Annotated[int, Field(ge=0, le=16)] = 1
    web_ui: bool = True
    engine: EngineSpec = EngineSpec()

    fault_tolerance_config: Mapping[str, JsonValue] = {}
    """Overrides of design §6's defaults, nested as in the configuration file."""

    process_env: Mapping[str, Mapping[str, str]] = {}
    """Further environment by process name (`worker-1`) or kind (`worker`)."""

    failpoints: Mapping[str, Mapping[str, str]] = {}
    """By process name or kind: failpoint → path of the driver's Unix socket (`service.failpoints`)."""

    ports: FixedPorts = FixedPorts()

    declare: bool = True
    """Declare the instance and wait until it serves; without, the stack is ready when its processes are."""

    registers: bool = False
    """The Pods register themselves instead of being declared; as the first instance of its registry theirs is number 1."""

    start_deadline_sec: Seconds = 90.0

    @model_validator(mode="after")
    def _consistent(self) -> "StackSpec":
        ranks = sorted(rank for pod in self.pods for rank in pod)
        if ranks != list(range(len(ranks))):
            raise ValueError(f"pods must hold each of the ranks 0..{len(ranks) - 1} once, got {ranks}")
        if not all(self.pods):
            raise ValueError("a Pod needs at least one rank")
        if self.pod_ips is not None and len(self.pod_ips) != len(self.pods):
            raise ValueError(f"pod_ips names {len(self.pod_ips)} addresses for {len(self.pods)} Pods")
        if self.declare and not (self.workers and self.coordinators):
            raise ValueError("an instance can only be declared and served with a worker and a Coordinator")
        if self.registers and (self.instance_id != FIRST_REGISTERED_ID or self.pods != _evenly(len(ranks), len(self.pods))):
            raise ValueError(f"Pods that register are instance {FIRST_REGISTERED_ID}, and have equally many ranks each, in order")
        self.effective_config()
        return self

    @classmethod
    def shaped(cls, dp_size: int, node_managers: int, **fields: object) -> "StackSpec":
        """A spec with `dp_size` ranks in order, spread evenly over `node_managers` Pods. Raises ConfigError."""
        if node_managers < 1 or dp_size < node_managers or dp_size % node_managers:
            raise ConfigError(f"{dp_size} ranks cannot be spread evenly over {node_managers} NodeManagers")
        return cls.model_validate({"pods": _evenly(dp_size, node_managers), **fields})

    @property
    def dp_size(self) -> int:
        return sum(len(pod) for pod in self.pods)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(self.dp_size))

    def pod_ip(self, pod: int) -> str:
        """The loopback address of a Pod."""
        return self.pod_ips[pod] if self.pod_ips is not None else f"127.0.0.{pod + 2}"

    def pod_of(self, rank: int) -> int:
        """The index of the Pod that holds `rank`. Raises KeyError."""
        for index, ranks in enumerate(self.pods):
            if rank in ranks:
                return index
        raise KeyError(rank)

    def configured(self) -> Mapping[str, JsonValue]:
        """`fault_tolerance_config` as the processes get it: scale-down on, then the overrides."""
        return {"enable_dp_scale_down": True, **self.fault_tolerance_config}

    def effective_config(self) -> FaultToleranceConfig:
        """The configuration with all defaults. Raises a pydantic `ValidationError` on a contradiction."""
        return FaultToleranceConfig.model_validate(self.configured())

    def non_default_timers(self) -> dict[str, float]:
        """Every duration (seconds) that differs from a production default, by its dotted name."""
        used = dict(_durations(self.effective_config().model_dump()))
        usual = dict(_durations(FaultToleranceConfig().model_dump()))
        return {name: value for name, value in used.items() if value != usual[name]} | self._engine_timers()

    def _engine_timers(self) -> dict[str, float]:
        engine = self.engine
        pairs = {
            "engine.detection_sec": (engine.detection_sec, REAL_DETECTION_SEC),
            "engine.recovery_sec": (engine.recovery_sec, REAL_RECOVERY_SEC),
            "engine.store_timeout_sec": (engine.store_timeout_sec, USUAL_STORE_TIMEOUT_SEC),
            "engine.engine_recovery_timeout_sec": (engine.engine_recovery_timeout_sec, 120.0),
        }
        return {name: used for name, (used, usual) in pairs.items() if used != usual}


def _evenly(dp_size: int, pods: int) -> tuple[tuple[int, ...], ...]:
    """The ranks in order, equally many a Pod, as registration spreads them."""
    size = max(1, dp_size // pods)
    return tuple(tuple(range(first, first + size)) for first in range(0, dp_size, size))


def _durations(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _durations(value, f"{prefix}{name}.")
        elif name.endswith("_sec") and isinstance(value, (int, float)):
            yield f"{prefix}{name}", float(value)
