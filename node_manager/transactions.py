"""Guard, apply, finalize: the rules of `domain.pod.fence`, carried out.

Every command is decided and recorded in one go, with no `await` in between, so two commands never decide on the same
state. Effects come after the record. An apply runs in a task of its own: a caller that goes away takes nothing with it,
and a repeated request waits for the same task.

    decide ── intent on disk ── (abort possible) ── all engines called at once ── outcome on disk ── answer

The engines are called concurrently because their recovery is a collective: one that answers only when all were called
must not wait for our loop. A crash leaves either no intent (nothing was called) or an intent without outcome, and that
stays unknown for ever.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from domain.engine import Instruction, scale_down_params
from domain.errors import AutotomyError, OutcomeUnknown, Refused, Transient
from domain.messages.node_manager import (
    ApplyReply,
    ApplyRequest,
    EngineApplied,
    FinalizeReply,
    FinalizeRequest,
    GuardRecord,
    GuardReply,
    GuardRequest,
    JournalReply,
    NodeManagerReason,
    TransactionRecord,
)
from domain.pod.fence import (
    Begin,
    Fences,
    Granted,
    Join,
    Refusal,
    Repeated,
    Replay,
    after_calls,
    after_guard,
    after_intent,
    after_verdict,
    decide_apply,
    decide_finalize,
    decide_guard,
    duplicates,
    raised,
    retiring,
    taken_over,
    voided_by_start,
)
from domain.pod.records import ACCEPTED, ApplyRecord, CallEnd, Transaction
from engine.client import ApplyAnswer, EngineCommand
from node_manager.boot_clock import Clock
from node_manager.journal import Journal
from service.failpoints import failpoint

log = logging.getLogger(__name__)


class CommandRefused(Refused):
    """A NodeManager's no, as it goes over the wire: `status` 502, or 400 and 404 where the contract says so."""

    def __init__(self, refusal: Refusal, *, status: int = 502) -> None:
        super().__init__(refusal.message, reason=refusal.reason.value)
        self.refusal = refusal
        self.status = status


class EnginePort(Protocol):
    """What transactions need of the Pod's engines."""

    @property
    def dp_master_port(self) -> int | None:
        """From the start command; None before it."""

    def unavailable(self, ranks: Collection[int]) -> dict[int, Refusal]:
        """Which of these ranks cannot be commanded (not ours, retired, process gone), and why."""

    async def apply(self, rank: int, command: EngineCommand) -> ApplyAnswer:
        """One call. Raises `Transient` or `Refused` (not delivered), `OutcomeUnknown`."""

    def own(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Those of these ranks that belong to this Pod; all of them while no start command says which do."""

    def retire(self, ranks: Collection[int]) -> None:
        """From now on these are no longer looked at, reported or counted."""


class Transactions:
    """The Pod's fences. `pause` is where drills stop it, and where tests crash it."""

    def __init__(
        self,
        journal: Journal,
        engines: EnginePort,
        *,
        clock: Clock,
        engine_recovery_timeout_sec: float,
        pause: Callable[[str], Awaitable[None]] = failpoint,
    ) -> None:
        self._journal = journal
        self._engines = engines
        self._clock = clock
        self._engine_recovery_timeout_sec = engine_recovery_timeout_sec
        self._pause = pause
        self._in_flight: dict[str, asyncio.Task[ApplyRecord]] = {}

    def recover(self) -> None:
        """After a start of this process: an intent without outcome is unknown, and stays so. Raises `JournalError`."""
        for transaction in self._journal.transactions():
            if transaction.apply is not None and transaction.apply.outcome is None:
                unknown = transaction.apply.model_copy(
                    update={
                        "outcome": NodeManagerReason.OUTCOME_UNKNOWN.value,
                        "message": "the NodeManager stopped between the intent and the engines' answers: never called again",
                    }
                )
                self._journal.commit(transactions=[transaction.model_copy(update={"apply": unknown})])
                log.error("apply with unknown outcome", extra={"request_id": transaction.request_id})

    async def guard(self, request: GuardRequest) -> GuardReply:
        """Takes or renews the Pod for this id. Raises `CommandRefused`, `JournalError`."""
        await self._pause("node-manager.before-guard")
        now = self._clock()
        decision = decide_guard(request, self._fences(request.request_id), now)
        if isinstance(decision, Refusal):
            raise CommandRefused(decision)
        self._record_guard(decision)
        await self._pause("node-manager.after-guard")
        left_sec = decision.guard.remaining_sec(self._clock())
        return GuardReply(status="guarded", expires_in_sec=left_sec, lapsed=decision.lapsed)

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """Calls these engines, each at most once under this id. Raises `CommandRefused`, `JournalError`."""
        await self._pause("node-manager.before-intent")
        fences, in_flight = self._fences(request.request_id), self._in_flight.get(request.request_id)
        command = self._command(request)
        decision = decide_apply(
            request,
            fences,
            self._clock(),
            in_flight=in_flight is not None,
            unavailable=self._engines.unavailable(request.endpoint_ids),
        )
        match decision:
            case Refusal():
                raise CommandRefused(decision)
            case Replay(record):
                return _answer(record)
            case Join():
                assert in_flight is not None
            case Begin():
                in_flight = self._begin(decision, command)
        return _answer(await asyncio.shield(in_flight))

    async def finalize(self, request: FinalizeRequest) -> FinalizeReply:
        """Records the verdict; a commit retires ranks. Raises `CommandRefused`, `JournalError`."""
        await self._pause("node-manager.before-verdict")
        decision = decide_finalize(request, self._fences(request.request_id))
        if isinstance(decision, Refusal):
            raise CommandRefused(decision)
        if isinstance(decision, Repeated):
            return FinalizeReply(status=decision.verdict.value)
        standing, dead = self._journal.standing, request.dead_committed or ()
        if decision.retire:
            leaving = {*request.retired_endpoint_ids, *standing.dead_committed, *dead}
            decision = decision.retiring(self._engines.own(leaving))
        standing, transaction = after_verdict(standing, decision, dead_committed=dead), decision.transaction
        self._journal.commit(standing=standing, transactions=[transaction])
        self._engines.retire(standing.retired)
        assert transaction.verdict is not None
        told = {"request_id": request.request_id, "verdict": transaction.verdict, "retired": list(standing.retired)}
        log.info("verdict", extra=told)
        await self._pause(f"node-manager.after-{'commit' if request.commit else 'abort'}")
        return FinalizeReply(status=transaction.verdict.value)

    def retire_committed(self, generation: int, dead_committed: Collection[int]) -> None:
        """What a heartbeat's reply tells: ranks that were committed elsewhere, unless the news is older than ours."""
        standing = self._journal.standing
        dead = {*standing.dead_committed, *dead_committed}
        if generation < standing.highest_generation or dead == set(standing.dead_committed):
            return
        standing = retiring(standing, self._engines.own(dead), dead)
        self._journal.commit(standing=standing)
        self._engines.retire(standing.retired)
        told = {"dead_committed": list(standing.dead_committed), "retired": list(standing.retired)}
        log.info("ranks committed elsewhere", extra=told)

    def raise_generation(self, generation: int) -> None:
        """Where nothing was started: commands that are older than what the Controller says now are refused from here on."""
        standing = self._journal.standing
        if generation > standing.highest_generation:
            self._journal.commit(standing=raised(standing, generation))

    def voided_by_start(self, generation: int) -> tuple[Transaction, ...]:
        """Open transactions that a start of `generation` ends, with the verdict that it gives them."""
        return voided_by_start(self._journal.transactions(), generation)

    @property
    def guard_live(self) -> bool:
        """Whether some round owns the Pod: then nothing here ends anything by itself."""
        guard = self._journal.standing.guard
        return guard is not None and guard.live(self._clock(), self._engine_recovery_timeout_sec)

    async def drain(self, limit_sec: float) -> None:
        """Waits for applies that run; what is not done by then will be unknown."""
        if self._in_flight:
            await asyncio.wait(self._in_flight.values(), timeout=limit_sec)

    def journal_reply(self, incarnation: str) -> JournalReply:
        """What the journal knows, for a FaultManager without memory. Raises `JournalError`."""
        standing, start, now = self._journal.standing, self._journal.start, self._clock()
        guard = standing.guard
        return JournalReply(
            incarnation=incarnation,
            instance_id=start.instance_id if start else None,
            highest_generation=standing.highest_generation,
            retired_ranks=standing.retired,
            dead_committed=standing.dead_committed,
            guard=GuardRecord(
                request_id=guard.request_id,
                generation=guard.generation,
                expires_in_sec=guard.remaining_sec(now),
                live=guard.live(now, self._engine_recovery_timeout_sec),
                applied=guard.applied_at is not None,
            )
            if guard
            else None,
            transactions=tuple(_transaction_record(t) for t in self._journal.transactions()),
            engines={str(e.rank): e.identity for e in self._journal.engines if not e.leftover},
        )

    def _fences(self, request_id: str) -> Fences:
        return Fences.of(self._journal.standing, self._journal.transaction(request_id), self._engine_recovery_timeout_sec)

    def _record_guard(self, granted: Granted) -> None:
        changed = [granted.transaction]
        displaced = self._journal.transaction(granted.displaced) if granted.displaced is not None else None
        if displaced is not None:
            changed.append(taken_over(displaced, granted))
        self._journal.commit(standing=after_guard(self._journal.standing, granted), transactions=changed)

    def _command(self, request: ApplyRequest) -> EngineCommand:
        """The request as the engines read it. Raises `CommandRefused` (400) where it cannot be meant."""
        named_twice, params = duplicates(request.endpoint_ids), request.params
        if named_twice:
            raise _malformed(f"endpoint_ids names {list(named_twice)} twice", NodeManagerReason.UNMANAGED_ENDPOINT)
        if request.instruction is Instruction.RETRY:
            return EngineCommand(Instruction.RETRY, {}, request.request_id)
        removed = sorted(set(params.removed_dp_ranks))
        receivers = sorted(set(removed) & set(request.endpoint_ids))
        if not removed or params.dp_master_ip is None or params.dp_master_rank is None:
            raise _malformed("scale_down needs params.removed_dp_ranks, dp_master_ip and dp_master_rank")
        if receivers or params.dp_master_rank in removed:
            raise _malformed(f"removed_dp_ranks {removed} holds a receiver {receivers} or dp_master_rank {params.dp_master_rank}")
        master_port = self._engines.dp_master_port
        if master_port is None:
            raise CommandRefused(Refusal(NodeManagerReason.NOT_STARTED, "no start command has named this Pod's endpoints yet"))
        store_port = master_port + params.dp_master_rank
        return EngineCommand(
            Instruction.SCALE_DOWN, scale_down_params(removed, params.dp_master_ip, store_port), request.request_id
        )

    def _begin(self, begin: Begin, command: EngineCommand) -> asyncio.Task[ApplyRecord]:
        transaction = begin.transaction
        assert transaction.apply is not None
        self._journal.commit(
            standing=after_intent(self._journal.standing, begin),
            transactions=[transaction],
            calls=[(transaction.request_id, rank) for rank in transaction.apply.body.endpoint_ids],
        )
        task = asyncio.create_task(self._carry_out(transaction.apply, command), name=f"apply {transaction.request_id}")
        self._in_flight[transaction.request_id] = task
        task.add_done_callback(lambda done: self._landed(transaction.request_id, done))
        return task

    def _landed(self, request_id: str, task: asyncio.Task[ApplyRecord]) -> None:
        self._in_flight.pop(request_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("apply ended without a recorded outcome", extra={"request_id": request_id, "why": str(error)})

    async def _carry_out(self, intent: ApplyRecord, command: EngineCommand) -> ApplyRecord:
        await self._pause("node-manager.after-intent")
        ranks = intent.body.endpoint_ids
        answers = await asyncio.gather(*(self._call(rank, command) for rank in ranks))
        record = _outcome(intent, dict(zip(ranks, answers, strict=True)))
        await self._pause("node-manager.before-outcome")
        current = self._journal.transaction(command.request_id)
        assert current is not None
        self._journal.commit(transactions=[current.model_copy(update={"apply": record})])
        log.info("apply", extra={"request_id": command.request_id, "outcome": record.outcome, "why": record.message})
        await self._pause("node-manager.after-outcome")
        return record

    async def _call(self, rank: int, command: EngineCommand) -> ApplyAnswer | AutotomyError:
        await self._pause("node-manager.before-engine-call")
        current = self._journal.transaction(command.request_id)
        if current is None or current.verdict is not None:
            return _Prevented(f"engine {rank} was not called: a verdict came first")
        try:
            return await self._engines.apply(rank, command)
        except (Transient, Refused, OutcomeUnknown) as error:
            return error


class _Prevented(Refused):
    """A verdict arrived between the intent and the call."""

    default_reason = NodeManagerReason.ABORTED.value


def _outcome(intent: ApplyRecord, answers: Mapping[int, ApplyAnswer | AutotomyError]) -> ApplyRecord:
    ends = {rank: _call_end(answer) for rank, answer in answers.items()}
    engines = {rank: _engine_applied(answer) for rank, answer in answers.items()}
    failed = (_words(rank, answer) for rank, answer in answers.items() if ends[rank] is not CallEnd.ACCEPTED)
    return after_calls(intent, ends, engines, "; ".join(failed))


def _call_end(answer: ApplyAnswer | AutotomyError) -> CallEnd:
    match answer:
        case ApplyAnswer():
            return CallEnd.ACCEPTED if answer.accepted else CallEnd.REFUSED
        case OutcomeUnknown():
            return CallEnd.UNKNOWN
        case _Prevented():
            return CallEnd.PREVENTED
        case _:
            return CallEnd.REFUSED


def _engine_applied(answer: ApplyAnswer | AutotomyError) -> EngineApplied:
    if isinstance(answer, ApplyAnswer):
        return EngineApplied(http=answer.http, message=answer.message or None)
    return EngineApplied(http=None, message=str(answer))


def _words(rank: int, answer: ApplyAnswer | AutotomyError) -> str:
    if isinstance(answer, ApplyAnswer):
        return f"engine {rank} answered {answer.http}, not 202: {answer.message}"
    return str(answer)


def _answer(record: ApplyRecord) -> ApplyReply:
    if record.outcome == ACCEPTED:
        return ApplyReply(status="accepted", engines=record.engines)
    assert record.outcome is not None
    raise CommandRefused(Refusal(NodeManagerReason(record.outcome), record.message, engines=record.engines))


def _malformed(message: str, reason: NodeManagerReason = NodeManagerReason.MALFORMED) -> CommandRefused:
    status = 400 if reason is NodeManagerReason.MALFORMED else 502
    return CommandRefused(Refusal(reason, message), status=status)


def _transaction_record(transaction: Transaction) -> TransactionRecord:
    applied = transaction.apply
    return TransactionRecord(
        request_id=transaction.request_id,
        generation=transaction.generation,
        guarded=transaction.guarded,
        apply_engines=applied.engines if applied else {},
        apply_outcome=applied.outcome if applied else None,
        instruction=applied.body.instruction.value if applied else None,
        removed_dp_ranks=applied.body.removed_dp_ranks if applied else (),
        verdict=transaction.verdict.value if transaction.verdict else None,
        retired_endpoint_ids=transaction.retired,
    )
