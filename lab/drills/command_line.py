"""What `autotomy drill` is told: its options, and what is refused because it would be ignored.

A drill takes a minute or more and starts a whole installation. So an option that means nothing beside the others is an
error, never a drill that was not asked for.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.drills.restart.cells import PAIRS, Point, Unknown, Victim
from lab.drills.restart.pod_cells import BEFORE_VERIFY, PodVictim
from lab.drills.supervisor_table.experiment import Clock
from lab.drills.supervisor_table.report import NAME as TABLE
from lab.drills.supervisor_table.table import DEFAULT_RUNS
from service.arguments import count

RESTART: Final = "restart"
ALL: Final = "all"

_CELL: Final = ("kill", "stop", "cell", "all")
_OF_ALL_CELLS: Final = ("side_by_side", "resume", "only")
_OF_THE_TABLE: Final = ("factor", "full", "runs")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends the process with exit code 2 for one that asks for something else than it would get."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if refusal := _refusal(given):
        parser.error(refusal)
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotomy drill",
        usage="autotomy drill [NAME] [OPTION ...]",
        description="Run an acceptance scenario against a local installation of real processes, and judge it from outside.",
        epilog="Exit codes: 0 passed, 1 failed, 2 could not run. The bundle's report.md tells the story.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"a drill, `{ALL}`, or `{RESTART}`")
    parser.add_argument(
        "--list", action="store_true", help=f"list the drills; with NAME what must hold after it, with `{RESTART}` its cells"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the evidence goes (default: in ~/.local/state)")
    parser.add_argument("--times", type=count, metavar="N", help="run it N times in a row (default: once)")
    parser.add_argument("--json", action="store_true", help="the result as the last line of stdout, a list as JSON")
    restart = parser.add_argument_group(RESTART, "one cell (--kill or --stop with --at, or --cell), or --all of them")
    restart.add_argument("--kill", metavar="WHAT", help=f"SIGKILL it: {', '.join([*Victim, *PodVictim])}")
    restart.add_argument("--stop", metavar="WHAT", help=f"SIGSTOP it for 10 s: {', '.join(v for v in Victim if v not in PAIRS)}")
    restart.add_argument("--at", metavar="POINT", help=f"where in the round: {', '.join(Point)}; for Pods also {BEFORE_VERIFY}")
    restart.add_argument("--cell", metavar="NAME", help=f"a named one: {', '.join(Unknown)}")
    restart.add_argument("--all", action="store_true", help="every cell; writes cells.jsonl in --out")
    restart.add_argument("--side-by-side", type=count, metavar="N", help="with --all: N installations at once (default: 1)")
    restart.add_argument("--resume", action="store_true", help="with --all: leave out what has passed in --out before")
    restart.add_argument("--only", metavar="TEXT", help="with --all: only cells whose words contain TEXT")
    table = parser.add_argument_group(TABLE)
    table.add_argument("--factor", type=_factor, help=f"divide its times by this (default: {Clock().factor:g})")
    table.add_argument("--full", action="store_true", help="do not divide them: 300 s a run")
    table.add_argument("--runs", type=count, metavar="N", help=f"runs of each column (default: {DEFAULT_RUNS})")
    return parser


def _factor(text: str) -> float:
    try:
        return Clock(factor=float(text)).factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number within 1..60") from None


def _refusal(given: argparse.Namespace) -> str | None:
    """Why this is not run; None where each option means something."""
    of_restart = _said(given, *_CELL, "at", *_OF_ALL_CELLS)
    of_the_table = _said(given, *_OF_THE_TABLE)
    if given.list:
        others = [*_said(given, "out", "times"), *of_restart, *of_the_table]
        return f"{', '.join(others)}: means nothing beside --list" if others else None
    if given.name != RESTART and of_restart:
        every = f"; `autotomy drill {ALL}` runs every drill" if given.all else ""
        return f"{', '.join(of_restart)}: belongs to `autotomy drill {RESTART}`{every}"
    if given.name is None:
        return "which drill? `--list` shows them"
    if given.name not in (TABLE, ALL) and of_the_table:
        return f"--factor, --runs and --full belong to {TABLE}"
    if given.name == TABLE and given.times is not None:
        return f"{TABLE} has --runs for --times"
    if given.full and given.factor is not None:
        return "--full or --factor, not both"
    return _refusal_of_restart(given) if given.name == RESTART else None


def _refusal_of_restart(given: argparse.Namespace) -> str | None:
    which, of_all = _said(given, *_CELL), _said(given, *_OF_ALL_CELLS)
    if not which:
        return f"which cell? --kill or --stop with --at, --cell, or --all; `autotomy drill {RESTART} --list` shows them"
    if len(which) > 1:
        return f"{', '.join(which)}: only one of them"
    if given.all:
        if beside := _said(given, "at", "times"):
            return f"{', '.join(beside)}: not with --all, which runs every cell once; --only chooses among them"
        return "--resume needs --out, the directory of the run to go on with" if given.resume and given.out is None else None
    if of_all:
        return f"{', '.join(of_all)}: only with --all"
    if given.cell is not None:
        return f"--at: --cell {given.cell} has a place of its own" if given.at is not None else None
    if given.at is None:
        return f"{which[0]} needs --at, the place in the round; `autotomy drill {RESTART} --list` shows them"
    return None


def _said(given: argparse.Namespace, *names: str) -> list[str]:
    """Which of these options stand on the command line, as they are typed."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(given, name) not in (None, False)]
