"""Which command may do what: the rules of contracts §2, as pure functions over what the journal knows.

Three fences keep a Pod from being pulled two ways. A **generation** only grows: whoever was overtaken is refused. A
**guard** makes one request id the owner of the Pod for the length of a lease. A **verdict**, committed or aborted, ends
a request id for good and stays as its tombstone: what arrives later under that id does nothing.

Inside a round one more rule stands: **an engine is called at most once per request id, ever**. The intent to call is
recorded before the call, so a repeated apply either joins the call that runs, or gets the recorded answer, or, where a
crash swallowed the answer, learns that nobody knows, for ever.

Refused commands change nothing, the highest generation included: a second round that is turned away must leave the
first one untouched.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from domain.engine import Instruction
from domain.messages.node_manager import (
    ApplyRequest,
    EngineApplied,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
)
from domain.model import Strict
from node_manager.boot_clock import BootTime

ACCEPTED = "accepted"
"""`ApplyRecord.outcome` where every engine answered 202; any other outcome is a `NodeManagerReason`."""


class Verdict(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"


class Guard(Strict):
    """Which request id took the Pod last, until when. It stays recorded after its lease; a verdict removes it."""

    request_id: str
    generation: int | None
    expires_at: BootTime
    applied_at: BootTime | None = None

    def remaining_sec(self, now: BootTime) -> float:
        """What is left of the lease; of another boot's lease, nothing."""
        return max(0.0, self.expires_at.sec - now.sec) if self.expires_at.boot == now.boot else 0.0

    def live(self, now: BootTime, engine_recovery_timeout_sec: float) -> bool:
        """Whether other ids are kept out: while the lease lasts, and between apply and verdict until the engines' own
        time is over, because until then nobody knows what they became."""
        if self.remaining_sec(now) > 0:
            return True
        applied = self.applied_at
        return applied is not None and applied.boot == now.boot and now.sec < applied.sec + engine_recovery_timeout_sec


class ApplyBody(Strict):
    """What makes two applies the same: everything but the margin, which belongs to the sending, in one order."""

    endpoint_ids: tuple[int, ...]
    instruction: Instruction
    removed_dp_ranks: tuple[int, ...]
    dp_master_ip: str | None
    dp_master_rank: int | None
    generation: int | None

    @classmethod
    def of(cls, request: ApplyRequest) -> "ApplyBody":
        return cls(
            endpoint_ids=tuple(sorted(request.endpoint_ids)),
            instruction=request.instruction,
            removed_dp_ranks=tuple(sorted(set(request.params.removed_dp_ranks))),
            dp_master_ip=request.params.dp_master_ip,
            dp_master_rank=request.params.dp_master_rank,
            generation=request.generation,
        )


class ApplyRecord(Strict):
    """One apply: `outcome` is None from the intent until the engines' answers are recorded."""

    body: ApplyBody
    outcome: str | None = None
    message: str = ""
    engines: dict[str, EngineApplied] = {}


class Transaction(Strict):
    """Everything under one request id. `taken_over_by`: the id that took the Pod after this one's lease had lapsed."""

    request_id: str
    generation: int | None = None
    guarded: bool = False
    taken_over_by: str | None = None
    apply: ApplyRecord | None = None
    verdict: Verdict | None = None
    retired: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """What the rules look at: the fences, and the transaction of the command's own request id."""

    highest_generation: int
    guard: Guard | None
    transaction: Transaction | None
    engine_recovery_timeout_sec: float

    def known(self, request_id: str) -> Transaction:
        return self.transaction or Transaction(request_id=request_id)

    def overtaken(self, generation: int | None) -> bool:
        return generation is not None and generation < self.highest_generation

    def raised(self, generation: int | None) -> int:
        return max(self.highest_generation, generation or 0)


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


@dataclass(frozen=True)
class Repeated:
    verdict: Verdict


def decide_guard(request: GuardRequest, ledger: Ledger, now: BootTime) -> Granted | Refusal:
    """May this id own the Pod, or go on owning it?"""
    transaction = ledger.known(request.request_id)
    if transaction.verdict is not None:
        return _verdict_known(transaction)
    if ledger.overtaken(request.generation):
        return _old_generation(request.generation, ledger)
    if transaction.taken_over_by is not None:
        return _held(transaction.taken_over_by, "took the Pod after this guard had lapsed")
    current = ledger.guard
    own = current is not None and current.request_id == request.request_id
    if current is not None and not own and current.live(now, ledger.engine_recovery_timeout_sec):
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


def decide_apply(
    request: ApplyRequest, ledger: Ledger, now: BootTime, *, in_flight: bool, unavailable: Mapping[int, Refusal]
) -> Begin | Join | Replay | Refusal:
    """May the engines be called, or were they already? `unavailable`: why an endpoint of this request cannot be called."""
    transaction = ledger.known(request.request_id)
    if transaction.verdict is not None:
        return _verdict_known(transaction)
    if ledger.overtaken(request.generation):
        return _old_generation(request.generation, ledger)
    body = ApplyBody.of(request)
    if transaction.apply is not None:
        return _applied_before(transaction.apply, body, request.request_id, in_flight)
    if unavailable:
        return _combined(unavailable)
    guard = ledger.guard
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


def decide_finalize(request: FinalizeRequest, ledger: Ledger) -> Settle | Repeated | Refusal:
    """May this verdict be recorded? An abort always may: under its own id it can only end what nobody else owns."""
    transaction = ledger.known(request.request_id)
    verdict = Verdict.COMMITTED if request.commit else Verdict.ABORTED
    if transaction.verdict is verdict:
        return Repeated(verdict)
    if transaction.verdict is not None:
        return Refusal(
            NodeManagerReason.VERDICT_DIFFERS, f"{request.request_id} was {transaction.verdict} already, it cannot be {verdict}"
        )
    own = ledger.guard is not None and ledger.guard.request_id == request.request_id
    if request.commit and (ledger.overtaken(request.generation) or (request.generation is None and not own)):
        return Refusal(
            NodeManagerReason.STALE,
            f"{request.request_id} commits generation {request.generation}, but {ledger.highest_generation} was seen here",
        )
    settled = transaction.model_copy(
        update={
            "verdict": verdict,
            "generation": request.generation if request.generation is not None else transaction.generation,
        }
    )
    proven = request.generation if request.commit or transaction.guarded else None
    return Settle(transaction=settled, retire=request.commit, release=own, generation=proven)


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


def voided_by_start(transaction: Transaction, generation: int) -> bool:
    """Whether a start of `generation` ends this open transaction: its instance was rebuilt under it."""
    return transaction.verdict is None and transaction.generation is not None and transaction.generation < generation


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


def _old_generation(generation: int | None, ledger: Ledger) -> Refusal:
    refusal = old_generation(generation, ledger.highest_generation)
    assert refusal is not None
    return refusal


def _held(holder: str, how: str) -> Refusal:
    return Refusal(NodeManagerReason.GUARD_HELD, f"{holder} {how}", holder=holder)
