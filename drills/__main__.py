"""`python -m drills NAME …`, which is what `autotomy drill NAME …` runs.

    autotomy drill --list                                  what there is
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

Exit codes: 0 passed, 1 failed, 2 could not run. With --json the last line on stdout is the result; what goes on is on
stderr.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from domain.errors import AutotomyError
from drills import bundle
from drills.console import Console
from drills.drill import Drill
from drills.outcome import DrillReport
from drills.pod_restart import BEFORE_VERIFY, PodVictim, find_pod_cell, pod_cell_table
from drills.pod_restart_run import pod_restart_drill
from drills.registry import all_drills, find
from drills.repetition import where_the_time_goes
from drills.restart import How, Point, Unknown, UnknownCell, Victim, cell_table, find_cell, find_unknown
from drills.restart_all import run_restart_table
from drills.restart_run import restart_drill, unknown_drill
from drills.run import DrillOptions, run_drill
from drills.supervisor_table.experiment import Clock
from drills.supervisor_table.report import NAME as TABLE
from drills.supervisor_table.report import SUMMARY as TABLE_SUMMARY
from drills.supervisor_table.table import DEFAULT_RUNS, TableOptions, run_table

RESTART: Final = "restart"
ALL: Final = "all"
_COULD_NOT_RUN: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.list:
            print(f"{cell_table()}\n\n{pod_cell_table()}" if given.name == RESTART else _drill_list())
            return 0
        if given.name is None:
            parser.error("which drill? `--list` shows them")
        if given.name == TABLE and given.times != 1:
            parser.error(f"{TABLE} has --runs for --times")
        if given.name not in (TABLE, ALL) and (given.factor, given.runs, given.full) != (None, None, False):
            parser.error(f"--factor, --runs and --full belong to {TABLE}")
        if given.name == TABLE:
            return asyncio.run(_run_table(given, given.out))
        if given.name == RESTART and given.all:
            return asyncio.run(_run_restart_table(given))
        chosen = _chosen(given)
        worst = asyncio.run(_run_all(chosen, given.out, times=given.times, as_json=given.json))
        if given.name == ALL:
            worst = max(worst, asyncio.run(_run_table(given, given.out / TABLE if given.out is not None else None)))
        return worst
    except AutotomyError as error:
        print(f"autotomy drill: {error}", file=sys.stderr)
        return _COULD_NOT_RUN
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("autotomy drill: interrupted; everything was stopped", file=sys.stderr)
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotomy drill",
        description="Run an acceptance scenario against a local installation of real processes, and judge it from outside.",
        epilog="Exit codes: 0 passed, 1 failed, 2 could not run. The bundle's report.md tells the story.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"a drill, `{ALL}`, or `{RESTART}`")
    parser.add_argument("--list", action="store_true", help="list the drills (with `restart`: the cells of its table)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the evidence goes (default: in ~/.local/state)")
    parser.add_argument("--times", type=_positive, default=1, metavar="N", help="run it N times in a row (default: once)")
    parser.add_argument("--json", action="store_true", help="the result as the last line of stdout")
    parser.add_argument("--kill", metavar="WHAT", help=f"restart: {', '.join([*Victim, *PodVictim])}")
    parser.add_argument("--stop", metavar="WHAT", help="restart: SIGSTOP it for 10 s instead")
    parser.add_argument("--cell", metavar="NAME", help=f"restart: {', '.join(Unknown)}")
    parser.add_argument("--all", action="store_true", help="restart: every cell; writes cells.jsonl in --out")
    parser.add_argument("--side-by-side", type=_positive, default=1, metavar="N", help="with --all: N installations at once")
    parser.add_argument("--resume", action="store_true", help="with --all: leave out what has passed in --out before")
    parser.add_argument("--only", default="", metavar="TEXT", help="with --all: only cells whose words contain TEXT")
    parser.add_argument("--at", metavar="POINT", help=f"restart: {', '.join(Point)}; for Pods also {BEFORE_VERIFY}")
    table = parser.add_argument_group(TABLE)
    table.add_argument("--factor", type=_factor, help=f"divide its times by this ({Clock().factor:g})")
    table.add_argument("--full", action="store_true", help="do not divide them: 300 s a run")
    table.add_argument("--runs", type=_positive, metavar="N", help=f"runs of each column ({DEFAULT_RUNS})")
    return parser


def _factor(text: str) -> float:
    try:
        return Clock(factor=float(text)).factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number within 1..60") from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _chosen(given: argparse.Namespace) -> list[Drill]:
    if given.name == ALL:
        return list(all_drills().values())
    if given.name == RESTART:
        return [_restart(given)]
    return [find(given.name)]


def _restart(given: argparse.Namespace) -> Drill:
    if given.cell:
        return unknown_drill(find_unknown(given.cell))
    if given.kill and given.stop:
        raise UnknownCell("--kill or --stop, not both")
    how, victim = (How.STOP, given.stop) if given.stop else (How.KILL, given.kill or Victim.WORKER)
    at = given.at or Point.COMMIT_POINT
    if how is How.KILL and victim in set(PodVictim):
        return pod_restart_drill(find_pod_cell(victim, at))
    return restart_drill(find_cell(victim, at, how))


async def _run_restart_table(given: argparse.Namespace) -> int:
    out = given.out or bundle.default_bundle("restart-all")
    stream = sys.stderr if given.json else sys.stdout
    with _cancelled_by_signals():
        return await run_restart_table(out, side_by_side=given.side_by_side, resume=given.resume, only=given.only, stream=stream)


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


def _drill_list() -> str:
    drills = all_drills()
    width = max(map(len, [*drills, RESTART, TABLE]))
    lines = [f"{name:<{width}}  {drill.summary}" for name, drill in drills.items()]
    told = "A process is killed in the middle of a round (--kill WHAT --at POINT): it goes on in place. `restart --list`"
    return "\n".join(
        [
            *lines,
            f"{TABLE:<{width}}  {TABLE_SUMMARY}",
            f"{RESTART:<{width}}  {told}",
            f"{ALL:<{width}}  All of the above but {RESTART}, one after the other.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
