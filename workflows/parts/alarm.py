"""One durable timer for a loop that sleeps until something happens or some moment comes.

A loop that waits with a timeout starts a timer each time it goes to sleep and cancels it each time a signal wakes it: four
events in history for nothing. An alarm that is set already and rings no later than wanted is left alone; it may then ring
too early once, and the loop sets the next.
"""

import asyncio
from collections.abc import Callable

from temporalio import workflow

_SHORTEST_SEC = 0.001
_LONGEST_SUMMARY = 200


class Alarm:
    """`ring` is called when the moment has come."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at: float | None = None
        self._timer: asyncio.Task[None] | None = None

    def set(self, at: float | None, summary: str = "") -> None:
        """Ring at `at` (epoch seconds) or before; None: not at all."""
        if self._timer is not None and at is not None and self._at is not None and self._at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._at = at
            self._timer = asyncio.create_task(self._sleep(at, summary[:_LONGEST_SUMMARY]))

    async def _sleep(self, at: float, summary: str) -> None:
        await workflow.sleep(max(_SHORTEST_SEC, at - workflow.now().timestamp()), summary=summary or None)
        self._timer = None
        self._ring()
