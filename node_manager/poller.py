"""A look at every engine at each beat of the pace, for as long as the process lives.

The pace is calm until the FaultManager says otherwise; a new pace holds at once, not after the present pause. Engines
are looked at concurrently, and one that does not answer delays nobody: its look goes on into the next beats, and the
others are looked at again meanwhile. What one beat saw leaves as one report.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from node_manager.looks import Looks
from node_manager.managed_engine import ManagedEngine
from node_manager.waiting import set_within

log = logging.getLogger(__name__)

_GATHER_LIMIT_SEC = 0.25
"""How long one beat waits for answers before what it has leaves: what comes later leaves by itself."""


class Poller:
    """`engines` gives those to look at now; `flush` sends what was seen. `on_bug`: a look at this rank failed by a bug."""

    def __init__(
        self,
        *,
        looks: Looks,
        engines: Callable[[], Iterable[ManagedEngine]],
        flush: Callable[[], None],
        interval_sec: float,
        timeout_sec: Callable[[], float],
        on_bug: Callable[[int, Exception], None],
    ) -> None:
        self._sightings = looks
        self._engines = engines
        self._flush = flush
        self._interval_sec = interval_sec
        self._timeout_sec = timeout_sec
        self._on_bug = on_bug
        self._woken = asyncio.Event()
        self._looks: set[asyncio.Task[None]] = set()

    @property
    def interval_sec(self) -> float:
        return self._interval_sec

    def set_pace(self, interval_sec: float) -> None:
        """From now on look this often, beginning now."""
        if interval_sec != self._interval_sec:
            log.info("pace", extra={"poll_interval_sec": interval_sec})
            self._interval_sec = interval_sec
            self.wake()

    def wake(self) -> None:
        """Look now: there is an engine more, or reason to hurry."""
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        beat = time.monotonic()
        try:
            while True:
                await self._beat()
                now = time.monotonic()
                beat = max(beat + self._interval_sec, now)
                if await set_within(self._woken, beat - now):
                    beat = time.monotonic()
        finally:
            for look in self._looks:
                look.cancel()

    async def _beat(self) -> None:
        self._woken.clear()
        started = {asyncio.create_task(self._look(engine)) for engine in self._engines() if not engine.looking}
        self._looks |= started
        if started:
            await asyncio.wait(started, timeout=min(self._interval_sec, _GATHER_LIMIT_SEC))
        self._flush()

    async def _look(self, engine: ManagedEngine) -> None:
        engine.looking = True
        began, interval_sec = time.monotonic(), self._interval_sec
        try:
            await self._sightings.poll(engine, self._timeout_sec())
        except Exception as error:
            self._on_bug(engine.rank, error)
        finally:
            engine.looking = False
            task = asyncio.current_task()
            assert task is not None
            self._looks.discard(task)
            if time.monotonic() - began > min(interval_sec, _GATHER_LIMIT_SEC):
                self._flush()
