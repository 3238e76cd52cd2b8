"""One scale-down round, from the gate to the published view (RFC §5, design §4).

A round is one transaction: everything before the *commit point* can be given up (an abort goes to every NodeManager where
a guard was attempted), nothing after it is ever rolled back. The commit point is the end of the verification: the
survivors have recovered and have answered a request.

`run_round` is plain asyncio over `RoundPorts`; three worlds drive it: the `ScaleDownRound` workflow (ports = activities),
the simulation (virtual clock, fake NodeManagers) and the benchmark's bare loop (ports = HTTP). It reads no clock but the
ports', and it is never cancelled in the middle of an await: who wants it stopped says so through `ports.stop_requested`,
which is looked at before each step that matters. So a stop comes before the commit point or not at all.

A port that cannot do its job raises one of `domain.errors`; before the commit point that fails the round, after it the
step counts as not confirmed.
"""

from collections.abc import Awaitable, Iterable
from typing import Final, Protocol, TypeVar

from domain.errors import AutotomyError, OutcomeUnknown, Transient
from domain.gate import gate
from domain.ledger import RoundLedger, RoundStopped
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    CommitRecord,
    FinalizeCall,
    FinalizeResult,
    GuardCall,
    GuardResult,
    LookCall,
    LookResult,
    PeerRefusal,
    RoundOrder,
    RoundOutcome,
    RoundReason,
    RoundReport,
    StepReport,
    StopPodsCall,
    VerifyCall,
    VerifyResult,
    ViewCall,
    ViewResult,
)
from domain.runtime import FtPhase
from domain.topology import NodeManagerAddress
from domain.watch import ApplyReadyWatch, LookReason, LookVerdict, RecoveredWatch

T = TypeVar("T")

ACCEPTED: Final = 202
"""The one HTTP status with which an engine takes a command; 200 is a refusal (contracts §1)."""


class RoundPorts(Protocol):
    """What a round needs of the world. Calls may take long, never for ever; each is idempotent on the request id."""

    def now(self) -> float:
        """Seconds since the epoch by this world's clock."""

    def stop_requested(self) -> bool:
        """Somebody wants the round to end; from then on `look` returns early."""

    def progress(self, report: StepReport) -> None:
        """Tell the FaultManager; not awaited, may arrive late or never."""

    def stop_pods(self, call: StopPodsCall) -> None:
        """Start the stop of emptied Pods and do not wait for it."""

    async def guard(self, call: GuardCall) -> GuardResult: ...

    async def look(self, call: LookCall) -> LookResult: ...

    async def withdraw(self, call: ViewCall) -> ViewResult: ...

    async def apply(self, call: ApplyCall) -> ApplyResult: ...

    async def verify(self, call: VerifyCall) -> VerifyResult: ...

    async def record_commit(self, record: CommitRecord) -> bool: ...

    async def finalize(self, call: FinalizeCall) -> FinalizeResult: ...

    async def publish(self, call: ViewCall) -> ViewResult: ...


async def run_round(order: RoundOrder, ports: RoundPorts) -> RoundReport:
    """Runs one scale-down transaction to its end and reports it."""
    ledger = RoundLedger(order, ports)
    if set(order.pending_ranks) <= set(order.dead_committed):
        return ledger.already_committed()
    try:
        admit(ledger)  # gate and order: refuse before touching anything
        await guard_all(ledger, ports)  # from here on, somebody must give a verdict
        await until_apply_ready(ledger, ports)
        await withdraw(ledger, ports)
        await apply_once(ledger, ports)
        await until_recovered(ledger, ports)
        await verify(ledger, ports)  # its completion is the commit point: never roll back below this line
    except RoundStopped as stop:
        return await abort(ledger, stop, ports)
    except AutotomyError as error:
        return await abort(ledger, RoundStopped(RoundReason.PORT_FAILED, error.message), ports)
    await commit(ledger, ports)
    await publish(ledger, ports)
    await finalize_the_late(ledger, ports)
    return ledger.report(RoundOutcome.SUCCEEDED, RoundReason.COMMITTED, ledger.last_observed)


def admit(ledger: RoundLedger) -> None:
    """Steps 2 and 3: the gate, and an order that fits its topology. Nothing has been touched yet."""
    order = ledger.order
    ledger.say(FtPhase.DECIDING, f"removing ranks {list(order.pending_ranks)}")
    foreign = sorted(set(order.pending_ranks) - set(order.topology.ranks))
    if foreign:
        raise RoundStopped(RoundReason.BAD_ORDER, f"ranks {foreign} are not ranks of instance {order.instance_id}")
    ledger.gate = gate(
        order.config,
        order.topology.ft_capability,
        len(ledger.survivors),
        capability_consistent=order.capability_consistent,
    )
    if not ledger.gate.allowed:
        raise RoundStopped(RoundReason.GATE_REFUSED, "the gate refuses: " + ", ".join(ledger.gate.reason_codes))


async def guard_all(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 4: own every participant, headless members and dead-only Pods included."""
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
    ledger.watch = ledger.watch.with_absent(ledger.absent)
    ledger.unreachable = {manager for manager in ledger.guard_attempted if manager not in result.guarded}
    ledger.stage_done("guard")
    if result.refusals:
        raise RoundStopped(RoundReason.GUARD_REFUSED, _listed(result.refusals))
    unguarded = [str(manager) for manager in must if manager not in result.guarded]
    if unguarded:
        raise RoundStopped(RoundReason.GUARD_UNREACHABLE, _listed(result.unreachable) or f"no guard at {', '.join(unguarded)}")


async def until_apply_ready(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 5: every survivor takes an instruction, every rank to be removed is confirmed dead, late deaths are absorbed."""
    deadline_at, late = _apply_ready_deadline(ledger, ports.now())
    verdict = await _look(ledger, ports, ledger.watch, deadline_at, once=True)
    if verdict is LookVerdict.WAIT:
        ledger.say(FtPhase.WAITING_ENGINE_FAULT, ledger.last_observed)
        verdict = await _look(ledger, ports, ledger.watch, deadline_at, once=False)
    ledger.stage_done("apply_ready")
    if verdict is LookVerdict.WAIT:
        raise RoundStopped(late, ledger.last_observed)
    if len(ledger.survivors) < ledger.order.config.min_alive_ranks:
        raise RoundStopped(
            RoundReason.NO_SURVIVOR,
            f"{len(ledger.survivors)} survivors are fewer than min_alive_ranks={ledger.order.config.min_alive_ranks}",
        )


async def withdraw(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 6: no Coordinator routes to the instance any more, or the round ends before apply."""
    ledger.check_stop()
    ledger.view_revision = ledger.order.view_revision + 1
    ledger.withdrawn = True  # from here on it may have left, whatever the answer
    result = await ports.withdraw(_view(ledger, ranks=()))
    ledger.stage_done("withdraw")
    if not result.confirmed:
        raise RoundStopped(RoundReason.WITHDRAW_UNCONFIRMED, _listed(result.refusals))


async def apply_once(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 7: the one apply. Whatever is re-sent, each engine is called at most once per request id (I1)."""
    ledger.check_stop()
    ledger.say(FtPhase.SCALING_DOWN, f"apply scale_down {list(ledger.removed)} to ranks {list(ledger.survivors)}")
    master = ledger.topology.endpoint(min(ledger.survivors))
    call = ApplyCall(
        request_id=ledger.order.request_id,
        generation=ledger.order.generation,
        groups=ledger.survivor_groups,
        removed_dp_ranks=ledger.removed,
        master_ip=master.ip,
        master_rank=master.id,
        apply_margin_sec=ledger.config.apply_margin_sec,
        lease_sec=ledger.config.lease_sec,
        request_timeout_sec=ledger.config.request_timeout_sec,
        deadline_at=ledger.deadline(ledger.config.apply_deadline_sec),
    )
    try:
        result = await ports.apply(call)
    except (Transient, OutcomeUnknown) as error:
        raise RoundStopped(RoundReason.APPLY_UNKNOWN, f"apply ended without an answer: {error.message}") from error
    ledger.applied = result.engines
    ledger.stage_done("apply")
    if result.refusals:
        raise RoundStopped(RoundReason.APPLY_REFUSED, _listed((*result.refusals, *result.unknown)))
    unaccepted = [rank for rank in ledger.survivors if result.engines.get(rank) != ACCEPTED]
    if result.unknown or unaccepted or not result.accepted:
        raise RoundStopped(RoundReason.APPLY_UNKNOWN, _listed(result.unknown) or f"no 202 is known from ranks {unaccepted}")


async def until_recovered(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 8, first half: every survivor is healthy and has nothing pending."""
    watch = RecoveredWatch(
        survivors=ledger.survivor_groups,
        request_id=ledger.order.request_id,
        incarnations={rank: ledger.watch.entries[rank].incarnation for rank in ledger.survivors},
    )
    verdict = await _look(ledger, ports, watch, ledger.deadline(ledger.config.execution_deadline_sec), once=False)
    ledger.stage_done("recover")
    if verdict is LookVerdict.WAIT:
        raise RoundStopped(RoundReason.NOT_RECOVERED_IN_TIME, ledger.last_observed)


async def verify(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 8, second half ▲: one completion on each survivor. The end of this step is the commit point."""
    if ledger.config.verify_inference:
        ledger.check_stop()
        result = await ports.verify(
            VerifyCall(
                groups=ledger.survivor_groups,
                request_timeout_sec=ledger.config.request_timeout_sec,
                deadline_at=ledger.deadline(ledger.config.verify_deadline_sec),
            )
        )
        ledger.stage_done("verify")
        missing = sorted(set(ledger.survivors) - set(result.ok))
        if missing:
            told = ", ".join(f"rank {rank}: {result.failed.get(rank, 'no answer')}" for rank in missing)
            raise RoundStopped(RoundReason.VERIFY_FAILED, f"no completion from {told}")
    ledger.committed = True


async def abort(ledger: RoundLedger, stop: RoundStopped, ports: RoundPorts) -> RoundReport:
    """Gives the verdict "aborted" wherever a guard was attempted; whoever cannot be reached lets it expire."""
    detail = stop.detail
    if ledger.guard_attempted:
        try:
            result = await ports.finalize(_finalize_call(ledger, ledger.guard_attempted, commit=False))
        except AutotomyError as error:
            detail += f"; the abort could not be sent: {error.message}"
        else:
            if result.pending:
                detail += f"; not reached by the abort (their guard expires): {', '.join(map(str, result.pending))}"
            if result.refusals:
                detail += f"; the abort was refused by {_listed(result.refusals)}"
        ledger.stage_done("abort")
    return ledger.report(stop.outcome, stop.reason, detail)


async def commit(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 9: the FaultManager knows first ▲, then every participant retires the removed ranks. Nothing here can undo it."""
    ledger.say(FtPhase.POST_SCALE_CLEANUP, f"ranks {list(ledger.removed)} are removed; finalizing")
    record = CommitRecord(
        instance_id=ledger.order.instance_id,
        generation=ledger.order.generation,
        request_id=ledger.order.request_id,
        dead_committed=ledger.removed,
        view_revision=ledger.view_revision,
    )
    await _unless_failing(ports.record_commit(record), False)
    await _finalize(ledger, ports, ledger.lease().managers, ledger.config.request_timeout_sec)
    ledger.pending_finalize.extend(ledger.absent)
    ledger.stage_done("finalize")
    emptied = tuple(m for m in ledger.topology.managers if not set(ledger.topology.ranks_of(m)) - set(ledger.removed))
    newly = tuple(m for m in emptied if set(ledger.topology.ranks_of(m)) & set(ledger.watch.removed_ranks))
    if ledger.order.config.enable_dp_scale_up and newly:  # step 10
        ports.stop_pods(
            StopPodsCall(
                managers=newly, generation=ledger.order.generation, request_timeout_sec=ledger.config.request_timeout_sec
            )
        )


async def publish(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 11: the survivors are routed to again. Where that cannot be confirmed, the FaultManager goes on pushing."""
    ledger.say(FtPhase.SCALED_DOWN_RUNNING, f"publishing ranks {list(ledger.survivors)}")
    ledger.view_revision = ledger.order.view_revision + 2
    result = await _unless_failing(ports.publish(_view(ledger, ranks=ledger.survivors)), ViewResult(confirmed=False))
    ledger.published = result.confirmed
    ledger.last_observed = "" if result.confirmed else f"the view is not confirmed: {_listed(result.refusals)}"
    ledger.stage_done("publish")


async def finalize_the_late(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Survivors' NodeManagers that did not finalize before ADD get the rest of finalize_deadline_sec."""
    late = tuple(manager for manager in ledger.pending_finalize if manager not in ledger.absent)
    if late:
        ledger.pending_finalize = [manager for manager in ledger.pending_finalize if manager in ledger.absent]
        await _finalize(ledger, ports, late, max(1.0, ledger.config.finalize_deadline_sec - ledger.config.request_timeout_sec))
        ledger.stage_done("finalize_late")


async def _finalize(ledger: RoundLedger, ports: RoundPorts, managers: tuple[NodeManagerAddress, ...], within_sec: float) -> None:
    """Commits at these NodeManagers; who did not take it is left in `pending_finalize`."""
    call = _finalize_call(ledger, managers, commit=True, within_sec=within_sec)
    result = await _unless_failing(ports.finalize(call), FinalizeResult(pending=managers))
    ledger.pending_finalize.extend(manager for manager in managers if manager not in result.done)


async def _look(
    ledger: RoundLedger,
    ports: RoundPorts,
    watch: ApplyReadyWatch | RecoveredWatch,
    deadline_at: float,
    *,
    once: bool,
) -> LookVerdict:
    """One look; its findings go to the ledger. Raises `RoundStopped` on every verdict but `DONE` and `WAIT`."""
    ledger.check_stop()
    result = await ports.look(
        LookCall(
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
    ledger.last_observed = observation.detail
    ledger.looked.update(result.watch.entries)
    if isinstance(result.watch, ApplyReadyWatch):
        ledger.note(result.watch)
    if result.lost_guard is not None:
        raise RoundStopped(RoundReason.GUARD_LOST, _listed((result.lost_guard,)))
    if observation.verdict is LookVerdict.ABANDONED:
        raise RoundStopped(RoundReason.FALSE_ALARM, observation.detail, RoundOutcome.ABANDONED)
    if observation.verdict is LookVerdict.FAILED:
        raise RoundStopped(_LOOK_REASONS[observation.reason or LookReason.ENGINE_FAILED], observation.detail)
    ledger.check_stop()
    return observation.verdict


_LOOK_REASONS = {reason: RoundReason(reason.value) for reason in LookReason}


def _apply_ready_deadline(ledger: RoundLedger, now: float) -> tuple[float, RoundReason]:
    """When the wait for apply-ready ends, and what it then means (design §4, step 5).

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


def _view(ledger: RoundLedger, ranks: tuple[int, ...]) -> ViewCall:
    return ViewCall(
        topology=ledger.topology,
        revision=ledger.view_revision,
        ranks=ranks,
        request_timeout_sec=ledger.config.request_timeout_sec,
        deadline_at=ledger.deadline(ledger.config.coordinator_deadline_sec),
    )


def _finalize_call(
    ledger: RoundLedger, managers: tuple[NodeManagerAddress, ...], *, commit: bool, within_sec: float | None = None
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


async def _unless_failing(awaitable: Awaitable[T], otherwise: T) -> T:
    """After the commit point a failing port changes nothing: its step counts as not confirmed."""
    try:
        return await awaitable
    except AutotomyError:
        return otherwise


def _listed(refusals: Iterable[PeerRefusal]) -> str:
    return "; ".join(f"{refusal.peer}: {refusal.reason} ({refusal.message})" for refusal in refusals)
