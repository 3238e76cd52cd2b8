"""One attempt at an activity: its clock, its memory, its heartbeat, and how it ends.

A worker may die in the middle of anything. What makes that harmless: every attempt heartbeats, so that the server notices
within seconds and lets another worker try; what an attempt has learnt travels in its heartbeat, so that the next one goes
on from there; and time is the server's, so that attempts on different machines measure alike.

**Clock.** `now()` is the server's time when this attempt started, plus what passed on the monotonic clock since. Nobody's
wall clock matters. Deadlines are absolute, and whoever starts late (the worker was away) still makes one try.

**End.** A worker that shuts down lets go of its activities at once: `pause` raises `WorkerLeaving`, and the next attempt
runs elsewhere. An attempt that was asked to stop gets `asyncio.CancelledError` (see `cancel_requested`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError

from activities.errors import bug, to_application_error
from domain.errors import AutotomyError, Transient
from service.failpoints import failpoint

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

HEARTBEAT_EVERY_SEC: Final = 0.5
"""Also how long a cancelled activity needs to hear of it."""

_FIRST_PAUSE_SEC: Final = 0.05
_LONGEST_PAUSE_SEC: Final = 0.5
_LEAST_TIMEOUT_SEC: Final = 1.0


class WorkerLeaving(Exception):
    """This worker shuts down; the activity goes on elsewhere."""


class Attempt:
    """This attempt's clock and memory. `number` counts from 1."""

    def __init__(self) -> None:
        info = activity.info()
        self.number = info.attempt
        self._clock_offset = info.started_time.timestamp() - time.monotonic()
        self._memory: str | None = None
        self._inherited = info.heartbeat_details[0] if info.heartbeat_details else None

    def now(self) -> float:
        """Seconds since the epoch by the server's clock."""
        return time.monotonic() + self._clock_offset

    def left(self, deadline_at: float) -> float:
        """Seconds until an absolute deadline; negative when it is over."""
        return deadline_at - self.now()

    def remember(self, memory: BaseModel) -> None:
        """What a next attempt should know; it travels with the heartbeats."""
        self._memory = memory.model_dump_json()

    def recall(self, kind: type[M]) -> M | None:
        """What the attempt before remembered, or None: the first attempt, or a worker of another version."""
        if not isinstance(self._inherited, str):
            return None
        try:
            return kind.model_validate_json(self._inherited)
        except ValidationError:
            log.warning("the memory of the attempt before cannot be read, starting anew", extra={"kind": kind.__name__})
            return None

    def heartbeat(self) -> None:
        if self._memory is None:
            activity.heartbeat()
        else:
            activity.heartbeat(self._memory)

    async def pause(self, seconds: float, unless: asyncio.Event | None = None) -> None:
        """Sleep, or return as soon as `unless` is set. Raises WorkerLeaving when the worker shuts down."""
        leaving = asyncio.ensure_future(activity.wait_for_worker_shutdown())
        waits = [leaving] if unless is None else [leaving, asyncio.ensure_future(_set(unless))]
        try:
            await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if activity.is_worker_shutdown():
            self.heartbeat()
            raise WorkerLeaving

    async def until_answered(
        self,
        ask: Callable[[float], Awaitable[T]],
        deadline_at: float,
        timeout_sec: float,
        *,
        halt: asyncio.Event | None = None,
    ) -> T:
        """Repeats `ask(timeout in seconds)` while it raises Transient, until the deadline; asks at least once.

        The first time it gets the whole `timeout_sec`, so that a late attempt is a fair one. `halt` ends the repetition
        early. Raises the last Transient, and whatever else `ask` raises.
        """
        pause_sec, timeout = _FIRST_PAUSE_SEC, timeout_sec
        while True:
            try:
                return await ask(timeout)
            except Transient:
                left = self.left(deadline_at)
                if left <= 0 or (halt is not None and halt.is_set()):
                    raise
            await self.pause(min(pause_sec, left), halt)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
            timeout = min(timeout_sec, max(self.left(deadline_at), _LEAST_TIMEOUT_SEC))


async def _set(event: asyncio.Event) -> None:
    await event.wait()


@contextlib.asynccontextmanager
async def attempt(effect: str) -> AsyncIterator[Attempt]:
    """Runs an activity's body: heartbeats beside it, failpoints `worker.<effect>.before|after` around it, errors mapped."""
    run = Attempt()
    heart = asyncio.create_task(_beat(run), name=f"heartbeat {effect}")
    try:
        await failpoint(f"worker.{effect}.before")
        yield run
        await failpoint(f"worker.{effect}.after")
    except AutotomyError as error:
        raise to_application_error(error) from error
    except WorkerLeaving:
        raise _handed_over() from None
    except FailureError:
        raise
    except Exception as error:
        log.exception("activity failed by a bug", extra={"activity": activity.info().activity_type})
        raise bug(error) from error
    finally:
        heart.cancel()


def _handed_over() -> ApplicationError:
    return ApplicationError(
        "this worker shuts down, another one goes on",
        Transient.__name__,
        type="WORKER_SHUTDOWN",
        category=ApplicationErrorCategory.BENIGN,
    )


async def _beat(run: Attempt) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_EVERY_SEC)
        run.heartbeat()


def cancel_requested() -> bool:
    """Whether the CancelledError that was just caught is the workflow's wish, and not a timeout or a shutdown."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


async def concurrently(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. If one raises, the others are cancelled and waited for, and it is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result, also where nobody wants it any more because the workflow has ended; a worker that shuts down cuts it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is None or not details.not_found:
            task.cancel()
            raise
        return await task


async def settled(work: Awaitable[T]) -> T | AutotomyError:
    """The result, or the AutotomyError as a value: for fan-outs in which one peer's no is not everybody's end."""
    try:
        return await work
    except AutotomyError as error:
        return error
