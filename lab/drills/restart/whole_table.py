"""All cells of the restart table, in as few installations as is honest, several side by side if wanted.

Each line of `cells.jsonl` is one cell with its verdict. A chain that did not pass has passed none of its cells: what one
cell broke may show in a later one. `--resume` leaves out what an earlier run in the same directory has passed.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from domain.model import Strict
from lab.drills.drill import Drill
from lab.drills.outcome import DrillReport
from lab.drills.restart.cell_drills import chains, restart_drill, unknown_drill
from lab.drills.restart.cells import Cell, Unknown, UnknownCell, cells
from lab.drills.restart.pod_cell_drills import pod_restart_drill
from lab.drills.restart.pod_cells import PodCell, pod_cells
from lab.drills.run import DrillOptions, run_drill

RESULTS: Final = "cells.jsonl"


class CellResult(Strict):
    """One cell's verdict, in which chain, and where its evidence is; `late_sec` where one of two workers went."""

    cell: str
    passed: bool
    chain: str
    wrong: str = ""
    late_sec: float | None = None


class TableReport(Strict):
    """What came of a whole run: its cells, those that an earlier run had passed, and where all of it is."""

    drill: str = "restart"
    passed: bool
    cells: tuple[CellResult, ...]
    passed_before: tuple[str, ...]
    bundle: str

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed."""
        return 0 if self.passed else 1

    def last_line(self) -> str:
        """The one line of JSON that `--json` prints last."""
        return self.model_dump_json()


@dataclass(frozen=True)
class Task:
    """One installation: the drill and the names of the cells that it runs."""

    name: str
    cells: tuple[str, ...]
    drill: Drill


def tasks(chosen: Sequence[Cell], named: Sequence[Unknown], pods: Sequence[PodCell] = ()) -> list[Task]:
    """What must be run for these cells."""
    found = [Task(name=name, cells=(f"--cell {name}",), drill=unknown_drill(name)) for name in named]
    for number, chain in enumerate(chains(chosen), start=1):
        name = f"chain-{number:02}"
        found.append(Task(name=name, cells=tuple(map(str, chain)), drill=restart_drill(*chain)))
    for cell in pods:
        found.append(Task(name=f"{cell.victim}-{cell.at}", cells=(str(cell),), drill=pod_restart_drill(cell)))
    return found


async def run_restart_table(out: Path, *, side_by_side: int, resume: bool, only: str, stream: TextIO = sys.stdout) -> TableReport:
    """Run every cell whose words contain `only`. Raises UnknownCell where there is none."""
    _refuse_no_cells(only)
    stamp = _next_run(out, resume=resume)
    done = passed_before(out) if resume else frozenset()
    chosen = [cell for cell in cells() if only in str(cell) and str(cell) not in done]
    named = [name for name in Unknown if only in f"--cell {name}" and f"--cell {name}" not in done]
    pods = [cell for cell in pod_cells() if only in str(cell) and str(cell) not in done]
    todo = tasks(chosen, named, pods)
    print(
        f"{len(chosen) + len(named) + len(pods)} cells in {len(todo)} installations, {len(done)} passed before",
        file=stream,
        flush=True,
    )
    slots = asyncio.Semaphore(side_by_side)

    async def one(task: Task) -> list[CellResult]:
        async with slots:
            directory = out / f"run-{stamp}" / task.name
            report = await run_drill(task.drill, DrillOptions(out=directory))
            return _written(out, task, report, stream)

    ended = await asyncio.gather(*(one(task) for task in todo))
    passed = [all(result.passed for result in results) for results in ended]
    print(f"{sum(passed)} of {len(passed)} installations passed", file=stream, flush=True)
    results = tuple(result for results in ended for result in results)
    return TableReport(passed=all(passed), cells=results, passed_before=tuple(sorted(done)), bundle=str(out))


def _refuse_no_cells(only: str) -> None:
    words = [*map(str, cells()), *map(str, pod_cells()), *(f"--cell {name}" for name in Unknown)]
    if not any(only in cell for cell in words):
        raise UnknownCell(f"--only {only!r}: no cell has that in its words; `autotomy drill restart --list` shows them")


def _written(out: Path, task: Task, report: DrillReport, stream: TextIO) -> list[CellResult]:
    """The verdict of each cell of an installation, by now in `cells.jsonl`."""
    wrong = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    words = "; ".join([*([report.failure] if report.failure else []), *wrong])
    late_sec = report.figures.late_sec
    results = [
        CellResult(cell=cell, passed=report.passed, chain=report.bundle, wrong=words, late_sec=late_sec.get(cell))
        for cell in task.cells
    ]
    with (out / RESULTS).open("a", encoding="utf-8") as file:
        file.writelines(result.model_dump_json() + "\n" for result in results)
    verdict = "passed" if report.passed else f"FAILED: {words}"
    print(f"{task.name} ({report.took_sec:.0f} s; {', '.join(task.cells)}): {verdict}", file=stream, flush=True)
    return results


def _next_run(out: Path, *, resume: bool) -> int:
    """The number of this run below `out`; the results of earlier ones go, unless they are resumed."""
    out.mkdir(parents=True, exist_ok=True)
    if not resume:
        (out / RESULTS).unlink(missing_ok=True)
    return len(list(out.glob("run-*"))) + 1


def passed_before(out: Path) -> frozenset[str]:
    """The cells that earlier runs below `out` have passed."""
    path = out / RESULTS
    if not path.exists():
        return frozenset()
    results = [CellResult.model_validate(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return frozenset(result.cell for result in results if result.passed)
