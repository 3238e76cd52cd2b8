"""Activities that run beside a workflow's decision loop.

An errand is something to be done for as long as there is reason to: tell the NodeManagers a new pace, push a view that is
not confirmed. Each runs at most once at a time and never blocks the loop. One that did not succeed is tried again after a
pause that doubles; the loop asks `next_at` when to wake up for it. Failures of activities end here: they are told to
`on_failure` and never reach the workflow.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.errors import from_activity_error

FIRST_PAUSE_SEC: Final = 1.0
LONGEST_PAUSE_SEC: Final = 30.0


@dataclass
class _Pause:
    seconds: float
    until: float


class Errands:
    """The errands that are under way, and the pauses of those that failed. `on_change` wakes the loop."""

    def __init__(self, on_change: Callable[[], None], on_failure: Callable[[str, str], None]) -> None:
        self._on_change = on_change
        self._on_failure = on_failure
        self._running: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, _Pause] = {}
        self._wanted: set[str] = set()

    @property
    def idle(self) -> bool:
        """Nothing is under way: a moment at which the workflow may continue as new."""
        return not self._running

    def want(self, name: str, wanted: bool, work: Callable[[], Awaitable[bool]], now: float) -> None:
        """Start `work` if it is wanted, not under way and not pausing. `work` returns whether it is done for now."""
        if not wanted:
            self._wanted.discard(name)
            self._pauses.pop(name, None)
            return
        self._wanted.add(name)
        pause = self._pauses.get(name)
        if name in self._running or (pause is not None and now < pause.until):
            return
        self._running[name] = asyncio.create_task(self._run(name, work))

    def next_at(self) -> float | None:
        """When the first pausing errand is due (epoch seconds)."""
        due = (pause.until for name, pause in self._pauses.items() if name in self._wanted and name not in self._running)
        return min(due, default=None)

    async def _run(self, name: str, work: Callable[[], Awaitable[bool]]) -> None:
        try:
            done = await work()
        except ActivityError as error:
            self._on_failure(name, from_activity_error(error).message)
            done = False
        finally:
            self._running.pop(name, None)
            self._on_change()
        if done:
            self._pauses.pop(name, None)
        else:
            self._pause(name)

    def _pause(self, name: str) -> None:
        before = self._pauses.get(name)
        seconds = FIRST_PAUSE_SEC if before is None else min(2 * before.seconds, LONGEST_PAUSE_SEC)
        self._pauses[name] = _Pause(seconds, workflow.now().timestamp() + seconds)
