"""What the workflow of every strategy is made of: a status for people, a wish to stop, a reporter, and its end.

A strategy's logic is a coroutine of `domain`, run over ports; the workflow around it is a `StrategyShell` and little else.
The logic runs in a task of its own: main waits on for it whatever happens (`StopWish.until_done`).

The FaultManager depends on the end signal alone. How the workflow closes is for people and for whoever looks the strategy
up later: with the report as its result, or Failed (red in the Web UI), with the report in the failure (`failed`).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Generic

from temporalio import workflow
from temporalio.common import MetricMeter, RawValue
from temporalio.exceptions import ApplicationError

from workflows.parts.signal_intake import take_in
from workflows.parts.strategy_page import CallMade, OrderT, ReportT, StrategyStatus, Words, page
from workflows.parts.strategy_run import Attribute, Reporter, StopWish, now

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import STOP_SIGNAL, RoundOutcome, StepReport, StrategyEnd, StrategyKind, StrategyReport
    from domain.runtime import with_rejected

STRATEGIES_ENDED: Final = "autotomy_strategies_ended_total"
"""At the worker's `--metrics-port`, with `kind`, `outcome` and `reason` (docs/metrics.md)."""


class StrategyShell(Generic[OrderT, ReportT]):
    """One strategy's surroundings. `words`: what its page says beside what every page says."""

    def __init__(self, kind: StrategyKind, order: OrderT, words: Words[OrderT, ReportT]) -> None:
        self.status = StrategyStatus(order=order)
        self.stop = StopWish()
        self.reporter = Reporter(kind, order.generation, order.topology, order.config)
        self._order = order
        self._report: ReportT | None = None
        self._words = words

    async def run(self, logic: Coroutine[Any, Any, ReportT]) -> ReportT:
        """The logic's result, and the status shows it as `report`."""
        report = await self.stop.until_done(asyncio.create_task(logic))
        self._report = report
        self.show(report=report)
        return report

    async def end(self, report: ReportT, if_failed: str | None, **attributes: Attribute) -> ReportT:
        """The FaultManager hears of it, and the workflow closes: with the report, or Failed.

        `if_failed`: what follows a failure, for whoever looks for red; None: its failure is nothing to look at.
        `attributes`: search attributes that change with the end, beside `Outcome`.
        """
        outcome = report.outcome
        self.reporter.attribute(Outcome=outcome.value, **attributes)
        count_end(workflow.metric_meter(), report.kind, outcome.value, report.reason.value)
        end = StrategyEnd(workflow_id=workflow.info().workflow_id, report=report)
        summary = f"tell the FaultManager the end: {outcome.value}, {report.reason.value}"
        await self.stop.until_done(asyncio.create_task(self.reporter.end(end, summary)))
        if outcome is RoundOutcome.FAILED and if_failed is not None:
            raise failed(report, if_failed)
        return report

    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, whatever comes with it; any other signal is kept for people and changes nothing."""
        refused = take_in(name, args, {STOP_SIGNAL: lambda _: self.stop.make("signal stop")}, now())
        if refused is None:
            self.show()
        else:
            self.show(rejected_signals=with_rejected(self.status.rejected_signals, refused))

    def called(self, what: str) -> None:
        self.show(calls=(*self.status.calls, CallMade(what=what, at=now())))

    def stepped(self, step: StepReport) -> None:
        self.show(steps=(*self.status.steps, step))

    def show(self, **changes: object) -> None:
        """Changes the status, and with it what people see."""
        self.status = self.status.model_copy(update={**changes, "stop_wish": self.stop.why})
        workflow.set_current_details(page(self._words, self.status, self._order, self._report))


class StrategyWorkflow(Generic[OrderT, ReportT]):
    """What every strategy's workflow is: a shell, and what a person may ask and send. `attributes`: search attributes."""

    def __init__(self, kind: StrategyKind, order: OrderT, words: Words[OrderT, ReportT], **attributes: Attribute) -> None:
        self._shell = StrategyShell(kind, order, words)
        self._shell.reporter.attribute(InstanceId=order.instance_id, **attributes)

    @workflow.query
    def status(self) -> StrategyStatus:
        """How far the strategy is, and its report once it has ended."""
        return self._shell.status

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, with or without an input; any other signal is kept for people and changes nothing."""
        self._shell.take(name, args)


def count_end(meter: MetricMeter, kind: StrategyKind, outcome: str, reason: str) -> None:
    """One strategy more has ended. With a workflow's meter: never counted at a replay, and no event of the history."""
    counter = meter.create_counter(STRATEGIES_ENDED, "Strategies that ended, by outcome and reason")
    counter.add(1, {"kind": kind.value, "outcome": outcome, "reason": reason})


def failed(report: StrategyReport, what_follows: str) -> ApplicationError:
    """Raised, it makes the strategy's workflow Failed. `what_follows`: a sentence for whoever reads the failure."""
    message = f"{report.detail or report.reason.value}. {what_follows}"
    return ApplicationError(message, report, type=report.reason.value, non_retryable=True)
