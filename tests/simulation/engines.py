"""The engines of one instance, as contracts §1 says they behave: a group that steps together and shrinks together.

A rank that dies is noticed by its peers after the detection time, each in its own moment; only then are they `unhealthy`
and take a command. A recovery is a collective: it completes when every survivor was told the same set under the same
request id; otherwise all hang until their store timeout and fail for good.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

from domain.engine import EngineStatus, Instruction
from lab.oracle.observations import ApplySeen, RecoveredSeen
from tests.simulation.clock import now
from tests.simulation.record import Record


@dataclass
class FakeEngine:
    """One rank's engine process. `life` counts its incarnations."""

    rank: int
    life: int = 1
    status: str = EngineStatus.HEALTHY
    ft_state: str | None = None
    ft_error: str | None = None
    last_ft_request_id: str | None = None
    running: bool = True
    worker_alive: bool = True
    halted: bool = False
    mute_since: float = 0.0
    mute_until: float = 0.0
    answers_as: int | None = None
    refuses: bool = False
    noticed_at: float | None = None

    @property
    def incarnation(self) -> str:
        return f"boot:{1000 * self.life + self.rank}:{self.life}"

    @property
    def mute(self) -> bool:
        return self.mute_until > now()

    @property
    def alive(self) -> bool:
        """It can step with the group."""
        return self.running and self.worker_alive and not self.halted


@dataclass
class Rendezvous:
    """A recovery that engines have joined."""

    removed: frozenset[int]
    joined: set[int] = field(default_factory=set)


class Group:
    """All engines of the instance. `members` are the ranks that step together now."""

    def __init__(
        self,
        dp_size: int,
        record: Record,
        rng: Random,
        *,
        recovery_sec: float,
        store_timeout_sec: float,
        engine_recovery_timeout_sec: float,
    ) -> None:
        self.engines = {rank: FakeEngine(rank) for rank in range(dp_size)}
        self.members = set(range(dp_size))
        self.recoveries_fail = False
        self._record, self._rng = record, rng
        self._recovery_sec = recovery_sec
        self._store_timeout_sec = store_timeout_sec
        self._engine_recovery_timeout_sec = engine_recovery_timeout_sec
        self._rendezvous: dict[tuple[str, frozenset[int]], Rendezvous] = {}

    def kill_worker(self, rank: int) -> None:
        """The worker process is gone: `dead` if the rank was healthy, else it stays as it is. The API server exits later."""
        engine = self.engines[rank]
        engine.worker_alive = False
        if engine.status == EngineStatus.HEALTHY:
            engine.status = EngineStatus.DEAD
        self._later(self._engine_recovery_timeout_sec, self._exit, engine, engine.life)

    def kill_process(self, rank: int) -> None:
        engine = self.engines[rank]
        engine.running = engine.worker_alive = False

    def hang(self, rank: int) -> None:
        """The rank neither steps nor answers any more, and its process runs on."""
        engine = self.engines[rank]
        engine.halted = True
        self.fall_mute(rank, float("inf"))

    def fall_mute(self, rank: int, for_sec: float) -> None:
        """Its FT API does not answer for a while; the engine works on."""
        engine = self.engines[rank]
        engine.mute_since = engine.mute_since if engine.mute else now()
        engine.mute_until = max(engine.mute_until, now() + for_sec)

    def was_mute_for(self, rank: int, at_least_sec: float) -> bool:
        """Whether its last silence lasted that long."""
        engine = self.engines[rank]
        return min(engine.mute_until, now()) - engine.mute_since >= at_least_sec

    def replace(self, rank: int) -> None:
        """A fresh process in this rank's place: `healthy`, and no part of the group."""
        self.engines[rank] = FakeEngine(rank, life=self.engines[rank].life + 1, halted=True)

    def notice(self, within_sec: float) -> None:
        """The peers' communication timeout: each living member finds out at a moment of its own."""
        for rank in sorted(self.members):
            engine = self.engines[rank]
            self._later(within_sec * self._rng.uniform(0.3, 1.0), self._noticed, engine, engine.life)

    def completes(self, rank: int) -> bool:
        """Whether a request to this rank would be answered: all ranks of its group step with it."""
        engine = self.engines[rank]
        stepping = all(self.engines[member].alive for member in self.members)
        return rank in self.members and engine.status == EngineStatus.HEALTHY and engine.ft_state is None and stepping

    def command(self, rank: int, request_id: str, removed: frozenset[int]) -> int:
        """POST apply scale_down, arrived at the engine. Returns the HTTP status; 202 is "queued", no more."""
        engine = self.engines[rank]
        self._record.saw(
            ApplySeen(at=now(), engine=rank, request_id=request_id, instruction=Instruction.SCALE_DOWN, removed=removed)
        )
        if engine.refuses:
            return 400
        engine.last_ft_request_id = request_id
        error = self._error(engine, removed)
        if error is not None:
            engine.ft_error = error
            if engine.status != EngineStatus.HEALTHY:
                engine.ft_state = "failed"
            return 202
        engine.ft_state, engine.ft_error = "recovering", None
        meeting = self._rendezvous.setdefault((request_id, removed), Rendezvous(removed))
        meeting.joined.add(rank)
        if meeting.joined == self.members - removed:
            self._later(self._recovery_sec, self._complete, request_id, meeting)
        self._later(self._store_timeout_sec, self._give_up, engine, engine.life, request_id)
        return 202

    def _error(self, engine: FakeEngine, removed: frozenset[int]) -> str | None:
        if engine.status != EngineStatus.UNHEALTHY or not engine.alive:
            return f"status is {str(engine.status).upper()}"
        if engine.ft_state is not None:
            return "another recovery runs, or has failed"
        if not removed or not removed <= self.engines.keys():
            return f"bad ranks {sorted(removed)}"
        if engine.rank in removed or not self.members - removed or not self.members & removed:
            return f"cannot remove {sorted(removed)} from {sorted(self.members)} at rank {engine.rank}"
        return None

    def _complete(self, request_id: str, meeting: Rendezvous) -> None:
        joined = [self.engines[rank] for rank in sorted(meeting.joined)]
        if self.recoveries_fail or not all(engine.alive and engine.ft_state == "recovering" for engine in joined):
            return  # the others hang until their store timeout
        for engine in joined:
            engine.status, engine.ft_state, engine.noticed_at = EngineStatus.HEALTHY, None, None
            self._record.saw(RecoveredSeen(at=now(), engine=engine.rank, request_id=request_id))
        self.members = set(meeting.joined)

    def _give_up(self, engine: FakeEngine, life: int, request_id: str) -> None:
        still = engine.life == life and engine.running and engine.last_ft_request_id == request_id
        if still and engine.ft_state == "recovering":
            engine.ft_state, engine.ft_error = "failed", "store timeout: not every survivor joined"

    def _noticed(self, engine: FakeEngine, life: int) -> None:
        if engine.life != life or not engine.alive or engine.rank not in self.members:
            return
        if engine.status == EngineStatus.HEALTHY and not all(self.engines[member].alive for member in self.members):
            engine.status, engine.noticed_at = EngineStatus.UNHEALTHY, now()
            self._later(self._engine_recovery_timeout_sec, self._exit_unrecovered, engine, life, now())

    def _exit_unrecovered(self, engine: FakeEngine, life: int, noticed_at: float) -> None:
        if engine.life == life and engine.noticed_at == noticed_at:
            self._exit(engine, life)

    def _exit(self, engine: FakeEngine, life: int) -> None:
        if engine.life == life and self.engines[engine.rank] is engine:
            engine.running = engine.worker_alive = False

    def _later(self, after_sec: float, call: object, *arguments: object) -> None:
        asyncio.get_running_loop().call_later(after_sec, call, *arguments)  # type: ignore[arg-type]
