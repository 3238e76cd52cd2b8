"""Engines that must go: a newer start came, or a stop. They are ended as whole trees.

An engine is marked `leftover` on disk before it gets a signal, so that a NodeManager that is killed meanwhile goes on ending
it in its next life.
"""

import asyncio
import logging

from node_manager.engines import Engines
from node_manager.journal import EngineRecord, Journal, JournalError
from node_manager.managed_engine import ManagedEngine

log = logging.getLogger(__name__)


class Leftovers:
    """Those that still run here."""

    def __init__(self, journal: Journal, engines: Engines) -> None:
        self._journal = journal
        self._engines = engines
        self._leftovers: list[ManagedEngine] = []
        self._clean = asyncio.Event()
        self._clean.set()

    @property
    def engines(self) -> tuple[ManagedEngine, ...]:
        return tuple(self._leftovers)

    async def until_clean(self) -> None:
        """Until none is left."""
        await self._clean.wait()

    def records(self) -> list[EngineRecord]:
        """What the journal must say before `set_aside`: every engine that runs has to go."""
        return [engine.record.model_copy(update={"leftover": True}) for engine in self._engines.all()]

    def set_aside(self) -> None:
        """Every engine that runs has to go."""
        for engine in self._engines.take_all():
            engine.record = engine.record.model_copy(update={"leftover": True})
            self.add(engine)

    def add(self, engine: ManagedEngine) -> None:
        self._leftovers.append(engine)
        self._clean.clear()

    async def end_all(self) -> None:
        """Ends them all at once; each is bounded by its stop grace."""
        await asyncio.gather(*(self._end(engine) for engine in self.engines))

    async def _end(self, engine: ManagedEngine) -> None:
        await end_tree(engine)
        engine.tree.close()
        self._leftovers.remove(engine)
        if not self._leftovers:
            self._clean.set()
        try:
            self._journal.commit(gone=[engine.incarnation])
        except JournalError as error:
            log.error("engine ended unrecorded", extra={"rank": engine.rank, "why": error.message})


async def end_tree(engine: ManagedEngine) -> None:
    """Ends an engine's processes, all of them."""
    if not await engine.tree.terminate(engine.spec.stop_grace_sec):
        log.error("engine cannot be ended", extra={"rank": engine.rank, "identity": engine.incarnation})
