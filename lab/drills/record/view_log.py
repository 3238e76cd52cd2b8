"""What each Coordinator was told to serve, and when: its view log.

A Coordinator writes a line before it acknowledges a refresh that changed something or was refused (`mono` is
`time.monotonic()`). `ranks` are what the instance routes to after the line, whoever sent it and whatever it said.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from domain.model import Tolerant
from lab.drills.record.timeline import Mark
from lab.oracle.observations import Event, SourceKind, SourceRead, ViewChange, ViewSeen


class ViewLine(Tolerant):
    """One line of a view log. `ranks` is None for a refresh that was refused, `instance` for a line about all of them."""

    mono: float
    event: str
    incarnation: str | None = None
    instance: int | None = None
    revision: int | None = None
    ranks: tuple[int, ...] | None = None
    outcome: str = ""
    has_view: bool | None = None

    @property
    def applied(self) -> bool:
        return self.outcome == "applied"


def read_view_log(path: Path, instance_id: int | None = None) -> list[ViewLine]:
    """All lines that can be read, or those that concern one instance; none where the file is not there."""
    if not path.exists():
        return []
    parsed = (_parse(text) for text in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in parsed if line is not None and (instance_id is None or line.instance in (None, instance_id))]


def _parse(text: str) -> ViewLine | None:
    try:
        return ViewLine.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None


def observations(coordinator: str, lines: Iterable[ViewLine], instance_id: int) -> Iterator[Event]:
    """What one Coordinator served of an instance, for the invariants. A start serves nothing."""
    last = 0.0
    for line in lines:
        last = line.mono
        if line.event == "start":
            yield ViewSeen(at=line.mono, coordinator=coordinator, change=ViewChange.SET, revision=None, endpoints={})
        elif line.instance == instance_id and line.applied and line.ranks is not None:
            yield ViewSeen(
                at=line.mono,
                coordinator=coordinator,
                change=ViewChange(line.event) if line.event in set(ViewChange) else ViewChange.SET,
                revision=line.revision,
                endpoints=dict.fromkeys(line.ranks, ""),
            )
    if last:
        yield SourceRead(at=last, kind=SourceKind.VIEW_LOG, who=coordinator)


def marks(coordinator: str, lines: Iterable[ViewLine]) -> Iterator[Mark]:
    """The lines as marks of the timeline."""
    for line in lines:
        told = f"revision={line.revision} ranks={None if line.ranks is None else list(line.ranks)} {line.outcome}"
        yield Mark(at=line.mono, who=coordinator, what=line.event, value="" if line.event == "start" else told)
