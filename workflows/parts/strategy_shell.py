"""What the workflow of every strategy is made of: a status for people, a wish to stop, a reporter, and its end.

A strategy's logic is a coroutine of `domain`, run over ports; the workflow around it is a `StrategyShell` and little else.
The logic runs in a task of its own: main waits on for it whatever happens (`StopWish.until_done`).

The FaultManager depends on the end signal alone. How the workflow closes is for people and for whoever looks the strategy
up later: with the report as its result, or Failed (red in the Web UI), with the report in the failure (`failed`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from temporalio import workflow
from temporalio.common import MetricMeter, RawValue
from temporalio.exceptions import ApplicationError

from workflows.parts.signal_intake import take_in
from workflows.parts.strategy_page import CallMade, StrategyStatus
from workflows.parts.strategy_run import Reporter, StopWish, now

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import STOP_SIGNAL, StepReport, StrategyEnd, StrategyKind, StrategyOrder, StrategyReport
    from domain.runtime import with_rejected

R = TypeVar("R", bound=StrategyReport)
S = TypeVar("S", bound=StrategyStatus)

STRATEGIES_ENDED: Final = "autotomy_strategies_ended_total"
"""At the worker's `--metrics-port`, with `kind`, `outcome` and `reason` (docs/metrics.md)."""


class StrategyShell(Generic[S]):
    """One strategy's surroundings. `page` makes what the Web UI shows of its status."""

    def __init__(self, kind: StrategyKind, order: StrategyOrder, status: S, page: Callable[[S], str]) -> None:
        self.status = status
        self.stop = StopWish()
        self.reporter = Reporter(kind, order.generation, order.topology, order.config)
        self._kind = kind
        self._page = page

    async def run(self, logic: Coroutine[Any, Any, R]) -> R:
        """The logic's result, and the status shows it as `report`."""
        report = await self.stop.until_done(asyncio.create_task(logic))
        self.show(report=report)
        return report

    async def tell_end(self, report: StrategyReport, outcome: str) -> None:
        """The FaultManager hears of it. `outcome`: in a word, for the Web UI."""
        count_end(workflow.metric_meter(), self._kind, outcome, report.reason.value)
        end = StrategyEnd(workflow_id=workflow.info().workflow_id, report=report)
        summary = f"tell the FaultManager the end: {outcome}, {report.reason.value}"
        await self.stop.until_done(asyncio.create_task(self.reporter.end(end, summary)))

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
        workflow.set_current_details(self._page(self.status))


class StrategyWorkflow(Generic[S]):
    """What a person may ask of every strategy's workflow, and send it."""

    def __init__(self, shell: StrategyShell[S]) -> None:
        self._shell = shell

    @workflow.query
    def status(self) -> S:
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
