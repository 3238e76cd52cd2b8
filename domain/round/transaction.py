"""The steps that a scale-down round and a fast recovery share: one transaction at the instance's NodeManagers (design §4).

    guard → look until ready → withdraw → one apply → look until recovered → a completion on each │ finalize → publish
                                                                                       commit point ┘

Everything before the *commit point* can be given up (an abort goes to every NodeManager where a guard was attempted),
nothing after it is ever rolled back. A step raises `TransactionStopped` when the transaction must end before it; what has
been learnt by then stands in the ledger.

A port that cannot do its job raises one of `domain.errors`; before the commit point that fails the transaction, after it
the step counts as not confirmed.
"""

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from domain.engine import ACCEPTED_HTTP, Instruction
from domain.errors import AutotomyError, OutcomeUnknown, Transient
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    FinalizeCall,
    FinalizeResult,
    GuardCall,
    GuardResult,
    ViewResult,
    WatchCall,
    WatchResult,
)
from domain.messages.strategy import RoundOutcome, RoundReason, TransactionOrder
from domain.round.ledger import TransactionLedger, TransactionStopped
from domain.runtime import FtPhase
from domain.strategy import StrategyPorts, listed
from domain.topology import NodeManagerAddress
from domain.watch import RecoveredWatch, Watch, WatchReason, WatchState

T = TypeVar("T")

AnyLedger = TransactionLedger[TransactionOrder]


class TransactionPorts(StrategyPorts, Protocol):
    """What a transaction needs of the world beyond what every strategy does. Each call is idempotent on the request id."""

    async def guard(self, call: GuardCall) -> GuardResult: ...

    async def look(self, call: WatchCall) -> WatchResult: ...

    async def apply(self, call: ApplyCall) -> ApplyResult: ...

    async def finalize(self, call: FinalizeCall) -> FinalizeResult: ...


async def guard_all(ledger: AnyLedger, ports: TransactionPorts) -> None:
    """Own every participant, headless members and dead-only Pods included."""
    ledger.check_stop()
    must, dead_only = ledger.participants()
    ledger.guard_attempted = (*must, *dead_only)
    result = await ports.guard(
        GuardCall(
            request_id=ledger.order.request_id,
            generation=ledger.order.generation,
            lease_sec=ledger.config.lease_sec,
            must=must,
            may_be_absent=dead_only,
            request_timeout_sec=ledger.config.request_timeout_sec,
            deadline_at=ledger.deadline(ledger.config.guard_deadline_sec),
        )
    )
    ledger.absent = {manager for manager in dead_only if manager not in result.guarded}
    ledger.unreachable = {manager for manager in ledger.guard_attempted if manager not in result.guarded}
    ledger.stage_done("guard")
    if result.refusals:
        raise TransactionStopped.by_peers(RoundReason.GUARD_REFUSED, result.refusals)
    unguarded = [str(manager) for manager in must if manager not in result.guarded]
    if unguarded:
        otherwise = f"no guard at {', '.join(unguarded)}"
        raise TransactionStopped.by_peers(RoundReason.GUARD_UNREACHABLE, result.unreachable, otherwise)


async def until_ready(ledger: AnyLedger, ports: TransactionPorts, waiting: FtPhase) -> None:
    """Looks until the engines take an instruction. `waiting` is the phase to report where they do not do so at once."""
    deadline_at, late = _ready_deadline(ledger, ports.now())
    verdict = await look(ledger, ports, ledger.watch, deadline_at, once=True)
    if verdict is WatchState.WAIT:
        ledger.say(waiting, ledger.last_detail)
        verdict = await look(ledger, ports, ledger.watch, deadline_at, once=False)
    ledger.stage_done("apply_ready")
    if verdict is WatchState.WAIT:
        raise TransactionStopped(late, ledger.last_detail)


async def withdraw(ledger: AnyLedger, ports: TransactionPorts) -> None:
    """No Coordinator routes to the instance any more, or the transaction ends before apply."""
    ledger.check_stop()
    ledger.view_revision = ledger.order.view_revision + 1
    ledger.withdrawn = True  # from here on it may have left, whatever the answer
    result = await ports.push_view(ledger.view_call(()))
    ledger.stage_done("withdraw")
    if not result.confirmed:
        raise TransactionStopped.by_peers(RoundReason.WITHDRAW_UNCONFIRMED, result.refusals)


def instruct(ledger: AnyLedger, instruction: Instruction) -> ApplyCall:
    """The call that sends an instruction without parameters to every survivor."""
    return ApplyCall(
        request_id=ledger.order.request_id,
        generation=ledger.order.generation,
        instruction=instruction,
        groups=ledger.survivor_groups,
        apply_margin_sec=ledger.config.apply_margin_sec,
        lease_sec=ledger.config.lease_sec,
        request_timeout_sec=ledger.config.request_timeout_sec,
        deadline_at=ledger.deadline(ledger.config.apply_deadline_sec),
    )


async def apply_once(ledger: AnyLedger, ports: TransactionPorts, call: ApplyCall) -> None:
    """The one apply. Whatever is re-sent, each engine is called at most once per request id (I1)."""
    try:
        result = await ports.apply(call)
    except (Transient, OutcomeUnknown) as error:
        raise TransactionStopped(RoundReason.APPLY_UNKNOWN, f"apply ended without an answer: {error.message}") from error
    ledger.applied = result.engines
    ledger.stage_done("apply")
    if result.refusals:
        raise TransactionStopped.by_peers(RoundReason.APPLY_REFUSED, (*result.refusals, *result.unknown))
    unaccepted = [rank for rank in ledger.survivors if result.engines.get(rank) != ACCEPTED_HTTP]
    if result.unknown or unaccepted or not result.accepted:
        otherwise = f"no 202 is known from ranks {unaccepted}"
        raise TransactionStopped.by_peers(RoundReason.APPLY_UNKNOWN, result.unknown, otherwise)


def recovered_watch(ledger: AnyLedger) -> RecoveredWatch:
    """The wait for the engines that are ready now to be healthy with nothing pending."""
    return RecoveredWatch(
        survivors=ledger.survivor_groups,
        request_id=ledger.order.request_id,
        incarnations={rank: ledger.watch.entries[rank].incarnation for rank in ledger.survivors},
    )


async def until_recovered(ledger: AnyLedger, ports: TransactionPorts, watch: RecoveredWatch) -> None:
    """Every survivor is healthy and has nothing pending."""
    verdict = await look(ledger, ports, watch, ledger.deadline(ledger.config.execution_deadline_sec), once=False)
    ledger.stage_done("recover")
    if verdict is WatchState.WAIT:
        raise TransactionStopped(RoundReason.NOT_RECOVERED_IN_TIME, ledger.last_detail)


async def verify(ledger: AnyLedger, ports: TransactionPorts) -> None:
    """One completion on each survivor ▲. The end of this step is the commit point: never roll back below it."""
    if ledger.config.verify_inference:
        ledger.check_stop()
        result = await ports.verify(ledger.verify_call(ledger.survivor_groups))
        ledger.stage_done("verify")
        missing = sorted(set(ledger.survivors) - set(result.ok))
        if missing:
            told = ", ".join(f"rank {rank}: {result.failed.get(rank, 'no answer')}" for rank in missing)
            raise TransactionStopped(RoundReason.VERIFY_FAILED, f"no completion from {told}")
    ledger.committed = True


async def abort(ledger: AnyLedger, stop: TransactionStopped, ports: TransactionPorts) -> str:
    """Gives the verdict "aborted" wherever a guard was attempted; whoever cannot be reached lets it expire.

    Returns the stop's detail, with what went wrong with the abort.
    """
    detail, ledger.refusals = stop.detail, stop.refusals
    if ledger.guard_attempted:
        try:
            result = await ports.finalize(_finalize_call(ledger, ledger.guard_attempted, commit=False))
        except AutotomyError as error:
            detail += f"; the abort could not be sent: {error.message}"
        else:
            if result.pending:
                detail += f"; not reached by the abort (their guard expires): {', '.join(map(str, result.pending))}"
            if result.refusals:
                detail += f"; the abort was refused by {listed(result.refusals)}"
        ledger.stage_done("abort")
    return detail


async def finalize(ledger: AnyLedger, ports: TransactionPorts) -> None:
    """Commits at every participant, for no longer than a request may take: publishing does not wait for the late ones."""
    await _finalize(ledger, ports, ledger.lease().managers, ledger.config.request_timeout_sec)
    ledger.pending_finalize.extend(ledger.absent)
    ledger.stage_done("finalize")


async def publish(ledger: AnyLedger, ports: TransactionPorts) -> None:
    """The survivors are routed to again. Where that cannot be confirmed, the FaultManager goes on pushing.

    While an L3 isolation stands the view stays withdrawn: the FaultManager publishes when it was cleared.
    """
    if ledger.order.isolated:
        ledger.last_detail = "an L3 isolation stands: the view stays withdrawn"
        return
    ledger.view_revision = ledger.order.view_revision + 2
    result = await unless_failing(ports.push_view(ledger.view_call(ledger.survivors)), ViewResult(confirmed=False))
    ledger.published = result.confirmed
    ledger.last_detail = "" if result.confirmed else f"the view is not confirmed: {listed(result.refusals)}"
    ledger.stage_done("publish")


async def finalize_the_late(ledger: AnyLedger, ports: TransactionPorts) -> None:
    """Survivors' NodeManagers that did not finalize before ADD get the rest of finalize_deadline_sec."""
    late = tuple(manager for manager in ledger.pending_finalize if manager not in ledger.absent)
    if late:
        ledger.pending_finalize = [manager for manager in ledger.pending_finalize if manager in ledger.absent]
        await _finalize(ledger, ports, late, max(1.0, ledger.config.finalize_deadline_sec - ledger.config.request_timeout_sec))
        ledger.stage_done("finalize_late")


async def _finalize(
    ledger: AnyLedger, ports: TransactionPorts, managers: tuple[NodeManagerAddress, ...], within_sec: float
) -> None:
    """Commits at these NodeManagers; who did not take it is left in `pending_finalize`."""
    call = _finalize_call(ledger, managers, commit=True, within_sec=within_sec)
    result = await unless_failing(ports.finalize(call), FinalizeResult(pending=managers))
    ledger.pending_finalize.extend(manager for manager in managers if manager not in result.done)


async def look(ledger: AnyLedger, ports: TransactionPorts, watch: Watch, deadline_at: float, *, once: bool) -> WatchState:
    """One look; its findings go to the ledger. Raises `TransactionStopped` on every verdict but `DONE` and `WAIT`."""
    ledger.check_stop()
    result = await ports.look(
        WatchCall(
            instance_id=ledger.order.instance_id,
            request_id=ledger.order.request_id,
            generation=ledger.order.generation,
            watch=watch,
            once=once,
            poll_interval_sec=ledger.config.fault_poll_interval_sec,
            request_timeout_sec=ledger.config.request_timeout_sec,
            deadline_at=deadline_at,
            lease=ledger.lease(),
        )
    )
    observation = result.observation
    ledger.last_detail = observation.detail
    ledger.note(result.watch)
    if result.lost_guard is not None:
        raise TransactionStopped.by_peers(RoundReason.GUARD_LOST, (result.lost_guard,))
    if observation.verdict is WatchState.ABANDONED:
        reason = _WATCH_REASONS[observation.reason or WatchReason.FALSE_ALARM]
        raise TransactionStopped(reason, observation.detail, RoundOutcome.ABANDONED)
    if observation.verdict is WatchState.FAILED:
        raise TransactionStopped(_WATCH_REASONS[observation.reason or WatchReason.ENGINE_FAILED], observation.detail)
    ledger.check_stop()
    return observation.verdict


_WATCH_REASONS = {reason: RoundReason(reason.value) for reason in WatchReason}


def _ready_deadline(ledger: AnyLedger, now: float) -> tuple[float, RoundReason]:
    """When the wait for readiness ends, and what it then means (design §4, step 5).

    Engines exit by themselves `engine_recovery_timeout_sec` after their own fault, and an apply does not extend it: half an
    execution deadline must be left for the recovery.
    """
    own = now + ledger.config.execution_deadline_sec
    capability = ledger.topology.ft_capability
    noticed = [at for rank, at in ledger.order.first_unhealthy_at.items() if rank in ledger.survivors]
    if capability is None or not noticed:
        return own, RoundReason.NOT_READY_IN_TIME
    engines = min(noticed) + capability.engine_recovery_timeout_sec - ledger.config.execution_deadline_sec / 2
    return (own, RoundReason.NOT_READY_IN_TIME) if own <= engines else (engines, RoundReason.ENGINES_TIME_OVER)


def _finalize_call(
    ledger: AnyLedger, managers: tuple[NodeManagerAddress, ...], *, commit: bool, within_sec: float | None = None
) -> FinalizeCall:
    return FinalizeCall(
        request_id=ledger.order.request_id,
        generation=ledger.order.generation,
        commit=commit,
        managers=managers,
        retired=ledger.retired_groups() if commit else (),
        dead_committed=ledger.removed if commit else ledger.order.dead_committed,
        request_timeout_sec=ledger.config.request_timeout_sec,
        deadline_at=ledger.deadline(within_sec if within_sec is not None else ledger.config.finalize_deadline_sec),
        once=tuple(manager for manager in managers if manager in ledger.unreachable | ledger.absent),
    )


async def unless_failing(awaitable: Awaitable[T], otherwise: T) -> T:
    """After the commit point a failing port changes nothing: its step counts as not confirmed."""
    try:
        return await awaitable
    except AutotomyError:
        return otherwise
