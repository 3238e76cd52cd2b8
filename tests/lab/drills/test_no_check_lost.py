"""Drills list their checks: each has exactly those that its expectation asked for when they were derived from its fields."""

import json
from collections.abc import Iterator
from pathlib import Path

from lab.drills.drill import Drill
from lab.drills.judge.every_drill import checks_of
from lab.drills.registry import all_drills
from lab.drills.restart.cell_drills import restart_drill, unknown_drill
from lab.drills.restart.cells import Unknown, cells
from lab.drills.restart.pod_cell_drills import pod_restart_drill
from lab.drills.restart.pod_cells import pod_cells

BEFORE = Path(__file__).with_name("checks_before.json")


def by_name() -> Iterator[tuple[str, Drill]]:
    """Every registered drill and every cell of the restart tables, alone."""
    yield from all_drills().items()
    yield from ((f"restart {cell}", restart_drill(cell)) for cell in cells())
    yield from ((f"restart --cell {name}", unknown_drill(name)) for name in Unknown)
    yield from ((f"restart {cell}", pod_restart_drill(cell)) for cell in pod_cells())


def test_every_drill_and_cell_has_the_checks_that_it_had() -> None:
    before = {name: group["checks"] for group in json.loads(BEFORE.read_text()) for name in group["drills"]}
    assert {name: sorted(check.name for check in checks_of(drill)) for name, drill in by_name()} == before
