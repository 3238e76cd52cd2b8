"""`FastRecovery`: every active rank retries in place, as a durable workflow (design §3, rule 6).

The logic is `domain.fast_recovery.run_fast_recovery`; here it runs in a task of its own, with activities as its ports, as
a round does in `ScaleDownRound`, and it is stopped in the same two ways: before its commit point, and aborts, or not at
all. In the Web UI a fast recovery that failed is **Failed** (red): the instance is about to be rebuilt. Succeeded,
abandoned and cancelled ones are Completed. The FaultManager hears of every end by signal first.
"""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.fast_recovery_page import FastRecoveryStatus, page
from workflows.round_ports import ActivityPorts
from workflows.strategy_run import Reporter, StopWish, now
from workflows.transaction_page import CallMade

with workflow.unsafe.imports_passed_through():
    from domain.fast_recovery import run_fast_recovery
    from domain.messages.round import RoundOutcome, StepReport
    from domain.messages.strategy import STOP_SIGNAL, FastRecoveryOrder, FastRecoveryReport, StrategyEnd, StrategyKind

_KEPT_SIGNALS = 20


@workflow.defn(name="FastRecovery")
class FastRecovery:
    """Runs a `FastRecoveryOrder` to its `FastRecoveryReport`."""

    @workflow.init
    def __init__(self, order: FastRecoveryOrder) -> None:
        self._status = FastRecoveryStatus(order=order)
        self._stop = StopWish()
        self._reporter = Reporter(StrategyKind.FAST_RECOVERY, order.generation, order.topology, order.config)
        self._reporter.attribute(
            InstanceId=order.instance_id,
            RequestId=order.request_id,
            DeadRanks=[str(rank) for rank in order.dead_committed],
            ServingPublished=bool(order.published_ranks),
        )

    @workflow.run
    async def run(self, order: FastRecoveryOrder) -> FastRecoveryReport:
        ports = ActivityPorts(self._stop, self._reporter, self._on_call, self._on_step)
        report = await self._stop.until_done(asyncio.create_task(run_fast_recovery(order, ports)))
        self._show(report=report)
        self._reporter.attribute(Outcome=report.outcome.value, ServingPublished=report.serving_published)
        await self._stop.until_done(asyncio.create_task(self._tell_end(report)))
        if report.outcome is RoundOutcome.FAILED:
            message = f"{report.detail or report.reason.value}. Next: reconfiguration of instance {report.instance_id}."
            raise ApplicationError(message, report, type=report.reason.value, non_retryable=True)
        return report

    async def _tell_end(self, report: FastRecoveryReport) -> None:
        end = StrategyEnd(
            kind=StrategyKind.FAST_RECOVERY,
            instance_id=report.instance_id,
            generation=report.generation,
            workflow_id=workflow.info().workflow_id,
            fast_recovery=report,
        )
        await self._reporter.end(end, f"tell the FaultManager the end: {report.outcome.value}, {report.reason.value}")

    @workflow.query
    def status(self) -> FastRecoveryStatus:
        """How far the fast recovery is, and its report once it has ended."""
        return self._status

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, with or without an input; any other signal is kept for people and changes nothing."""
        if name == STOP_SIGNAL:
            self._stop.make("signal stop")
            self._show(stop_wish=self._stop.why)
        else:
            ignored = (*self._status.ignored_signals, f"{name} with {len(args)} inputs")
            self._show(ignored_signals=ignored[-_KEPT_SIGNALS:])

    def _on_call(self, what: str) -> None:
        self._show(calls=(*self._status.calls, CallMade(what=what, at=now())))

    def _on_step(self, step: StepReport) -> None:
        self._show(steps=(*self._status.steps, step))

    def _show(self, **changes: object) -> None:
        self._status = self._status.model_copy(update={**changes, "stop_wish": self._stop.why})
        workflow.set_current_details(page(self._status))
