"""A cancel is never swallowed, however closely it meets what was waited for (asyncio.wait_for of Python 3.11 does that)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from node_manager.waiting import set_within
from service.stop import sleep_unless_stopped

Wait = Callable[[asyncio.Event], Awaitable[bool]]


async def ended_by_cancel(wait: Wait, turns: int) -> bool:
    """Set the event, let the loop turn so often, then cancel: whether the waiter ended cancelled. None was done before."""
    event = asyncio.Event()

    async def waiter() -> bool:
        return await wait(event)

    task = asyncio.create_task(waiter())
    for _ in range(3):
        await asyncio.sleep(0)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.done():
        return True  # it had its answer before anybody cancelled it
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize(
    "wait", [lambda event: set_within(event, 30.0), lambda event: sleep_unless_stopped(30.0, event)], ids=["set_within", "sleep"]
)
async def test_a_cancel_that_meets_the_event_is_a_cancel(wait: Wait, turns: int) -> None:
    assert await ended_by_cancel(wait, turns)


async def test_they_still_tell_the_event_from_the_time() -> None:
    event = asyncio.Event()
    assert not await set_within(event, 0.01)
    assert not await sleep_unless_stopped(0.01, event)
    event.set()
    assert await set_within(event, 30.0)
    assert await sleep_unless_stopped(30.0, event)
