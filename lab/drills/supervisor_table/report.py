"""The report: the table beside the published one, the picture, and the files of the bundle (contracts §8)."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from domain.model import Strict
from lab.drills.outcome import Finding, Report
from lab.drills.record.engine_log import EngineLine
from lab.drills.record.timeline import Timeline
from lab.drills.record.view_log import ViewLine
from lab.drills.report.lanes import Change, spans
from lab.drills.report.page import table
from lab.drills.report.picture import Lane, Picture, Tick, write_picture
from lab.drills.supervisor_table.experiment import COLUMNS, PUBLISHED, Clock, Column, Published
from lab.drills.supervisor_table.run import Raw, RunReport

NAME: Final = "supervisor-table"
SUMMARY: Final = (
    "Two pools of four ranks, 16 requests/s, one worker of pool A is killed: the stock supervisor's rules against ours, with "
    "and without scale_down, beside the published figures."
)
_NOTHING: Final = "–"


class ColumnFigures(Strict):
    """One column: what was published, and our runs."""

    published: Published
    runs: tuple[RunReport, ...]


class TableFigures(Strict):
    """`columns` by name. `factor`: waiting times are divided by it; all seconds in the runs are multiplied back."""

    factor: float
    columns: dict[str, ColumnFigures]
    orphans: int
    non_default_timers: dict[str, float]


class TableReport(Report):
    """`report.json` of the table."""

    drill: str = NAME
    summary: str = SUMMARY
    checks: tuple[Finding, ...]
    figures: TableFigures
    took_sec: float
    bundle: str


def table_text(figures: TableFigures) -> str:
    """The table as it was published, each cell beside ours."""
    head = ("", *(f"{word}, {where}" for word in ("stock supervisor", "ours") for where in ("published", "here")))
    return table(head, [_row(figures, row) for row in _ROWS if _has(figures, row)])


class _Row(NamedTuple):
    """One row: which of the two variants, whose published cell, and ours from a run."""

    title: str
    scale_down: bool
    published: Callable[[Published], str | None]
    ours: Callable[[RunReport], str]

    def columns(self) -> tuple[Column, ...]:
        return tuple(column for column in COLUMNS if column.scale_down == self.scale_down)


def _has(figures: TableFigures, row: _Row) -> bool:
    return any(column.name in figures.columns for column in row.columns())


def _row(figures: TableFigures, row: _Row) -> list[str]:
    cells = [row.title]
    for column in row.columns():
        own = figures.columns.get(column.name)
        runs = own.runs if own is not None else ()
        cells.append(row.published(PUBLISHED[column.name]) or _NOTHING)
        cells.append(", ".join(row.ours(run) for run in runs if run.failure is None) or _NOTHING)
    return cells


def render(report: TableReport) -> str:
    """`report.md`."""
    figures = report.figures
    verdict = "PASSED" if report.passed else "FAILED" if report.could_run else "COULD NOT RUN"
    timers = ", ".join(f"{name} = {value:g}" for name, value in figures.non_default_timers.items())
    parts = [f"# Drill {NAME}: {verdict}", report.summary]
    parts.append(
        f"Waiting times are divided by **{figures.factor:g}** ({timers or 'nothing is'}); seconds below are multiplied back. "
        "Requests are not shortened: they take about a second each, so a divided run has fewer of them. "
        "Published figures are from H200 hardware with a gateway and a picker; engines here are simulated."
    )
    parts.append(table_text(figures))
    parts.append(_NOTES)
    rows = [(("ok" if check.ok else "NOT OK"), check.name, str(check.observations), check.detail) for check in report.checks]
    parts.append("## Checks\n\n" + table(("", "check", "observations", "seen"), rows))
    parts.append("## Runs\n\n" + table(_RUN_HEADER, [_run_row(run) for own in figures.columns.values() for run in own.runs]))
    return "\n\n".join(parts) + "\n"


_NOTES: Final = """\
How to read what differs. *Stock NotReady*: the simulated victim counts its 120 s from the kill itself; on hardware it was a
little later. *Failed requests*: a rank that is dead or halted refuses at once here (`503`), which draws a least-loaded
router's next requests to it; the published run's gateway parked them instead. So more fail while the pool counts as ready,
under both rules until the halt, and with the stock ones for as long as nobody shrinks. Requests also keep their length while
waiting is divided: the halt holds a larger share of a divided run's requests."""

_RUN_HEADER: Final = ("run", "at +125 s", "halted", "NotReady", "recovered", "victim exits", "stopped", "why", "failed / all")


def _run_row(run: RunReport) -> tuple[str, ...]:
    times = (run.detected_at, run.not_ready_at, run.recovered_at, run.victim_exited_at, run.stopped_at)
    return (
        f"{run.column} {run.number}",
        run.failure or run.state_at_125,
        *(_NOTHING if at is None else f"+{at:g} s" for at in times),
        run.stop_reason or _NOTHING,
        _failed_total(run),
    )


def _state(run: RunReport) -> str:
    return run.state_at_125 + (f" ({run.stop_reason})" if run.state_at_125 == "killed" else "")


def _failed_after_120(run: RunReport) -> str:
    return str(run.requests_after_120.failed)


def _not_ready(run: RunReport) -> str:
    return _NOTHING if run.not_ready_at is None else f"+{run.not_ready_at:.0f} s"


def _failed_total(run: RunReport) -> str:
    return f"{run.requests.failed} / {run.requests.failed + run.requests.ok}"


_ROWS: Final = (
    _Row("scale_down at +32 s: pool A at +125 s", True, lambda cells: cells.state_at_125, _state),
    _Row("scale_down at +32 s: failed requests after +120 s", True, lambda cells: cells.failed_after_120, _failed_after_120),
    _Row("scale_down at +32 s: Pod NotReady at", True, lambda cells: cells.not_ready_at, _not_ready),
    _Row("scale_down at +32 s: failed requests", True, lambda cells: cells.failed_total, _failed_total),
    _Row("no scale_down: pool A at +125 s", False, lambda cells: cells.state_at_125, _state),
    _Row("no scale_down: failed requests after +120 s", False, lambda cells: cells.failed_after_120, _failed_after_120),
    _Row("no scale_down: Pod NotReady at", False, lambda cells: cells.not_ready_at, _not_ready),
    _Row("no scale_down: failed requests", False, lambda cells: cells.failed_total, _failed_total),
)


def write_bundle(directory: Path, report: TableReport, clock: Clock, runs: Sequence[tuple[RunReport, Raw, Timeline]]) -> None:
    """Everything but `logs/`, which the runs have written already. Lines of several runs carry `run`."""
    (directory / "report.json").write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (directory / "report.md").write_text(render(report), encoding="utf-8")
    write_picture(directory / "timeline.svg", _picture(report, clock, runs))
    files: dict[str, list[str]] = {"timeline": [], "applies": [], "views": [], "requests": []}
    for run, raw, timeline in runs:
        own = f"{run.column}-{run.number}"
        files["timeline"] += [_line(own, raw.zero, line.t + raw.zero, line) for line in timeline.lines(raw.zero)]
        applies = (line for life in raw.lives.values() for line in life.lines if line.event == "apply")
        files["applies"] += [_line(own, raw.zero, line.mono, line) for line in applies]
        files["views"] += [_line(own, raw.zero, line.mono, line) for line in raw.views]
        files["requests"] += [_line(own, raw.zero, record.started_at, record) for record in raw.requests]
    for name, lines in files.items():
        (directory / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


class _Line(Strict):
    """One line of a file of several runs; `t` in seconds here since that run's kill."""

    run: str
    t: float


def _line(run: str, zero: float, at: float, what: Strict | EngineLine | ViewLine) -> str:
    head = _Line(run=run, t=round(at - zero, 4)).model_dump()
    body = what.model_dump(mode="json", exclude_none=True, exclude={"t", "mono", "started_at", "ended_at"})
    return json.dumps({**head, **body}, ensure_ascii=False) + "\n"


def _picture(report: TableReport, clock: Clock, runs: Sequence[tuple[RunReport, Raw, Timeline]]) -> Picture:
    """A lane a run: pool A ready, not ready, gone; in the experiment's seconds."""
    end = clock.observe_until
    return Picture(
        title=f"autotomy drill {NAME}: {'PASSED' if report.passed else 'FAILED'}",
        subtitle=f"pool A by Kubernetes' readiness probe; times divided by {clock.factor:g} and multiplied back",
        begin=-clock.kill_at,
        end=end,
        lanes=tuple(_lane(run, raw, timeline, clock, end) for run, raw, timeline in runs),
        injections=(Tick(at=0.0, label="SIGKILL of a worker of pool A"),),
    )


def _lane(run: RunReport, raw: Raw, timeline: Timeline, clock: Clock, end: float) -> Lane:
    probes = (mark for mark in timeline if (mark.who, mark.what) == ("pool-a", "ready"))
    changes = [
        Change(at=clock.published(mark.at - raw.zero), label="ready" if mark.value == "True" else "NotReady") for mark in probes
    ]
    if run.stopped_at is not None:
        changes = [change for change in changes if change.at < run.stopped_at]
        changes.append(Change(at=run.stopped_at, label="stopped", detail=run.stop_reason or ""))
    marks = ((run.detected_at, "halted"), (run.recovered_at, "recovered"), (run.victim_exited_at, "the victim's server exits"))
    ticks = tuple(Tick(at=at, label=label, tall=True) for at, label in marks if at is not None)
    return Lane(name=f"{run.column} {run.number}", spans=spans(changes, end), ticks=ticks)
