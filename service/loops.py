"""Long-lived tasks: what goes on beside the requests for as long as a process lives, and must not end unnoticed.

A loop that died looks like one that has nothing to say: a reporter that reports no more, a watch that notices nobody's
silence. So a loop that ends by itself, by an exception or not, is a failure of its process:

* `Loops` is for processes that lose nothing by starting anew (API, worker): the process stops and exits with code 1, its
  supervisor starts it again.
* `Renewed` is for a process that holds what must live on (a NodeManager's engines): the loop is begun again after a pause,
  and readiness says which one failed, and why, until it has gone on for `HEALED_SEC`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from domain.errors import AutotomyError

log = logging.getLogger(__name__)

FIRST_PAUSE_SEC: Final = 0.5
LONGEST_PAUSE_SEC: Final = 30.0
HEALED_SEC: Final = 60.0
"""A loop that has gone on for so long since its last failure is well again."""

_MAX_SHOWN: Final = 300


class LoopFailed(Exception):
    """A long-lived task ended by itself; the log has its traceback. Ends its process with code 1."""


class Loops:
    """The loops of a process that ends with any of them. `stop` is set when one fails."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: str | None = None

    def start(self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool = False) -> None:
        """Run `work` beside everything else. `may_end`: it has an end that is none by failure."""
        task = asyncio.create_task(self._guarded(name, work, may_end=may_end), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool) -> None:
        try:
            await work
            if may_end:
                return
            why = "it ended by itself"
            log.critical("a loop of this process ended", extra={"loop": name})
        except Exception as error:
            why = in_words(error)
            log.critical("a loop of this process failed", extra={"loop": name}, exc_info=error)
        if self._failed is None:
            self._failed = f"{name}: {why}"
        self._stop.set()

    async def end(self) -> None:
        """Cancel what still runs."""
        running = set(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def raise_if_one_failed(self) -> None:
        """Raises `LoopFailed`: the process must not end as if it had been asked to."""
        if self._failed is not None:
            raise LoopFailed(self._failed)


class Renewed:
    """Loops that are begun again when they fail, and what readiness says of them meanwhile. `now`: monotonic, seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[str, tuple[float, str]] = {}

    @property
    def trouble(self) -> str | None:
        """Which loops failed of late, and why; None where all go on."""
        recent = (f"{name}: {why}" for name, (at, why) in sorted(self._failures.items()) if self._now() - at < HEALED_SEC)
        return "; ".join(recent) or None

    def note(self, name: str, error: BaseException) -> None:
        """`name` has just failed by a bug: said in the log, and by readiness for a while."""
        self._failures[name] = (self._now(), in_words(error))
        log.critical("a loop of this process failed by a bug", extra={"loop": name}, exc_info=error)

    async def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop()`, again and again, until cancelled."""
        pause_sec = FIRST_PAUSE_SEC
        while True:
            began = self._now()
            try:
                await loop()
                raise LoopFailed("it ended by itself")
            except Exception as error:
                self.note(name, error)
            pause_sec = FIRST_PAUSE_SEC if self._now() - began > HEALED_SEC else min(2 * pause_sec, LONGEST_PAUSE_SEC)
            await asyncio.sleep(pause_sec)


def in_words(error: BaseException) -> str:
    """One line of an exception, for people."""
    words = error.message if isinstance(error, AutotomyError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())[:_MAX_SHOWN]
