"""A whole Pod restarts in the middle of a round: three chosen cells in `make verify`, all of them in `make soak`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lab.drills.judge.endings import first_round_ended
from lab.drills.registry import find
from lab.drills.restart.cells import Point, UnknownCell
from lab.drills.restart.pod_cell_drills import pod_restart_drill
from lab.drills.restart.pod_cells import CHOSEN, POINTS, PodCell, PodEnd, PodVictim, find_pod_cell, pod_cell_table, pod_cells
from lab.drills.run import DrillOptions, run_drill

CELLS = tuple(pod_cells())


def test_every_pod_restarts_in_every_phase_and_the_chosen_cells_end_in_place_in_every_way() -> None:
    assert len(CELLS) == len(set(CELLS)) == len(PodVictim) * len(POINTS) == 48
    assert {point.value for point in Point} < set(POINTS)
    assert {cell.end for cell in CHOSEN} | {PodEnd.REBUILT} == set(PodEnd)
    assert all(f"--kill {cell.victim:<26}--at {cell.at}" in pod_cell_table() for cell in CELLS)


def test_the_dead_ranks_pod_never_changes_the_end_and_a_survivors_pod_does_by_where_the_commands_are() -> None:
    assert {cell.end for cell in CELLS if not cell.victim.survivors} == {PodEnd.UNTOUCHED}
    for victim in (PodVictim.POD_OF_SURVIVOR, PodVictim.NEW_POD_OF_SURVIVOR):
        ends = [PodCell(victim=victim, at=at).end for at in POINTS]
        in_order = [PodEnd.ABSORBED] * 3 + [PodEnd.REBUILT] * 5 + [PodEnd.ANOTHER_ROUND] * 4
        assert ends == in_order
    for cell in CELLS:
        drill = pod_restart_drill(cell)
        assert drill.end.rebuilt == (cell.end is PodEnd.REBUILT) == (first_round_ended(cell.reason) in drill.checks)


def test_a_cell_is_found_by_its_words() -> None:
    assert find_pod_cell("pod-of-dead", "before-verify").place.failpoint == "worker.verify.before"
    for victim, at in (("pod-of-nobody", "after-del"), ("pod-of-dead", "nowhere")):
        with pytest.raises(UnknownCell, match="choose one of"):
            find_pod_cell(victim, at)


async def complaints(cell: PodCell, out: Path) -> list[str]:
    """What a run of this cell did otherwise than the table says."""
    report = await run_drill(pod_restart_drill(cell), DrillOptions(out=out / f"{cell.victim}-{cell.at}"))
    wrong = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    return [] if report.passed else [str(cell), str(report.failure), *wrong]


@pytest.mark.verify
async def test_pods_that_restart_in_a_round_end_as_the_table_says(tmp_path: Path) -> None:
    """The chosen cells, two installations at a time."""
    lanes = asyncio.Semaphore(2)

    async def one(cell: PodCell) -> list[str]:
        async with lanes:
            return await complaints(cell, tmp_path)

    found = [line for lines in await asyncio.gather(*map(one, CHOSEN)) for line in lines]
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("cell", CELLS, ids=str)
async def test_every_pod_that_restarts_in_a_round_ends_as_the_table_says(cell: PodCell, tmp_path: Path) -> None:
    found = await complaints(cell, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.soak
async def test_two_pods_on_one_ip_are_told_apart_by_their_ports_from_start_to_publication(tmp_path: Path) -> None:
    drill = find("soft-rank")
    shared = replace(drill, spec=drill.spec.model_copy(update={"pod_ips": ("127.0.0.2", "127.0.0.2")}))
    report = await run_drill(shared, DrillOptions(out=tmp_path / "out"))
    assert report.passed, [check for check in report.checks if not check.ok]
