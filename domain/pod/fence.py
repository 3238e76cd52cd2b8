"""Which command may do what: the rules of contracts §2, as pure functions over what the journal knows.

Three fences keep a Pod from being pulled two ways. A **generation** only grows: whoever was overtaken is refused. A
**guard** makes one request id the owner of the Pod for the length of a lease. A **verdict**, committed or aborted, ends
a request id for good and stays as its tombstone: what arrives later under that id does nothing.

Inside a round one more rule stands: **an engine is called at most once per request id, ever**. The intent to call is
recorded before the call, so a repeated apply either joins the call that runs, or gets the recorded answer, or, where a
crash swallowed the answer, learns that nobody knows, for ever.

Refused commands change nothing, the highest generation included: a second round that is turned away must leave the
first one untouched.

A `decide_…` says what may be done, an `after_…` what the Pod knows once it was. Who keeps that, and how durably, is another
matter: a NodeManager's journal, the simulation and the benchmark's played Pods all ask here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from domain.messages.node_manager import (
    ApplyRequest,
    EngineApplied,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
)
from domain.pod.records import (
    ACCEPTED,
    ApplyBody,
    ApplyRecord,
    BootTime,
    CallEnd,
    Guard,
    PodStanding,
    Transaction,
    Verdict,
)

S = TypeVar("S", bound=PodStanding)


@dataclass(frozen=True)
class Fences:
    """What the rules look at: the fences, and the transaction of the command's own request id."""

    highest_generation: int
    guard: Guard | None
    transaction: Transaction | None
    engine_recovery_timeout_sec: float

    @classmethod
    def of(cls, standing: PodStanding, transaction: Transaction | None, engine_recovery_timeout_sec: float) -> "Fences":
        return cls(standing.highest_generation, standing.guard, transaction, engine_recovery_timeout_sec)

    def known(self, request_id: str) -> Transaction:
        return self.transaction or Transaction(request_id=request_id)

    def overtaken(self, generation: int | None) -> bool:
        return generation is not None and generation < self.highest_generation


@dataclass(frozen=True)
class Refusal:
    """No, and why. `holder`: the id that has the Pod; `engines`: which engines stand in the way."""

    reason: NodeManagerReason
    message: str
    holder: str | None = None
    engines: Mapping[str, EngineApplied] | None = None


@dataclass(frozen=True)
class Granted:
    guard: Guard
    transaction: Transaction
    lapsed: bool
    displaced: str | None  # the request id whose lapsed guard this one replaces


@dataclass(frozen=True)
class Begin:
    """Nobody was called under this id yet: record the intent, then call."""

    guard: Guard
    transaction: Transaction


@dataclass(frozen=True)
class Join:
    """The engines are being called under this id right now: wait for that."""


@dataclass(frozen=True)
class Replay:
    """The engines were called: the recorded answer, again."""

    record: ApplyRecord


@dataclass(frozen=True)
class Settle:
    """A verdict to record. `retire`: the ranks leave the group here; `release`: the guard is this id's own.

    `generation`: what the verdict proves of the instance that owns the Pod. Nothing, for the abort of a round that never
    had the Pod: it may be another instance's (a reused address), whose generations are not comparable with the owner's.
    """

    transaction: Transaction
    retire: bool
    release: bool
    generation: int | None

    def retiring(self, leaving: Collection[int]) -> "Settle":
        """The same, with the ranks of this Pod that leave by it."""
        return replace(self, transaction=self.transaction.model_copy(update={"retired": tuple(leaving)}))


@dataclass(frozen=True)
class Repeated:
    verdict: Verdict


def decide_guard(request: GuardRequest, fences: Fences, now: BootTime) -> Granted | Refusal:
    """May this id own the Pod, or go on owning it?"""
    transaction = fences.known(request.request_id)
    if transaction.verdict is not None:
        return _verdict_known(transaction)
    if fences.overtaken(request.generation):
        return _old_generation(request.generation, fences)
    if transaction.taken_over_by is not None:
        return _held(transaction.taken_over_by, "took the Pod after this guard had lapsed")
    current = fences.guard
    own = current is not None and current.request_id == request.request_id
    if current is not None and not own and current.live(now, fences.engine_recovery_timeout_sec):
        return _held(current.request_id, f"owns the Pod for another {current.remaining_sec(now):.1f} s at least")
    guard = Guard(
        request_id=request.request_id,
        generation=request.generation,
        expires_at=BootTime(boot=now.boot, sec=now.sec + request.lease_sec),
        applied_at=current.applied_at if own and current is not None else None,
    )
    return Granted(
        guard=guard,
        transaction=transaction.model_copy(update={"guarded": True, "generation": request.generation}),
        lapsed=own and current is not None and current.remaining_sec(now) == 0,
        displaced=current.request_id if current is not None and not own else None,
    )


def after_guard(standing: S, granted: Granted) -> S:
    """The Pod is this id's."""
    return raised(standing, granted.guard.generation).model_copy(update={"guard": granted.guard})


def taken_over(displaced: Transaction, granted: Granted) -> Transaction:
    """What becomes of the transaction whose lapsed guard was replaced: it does not get the Pod back."""
    return displaced.model_copy(update={"taken_over_by": granted.guard.request_id})


def decide_apply(
    request: ApplyRequest, fences: Fences, now: BootTime, *, in_flight: bool, unavailable: Mapping[int, Refusal]
) -> Begin | Join | Replay | Refusal:
    """May the engines be called, or were they already? `unavailable`: why an endpoint of this request cannot be called."""
    transaction = fences.known(request.request_id)
    if transaction.verdict is not None:
        return _verdict_known(transaction)
    if fences.overtaken(request.generation):
        return _old_generation(request.generation, fences)
    body = ApplyBody.of(request)
    if transaction.apply is not None:
        return _applied_before(transaction.apply, body, request.request_id, in_flight)
    if unavailable:
        return _combined(unavailable)
    guard = fences.guard
    if guard is None or guard.request_id != request.request_id or guard.remaining_sec(now) == 0:
        holder = guard.request_id if guard is not None and guard.remaining_sec(now) > 0 else None
        return Refusal(NodeManagerReason.NOT_GUARDED, f"no live guard of {request.request_id}: guard first", holder=holder)
    left_sec, wanted_sec = guard.remaining_sec(now), request.apply_margin_sec or 0.0
    if left_sec < wanted_sec:
        return Refusal(
            NodeManagerReason.LEASE_TOO_SHORT,
            f"{left_sec:.1f} s of the lease are left, {wanted_sec:g} are wanted: renew it first",
        )
    return Begin(
        guard=guard.model_copy(update={"applied_at": now}),
        transaction=transaction.model_copy(update={"apply": ApplyRecord(body=body)}),
    )


def after_intent(standing: S, begin: Begin) -> S:
    """Engines may have been called from here on: the guard outlives its lease."""
    assert begin.transaction.apply is not None
    return raised(standing, begin.transaction.apply.body.generation).model_copy(update={"guard": begin.guard})


def after_calls(intent: ApplyRecord, ends: Mapping[int, CallEnd], engines: Mapping[int, EngineApplied], why: str) -> ApplyRecord:
    """The outcome of an apply: one call of which nobody knows makes all of it unknown."""
    if CallEnd.UNKNOWN in ends.values():
        outcome = NodeManagerReason.OUTCOME_UNKNOWN.value
    elif all(end is CallEnd.ACCEPTED for end in ends.values()):
        outcome = ACCEPTED
    elif all(end is CallEnd.PREVENTED for end in ends.values()):
        outcome = NodeManagerReason.ABORTED.value
    else:
        outcome = NodeManagerReason.ENGINE_REFUSED.value
    told = {str(rank): applied for rank, applied in engines.items()}
    return intent.model_copy(update={"outcome": outcome, "engines": told, "message": why})


def decide_finalize(request: FinalizeRequest, fences: Fences) -> Settle | Repeated | Refusal:
    """May this verdict be recorded? An abort always may: under its own id it can only end what nobody else owns."""
    transaction = fences.known(request.request_id)
    verdict = Verdict.COMMITTED if request.commit else Verdict.ABORTED
    if transaction.verdict is verdict:
        return Repeated(verdict)
    if transaction.verdict is not None:
        return Refusal(
            NodeManagerReason.VERDICT_DIFFERS, f"{request.request_id} was {transaction.verdict} already, it cannot be {verdict}"
        )
    own = fences.guard is not None and fences.guard.request_id == request.request_id
    if request.commit and (fences.overtaken(request.generation) or (request.generation is None and not own)):
        return Refusal(
            NodeManagerReason.STALE,
            f"{request.request_id} commits generation {request.generation}, but {fences.highest_generation} was seen here",
        )
    settled = transaction.model_copy(
        update={
            "verdict": verdict,
            "generation": request.generation if request.generation is not None else transaction.generation,
        }
    )
    proven = request.generation if request.commit or transaction.guarded else None
    return Settle(transaction=settled, retire=request.commit, release=own, generation=proven)


def after_verdict(standing: S, settle: Settle, *, dead_committed: Collection[int] = ()) -> S:
    """A verdict is recorded. A commit retires ranks, and names all that have left the instance."""
    guard = None if settle.release else standing.guard
    known = raised(standing, settle.generation).model_copy(update={"guard": guard})
    return retiring(known, settle.transaction.retired, dead_committed) if settle.retire else known


def retiring(standing: S, leaving: Collection[int], dead_committed: Collection[int]) -> S:
    """These ranks of this Pod have left the group, those of the whole instance."""
    retired, dead = {*standing.retired, *leaving}, {*standing.dead_committed, *dead_committed}
    return standing.model_copy(update={"retired": tuple(sorted(retired)), "dead_committed": tuple(sorted(dead))})


def after_start(
    standing: S, generation: int, *, own: Collection[int], dead_committed: Collection[int], voided: Collection[Transaction]
) -> S:
    """A start of this generation: its instance begins anew here. `own`: this Pod's ranks; `voided`: what the start ended."""
    ended = {transaction.request_id for transaction in voided}
    guard = standing.guard if standing.guard is not None and standing.guard.request_id not in ended else None
    fresh = standing.model_copy(update={"highest_generation": generation, "guard": guard, "retired": (), "dead_committed": ()})
    return retiring(fresh, set(own) & set(dead_committed), dead_committed)


def raised(standing: S, generation: int | None) -> S:
    """A command of this generation was taken."""
    return standing.model_copy(update={"highest_generation": max(standing.highest_generation, generation or 0)})


def old_generation(generation: int | None, highest: int) -> Refusal | None:
    """The fence of start, stop and engine-restart."""
    if generation is not None and generation < highest:
        return Refusal(NodeManagerReason.OLD_GENERATION, f"generation {generation} is over: generation {highest} was seen here")
    return None


def other_instance(instance_id: int | None, owner: int | None) -> Refusal | None:
    """The fence between instances, whose generations cannot be compared. `owner`: whose engines run here; None: nobody's."""
    if instance_id is None or owner is None or instance_id == owner:
        return None
    why = f"engines of instance {owner} run here, instance {instance_id} may not touch them: stop instance {owner} first"
    return Refusal(NodeManagerReason.OTHER_INSTANCE, why)


def voided_by_start(transactions: Iterable[Transaction], generation: int) -> tuple[Transaction, ...]:
    """The open transactions that a start of `generation` ends, with the verdict that it gives them."""
    older = (t for t in transactions if t.verdict is None and t.generation is not None and t.generation < generation)
    return tuple(t.model_copy(update={"verdict": Verdict.ABORTED}) for t in older)


def duplicates(ranks: Collection[int]) -> tuple[int, ...]:
    """The ranks that are named more than once."""
    seen: set[int] = set()
    return tuple(sorted({rank for rank in ranks if rank in seen or seen.add(rank)}))  # type: ignore[func-returns-value]


def _applied_before(record: ApplyRecord, body: ApplyBody, request_id: str, in_flight: bool) -> Join | Replay | Refusal:
    if record.body != body:
        return Refusal(NodeManagerReason.BODY_DIFFERS, f"{request_id} was applied with another body: {record.body!r}")
    if record.outcome is not None:
        return Replay(record)
    if in_flight:
        return Join()
    return Refusal(
        NodeManagerReason.OUTCOME_UNKNOWN,
        f"restarted between the intent and the engines' answers of {request_id}: nobody knows, it is never called again",
        engines=record.engines,
    )


def _combined(unavailable: Mapping[int, Refusal]) -> Refusal:
    first = next(iter(unavailable.values()))
    engines = {str(rank): EngineApplied(http=None, message=refusal.message) for rank, refusal in unavailable.items()}
    return Refusal(first.reason, "; ".join(refusal.message for refusal in unavailable.values()), engines=engines)


def _verdict_known(transaction: Transaction) -> Refusal:
    return Refusal(NodeManagerReason.VERDICT_KNOWN, f"{transaction.request_id} was {transaction.verdict} already")


def _old_generation(generation: int | None, fences: Fences) -> Refusal:
    refusal = old_generation(generation, fences.highest_generation)
    assert refusal is not None
    return refusal


def _held(holder: str, how: str) -> Refusal:
    return Refusal(NodeManagerReason.GUARD_HELD, f"{holder} {how}", holder=holder)
