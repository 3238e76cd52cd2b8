"""A NodeManager in virtual time: who may do what say the rules of `domain.pod.fence`, as they do to the real one.

What it has promised is in its journal, written before each effect; a crash takes everything else. It can crash between any
two steps: each of them is an await. Engines run in sessions of their own and live on.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

from domain.engine import EngineStatus, EntrySource, Instruction, ProcessState, RankEntry
from domain.errors import AutotomyError, OutcomeUnknown, Refused
from domain.messages.node_manager import (
    ApplyParams,
    ApplyRequest,
    EngineApplied,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
)
from domain.pod.fence import (
    Begin,
    Fences,
    Refusal,
    Repeated,
    Replay,
    Settle,
    after_calls,
    after_guard,
    after_intent,
    after_verdict,
    decide_apply,
    decide_finalize,
    decide_guard,
    taken_over,
)
from domain.pod.records import ACCEPTED, ApplyRecord, BootTime, CallEnd, Guard, PodStanding, Transaction
from domain.topology import NodeManagerAddress
from lab.oracle.observations import CommitSeen, EngineIdSeen, GenerationSeen, GuardGone, GuardSeen, OutageSeen, VerdictSeen
from tests.simulation.clock import now
from tests.simulation.engines import Group
from tests.simulation.record import Record


@dataclass
class Journal:
    """What survives a crash."""

    standing: PodStanding = field(default_factory=PodStanding)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    sequence: int = 0

    def write(self, standing: PodStanding, *transactions: Transaction) -> None:
        """In one go."""
        self.standing = standing
        self.transactions |= {transaction.request_id: transaction for transaction in transactions}


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
        self._in_flight: dict[str, asyncio.Task[ApplyRecord]] = {}
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

    def holds(self) -> str | None:
        """The request id that owns the Pod now."""
        guard = self.journal.standing.guard
        return guard.request_id if guard is not None and guard.live(_boot_time(), self._engine_recovery_timeout_sec) else None

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
        request = GuardRequest(request_id=request_id, lease_sec=lease_sec, generation=generation)
        granted = decide_guard(request, self._fences(request_id), _boot_time())
        if isinstance(granted, Refusal):
            raise self._refused(granted, request_id)
        displaced = self.journal.transactions.get(granted.displaced) if granted.displaced is not None else None
        ended = [taken_over(displaced, granted)] if displaced is not None else []
        self.journal.write(after_guard(self.journal.standing, granted), granted.transaction, *ended)
        self._saw_command(generation)
        self._saw_guard(granted.guard)
        await self._step()
        return granted.lapsed

    async def apply(
        self, request_id: str, ranks: tuple[int, ...], removed: tuple[int, ...], generation: int, margin_sec: float
    ) -> dict[int, int | None]:
        """Returns the engines' HTTP status, all 202; refuses otherwise."""
        await self._step("apply")
        params = ApplyParams(removed_dp_ranks=removed, dp_master_ip="10.0.0.1", dp_master_rank=min(ranks))
        request = ApplyRequest(
            endpoint_ids=ranks,
            instruction=Instruction.SCALE_DOWN,
            params=params,
            request_id=request_id,
            generation=generation,
            apply_margin_sec=margin_sec,
        )
        running = self._in_flight.get(request_id)
        decision = decide_apply(
            request,
            self._fences(request_id),
            _boot_time(),
            in_flight=running is not None,
            unavailable=self._unavailable(ranks),
        )
        match decision:
            case Refusal():
                raise self._refused(decision, request_id)
            case Replay(record):
                return self._answer(record)
            case Begin():
                running = self._begin(decision)
        assert running is not None
        await asyncio.wait((running,))
        return self._answer(running.result())

    async def finalize(
        self, request_id: str, commit: bool, retired: tuple[int, ...], dead_committed: tuple[int, ...], generation: int
    ) -> None:
        await self._step("finalize")
        request = FinalizeRequest(
            request_id=request_id,
            commit=commit,
            retired_endpoint_ids=retired,
            dead_committed=dead_committed,
            generation=generation,
        )
        decision = decide_finalize(request, self._fences(request_id))
        if isinstance(decision, Refusal):
            raise self._refused(decision, request_id)
        if isinstance(decision, Repeated):
            return
        self._settle(decision.retiring(retired) if decision.retire else decision, dead_committed)
        self._record.saw(VerdictSeen(at=now(), manager=self.name, request_id=request_id, committed=commit))
        if commit:
            self._saw_command(generation)
            self._record.saw(CommitSeen(at=now(), request_id=request_id, ranks=frozenset(dead_committed)))
        if decision.release:
            self._record.saw(GuardGone(at=now(), manager=self.name, request_id=request_id))
        await self._step("finalize")

    def _fences(self, request_id: str) -> Fences:
        """What the rules look at."""
        return Fences.of(self.journal.standing, self.journal.transactions.get(request_id), self._engine_recovery_timeout_sec)

    def _settle(self, settle: Settle, dead_committed: tuple[int, ...]) -> None:
        standing = after_verdict(self.journal.standing, settle, dead_committed=dead_committed)
        self.journal.write(standing, settle.transaction)

    def _begin(self, begin: Begin) -> "asyncio.Task[ApplyRecord]":
        """The intent is written, then the engines are called. Nobody's disconnect ends it."""
        self.journal.write(after_intent(self.journal.standing, begin), begin.transaction)
        assert begin.transaction.apply is not None
        request_id, intent = begin.transaction.request_id, begin.transaction.apply
        if intent.body.generation is not None:
            self._saw_command(intent.body.generation)
        self._saw_guard(begin.guard)
        running = asyncio.get_running_loop().create_task(self._call_engines(request_id, intent))
        self._in_flight[request_id] = running
        return running

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
        return rank not in self.journal.standing.retired and engine.running and engine.worker_alive and engine.mute

    def _entry(self, rank: int) -> RankEntry:
        engine = self.group.engines[rank]
        self.journal.sequence += 1
        known = {"id": rank, "incarnation": engine.incarnation, "sequence": self.journal.sequence}
        if rank in self.journal.standing.retired:
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

    async def _call_engines(self, request_id: str, intent: ApplyRecord) -> ApplyRecord:
        """One call an engine, then the outcome."""
        ranks, removed = intent.body.endpoint_ids, intent.body.removed_dp_ranks
        await self._step("apply")
        ends: dict[int, CallEnd] = dict.fromkeys(ranks, CallEnd.PREVENTED)
        engines: dict[int, EngineApplied] = {}
        if self.journal.transactions[request_id].verdict is None:
            told = await asyncio.gather(*(self._call(rank, request_id, removed) for rank in ranks))
            ends = {rank: _call_end(http) for rank, http in zip(ranks, told, strict=True)}
            engines = {rank: EngineApplied(http=http) for rank, http in zip(ranks, told, strict=True)}
            await self._step("apply")
        record = after_calls(intent, ends, engines, "")
        current = self.journal.transactions[request_id]
        self.journal.write(self.journal.standing, current.model_copy(update={"apply": record}))
        self._in_flight.pop(request_id, None)
        return record

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

    def _answer(self, record: ApplyRecord) -> dict[int, int | None]:
        if record.outcome == NodeManagerReason.OUTCOME_UNKNOWN:
            raise OutcomeUnknown(f"{self.name} does not know whether its engines were called")
        if record.outcome != ACCEPTED:
            raise Refused(f"{self.name}: {record.engines}", reason=record.outcome)
        return {int(rank): applied.http for rank, applied in record.engines.items()}

    def _unavailable(self, ranks: tuple[int, ...]) -> dict[int, Refusal]:
        """An engine that was last heard under another rank is not called (I14)."""
        foreign = (rank for rank in ranks if self._answered.get(rank, rank) != rank)
        return {rank: Refusal(NodeManagerReason.ENGINE_PROTOCOL, f"engine {rank} answered for another rank") for rank in foreign}

    def _refused(self, refusal: Refusal, request_id: str) -> AutotomyError:
        if refusal.reason is NodeManagerReason.OUTCOME_UNKNOWN:
            return OutcomeUnknown(f"{self.name}: {refusal.message}")
        return Refused(f"{self.name}, {request_id}: {refusal.message}", reason=refusal.reason)

    def _saw_command(self, generation: int) -> None:
        """One of this generation was taken."""
        self._record.saw(GenerationSeen(at=now(), receiver=self.name, generation=generation))

    def _saw_guard(self, guard: Guard) -> None:
        """Held until its lease is over, or after an apply until the engines' own time is."""
        held_until = guard.applied_at.sec + self._engine_recovery_timeout_sec if guard.applied_at is not None else 0.0
        expires_at = max(guard.expires_at.sec, held_until)
        self._record.saw(GuardSeen(at=now(), manager=self.name, request_id=guard.request_id, expires_at=expires_at))


def _boot_time() -> BootTime:
    return BootTime(boot="this boot", sec=now())


def _call_end(http: int | None) -> CallEnd:
    match http:
        case 202:
            return CallEnd.ACCEPTED
        case None:
            return CallEnd.UNKNOWN
        case _:
            return CallEnd.REFUSED
