"""A drill on a terminal or in a log: a line a step while it runs, and the result in a screenful."""

import time
from typing import Final, TextIO

from lab.drills.drill import Drill
from lab.drills.outcome import STAGES, DrillReport, RequestCount
from lab.drills.record.events import DrillEvent, DrillEventKind, in_words
from lab.drills.report.page import verdict

_SHOWN_STACK: Final = frozenset({"ready", "failed", "restarted", "exited", "pod_restarted"})


class Console:
    """Prints events as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began_at = time.monotonic()

    def begin(self, drill: Drill) -> None:
        """What is about to be done."""
        self._print(f"drill {drill.name}: {drill.summary}")
        timers = ", ".join(f"{name}={value:g}" for name, value in drill.spec.non_default_timers().items())
        self._print(f"timers that differ from production: {timers or 'none'}")

    def __call__(self, event: DrillEvent) -> None:
        if _worth_a_line(event):
            at = f"{event.mono - self._began_at:6.1f} s" if event.t is None else f"{event.t:+6.2f} s"
            self._print(f"  {at}  {in_words(event)}")

    def end(self, report: DrillReport) -> None:
        """The result."""
        for check in report.checks:
            self._print(f"  {'ok    ' if check.ok else 'NOT OK'}  {check.name} ({check.observations}): {check.detail}")
        if report.failure:
            self._print(f"  {report.failure}")
        figures = report.figures
        if figures.stage_sec:
            parts = ", ".join(f"{name} {figures.stage_sec[name]:.3f}" for name in STAGES if name in figures.stage_sec)
            self._print(f"  seconds: {parts}")
        if figures.control_plane_sec is not None:
            self._print(f"  our share of the recovery: {figures.control_plane_sec:.3f} s")
        counts = figures.requests
        told = ", ".join(
            f"{name} {_said(count)}"
            for name, count in (("before", counts.before), ("during", counts.during), ("after", counts.after))
        )
        self._print(f"  requests ok/failed: {told}; commands per engine: {figures.applies_per_engine or 'none'}")
        self._print(f"drill {report.drill}: {verdict(report)} in {report.took_sec:.1f} s; evidence: {report.bundle}")

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def _worth_a_line(event: DrillEvent) -> bool:
    """Requests only where some fail, processes only when they come and go; checks are listed at the end."""
    match event.kind:
        case DrillEventKind.STACK:
            return event.text.rpartition(" ")[2] in _SHOWN_STACK
        case DrillEventKind.REQUESTS:
            return event.failed > 0
        case DrillEventKind.CHECK | DrillEventKind.DONE:
            return False
        case _:
            return True


def _said(count: RequestCount) -> str:
    return f"{count.ok}/{count.failed}"
