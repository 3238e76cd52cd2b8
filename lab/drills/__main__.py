"""`python -m lab.drills NAME …`, which is what `autotomy drill NAME …` runs.

    autotomy drill --list                                  what there is
    autotomy drill soft-rank --list                        what must hold after this one
    autotomy drill soft-rank [--out DIR] [--json]          run one
    autotomy drill soft-rank --times 10                    ten times in a row, with a table of where the time goes
    autotomy drill all [--out DIR]                         run all, one after the other
    autotomy drill restart --list                          the cells of the restart table
    autotomy drill restart --kill worker --at commit-point
    autotomy drill restart --stop api --at after-202        SIGSTOP for 10 s instead
    autotomy drill restart --kill pod-of-survivor --at recovering   a whole Pod, its engine too
    autotomy drill restart --cell lease-taken              one of the three unknowns
    autotomy drill restart --all --out DIR [--side-by-side 2] [--resume] [--only stop]
    autotomy drill supervisor-table [--factor 10] [--runs 2] [--full]

Exit codes: 0 passed, 1 failed, 2 could not run. With --json the last line on stdout is the result, or the list; what goes
on is on stderr.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from domain.errors import AutotomyError
from lab.drills.command_line import ALL, RESTART, parse
from lab.drills.drill import Drill
from lab.drills.judge.every_drill import checks_of, listing
from lab.drills.outcome import DrillReport
from lab.drills.record import bundle
from lab.drills.registry import all_drills, find
from lab.drills.report.console import Console
from lab.drills.report.repetition import where_the_time_goes
from lab.drills.restart.cell_drills import restart_drill, unknown_drill
from lab.drills.restart.cells import UNKNOWN_MEANINGS, How, UnknownCell, Victim, cell_table, cells, find_cell, find_unknown
from lab.drills.restart.pod_cell_drills import pod_restart_drill
from lab.drills.restart.pod_cells import PodVictim, find_pod_cell, pod_cell_table, pod_cells
from lab.drills.restart.whole_table import run_restart_table
from lab.drills.run import DrillOptions, run_drill
from lab.drills.supervisor_table.experiment import Clock
from lab.drills.supervisor_table.report import NAME as TABLE
from lab.drills.supervisor_table.report import SUMMARY as TABLE_SUMMARY
from lab.drills.supervisor_table.table import DEFAULT_RUNS, TableOptions, run_table
from service.leave import leave

_COULD_NOT_RUN: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    given = parse(arguments)
    try:
        if given.list:
            print(_listed(given.name, as_json=given.json))
            return 0
        if given.name == TABLE:
            return asyncio.run(_run_table(given, given.out))
        if given.name == RESTART and given.all:
            return asyncio.run(_run_restart_table(given))
        chosen = _chosen(given)
        worst = asyncio.run(_run_all(chosen, given.out, times=given.times or 1, as_json=given.json))
        if given.name == ALL:
            worst = max(worst, asyncio.run(_run_table(given, given.out / TABLE if given.out is not None else None)))
        return worst
    except AutotomyError as error:
        print(f"autotomy drill: {error}", file=sys.stderr)
        return _COULD_NOT_RUN
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("autotomy drill: interrupted; everything was stopped", file=sys.stderr)
        return _INTERRUPTED


def _chosen(given: argparse.Namespace) -> list[Drill]:
    if given.name == ALL:
        return list(all_drills().values())
    if given.name == RESTART:
        return [_restart(given)]
    return [find(given.name)]


def _restart(given: argparse.Namespace) -> Drill:
    if given.cell is not None:
        return unknown_drill(find_unknown(given.cell))
    if given.stop is not None:
        return restart_drill(find_cell(given.stop, given.at, How.STOP))
    if given.kill in set(PodVictim):
        return pod_restart_drill(find_pod_cell(given.kill, given.at))
    if given.kill not in set(Victim):
        raise UnknownCell(f"--kill {given.kill!r}: choose one of {', '.join([*Victim, *PodVictim])}")
    return restart_drill(find_cell(given.kill, given.at))


async def _run_restart_table(given: argparse.Namespace) -> int:
    out = given.out or bundle.default_bundle("restart-all")
    stream = sys.stderr if given.json else sys.stdout
    side_by_side, only = given.side_by_side or 1, given.only or ""
    with _cancelled_by_signals():
        report = await run_restart_table(out, side_by_side=side_by_side, resume=given.resume, only=only, stream=stream)
    if given.json:
        print(report.last_line(), flush=True)
    return report.exit_code


async def _run_all(drills: Sequence[Drill], out: Path | None, *, times: int, as_json: bool) -> int:
    worst = 0
    with _cancelled_by_signals():
        for drill in drills:
            reports = []
            for number in range(1, times + 1):
                parts = [*([drill.name] if len(drills) > 1 else []), *([f"{number:02}"] if times > 1 else [])]
                reports.append(await _run_one(drill, out.joinpath(*parts) if out is not None else None, as_json=as_json))
            worst = max([worst, *(report.exit_code for report in reports)])
            if times > 1:
                _sum_up(drill, reports, sys.stderr if as_json else sys.stdout)
    return worst


def _sum_up(drill: Drill, reports: Sequence[DrillReport], stream: TextIO) -> None:
    passed = sum(report.passed for report in reports)
    print(f"{drill.name}: {passed} of {len(reports)} passed\n\n{where_the_time_goes(reports)}\n", file=stream, flush=True)


async def _run_table(given: argparse.Namespace, out: Path | None) -> int:
    stream = sys.stderr if given.json else sys.stdout
    clock = Clock(factor=1.0 if given.full else given.factor or Clock().factor)
    options = TableOptions(clock=clock, runs=given.runs or DEFAULT_RUNS, out=out)
    with _cancelled_by_signals():
        report = await run_table(options, lambda text: print(text, file=stream, flush=True))
    if given.json:
        print(report.last_line(), flush=True)
    return report.exit_code


async def _run_one(drill: Drill, out: Path | None, *, as_json: bool) -> DrillReport:
    console = Console(sys.stderr if as_json else sys.stdout)
    console.begin(drill)
    report = await run_drill(drill, DrillOptions(out=out, on_event=console))
    console.end(report)
    if as_json:
        print(report.last_line(), flush=True)
    return report


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end a drill in order: the installation is stopped, whatever is going on."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _listed(name: str | None, *, as_json: bool) -> str:
    """What there is, or what must hold after this drill; for people or as one JSON value."""
    if name == RESTART:
        return json.dumps({"cells": _cells()}, ensure_ascii=False) if as_json else f"{cell_table()}\n\n{pod_cell_table()}"
    if name is not None and name not in (ALL, TABLE):
        return _listed_drill(find(name), as_json=as_json)
    summaries = _summaries()
    if as_json:
        drills = [{"name": name, "summary": summary} for name, summary in summaries.items()]
        return json.dumps({"drills": drills}, ensure_ascii=False)
    width = max(map(len, summaries))
    return "\n".join(f"{name:<{width}}  {summary}" for name, summary in summaries.items())


def _listed_drill(drill: Drill, *, as_json: bool) -> str:
    if not as_json:
        return f"{drill.summary}\n\n{listing(drill)}"
    checks = [{"check": str(each), "meaning": each.meaning} for each in checks_of(drill)]
    return json.dumps({"name": drill.name, "summary": drill.summary, "checks": checks}, ensure_ascii=False)


def _summaries() -> dict[str, str]:
    return {
        **{name: drill.summary for name, drill in all_drills().items()},
        TABLE: TABLE_SUMMARY,
        RESTART: "A process is killed in the middle of a round (--kill WHAT --at POINT): it goes on in place. `restart --list`",
        ALL: f"All of the above but {RESTART}, one after the other.",
    }


def _cells() -> list[dict[str, Any]]:
    """The restart table: the options of each cell, and what is expected."""
    every = [*((str(cell), cell.expected) for cell in cells()), *((str(cell), cell.expected) for cell in pod_cells())]
    named = [(f"--cell {name}", meaning) for name, meaning in UNKNOWN_MEANINGS.items()]
    return [{"cell": cell, "expected": expected} for cell, expected in [*every, *named]]


if __name__ == "__main__":
    leave(main())
