"""What the workflow of every strategy is made of: a status for people, a wish to stop, a reporter, and its end.

A strategy's logic is a coroutine of `domain`, run over ports; the workflow around it is a `StrategyShell` and little else.
The logic runs in a task of its own: main waits on for it whatever happens (`StopWish.until_done`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import RawValue

from workflows.strategy_page import CallMade, StrategyStatus
from workflows.strategy_run import Reporter, StopWish, now

with workflow.unsafe.imports_passed_through():
    from domain.config import FaultToleranceConfig
    from domain.messages.round import StepReport
    from domain.messages.strategy import STOP_SIGNAL, StrategyEnd, StrategyKind
    from domain.topology import Topology

R = TypeVar("R")
S = TypeVar("S", bound=StrategyStatus)

_KEPT_SIGNALS = 20


class Order(Protocol):
    """What every strategy is ordered with."""

    @property
    def generation(self) -> int: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def config(self) -> FaultToleranceConfig: ...


class StrategyShell(Generic[S]):
    """One strategy's surroundings. `page` makes what the Web UI shows of its status."""

    def __init__(self, kind: StrategyKind, order: Order, status: S, page: Callable[[S], str]) -> None:
        self.status = status
        self.stop = StopWish()
        self.reporter = Reporter(kind, order.generation, order.topology, order.config)
        self._page = page

    async def run(self, logic: Coroutine[Any, Any, R]) -> R:
        """The logic's result, and the status shows it as `report`."""
        report = await self.stop.until_done(asyncio.create_task(logic))
        self.show(report=report)
        return report

    async def tell_end(self, end: StrategyEnd, outcome: str) -> None:
        """The FaultManager hears of it. `outcome`: in words, for the Web UI."""
        summary = f"tell the FaultManager the end: {outcome}"
        await self.stop.until_done(asyncio.create_task(self.reporter.end(end, summary)))

    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, with or without an input; any other signal is kept for people and changes nothing."""
        if name == STOP_SIGNAL:
            self.stop.make("signal stop")
            self.show()
        else:
            ignored = (*self.status.ignored_signals, f"{name} with {len(args)} inputs")
            self.show(ignored_signals=ignored[-_KEPT_SIGNALS:])

    def called(self, what: str) -> None:
        self.show(calls=(*self.status.calls, CallMade(what=what, at=now())))

    def stepped(self, step: StepReport) -> None:
        self.show(steps=(*self.status.steps, step))

    def show(self, **changes: object) -> None:
        """Changes the status, and with it what people see."""
        self.status = self.status.model_copy(update={**changes, "stop_wish": self.stop.why})
        workflow.set_current_details(self._page(self.status))
