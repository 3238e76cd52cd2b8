"""When a NodeManager saw what: its log lines about its engines.

The moment at which a NodeManager has the last piece of evidence is where our share of a recovery begins. It is in the
NodeManager's ordinary log (`engine status rank=1 status=dead … mono=4711.0815`). Its `mono` is `time.monotonic()`, as in the
engines' and the Coordinators' logs; the time at the line's begin is a wall clock, which may be stepped in the middle of a run.
"""

import re
from pathlib import Path
from typing import Final

from domain.engine import EngineStatus
from domain.model import Strict
from lab.drills.record.timeline import Mark

_LINE: Final = re.compile(
    r"^\S+Z INFO +.*? engine status rank=(?P<rank>\d+) status=(?P<status>\w+) "
    r"(ft_state=(?P<ft_state>\w+) )?source=(?P<source>\w+) sequence=\d+ mono=(?P<mono>[\d.]+)"
)
EVIDENCE: Final = frozenset({EngineStatus.DEAD.value, EngineStatus.UNHEALTHY.value})


class LoggedEntry(Strict):
    """A NodeManager saw something new of a rank; `at` is `time.monotonic()`."""

    at: float
    manager: str
    rank: int
    status: str
    ft_state: str | None
    source: str

    @property
    def is_evidence(self) -> bool:
        return self.status in EVIDENCE


def read_entries(manager: str, path: Path) -> list[LoggedEntry]:
    """All entries in a NodeManager's log; none where it is not there."""
    if not path.exists():
        return []
    lines = (_LINE.match(text) for text in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [
        LoggedEntry(
            at=float(line["mono"]),
            manager=manager,
            rank=int(line["rank"]),
            status=line["status"],
            ft_state=None if line["ft_state"] in (None, "None") else line["ft_state"],
            source=line["source"],
        )
        for line in lines
        if line is not None
    ]


def marks(entries: list[LoggedEntry]) -> list[Mark]:
    """As marks of the timeline."""
    return [
        Mark(at=s.at, who=s.manager, what="sees", value=f"rank {s.rank} {s.status} {s.ft_state or ''}".strip() + f" ({s.source})")
        for s in entries
    ]
