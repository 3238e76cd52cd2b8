"""A NodeManager with every rule of contracts §2: guard, lease, tombstones, apply at most once, unknown outcomes, verdicts.

What it has promised is in its journal, written before each effect; a crash takes everything else. It can crash between any
two steps: each of them is an await. Engines run in sessions of their own and live on.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

from domain.engine import EngineStatus, EntrySource, ProcessState, RankEntry
from domain.errors import OutcomeUnknown, Refused
from domain.messages.node_manager import NodeManagerReason
from domain.topology import NodeManagerAddress
from lab.oracle.observations import CommitSeen, EngineIdSeen, GenerationSeen, GuardGone, GuardSeen, OutageSeen, VerdictSeen
from tests.simulation.clock import now
from tests.simulation.engines import Group
from tests.simulation.record import Record


@dataclass
class Guard:
    request_id: str
    expires_at: float
    held_until: float
    """Between apply and verdict a guard lives on past its lease, at most `engine_recovery_timeout_sec`."""


@dataclass
class Transaction:
    intent: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    engines: dict[int, int | None] = field(default_factory=dict)
    outcome: str | None = None  # "accepted", or a NodeManagerReason
    verdict: bool | None = None


@dataclass
class Journal:
    """What survives a crash."""

    generation: int = 0
    sequence: int = 0
    guard: Guard | None = None
    transactions: dict[str, Transaction] = field(default_factory=dict)
    retired: set[int] = field(default_factory=set)

    def of(self, request_id: str) -> Transaction:
        return self.transactions.setdefault(request_id, Transaction())


@dataclass
class Doom:
    """A crash that waits: after this many more steps of such a request."""

    of: str
    steps_left: int
    for_sec: float


class FakeNodeManager:
    """One Pod's NodeManager, the process and its journal."""

    def __init__(
        self,
        address: NodeManagerAddress,
        ranks: tuple[int, ...],
        group: Group,
        record: Record,
        rng: Random,
        *,
        engine_request_timeout_sec: float,
        engine_recovery_timeout_sec: float,
        engine_link_loss: float,
    ) -> None:
        self.address, self.name, self.ranks, self.group = address, str(address), ranks, group
        self.up = self.powered = True
        self.tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self.journal = Journal()
        self.doom: Doom | None = None
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._answered: dict[int, int] = {}
        self._record, self._rng = record, rng
        self._engine_request_timeout_sec = engine_request_timeout_sec
        self._engine_recovery_timeout_sec = engine_recovery_timeout_sec
        self._engine_link_loss = engine_link_loss

    def crash(self, for_sec: float) -> None:
        """Everything in memory is gone; the journal, and the engines, are there when it comes back."""
        if not self.up or not self.powered:
            return
        self._record.saw(OutageSeen(at=now(), process=f"node-manager/{self.name}", ended_at=now() + for_sec))
        self.up = False
        for task in (*self.tasks, *self._in_flight.values()):
            task.cancel()
        self._in_flight = {}
        asyncio.get_running_loop().call_later(for_sec, self._restart)

    def lose_power(self) -> None:
        self.crash(1e6)
        self.powered = False
        for rank in self.ranks:
            self.group.kill_process(rank)

    def holds(self, at: float) -> str | None:
        """The request id that owns the Pod at this time."""
        guard = self.journal.guard
        return guard.request_id if guard is not None and max(guard.expires_at, guard.held_until) > at else None

    async def status(self, ranks: tuple[int, ...]) -> tuple[RankEntry, ...]:
        await self._step()
        if not set(ranks) <= set(self.ranks):
            raise Refused(f"{self.name} does not own {ranks}", reason=NodeManagerReason.UNMANAGED_ENDPOINT)
        if any(self._must_wait_for(rank) for rank in ranks):
            await asyncio.sleep(self._engine_request_timeout_sec)
        return tuple(self._entry(rank) for rank in ranks)

    async def guard(self, request_id: str, lease_sec: float, generation: int) -> bool:
        """Returns whether the lease had lapsed."""
        await self._step()
        self._check_generation(generation)
        if self.journal.of(request_id).verdict is not None:
            raise Refused(f"{request_id} is finalized", reason=NodeManagerReason.VERDICT_KNOWN)
        self._check_holder(request_id)
        guard = self.journal.guard
        lapsed = guard is not None and guard.request_id == request_id and guard.expires_at <= now()
        held_until = guard.held_until if guard is not None and guard.request_id == request_id else 0.0
        self.journal.guard = Guard(request_id, now() + lease_sec, held_until)
        expires_at = max(now() + lease_sec, held_until)
        self._record.saw(GuardSeen(at=now(), manager=self.name, request_id=request_id, expires_at=expires_at))
        await self._step()
        return lapsed

    async def apply(
        self, request_id: str, ranks: tuple[int, ...], removed: tuple[int, ...], generation: int, margin_sec: float
    ) -> dict[int, int | None]:
        """Returns the engines' HTTP status, all 202; refuses otherwise."""
        await self._step("apply")
        transaction = self.journal.of(request_id)
        running = self._in_flight.get(request_id)
        if running is None:
            self._check_generation(generation)
            if transaction.verdict is not None:
                raise Refused(f"{request_id} is finalized", reason=NodeManagerReason.VERDICT_KNOWN)
            if transaction.intent is None:
                self._check_guard(request_id, margin_sec)
                self._check_identities(ranks)
                running = asyncio.get_running_loop().create_task(self._call_engines(request_id, ranks, removed))
                self._in_flight[request_id] = running
        if running is not None:
            await asyncio.wait((running,))
        if transaction.intent != (ranks, removed):
            raise Refused(f"{request_id} was sent with another body", reason=NodeManagerReason.BODY_DIFFERS)
        return self._outcome(transaction)

    async def finalize(
        self, request_id: str, commit: bool, retired: tuple[int, ...], dead_committed: tuple[int, ...], generation: int
    ) -> None:
        await self._step("finalize")
        transaction = self.journal.of(request_id)
        if transaction.verdict is not None:
            if transaction.verdict is not commit:
                raise Refused(f"{request_id} has the other verdict", reason=NodeManagerReason.VERDICT_DIFFERS)
            return
        if commit and generation < self.journal.generation:
            raise Refused(f"generation {generation} is old", reason=NodeManagerReason.STALE)
        self._see_generation(max(generation, self.journal.generation))
        transaction.verdict = commit
        self._record.saw(VerdictSeen(at=now(), manager=self.name, request_id=request_id, committed=commit))
        if commit:
            self.journal.retired |= set(retired)
            self._record.saw(CommitSeen(at=now(), request_id=request_id, ranks=frozenset(dead_committed)))
        self._release(request_id)
        await self._step("finalize")

    async def probe(self, ranks: tuple[int, ...], timeout_sec: float) -> dict[int, str | None]:
        """Per rank None, or what went wrong."""
        await self._step()
        answered = {rank: self.group.completes(rank) and not self.group.engines[rank].mute for rank in ranks}
        if not all(answered.values()):
            await asyncio.sleep(timeout_sec * 0.9)
        return {rank: None if ok else "HTTP 503" for rank, ok in answered.items()}

    def stop(self) -> None:
        """The Pod restarts: its engines are gone, a fresh NodeManager waits there, held."""
        for rank in self.ranks:
            self.group.kill_process(rank)
        self.crash(5.0)

    async def _step(self, of: str = "") -> None:
        """The time between two effects: here it can crash."""
        if self.doom is not None and self.doom.of == of:
            self.doom.steps_left -= 1
            if self.doom.steps_left < 0:
                for_sec, self.doom = self.doom.for_sec, None
                self.crash(for_sec)
        await asyncio.sleep(self._rng.random() * 0.004)

    def _restart(self) -> None:
        self.up = self.powered

    def _must_wait_for(self, rank: int) -> bool:
        engine = self.group.engines[rank]
        return rank not in self.journal.retired and engine.running and engine.worker_alive and engine.mute

    def _entry(self, rank: int) -> RankEntry:
        engine = self.group.engines[rank]
        self.journal.sequence += 1
        known = {"id": rank, "incarnation": engine.incarnation, "sequence": self.journal.sequence}
        if rank in self.journal.retired:
            return RankEntry(**known, status=EngineStatus.RETIRED)
        if not (engine.running and engine.worker_alive):
            exited = ProcessState.RUNNING if engine.running else ProcessState.EXITED
            return RankEntry(**known, status=EngineStatus.DEAD, source=EntrySource.PROCESS_EXIT, process=exited)
        if engine.mute:
            return RankEntry(**known, status=EngineStatus.UNKNOWN, source=EntrySource.POLL_ERROR)
        self._identify(rank)
        return RankEntry(
            **known,
            status=engine.status,
            ft_state=engine.ft_state,
            ft_error=engine.ft_error,
            last_ft_request_id=engine.last_ft_request_id,
        )

    def _identify(self, rank: int) -> None:
        """An engine that answers for another rank is nobody's."""
        answers_as = self.group.engines[rank].answers_as
        answered = rank if answers_as is None else answers_as
        if self._answered.get(rank) != answered:
            self._answered[rank] = answered
            self._record.saw(EngineIdSeen(at=now(), rank=rank, answered=answered))
        if answers_as is not None:
            raise Refused(f"engine {rank} answered as {answers_as}", reason=NodeManagerReason.ENGINE_PROTOCOL)

    async def _call_engines(self, request_id: str, ranks: tuple[int, ...], removed: tuple[int, ...]) -> None:
        """Intent, one call an engine, outcome. Nobody's disconnect ends it."""
        transaction = self.journal.of(request_id)
        transaction.intent = (ranks, removed)
        if self.journal.guard is not None:
            self.journal.guard.held_until = now() + self._engine_recovery_timeout_sec
            self._record.saw(
                GuardSeen(
                    at=now(),
                    manager=self.name,
                    request_id=request_id,
                    expires_at=max(self.journal.guard.expires_at, self.journal.guard.held_until),
                )
            )
        await self._step("apply")
        if transaction.verdict is not None:
            transaction.outcome = NodeManagerReason.ABORTED
            self._in_flight.pop(request_id, None)
            return
        told = await asyncio.gather(*(self._call(rank, request_id, removed) for rank in ranks))
        transaction.engines = dict(zip(ranks, told, strict=True))
        await self._step("apply")
        if all(http == 202 for http in told):
            transaction.outcome = "accepted"
        elif any(http not in (202, None) for http in told):
            transaction.outcome = NodeManagerReason.ENGINE_REFUSED
        else:
            transaction.outcome = NodeManagerReason.OUTCOME_UNKNOWN
        self._in_flight.pop(request_id, None)

    async def _call(self, rank: int, request_id: str, removed: tuple[int, ...]) -> int | None:
        """The one POST to one engine. None: no answer, and nobody knows whether it arrived."""
        await self._step("apply")
        engine = self.group.engines[rank]
        lost = self._rng.random() < self._engine_link_loss
        if not engine.running or engine.mute or (lost and self._rng.random() < 0.5):
            await asyncio.sleep(self._engine_request_timeout_sec)
            return None
        http = self.group.command(rank, request_id, frozenset(removed))
        await self._step("apply")
        return None if lost else http

    def _outcome(self, transaction: Transaction) -> dict[int, int | None]:
        if transaction.outcome is None:  # this life does not know what the last one did
            transaction.outcome = NodeManagerReason.OUTCOME_UNKNOWN
        if transaction.outcome == NodeManagerReason.OUTCOME_UNKNOWN:
            raise OutcomeUnknown(f"{self.name} does not know whether its engines were called")
        if transaction.outcome != "accepted":
            raise Refused(f"{self.name}: {transaction.engines}", reason=transaction.outcome)
        return dict(transaction.engines)

    def _check_generation(self, generation: int) -> None:
        if generation < self.journal.generation:
            raise Refused(f"generation {generation} is old", reason=NodeManagerReason.OLD_GENERATION)
        self._see_generation(generation)

    def _see_generation(self, generation: int) -> None:
        self.journal.generation = generation
        self._record.saw(GenerationSeen(at=now(), receiver=self.name, generation=generation))

    def _check_holder(self, request_id: str) -> None:
        holder = self.holds(now())
        if holder not in (None, request_id):
            raise Refused(f"{self.name} is guarded by {holder}", reason=NodeManagerReason.GUARD_HELD)

    def _check_guard(self, request_id: str, margin_sec: float) -> None:
        guard = self.journal.guard
        if self.holds(now()) != request_id or guard is None:
            raise Refused(f"{self.name} is not guarded by {request_id}", reason=NodeManagerReason.NOT_GUARDED)
        if guard.expires_at - now() < margin_sec:
            raise Refused(f"{guard.expires_at - now():.1f} s are left", reason=NodeManagerReason.LEASE_TOO_SHORT)

    def _check_identities(self, ranks: tuple[int, ...]) -> None:
        """An engine that was last heard under another rank is not called (I14)."""
        foreign = [rank for rank in ranks if self._answered.get(rank, rank) != rank]
        if foreign:
            raise Refused(f"engines {foreign} answered for other ranks", reason=NodeManagerReason.ENGINE_PROTOCOL)

    def _release(self, request_id: str) -> None:
        """Only its own guard; a stale id never releases a newer one."""
        if self.journal.guard is not None and self.journal.guard.request_id == request_id:
            self.journal.guard = None
            self._record.saw(GuardGone(at=now(), manager=self.name, request_id=request_id))
