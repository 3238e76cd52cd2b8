"""A whole Pod restarts in the middle of a round: four chosen cells in each run of the tests, all of them in `make soak`."""

from pathlib import Path

import pytest

from drills.drill import Outcome
from drills.pod_restart import CHOSEN, POINTS, PodCell, PodEnd, PodVictim, find_pod_cell, pod_cell_table, pod_cells
from drills.pod_restart_run import pod_restart_drill
from drills.restart import Point, UnknownCell
from drills.run import DrillOptions, run_drill

CELLS = tuple(pod_cells())


def test_every_pod_restarts_in_every_phase_and_the_chosen_cells_end_in_every_way() -> None:
    assert len(CELLS) == len(set(CELLS)) == len(PodVictim) * len(POINTS) == 48
    assert {point.value for point in Point} < set(POINTS)
    assert {cell.end for cell in CHOSEN} | {PodEnd.UNTOUCHED} == set(PodEnd)
    assert all(f"--kill {cell.victim:<26}--at {cell.at}" in pod_cell_table() for cell in CELLS)


def test_the_dead_ranks_pod_never_changes_the_end_and_a_survivors_pod_does_by_where_the_commands_are() -> None:
    assert {cell.end for cell in CELLS if not cell.victim.survivors} == {PodEnd.UNTOUCHED}
    for victim in (PodVictim.POD_OF_SURVIVOR, PodVictim.NEW_POD_OF_SURVIVOR):
        ends = [PodCell(victim=victim, at=at).end for at in POINTS]
        in_order = [PodEnd.ABSORBED] * 3 + [PodEnd.REBUILT] * 5 + [PodEnd.ANOTHER_ROUND] * 4
        assert ends == in_order
    for cell in CELLS:
        expected = pod_restart_drill(cell).expected
        assert (expected.outcome is Outcome.REBUILT) == (cell.end is PodEnd.REBUILT) == bool(expected.reasons)


def test_a_cell_is_found_by_its_words() -> None:
    assert find_pod_cell("pod-of-dead", "before-verify").place.failpoint == "worker.verify.before"
    for victim, at in (("pod-of-nobody", "after-del"), ("pod-of-dead", "nowhere")):
        with pytest.raises(UnknownCell, match="choose one of"):
            find_pod_cell(victim, at)


def by_pace(cell: PodCell) -> object:
    return pytest.param(cell, marks=[] if cell in CHOSEN else pytest.mark.soak, id=f"{cell.victim}-{cell.at}")


@pytest.mark.parametrize("cell", [by_pace(cell) for cell in CELLS])
async def test_a_pod_that_restarts_in_a_round_ends_as_the_table_says(cell: PodCell, tmp_path: Path) -> None:
    report = await run_drill(pod_restart_drill(cell), DrillOptions(out=tmp_path / "out"))
    wrong = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    assert report.passed, "\n".join([str(cell), str(report.failure), *wrong])
