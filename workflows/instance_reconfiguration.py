"""`InstanceReconfiguration`: the whole instance anew, with every rank of its topology (design §3).

    withdraw → stop all → start all → all ranks ready → a completion on each → publish

Withdrawn first, so that nobody routes to engines that are being stopped. Every step may be repeated: the stop names the
life that it means, the start its generation, the pushes their revisions. `reconfiguration_deadline_sec` bounds the whole;
each step gets what is left of it, the stop at most half.

A NodeManager that cannot be reached may still run its engines, and a second group beside them would be worse than none:
the rebuild fails, with that reason. Between the stop and the publication there is nothing to go back to; a wish to stop
ends the current wait, and the instance stays withdrawn.

A failed rebuild is Failed in the Web UI, a finished one Completed; the FaultManager hears of either by signal first.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.strategy_run import Reporter, StopWish, call_activity, now, start_activity

with workflow.unsafe.imports_passed_through():
    from activities.coordinator import CoordinatorActivities
    from activities.node_manager import NodeManagerActivities
    from activities.rebuild import RebuildActivities
    from domain.engine import RankEntry
    from domain.errors import AutotomyError
    from domain.messages.round import PeerRefusal, StepReport, VerifyCall, ViewCall, ViewResult
    from domain.messages.strategy import (
        STOP_SIGNAL,
        EnginesReadyCall,
        EnginesReadyResult,
        ReconfigurationOrder,
        ReconfigurationReason,
        ReconfigurationReport,
        StartNodeManagersCall,
        StartNodeManagersResult,
        StopNodeManagersCall,
        StopNodeManagersResult,
        StrategyEnd,
        StrategyKind,
    )
    from domain.model import Strict
    from domain.runtime import FtPhase
    from domain.watch import Question

_STOP_SHARE: Final = 0.5
"""Of the whole time, what the stop may take."""


class RebuildStopped(Exception):
    """The rebuild ends without success."""

    def __init__(self, reason: ReconfigurationReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class ReconfigurationStatus(Strict):
    """Query `status`."""

    order: ReconfigurationOrder
    steps: tuple[StepReport, ...] = ()
    stop_wish: str | None = None
    ignored_signals: tuple[str, ...] = ()
    report: ReconfigurationReport | None = None


@workflow.defn(name="InstanceReconfiguration")
class InstanceReconfiguration:
    """Runs a `ReconfigurationOrder` to its `ReconfigurationReport`."""

    @workflow.init
    def __init__(self, order: ReconfigurationOrder) -> None:
        self._order = order
        self._round = order.config.dp_scale_down_config
        self._deadline_at = now() + order.config.reconfiguration_deadline_sec
        self._status = ReconfigurationStatus(order=order)
        self._stop = StopWish()
        self._reporter = Reporter(StrategyKind.INSTANCE_RECONFIGURATION, order.generation, order.topology, order.config)
        self._reporter.attribute(InstanceId=order.instance_id, FtPhase=FtPhase.RECONFIGURING.value, ServingPublished=False)
        self._revision = order.view_revision
        self._engines: dict[int, str] = {}
        self._looked: dict[int, RankEntry] = {}
        self._stage_times: dict[str, float] = {}
        self._stage_began = now()

    @workflow.run
    async def run(self, order: ReconfigurationOrder) -> ReconfigurationReport:
        report = await self._stop.until_done(asyncio.create_task(self._rebuild()))
        self._status = self._status.model_copy(update={"report": report})
        self._show()
        outcome = "succeeded" if report.succeeded else "failed"
        self._reporter.attribute(Outcome=outcome, ServingPublished=report.serving_published)
        await self._stop.until_done(asyncio.create_task(self._tell_end(report, outcome)))
        if not report.succeeded:
            message = f"{report.detail or report.reason.value}. Instance {report.instance_id} stays withdrawn."
            raise ApplicationError(message, report, type=report.reason.value, non_retryable=True)
        return report

    async def _rebuild(self) -> ReconfigurationReport:
        try:
            await self._withdraw()
            await self._stop_all()
            await self._start_all()
            await self._until_ready()
            await self._verify()
            published = await self._publish()
        except RebuildStopped as stop:
            return self._report(stop.reason, stop.detail)
        except AutotomyError as error:
            return self._report(ReconfigurationReason.PORT_FAILED, error.message)
        detail = "" if published.confirmed else f"the view is not confirmed: {_told(published.refusals)}"
        return self._report(ReconfigurationReason.REBUILT, detail, published=published.confirmed)

    async def _withdraw(self) -> None:
        self._revision = self._order.view_revision + 1
        self._step(f"withdraw: {self._order.why}")
        deadline_at = min(self._deadline_at, now() + self._round.coordinator_deadline_sec)
        result = await self._push((), deadline_at, f"DEL from every Coordinator (view revision {self._revision})")
        self._stage_done("withdraw")
        if not result.confirmed:
            raise RebuildStopped(ReconfigurationReason.WITHDRAW_UNCONFIRMED, _told(result.refusals))

    async def _stop_all(self) -> None:
        self._check_stop()
        managers = self._order.topology.managers
        self._step(f"stop the engines of {len(managers)} NodeManagers")
        call = StopNodeManagersCall(
            managers=managers,
            generation=self._order.generation,
            request_timeout_sec=self._round.request_timeout_sec,
            deadline_at=now() + _STOP_SHARE * max(0.0, self._deadline_at - now()),
        )
        summary = f"stop {len(managers)} NodeManagers, each until it is back in a new life"
        handle = start_activity(RebuildActivities.stop_node_managers, call, deadline_at=call.deadline_at, summary=summary)
        result = await self._stop.interruptible(handle, StopNodeManagersResult())
        self._check_stop()
        self._stage_done("stop")
        if result.refusals:
            raise RebuildStopped(ReconfigurationReason.STOP_REFUSED, _told(result.refusals))
        if result.unreachable:
            raise RebuildStopped(ReconfigurationReason.STOP_UNREACHABLE, _told(result.unreachable))

    async def _start_all(self) -> None:
        self._step("start every rank anew")
        call = StartNodeManagersCall(
            topology=self._order.topology,
            config=self._order.config,
            generation=self._order.generation,
            deadline_at=self._deadline_at,
        )
        summary = f"start ranks {_listed(self._order.topology.ranks)} under generation {self._order.generation}"
        handle = start_activity(RebuildActivities.start_node_managers, call, deadline_at=call.deadline_at, summary=summary)
        result = await self._stop.interruptible(handle, StartNodeManagersResult())
        self._check_stop()
        self._engines = dict(result.engines)
        self._stage_done("start")
        if result.refusals:
            raise RebuildStopped(ReconfigurationReason.START_FAILED, _told(result.refusals))

    async def _until_ready(self) -> None:
        self._step("wait until every rank is healthy")
        call = EnginesReadyCall(
            questions=self._questions(),
            started=self._engines,
            poll_interval_sec=self._round.fault_poll_interval_sec,
            request_timeout_sec=self._round.request_timeout_sec,
            deadline_at=self._deadline_at,
        )
        summary = f"look until ranks {_listed(self._order.topology.ranks)} are healthy"
        handle = start_activity(RebuildActivities.await_engines_ready, call, deadline_at=call.deadline_at, summary=summary)
        result = await self._stop.interruptible(handle, EnginesReadyResult())
        self._check_stop()
        self._looked = dict(result.looked)
        self._engines.update({rank: entry.incarnation for rank, entry in result.looked.items() if entry.incarnation})
        self._stage_done("ready")
        if result.waiting:
            waiting = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(result.waiting.items()))
            raise RebuildStopped(ReconfigurationReason.NOT_READY_IN_TIME, waiting)

    async def _verify(self) -> None:
        """One completion on each rank; without the FT routes there is nobody to ask for it."""
        if not (self._round.verify_inference and self._order.config.enable_dp_scale_down_proxy):
            return
        self._step("one completion on each rank")
        call = VerifyCall(
            groups=self._questions(),
            request_timeout_sec=self._round.request_timeout_sec,
            deadline_at=now() + self._round.verify_deadline_sec,
        )
        summary = f"one completion on each of ranks {_listed(self._order.topology.ranks)}"
        result = await call_activity(NodeManagerActivities.verify, call, deadline_at=call.deadline_at, summary=summary)
        self._check_stop()
        self._stage_done("verify")
        if result.failed:
            failed = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(result.failed.items()))
            raise RebuildStopped(ReconfigurationReason.VERIFY_FAILED, failed)

    async def _publish(self) -> ViewResult:
        """Not confirmed is no failure: the instance is rebuilt, and the FaultManager goes on pushing."""
        self._revision = self._order.view_revision + 2
        ranks = self._order.topology.ranks
        self._step(f"publish ranks {_listed(ranks)}")
        deadline_at = now() + self._round.coordinator_deadline_sec
        summary = f"ADD ranks {_listed(ranks)} at every Coordinator (view revision {self._revision})"
        try:
            result = await self._push(ranks, deadline_at, summary)
        except AutotomyError as error:
            why = PeerRefusal(peer="Coordinators", reason=error.reason, message=error.message)
            result = ViewResult(confirmed=False, refusals=(why,))
        self._stage_done("publish")
        return result

    async def _push(self, ranks: tuple[int, ...], deadline_at: float, summary: str) -> ViewResult:
        call = ViewCall(
            topology=self._order.topology,
            revision=self._revision,
            ranks=ranks,
            request_timeout_sec=self._round.request_timeout_sec,
            deadline_at=deadline_at,
        )
        return await call_activity(CoordinatorActivities.push_view, call, deadline_at=deadline_at, summary=summary)

    def _questions(self) -> tuple[Question, ...]:
        groups = self._order.topology.by_manager(self._order.topology.ranks)
        return tuple(Question(manager=manager, ranks=ranks) for manager, ranks in groups.items())

    def _check_stop(self) -> None:
        if self._stop.made:
            raise RebuildStopped(ReconfigurationReason.CANCELLED, f"stopped: {self._stop.why}")

    def _report(self, reason: ReconfigurationReason, detail: str, *, published: bool = False) -> ReconfigurationReport:
        return ReconfigurationReport(
            instance_id=self._order.instance_id,
            generation=self._order.generation,
            succeeded=reason is ReconfigurationReason.REBUILT,
            reason=reason,
            detail=detail,
            serving_published=published,
            view_revision=self._revision,
            engine_incarnations=self._engines,
            looked=self._looked,
            stage_times=self._stage_times,
        )

    async def _tell_end(self, report: ReconfigurationReport, outcome: str) -> None:
        end = StrategyEnd(
            kind=StrategyKind.INSTANCE_RECONFIGURATION,
            instance_id=report.instance_id,
            generation=report.generation,
            workflow_id=workflow.info().workflow_id,
            reconfiguration=report,
        )
        await self._reporter.end(end, f"tell the FaultManager the end: {outcome}, {report.reason.value}")

    @workflow.query
    def status(self) -> ReconfigurationStatus:
        """How far the rebuild is, and its report once it has ended."""
        return self._status

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, with or without an input; any other signal is kept for people and changes nothing."""
        if name == STOP_SIGNAL:
            self._stop.make("signal stop")
        else:
            ignored = (*self._status.ignored_signals, f"{name} with {len(args)} inputs")[-20:]
            self._status = self._status.model_copy(update={"ignored_signals": ignored})
        self._show()

    def _step(self, detail: str) -> None:
        step = StepReport(
            step=len(self._status.steps) + 1,
            phase=FtPhase.RECONFIGURING,
            detail=detail,
            request_id=workflow.info().workflow_id,
            pending_ranks=(),
            at=now(),
        )
        self._status = self._status.model_copy(update={"steps": (*self._status.steps, step)})
        self._reporter.progress(step)
        self._show()

    def _stage_done(self, name: str) -> None:
        at = now()
        self._stage_times[name] = round(at - self._stage_began, 6)
        self._stage_began = at

    def _show(self) -> None:
        self._status = self._status.model_copy(update={"stop_wish": self._stop.why})
        report, lines = self._status.report, [f"## Rebuild instance {self._order.instance_id}", f"Why: {self._order.why}", ""]
        if report is not None:
            lines += [f"**{report.reason.value}**{f' — {report.detail}' if report.detail else ''}", ""]
        elif self._stop.made:
            lines += [f"A stop was asked for ({self._stop.why}); the current wait ends.", ""]
        lines += [f"{step.step}. {step.detail}" for step in self._status.steps]
        lines += ["", *(f"- {name}: {seconds:.3f} s" for name, seconds in self._stage_times.items())]
        workflow.set_current_details("\n".join(lines))


def _listed(items: Iterable[object]) -> str:
    return ",".join(str(item) for item in items)


def _told(refusals: tuple[PeerRefusal, ...]) -> str:
    return "; ".join(f"{refusal.peer}: {refusal.reason} ({refusal.message})" for refusal in refusals)
