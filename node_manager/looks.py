"""Looks at engines, and what is new in them.

There are two kinds of look. A **poll** feeds the reports: an engine that does not answer is evidence of a death. A
**fresh look** serves a round: an engine that does not answer is `unknown`, the round judges the silence itself. Both
share one memory per rank: whatever differs from the last sighting in (status, ft_state, process, incarnation, source)
takes a new sequence number and goes to the reporter, whoever saw it.

Over every look lies the process: once the kernel has told that the engine or a worker of it ended, the rank is `dead`
for the rest of that incarnation, whatever the FT API goes on saying. Looks may overlap; one that began earlier never
overwrites one that began later.
"""

import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from domain.engine import EngineEntry, EngineStatus, EntrySource, ProcessState, RankEntry
from domain.errors import ProtocolError, Transient
from engine.client import FtApiAbsent
from node_manager.managed_engine import ManagedEngine

log = logging.getLogger(__name__)

News = Callable[[RankEntry], None]

_NEVER_SEEN: Final = 0


class Looks:
    """`next_sequence` gives a number above all before it; `on_news` gets every entry that shows something new."""

    def __init__(self, *, next_sequence: Callable[[], int], on_news: News, dead_after_poll_failures: int) -> None:
        self._next_sequence = next_sequence
        self._on_news = on_news
        self._dead_after_poll_failures = dead_after_poll_failures
        self._looks = count(1)

    async def poll(self, engine: ManagedEngine, timeout_sec: float) -> None:
        """One look for the reports. An engine without FT API is left to the supervision of its processes."""
        look = next(self._looks)
        try:
            entry = await engine.client.status(timeout_sec)
        except FtApiAbsent as absent:
            engine.ft_api_absent = True
            log.warning("engine has no FT API, only its processes are watched", extra={"rank": engine.rank, "why": str(absent)})
        except ProtocolError as error:
            engine.mute_polls = 0
            self._see(engine, look, _protocol_error(engine, error))
        except Transient as silence:
            engine.mute_polls += 1
            if engine.mute_polls >= self._dead_after_poll_failures:
                self._see(engine, look, _mute(engine, EngineStatus.DEAD, silence))
        else:
            engine.mute_polls = 0
            self._see(engine, look, _answered(engine, entry))

    async def look(self, engine: ManagedEngine, timeout_sec: float) -> RankEntry:
        """One fresh look for a round. Raises `ProtocolError` where the engine breaks its contract."""
        look = next(self._looks)
        if engine.loss is not None:
            return self.process_ended(engine)
        try:
            entry = await engine.client.status(timeout_sec)
        except ProtocolError:
            if engine.loss is not None:
                return self.process_ended(engine)
            raise
        except Transient as silence:
            if engine.loss is not None:
                return self.process_ended(engine)
            return _numbered(_mute(engine, EngineStatus.UNKNOWN, silence), engine)
        engine.mute_polls = 0
        return self._see(engine, look, _answered(engine, entry))

    def process_ended(self, engine: ManagedEngine) -> RankEntry:
        """The kernel told it: final for this incarnation."""
        assert engine.loss is not None
        words = str(engine.loss)
        if engine.stopping:
            return _numbered(_exited(engine, words), engine)
        return self._see(engine, next(self._looks), _exited(engine, words))

    def nothing_runs(self, rank: int, why: str) -> RankEntry:
        """This rank belongs to this Pod, and no engine of it is left here: as final as an exit that was seen."""
        entry = RankEntry(
            id=rank,
            status=EngineStatus.DEAD,
            fault_info=why,
            source=EntrySource.PROCESS_EXIT,
            process=ProcessState.EXITED,
            sequence=self._next_sequence(),
        )
        log.info("engine status", extra=_told(entry))
        self._on_news(entry)
        return entry

    def _see(self, engine: ManagedEngine, look: int, entry: RankEntry) -> RankEntry:
        if engine.loss is not None and entry.source is not EntrySource.PROCESS_EXIT:
            return self.process_ended(engine)
        if look < engine.last_look and engine.last_entry is not None:
            return engine.last_entry
        engine.last_look = look
        if engine.last_entry is not None and _essence(entry) == _essence(engine.last_entry):
            engine.last_entry = entry.model_copy(update={"sequence": engine.last_entry.sequence})
            return engine.last_entry
        engine.last_entry = entry.model_copy(update={"sequence": self._next_sequence()})
        log.info("engine status", extra=_told(engine.last_entry))
        if not engine.stopping:
            self._on_news(engine.last_entry)
        return engine.last_entry


def retired_entry(rank: int, engine: ManagedEngine | None) -> RankEntry:
    """A committed rank's answer, whatever its process does: it is not part of the group any more."""
    gone = engine is None or engine.loss is not None
    return RankEntry(
        id=rank,
        status=EngineStatus.RETIRED,
        process=ProcessState.EXITED if gone else ProcessState.RUNNING,
        incarnation=engine.incarnation if engine else None,
        sequence=engine.last_entry.sequence if engine and engine.last_entry else _NEVER_SEEN,
    )


def _told(entry: RankEntry) -> dict[str, object]:
    """What of an entry goes into the log; the mask too, and only there. `mono`: now, on the clock that is never stepped."""
    told = {
        "rank": entry.id,
        "status": entry.status,
        "ft_state": entry.ft_state,
        "source": entry.source.value,
        "sequence": entry.sequence,
        "mono": f"{time.monotonic():.4f}",
        "why": entry.ft_error or entry.fault_info,
        "mask": entry.mask,
    }
    return {name: value for name, value in told.items() if value is not None}


def _essence(entry: RankEntry) -> tuple[object, ...]:
    return entry.status, entry.ft_state, entry.process, entry.incarnation, entry.source


def _answered(engine: ManagedEngine, entry: EngineEntry) -> RankEntry:
    return RankEntry(**entry.model_dump(), source=EntrySource.ENGINE, incarnation=engine.incarnation)


def _mute(engine: ManagedEngine, status: EngineStatus, silence: Transient) -> RankEntry:
    return RankEntry(
        id=engine.rank, status=status, fault_info=silence.message, source=EntrySource.POLL_ERROR, incarnation=engine.incarnation
    )


def _protocol_error(engine: ManagedEngine, error: ProtocolError) -> RankEntry:
    return RankEntry(
        id=engine.rank,
        status=EngineStatus.UNKNOWN,
        fault_info=error.message,
        source=EntrySource.PROTOCOL_ERROR,
        incarnation=engine.incarnation,
    )


def _exited(engine: ManagedEngine, words: str) -> RankEntry:
    return RankEntry(
        id=engine.rank,
        status=EngineStatus.DEAD,
        fault_info=words,
        source=EntrySource.PROCESS_EXIT,
        process=ProcessState.EXITED,
        incarnation=engine.incarnation,
    )


def _numbered(entry: RankEntry, engine: ManagedEngine) -> RankEntry:
    """An entry that is no news carries the number of the last one that was."""
    return entry.model_copy(update={"sequence": engine.last_entry.sequence if engine.last_entry else _NEVER_SEEN})
