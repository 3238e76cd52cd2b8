"""What a DP supervisor is told: its own flags, and the command line of the servers that it starts.

Once read, an `Options` makes sense as a whole; everything that cannot be is refused here, before anything is started.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from domain.errors import ConfigError
from domain.model import MAX_RANKS, NotBool, Rank, Strict
from domain.secrecy import HIDDEN, is_secret
from dp_supervisor.rules import Rules

Seconds = Annotated[float, NotBool, Field(gt=0, le=86_400)]
_PortNumber = Annotated[int, NotBool, Field(ge=1, le=65_535)]


class Options(Strict):
    """Fields have the names of vLLM's flags; those without one in vLLM are marked (ours)."""

    data_parallel_size: Annotated[int, NotBool, Field(ge=2, le=MAX_RANKS)]
    data_parallel_size_local: Annotated[int, NotBool, Field(ge=2, le=MAX_RANKS)]
    data_parallel_start_rank: Rank | None = None
    node_rank: Rank = 0
    host: str | None = None
    """Where the rank servers and the supervisor listen. None: the servers' own default, and every interface."""

    port: _PortNumber = 8000
    """Of the first local rank; the others follow one by one."""

    data_parallel_supervisor_port: _PortNumber = 9256
    dp_supervisor_probe_interval_s: Seconds = 5.0
    """Between the end of a sweep and the next one."""

    dp_supervisor_probe_timeout_s: Seconds = 5.0
    """Bound of one look at one server."""

    dp_supervisor_probe_failure_threshold: Annotated[int, NotBool, Field(ge=1, le=1_000_000)] = 3
    enable_fault_tolerance: bool | None = None
    """None: nothing was said; the servers get no such flag either."""

    shutdown_timeout: Annotated[float, NotBool, Field(ge=0, le=3600)] = 0.0
    """How long requests under way may take after SIGTERM; said in COMMAND, the servers know it too. 5 s later: SIGKILL."""

    tensor_parallel_size: Annotated[int, NotBool, Field(ge=1, le=65_536)] = 1
    pipeline_parallel_size: Annotated[int, NotBool, Field(ge=1, le=65_536)] = 1
    api_key: str | None = Field(default=None, repr=False)
    startup_timeout_s: Seconds = 3600.0
    """(ours) Not all ready so long after the start: everything is stopped."""

    stock_rules: bool = False
    """(ours) Judge as without fault tolerance, though the servers have it."""

    device_env: str | None = None
    """(ours) The variable that names a server's devices. None: chosen from the environment."""

    log_dir: Path | None = None
    """(ours) A file a rank there. None: the servers write where the supervisor does."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """What each server is started with, before its own flags are set."""

    @property
    def start_rank(self) -> int:
        """The first local rank: as told, else after those of the nodes before this one."""
        if self.data_parallel_start_rank is not None:
            return self.data_parallel_start_rank
        return self.node_rank * self.data_parallel_size_local

    @property
    def rules(self) -> Rules:
        return Rules.FAULT_TOLERANT if self.enable_fault_tolerance and not self.stock_rules else Rules.STOCK

    @property
    def devices_per_rank(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def last_port(self) -> int:
        return self.port + self.data_parallel_size_local - 1

    @model_validator(mode="after")
    def _fits_together(self) -> "Options":
        size, local = self.data_parallel_size, self.data_parallel_size_local
        if size % local:
            raise ValueError(f"--data-parallel-size {size} is not divisible by --data-parallel-size-local {local}")
        if self.start_rank + local > size:
            last = self.start_rank + local - 1
            raise ValueError(
                f"ranks {self.start_rank}..{last} would be started here, --data-parallel-size {size} has ranks 0..{size - 1}: "
                "check --data-parallel-start-rank or --node-rank"
            )
        if self.last_port > 65_535:
            raise ValueError(f"--port {self.port}: the last of {local} servers would need port {self.last_port}")
        if self.port <= self.data_parallel_supervisor_port <= self.last_port:
            raise ValueError(
                f"--data-parallel-supervisor-port {self.data_parallel_supervisor_port} is one of the servers' ports "
                f"{self.port}..{self.last_port}: choose another for it or for --port"
            )
        return self


def checked(values: dict[str, object]) -> Options:
    """`Options` from what the command line gave. Raises `ConfigError`: flag, value, why."""
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_in_words(detail) for detail in error.errors(include_url=False))) from None


def _in_words(detail: object) -> str:
    assert isinstance(detail, dict)
    why = str(detail["msg"]).removeprefix("Value error, ")
    if not detail["loc"]:
        return why
    flag = "--" + str(detail["loc"][0]).replace("_", "-")
    if detail["type"] == "missing":
        return f"{flag} is missing"
    needed = {"data_parallel_size_local": "a supervisor is for two servers and more", "data_parallel_size": "ranks of the group"}
    reason = needed.get(str(detail["loc"][0]))
    value = HIDDEN if is_secret(flag) else detail["input"]
    return f"{flag} {value}: {why[0].lower()}{why[1:]}" + (f" ({reason})" if reason else "")
