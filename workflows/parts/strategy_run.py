"""What every strategy workflow shares: calling activities, being asked to stop, telling the FaultManager, being found.

**Stop.** A strategy is stopped by consent. The workflow's cancellation, or the signal `stop`, only makes a wish known
(`StopWish`) and ends a wait that has no effects; the strategy looks at the wish between its steps. So a stop never falls
into the middle of a step, and main waits on for the strategy's own end.

**Words.** `Reporter` sends progress in order, one activity at a time, beside the strategy, which never waits for it. The
end is told until it is taken.

**Search attributes.** One that the server does not know would fail the workflow task for ever. Usable are those that the
strategy was started with (`start_attributes`), and those that the first answer to a progress report names. Each change is an
event, a write to the visibility store and part of a workflow task that a round waits for; so what is only passed through
is noted, and travels with the next change that matters.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from temporalio import workflow
from temporalio.common import (
    RetryPolicy,
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.errors import from_activity_error
    from activities.fault_manager import FaultManagerActivities
    from domain.config import FaultToleranceConfig
    from domain.errors import AutotomyError
    from domain.messages.fault_manager import EndReport, FaultManagerStart, ProgressReport
    from domain.messages.strategy import StepReport, StrategyEnd, StrategyKind, StrategyProgress
    from domain.topology import Topology

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")

Attribute: TypeAlias = int | str | bool | list[str]
"""A search attribute's value; its type follows from it."""

HEARTBEAT_TIMEOUT: Final = timedelta(seconds=2)
RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=1)
)
"""Quick and unlimited: what may be retried at all is decided by the error, for how long by the deadline."""

OUTAGE_SLACK_SEC: Final = 600.0
"""How long beyond its deadline an activity may wait for a worker. With no worker nothing could react to an earlier end."""

_PROGRESS_LIMIT_SEC: Final = 30.0
_DRAIN_SEC: Final = 2.0
_END_LIMIT: Final = timedelta(hours=1)


def now() -> float:
    """Seconds since the epoch by the workflow's clock."""
    return workflow.now().timestamp()


def start_activity(
    method: Callable[[S, A], Awaitable[R]], argument: A, *, deadline_at: float, summary: str
) -> workflow.ActivityHandle[R]:
    """Starts an activity that ends by `deadline_at` itself; cancelled, it is waited for."""
    limit = timedelta(seconds=max(0.0, deadline_at - now()) + OUTAGE_SLACK_SEC)
    return workflow.start_activity_method(
        method,
        argument,
        schedule_to_close_timeout=limit,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RETRY,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )


async def call_activity(method: Callable[[S, A], Awaitable[R]], argument: A, *, deadline_at: float, summary: str) -> R:
    """The activity's result. Raises an AutotomyError where it has none."""
    try:
        return await start_activity(method, argument, deadline_at=deadline_at, summary=summary)
    except ActivityError as error:
        raise from_activity_error(error) from error


class StopWish:
    """Whether somebody wants the strategy to end, and why."""

    def __init__(self) -> None:
        self.why: str | None = None
        self._cancel_seen = False
        self._waits: set[asyncio.Task[Any]] = set()

    @property
    def made(self) -> bool:
        return self.why is not None

    def make(self, why: str) -> None:
        """Makes the wish known; the first one counts."""
        if self.why is None:
            self.why = why
            for wait in list(self._waits):
                wait.cancel()

    async def interruptible(self, handle: "workflow.ActivityHandle[R]", otherwise: R) -> R:
        """Awaits an activity without effects, which a wish ends early; `otherwise`, where it then had nothing to say.

        Raises an AutotomyError where the activity failed.
        """
        self._waits.add(handle)
        if self.made:
            handle.cancel()
        try:
            return await handle
        except ActivityError as error:
            if self.made:
                return otherwise
            raise from_activity_error(error) from error
        except asyncio.CancelledError:
            if not self.made or being_cancelled():
                raise
            return otherwise
        finally:
            self._waits.discard(handle)

    async def pause(self, seconds: float, summary: str) -> None:
        """Lets this time pass, or less once the wish is made."""
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self.made, timeout=timedelta(seconds=seconds), timeout_summary=summary)

    async def until_done(self, task: "asyncio.Task[R]") -> R:
        """Main waits with this: the workflow's cancellation becomes a wish, and the waiting goes on.

        An eviction from the worker's cache raises the same CancelledError; it is let through. A run is cancelled at most
        once, so a second one, or one without a cancellation request, is that.
        """
        while True:
            try:
                await workflow.wait_condition(task.done)
                return task.result()
            except asyncio.CancelledError:
                reason = workflow.cancellation_reason()
                if self._cancel_seen or reason is None:
                    raise
                self._cancel_seen = True
                _take_back_cancellation()
                self.make(f"the workflow was cancelled{f': {reason}' if reason else ''}")


def being_cancelled() -> bool:
    """Whether this very task is being cancelled (an eviction), and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _take_back_cancellation() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


class Reporter:
    """Tells the FaultManager of one strategy, and keeps the search attributes."""

    def __init__(self, kind: StrategyKind, generation: int, topology: Topology, config: FaultToleranceConfig) -> None:
        self._kind = kind
        self._generation = generation
        self._start = FaultManagerStart(instance_id=topology.instance_id, topology=topology, config=config)
        self._unsent: list[StepReport] = []
        self._sender: asyncio.Task[None] | None = None
        self._usable = {pair.key.name for pair in workflow.info().typed_search_attributes}
        self._attributes: dict[str, SearchAttributeUpdate[Any]] = {}

    @property
    def fault_manager_start(self) -> FaultManagerStart:
        """With what a FaultManager that was terminated starts again."""
        return self._start

    def progress(self, step: StepReport) -> None:
        """Queues a step; never waits."""
        self._unsent.append(step)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._unsent:
            step = self._unsent.pop(0)
            progress = StrategyProgress(
                kind=self._kind,
                instance_id=self._start.instance_id,
                generation=self._generation,
                workflow_id=workflow.info().workflow_id,
                step=step,
            )
            try:
                told = await call_activity(
                    FaultManagerActivities.report_progress,
                    ProgressReport(start=self._start, progress=progress),
                    deadline_at=now() + _PROGRESS_LIMIT_SEC,
                    summary=f"tell the FaultManager: {step.phase}",
                )
            except AutotomyError as error:
                workflow.logger.warning("progress was not told: %s", error.message)
            else:
                self._use(told.search_attributes)

    async def end(self, end: StrategyEnd, summary: str) -> None:
        """Tells the end, after what was said before it, until it is taken. Goes on if that stays in vain: it is looked up."""
        if self._sender is not None and not self._sender.done():
            try:
                await workflow.wait_condition(
                    self._sender.done, timeout=_DRAIN_SEC, timeout_summary="let the progress reports arrive"
                )
            except TimeoutError:
                workflow.logger.warning("the end overtakes progress reports")
        try:
            await workflow.execute_activity_method(
                FaultManagerActivities.report_end,
                EndReport(start=self._start, end=end),
                schedule_to_close_timeout=_END_LIMIT,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=RETRY,
                summary=summary,
            )
        except ActivityError as error:
            workflow.logger.error("the end was not told: %s", from_activity_error(error).message)

    def attribute(self, **values: Attribute) -> None:
        """Sets search attributes by their names, now or as soon as it is known that they may be set."""
        self.note(**values)
        self._set_noted()

    def note(self, **values: Attribute) -> None:
        """The same, together with the next change that is worth an event of its own."""
        self._attributes |= {name: _update(name, value) for name, value in values.items()}

    def _use(self, usable: Iterable[str]) -> None:
        if not self._usable.issuperset(usable):
            self._usable |= set(usable)
            self._set_noted()

    def _set_noted(self) -> None:
        ready = [self._attributes.pop(name) for name in list(self._attributes) if name in self._usable]
        changes = [update for update in ready if _shown(update.key) != update.value]
        if changes:
            workflow.upsert_search_attributes(changes)


def start_attributes(usable: Iterable[str], **values: Attribute) -> TypedSearchAttributes | None:
    """What a strategy is started with: set without an event. None where none of them is usable."""
    updates = [_update(name, value) for name, value in values.items() if name in set(usable)]
    pairs = [SearchAttributePair(update.key, update.value) for update in updates if update.value is not None]
    return TypedSearchAttributes(pairs) if pairs else None


def _shown(key: SearchAttributeKey[Any]) -> Any:
    value = workflow.info().typed_search_attributes.get(key)
    return list(value) if isinstance(value, list | tuple) else value


def _update(name: str, value: Attribute) -> SearchAttributeUpdate[Any]:
    match value:
        case bool():
            return SearchAttributeKey.for_bool(name).value_set(value)
        case int():
            return SearchAttributeKey.for_int(name).value_set(value)
        case str():
            return SearchAttributeKey.for_keyword(name).value_set(value)
        case _:
            return SearchAttributeKey.for_keyword_list(name).value_set(value)
