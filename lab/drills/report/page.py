"""`report.json` for programs, `report.md` for the person who was called at night.

The Markdown begins with the answer (passed or not, what was done, who serves now), then where the time went, then every
check with what it saw. Nothing in it is new: all of it is in `report.json` too.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lab.drills.outcome import STAGE_MEANINGS, STAGES, DrillReport, RequestCount

_FILES: Final = (
    ("report.json", "this report for programs"),
    ("timeline.svg", "the recovery as a picture: open it in a browser"),
    ("timeline.jsonl", "everything that happened, in order, in seconds since the injection"),
    ("applies.jsonl", "every command that reached an engine, from the engines' own logs"),
    ("views.jsonl", "every refresh that reached a Coordinator, and what became of it"),
    ("requests.jsonl", "every client request"),
    ("histories/", "the workflows' histories, as `temporal workflow show -o json` prints them; can be replayed"),
    ("logs/", "the log of every process; `events.jsonl`: when each started, was signalled, ended and came back"),
)


def write_report(directory: Path, report: DrillReport) -> None:
    """`report.json` and `report.md`."""
    (directory / "report.json").write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (directory / "report.md").write_text(render(report), encoding="utf-8")


def render(report: DrillReport) -> str:
    """`report.md`."""
    sections = [
        _head(report),
        _requests(report),
        _time(report),
        _checks(report),
        _details(report),
        _bundle(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def verdict(report: DrillReport) -> str:
    """PASSED, FAILED or COULD NOT RUN."""
    if not report.could_run:
        return "COULD NOT RUN"
    return "PASSED" if report.passed else "FAILED"


def _head(report: DrillReport) -> str:
    lines = [f"# Drill {report.drill}: {verdict(report)}", "", report.summary]
    if report.failure:
        lines += ["", f"**It did not come to its end:** {report.failure}"]
    failed = [check for check in report.checks if not check.ok]
    lines += ["", *(f"- **not ok: {check.name}**: {check.detail}" for check in failed)]
    lines += [f"- injected: {injection.what} (`{injection.command}`) at {injection.at:.2f} s" for injection in report.injections]
    lines += [
        f"- removed for good: {_ranks(report.figures.dead_committed)}; served now: {_ranks(report.figures.published_ranks)}"
    ]
    applies = ", ".join(f"engine {rank}: {count}" for rank, count in report.figures.applies_per_engine.items())
    lines += [f"- commands that reached engines: {applies or 'none'}"]
    if report.figures.control_plane_sec is not None:
        lines += [f"- our share of the recovery: {report.figures.control_plane_sec:.3f} s (control_plane_sec)"]
    late = report.figures.late_sec
    lines += [f"- `{cell}`: the round's next step began {seconds:.2f} s later (late_sec)" for cell, seconds in late.items()]
    lines += [f"- left behind: {', '.join(report.orphan_processes) or 'nothing'}"]
    return "\n".join(lines)


def _requests(report: DrillReport) -> str:
    counted = report.figures.requests
    rows = [
        ("before the injection", counted.before),
        ("from the injection until the survivors were published", counted.during),
        ("after that", counted.after),
    ]
    if not any(count.ok or count.failed for _, count in rows):
        return "## Requests\n\nNo traffic in this drill."
    return "## Requests\n\n" + table(("", "ok", "failed"), [(name, *_count(count)) for name, count in rows])


def _time(report: DrillReport) -> str:
    if not report.rounds:
        return ""
    parts = ["## Where the time went"]
    for number, round_ in enumerate(report.rounds, start=1):
        if not round_.stage_sec:
            continue
        rows = [
            (name, f"{round_.stage_sec[name] * 1000:.0f} ms", STAGE_MEANINGS[name]) for name in STAGES if name in round_.stage_sec
        ]
        title = f"Round {number}, `{round_.request_id}`, removed {_ranks(round_.removed)}"
        ours = "" if round_.control_plane_sec is None else f"; our share {round_.control_plane_sec:.3f} s"
        parts.append(f"{title}{ours}\n\n" + table(("stage", "took", "what it is"), rows))
    timers = report.figures.non_default_timers
    if timers:
        shown = [(f"`{name}`", f"{value:g} s") for name, value in sorted(timers.items())]
        parts.append("Timers that differ from the production defaults:\n\n" + table(("timer", "here"), shown))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _checks(report: DrillReport) -> str:
    if not report.checks:
        return ""
    rows = [("ok" if c.ok else "**NOT OK**", c.name, str(c.observations), c.detail) for c in report.checks]
    return "## Checks\n\n" + table(("", "check", "observations", "seen"), rows)


def _details(report: DrillReport) -> str:
    lines = [
        f"- rank {completion.rank}: {'ok' if completion.ok else 'FAILED'}, {completion.text or completion.detail}"
        for completion in report.completions
    ]
    parts = ["## One completion on each served rank, asked of its own engine\n\n" + "\n".join(lines)] if lines else []
    stops = [f"- {stop.at:.2f} s {stop.process}: {stop.detail}" for stop in report.pod_stops]
    parts.append("## Processes of Pods that ended\n\n" + ("\n".join(stops) or "None but what the drill killed."))
    return "\n\n".join(parts)


def _bundle(report: DrillReport) -> str:
    rows = [(f"[`{name}`]({name})", what) for name, what in _FILES]
    told = f"Run {report.run_id}, started {report.started_at}, took {report.took_sec:.1f} s. Workflows: "
    return "## Evidence\n\n" + told + (", ".join(report.workflows) or "none") + ".\n\n" + table(("file", "what"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _count(count: RequestCount) -> tuple[str, str]:
    return str(count.ok), str(count.failed)


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "none"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
