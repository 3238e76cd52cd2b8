"""`ScaleDownRound`: one scale-down transaction as a durable workflow (design §4).

The logic is `domain.round.run_round`; here it runs in a task of its own, with activities as its ports, so that worker,
API, server, NodeManagers and Coordinators may be killed at any moment and it goes on. Two ways to stop it, the workflow's
cancellation and the signal `stop`, make a wish known and end a running look, nothing else: a stop comes before the commit
point, and aborts, or not at all.

What the Web UI shows: a round that ended by a decision to fail is **Failed** (red), with reason and report in the failure,
because an operator looks for red: an instance is about to be rebuilt. Succeeded, abandoned (the evidence was false) and
cancelled rounds are Completed, told apart by the search attribute `Outcome`. The FaultManager depends on none of this: it
hears of every end by signal first.
"""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.round_page import RoundStatus, page
from workflows.round_ports import ActivityPorts
from workflows.strategy_run import Reporter, StopWish, now
from workflows.transaction_page import CallMade

with workflow.unsafe.imports_passed_through():
    from domain.messages.round import RoundOrder, RoundOutcome, RoundReport, StepReport
    from domain.messages.strategy import STOP_SIGNAL, StrategyEnd, StrategyKind
    from domain.round import run_round

_KEPT_SIGNALS = 20


@workflow.defn(name="ScaleDownRound")
class ScaleDownRound:
    """Runs a `RoundOrder` to its `RoundReport`."""

    @workflow.init
    def __init__(self, order: RoundOrder) -> None:
        self._status = RoundStatus(order=order)
        self._stop = StopWish()
        self._reporter = Reporter(StrategyKind.SCALE_DOWN, order.generation, order.topology, order.config)
        self._reporter.attribute(
            InstanceId=order.instance_id,
            RequestId=order.request_id,
            DeadRanks=[str(rank) for rank in order.pending_ranks],
            ServingPublished=bool(order.published_ranks),
        )

    @workflow.run
    async def run(self, order: RoundOrder) -> RoundReport:
        ports = ActivityPorts(self._stop, self._reporter, self._on_call, self._on_step)
        report = await self._stop.until_done(asyncio.create_task(run_round(order, ports)))
        self._show(report=report)
        self._reporter.attribute(
            Outcome=report.outcome.value,
            ServingPublished=report.serving_published,
            DeadRanks=[str(rank) for rank in report.removed_dp_ranks],
        )
        await self._stop.until_done(asyncio.create_task(self._tell_end(report)))
        if report.outcome is RoundOutcome.FAILED:
            raise ApplicationError(_verdict(report), report, type=report.reason.value, non_retryable=True)
        return report

    async def _tell_end(self, report: RoundReport) -> None:
        end = StrategyEnd(
            kind=StrategyKind.SCALE_DOWN,
            instance_id=report.instance_id,
            generation=report.generation,
            workflow_id=workflow.info().workflow_id,
            round=report,
        )
        await self._reporter.end(end, f"tell the FaultManager the end: {report.outcome.value}, {report.reason.value}")

    @workflow.query
    def status(self) -> RoundStatus:
        """How far the round is, and its report once it has ended."""
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


def _verdict(report: RoundReport) -> str:
    return f"{report.detail or report.reason.value}. Next: reconfiguration of instance {report.instance_id}."
