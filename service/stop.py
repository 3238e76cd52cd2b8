"""How a process is told to stop, and how it hears that in the middle of anything.

One asyncio.Event carries the wish; SIGTERM and SIGINT set it. Whatever waits, waits against it (`unless_stopped`), so a
signal that arrives while a process still looks for its peers ends it as cleanly as one that arrives later. Clean-up is
bounded by those who do it; a person in a hurry presses Ctrl-C a second time and the process is gone at once.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Stopped(Exception):
    """The process was asked to stop while it waited for something."""


class OutOfTime(Exception):
    """The process was asked to stop, and something that it holds does not let go of it in time. It leaves all the same, at once:
    whatever still runs in its loop is not waited for."""


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on; call it first thing in a process's main coroutine.

    A second SIGINT ends the process at once, with exit code 130. SIGTERM may come as often as it likes.
    """
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, number, event)
    return event


def _on_signal(number: signal.Signals, event: asyncio.Event) -> None:
    if event.is_set() and number is signal.SIGINT:
        sys.stderr.flush()
        os._exit(130)
    if not event.is_set():
        log.info("stopping", extra={"signal": number.name})
        event.set()


async def unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T:
    """The result of `work`; if `stop` is set first, `work` is cancelled, awaited, and Stopped is raised."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise Stopped
    return task.result()


async def sleep_unless_stopped(seconds: float, stop: asyncio.Event) -> bool:
    """Sleep; True as soon as `stop` is set, False when the time is over."""
    try:
        async with asyncio.timeout(seconds):  # wait_for would swallow a cancel that meets the event
            await stop.wait()
    except TimeoutError:
        return False
    return True
