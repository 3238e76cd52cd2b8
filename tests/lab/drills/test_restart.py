"""Cells of the restart table (acceptance C): sixteen chosen ones, all of them in `make soak`.

Of the chosen ones the first chain runs in `make test`: five cells on one installation, with a worker, both kinds of NodeManager
and the Temporal server as victims. The others run in `make verify`.
"""

from pathlib import Path

import pytest

from lab.drills.judge.processes import went_on
from lab.drills.restart.cell_drills import chains, restart_drill, shape_of
from lab.drills.restart.cells import CHOSEN, NEXT_STEP, Cell, Point, Unknown, Victim, cells
from lab.drills.restart.whole_table import RESULTS, CellResult, Task, passed_before, run_restart_table, tasks
from lab.drills.run import DrillOptions, run_drill

WENT_ON = went_on({}).name


def test_the_chosen_cells_have_every_victim_and_nearly_every_point() -> None:
    assert len(CHOSEN) == len(set(CHOSEN)) == 16
    assert {cell.victim for cell in CHOSEN} == set(Victim)
    assert {cell.point for cell in CHOSEN} == set(Point) - {Point.BEFORE_GUARD}


@pytest.mark.parametrize("only", ["", "dead-ranks", "dead-ranks-node-manager --at after", "--stop"])
def test_every_cell_is_in_one_chain_and_the_dead_ranks_manager_has_no_survivor(only: str) -> None:
    chosen = [cell for cell in cells() if only in str(cell)]
    found = list(chains(chosen))
    assert sorted(str(cell) for chain in found for cell in chain) == sorted(map(str, chosen))
    for chain in found:
        shape, lost = shape_of(chain), set[int]()
        assert len(chain) <= len(shape.lost)
        for cell, rank in zip(chain, shape.lost, strict=False):
            lost.add(rank)
            pod = next(pod for pod in shape.pods if rank in pod)
            assert set(pod) <= lost or not cell.hits_the_dead_ranks_manager, f"{cell}: ranks {pod}, dead are {lost}"
            assert not {0, *shape.pods[-1]} & lost, "the master and the last Pod survive"


def test_where_one_of_two_workers_goes_the_round_s_next_step_is_watched() -> None:
    for chain in chains([cell for cell in cells() if cell.workers > 1]):
        drill = restart_drill(*chain)
        (within_sec,) = (dict(check.parameters)["within_sec"] for check in drill.checks if check.name == WENT_ON)
        assert isinstance(within_sec, dict)
        assert set(within_sec) == set(map(str, chain))
        assert {NEXT_STEP[cell.point] for cell in chain} <= set(drill.failpoints["worker"])
    assert WENT_ON not in {check.name for check in restart_drill(Cell(victim=Victim.WORKER, point=Point.AFTER_202)).checks}


TASKS = tasks(CHOSEN, ())
FIRST_CHAIN = next(task for task in TASKS if len(task.cells) > 1)


def by_pace(task: Task) -> object:
    return pytest.param(task, id=task.name, marks=[] if task is FIRST_CHAIN else [pytest.mark.verify])


def test_the_cells_of_every_run_have_the_processes_that_hold_a_round() -> None:
    victims = {cell.victim for cell in CHOSEN if str(cell) in FIRST_CHAIN.cells}
    assert victims == {Victim.WORKER, Victim.SURVIVORS_NODE_MANAGER, Victim.DEAD_RANKS_NODE_MANAGER, Victim.TEMPORAL}
    assert len(FIRST_CHAIN.cells) >= 4


@pytest.mark.parametrize("task", list(map(by_pace, TASKS)))
async def test_chosen_cells_end_as_the_table_says(task: Task, tmp_path: Path) -> None:
    report = await run_drill(task.drill, DrillOptions(out=tmp_path / task.name))
    wrong = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    assert report.passed, "\n".join([", ".join(task.cells), str(report.failure), *wrong])


@pytest.mark.soak
async def test_every_cell_ends_as_the_table_says(tmp_path: Path) -> None:
    """Three times, two installations side by side."""
    for number in range(3):
        out = tmp_path / f"run-{number}"
        report = await run_restart_table(out, side_by_side=2, resume=False, only="")
        assert report.passed, (out / RESULTS).read_text()


def test_a_cell_that_passed_is_not_run_again_and_one_that_failed_is(tmp_path: Path) -> None:
    passed, failed = (str(Cell(victim=Victim.API, point=point)) for point in (Point.AFTER_DEL, Point.AFTER_ADD))
    lines = [CellResult(cell=passed, passed=True, chain="a"), CellResult(cell=failed, passed=False, chain="a", wrong="I1")]
    (tmp_path / RESULTS).write_text("".join(line.model_dump_json() + "\n" for line in lines))
    assert passed_before(tmp_path) == {passed}


def test_named_cells_are_installations_of_their_own() -> None:
    found = tasks((), list(Unknown))
    assert [task.cells for task in found] == [(f"--cell {name}",) for name in Unknown]
    assert all("reason of the fallback" in {check.name for check in task.drill.checks} for task in found)
