"""The engines of one instance, faked: their FT states and the collective recovery (contracts §1), without processes.

A fault is whole at once: the rank is `dead` and its peers are `unhealthy` in the same moment, as if the communication
timeout had run out. What is measured begins where a NodeManager sees it. A scale-down is refused or taken by the rules of
the contract, and is over `recovery_sec` after every survivor was told the same set under the same request id.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import JsonValue

from domain.engine import EngineStatus, FtState
from domain.model import Strict


class Episode(Strict):
    """One fault as this process saw it; times are `time.monotonic()`.

    `seen`: when a NodeManager first read each rank's new status. `applies`: commands that arrived, refused ones included.
    """

    instance_id: int
    rank: int
    injected_at: float
    seen: dict[int, float] = {}
    applies: dict[int, int] = {}
    recovery_began_at: float | None = None
    recovery_ended_at: float | None = None


@dataclass
class Engine:
    """One rank's state. `life` counts its starts; 0 = never started."""

    rank: int
    life: int = 0
    status: EngineStatus | None = None
    ft_state: FtState | None = None
    request_id: str | None = None
    error: str | None = None

    @property
    def runs(self) -> bool:
        return self.status is not None

    def start(self) -> None:
        self.life += 1
        self.status, self.ft_state, self.request_id, self.error = EngineStatus.HEALTHY, None, None, None

    def stop(self) -> None:
        self.status = None

    def entry(self) -> dict[str, JsonValue]:
        """The engine's own entry in a status reply."""
        return {
            "id": self.rank,
            "status": str(self.status),
            "fault_info": "RuntimeError" if self.status is not EngineStatus.HEALTHY else None,
            "mask": None,
            "ft_state": self.ft_state,
            "last_ft_request_id": self.request_id,
            "ft_error": self.error,
        }


@dataclass
class Group:
    """The engines of an instance. `on_change` is told whenever a status changed."""

    instance_id: int
    ranks: tuple[int, ...]
    recovery_sec: float
    on_change: Callable[[], None] = lambda: None
    engines: dict[int, Engine] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    polls: int = 0
    _removed: set[int] = field(default_factory=set)
    _joined: dict[int, tuple[str, frozenset[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engines = {rank: Engine(rank) for rank in self.ranks}

    def start(self, ranks: tuple[int, ...]) -> None:
        """Fresh engines for these ranks. Where none of the group ran, it is a new group."""
        if not any(engine.runs for engine in self.engines.values()):
            self._removed.clear()
            self._joined.clear()
        for rank in ranks:
            self.engines[rank].start()
        self.on_change()

    def stop(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self.engines[rank].stop()

    def fail(self, rank: int) -> Episode:
        """This rank is dead, its peers have noticed. Raises ValueError where the group is not whole."""
        active = [engine for engine in self.engines.values() if engine.rank not in self._removed]
        unfit = [engine.rank for engine in active if engine.status is not EngineStatus.HEALTHY]
        if unfit or rank in self._removed:
            raise ValueError(f"instance {self.instance_id}: rank {rank} cannot fail now; not healthy: {unfit}")
        for engine in active:
            engine.status = EngineStatus.DEAD if engine.rank == rank else EngineStatus.UNHEALTHY
        self.episodes.append(Episode(instance_id=self.instance_id, rank=rank, injected_at=time.monotonic()))
        self.on_change()
        return self.episodes[-1]

    def seen(self, rank: int) -> None:
        """A NodeManager has read this rank's status now."""
        self.polls += 1
        episode = self.episodes[-1] if self.episodes else None
        if episode is not None and episode.recovery_began_at is None and rank not in episode.seen:
            episode.seen[rank] = time.monotonic()

    def scale_down(self, rank: int, removed: frozenset[int], request_id: str) -> None:
        """A command that was queued (202); how it ends is in the status."""
        episode = self.episodes[-1] if self.episodes else None
        if episode is not None:
            episode.applies[rank] = episode.applies.get(rank, 0) + 1
        engine = self.engines[rank]
        engine.request_id = request_id
        why = self._refusal(engine, removed)
        if why:
            engine.error = why
            return
        if episode is not None and episode.recovery_began_at is None:
            self.episodes[-1] = episode.model_copy(update={"recovery_began_at": time.monotonic()})
        engine.ft_state = FtState.RECOVERING
        self._joined[rank] = (request_id, removed)
        survivors = {other for other in self.ranks if other not in removed}
        if {other for other, told in self._joined.items() if told == (request_id, removed)} >= survivors:
            asyncio.get_running_loop().call_later(self.recovery_sec, self._shrink, survivors, removed)

    def _refusal(self, engine: Engine, removed: frozenset[int]) -> str | None:
        if engine.status is not EngineStatus.UNHEALTHY or engine.ft_state is not None:
            return f"engine {engine.rank} status is {str(engine.status).upper()}"
        if not removed - self._removed or engine.rank in removed or not removed <= set(self.ranks):
            return f"removed_dp_ranks {sorted(removed)} make no sense to rank {engine.rank}"
        return None

    def _shrink(self, survivors: set[int], removed: frozenset[int]) -> None:
        self._removed |= removed
        self._joined.clear()
        for rank in survivors:
            engine = self.engines[rank]
            engine.status, engine.ft_state, engine.error = EngineStatus.HEALTHY, None, None
        self.episodes[-1] = self.episodes[-1].model_copy(update={"recovery_ended_at": time.monotonic()})
        self.on_change()
