"""What happened, in order, on one clock: the thread through an evidence bundle.

Every process of a local installation runs on one machine, so `time.monotonic()` is one clock for all of them. Entries
are collected as that clock shows; files count seconds from the injection, which is what a reader wants to know.
"""

import bisect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from domain.model import Strict

_DIGITS: Final = 4


class Mark(Strict):
    """One thing that happened: `at` is `time.monotonic()`, `who` a process (`engine/1`, `coordinator`), `what` a short word."""

    at: float
    who: str
    what: str
    value: str = ""


class TimelineLine(Strict):
    """One line of `timeline.jsonl`; `t` in seconds since the injection."""

    t: float
    who: str
    what: str
    value: str


class Timeline:
    """Marks in the order of their time; those of one instant in the order in which they were added."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def __iter__(self) -> Iterator[Mark]:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, at: float, who: str, what: str, value: object = "") -> Mark:
        """Put one mark in its place."""
        mark = Mark(at=at, who=who, what=what, value=str(value))
        bisect.insort_right(self._marks, mark, key=lambda other: other.at)
        return mark

    def extend(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            bisect.insort_right(self._marks, mark, key=lambda other: other.at)

    def lines(self, zero: float) -> list[TimelineLine]:
        """The timeline in seconds since `zero`."""
        return [
            TimelineLine(t=round(mark.at - zero, _DIGITS), who=mark.who, what=mark.what, value=mark.value) for mark in self._marks
        ]

    def write(self, path: Path, zero: float) -> None:
        """`timeline.jsonl`."""
        path.write_text("".join(line.model_dump_json() + "\n" for line in self.lines(zero)), encoding="utf-8")
