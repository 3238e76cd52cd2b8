"""docs/cases.md names, for each case from the field, modules, tests and drills: all of them are there."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from domain.errors import Refused
from lab.drills.registry import find
from lab.drills.restart.cells import find_cell, find_unknown
from lab.drills.restart.pod_cells import PodVictim, find_pod_cell
from lab.drills.supervisor_table.report import NAME as SUPERVISOR_TABLE

ROOT = Path(__file__).parents[2]
CASES = 29
QUOTED = re.compile(r"`([^`]+)`")
CELL = re.compile(r"restart --(?P<how>kill|stop|cell) (?P<what>\S+)(?: --at (?P<point>\S+))?")


class Case(NamedTuple):
    """One row: where it is made impossible, and what shows that."""

    number: int
    modules: tuple[str, ...]
    shown_by: tuple[str, ...]


def read_cases() -> list[Case]:
    text = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    return [
        Case(int(number), tuple(name for name in QUOTED.findall(where) if name.endswith(".py")), tuple(QUOTED.findall(shown)))
        for number, _, where, shown in rows
    ]


@cache
def names_in(file: Path) -> frozenset[str]:
    """`test_x` and `TestY::test_z` of a file."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = (method for method in node.body if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}::{method.name}" for method in inner}
    return frozenset(found)


def must_be_there(name: str) -> None:
    """A test by its id, or a drill by what follows `autotomy drill`. Raises where there is none."""
    if name.startswith("tests/"):
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), path
        assert not test or test in names_in(ROOT / path), f"{path} has no {test}"
    elif cell := CELL.fullmatch(name):
        if cell["how"] == "cell":
            find_unknown(cell["what"])
        elif cell["what"] in set(PodVictim):
            find_pod_cell(cell["what"], cell["point"] or "")
        else:
            find_cell(cell["what"], cell["point"] or "")
    elif name != SUPERVISOR_TABLE:
        find(name)


def test_every_case_of_the_field_has_one_row() -> None:
    assert [case.number for case in read_cases()] == [*range(1, CASES + 1)]


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: f"case {case.number}")
def test_what_a_row_names_is_there(case: Case) -> None:
    assert case.modules, "where is it made impossible?"
    assert case.shown_by, "what shows it?"
    for module in case.modules:
        assert (ROOT / module).is_file(), module
    for name in case.shown_by:
        must_be_there(name)


@pytest.mark.parametrize(
    "name",
    [
        "tests/deploy/test_cases.py::test_that_never_was",
        "tests/no_such.py",
        "no-drill",
        "restart --kill worker --at nowhere",
        "restart --cell nowhere",
    ],
)
def test_what_is_not_there_is_noticed(name: str) -> None:
    with pytest.raises((AssertionError, Refused)):
        must_be_there(name)
