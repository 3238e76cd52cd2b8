"""The suites of the Makefile: what they name exists, and two installations at a time are what they mean to run."""

import re
from pathlib import Path

from tests.progress import in_words
from tests.side_by_side import INSTALLATIONS, LONG, next_scope

ROOT = Path(__file__).parents[1]
DRILL = "tests/lab/drills/test_drills.py::test_drill_passes[soft-rank]"
CHAIN = "tests/lab/drills/test_restart.py::test_chosen_cells_end_as_the_table_says[chain-02]"
OTHERS = ["tests/api/test_api.py", "tests/workflows/test_fast_recovery.py"]


def listed(variable: str) -> list[str]:
    """The words of a variable of the Makefile."""
    found = re.search(rf"^{variable} := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, variable
    return found[1].split()


def test_files_that_are_named_exist_and_what_is_pure_starts_no_installation() -> None:
    pure = [f"tests/lab/drills/test_{name}.py" for name in listed("PURE_DRILLS")]
    named = [*INSTALLATIONS, *LONG, *pure, *listed("SEARCHES")]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert not set(INSTALLATIONS) & set(pure)


def test_a_process_takes_what_it_prefers_and_then_what_is_left() -> None:
    waiting = [OTHERS[0], DRILL, CHAIN, OTHERS[1]]
    assert next_scope(waiting, prefers_installations=True) == CHAIN
    assert next_scope(waiting, prefers_installations=False) == OTHERS[0]
    assert next_scope(OTHERS, prefers_installations=True) == OTHERS[0]
    assert next_scope([DRILL], prefers_installations=False) == DRILL
    assert next_scope([*OTHERS, LONG[0]], prefers_installations=False) == LONG[0]


def test_what_runs_is_told_by_its_part_and_its_case() -> None:
    assert in_words(DRILL) == "lab/drills soft-rank"
    assert in_words(CHAIN) == "lab/drills chain-02"
    assert in_words(f"{OTHERS[1]}::test_a_round_begins[x]") == "workflows fast_recovery"
