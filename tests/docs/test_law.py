"""The pages of the law say what the code has: settings, reasons, fields, phases, drills, invariants, the glossary's names."""

import ast
import re
from enum import StrEnum
from functools import cache

import pytest
from pydantic import BaseModel

from api.errors import ApiReason, ReportRefusal
from domain.config import FaultToleranceConfig
from domain.engine import FtCapability, RankEntry
from domain.hardware import fault_level
from domain.messages.coordinator import ConflictReason, RefreshEvent
from domain.messages.node_manager import FtPacing, NodeManagerReason, StartRequest
from domain.messages.registration import RegisterReply, RegisterRequest
from domain.round.gate import GateCode
from domain.runtime import TRANSITIONS, FtPhase, RuntimeRecord
from lab.drills.registry import all_drills
from lab.drills.supervisor_table.report import NAME as SUPERVISOR_TABLE
from lab.oracle.invariants import Invariant
from tests.docs.pages import ROOT, sources

QUOTED = re.compile(r"`([^`]+)`")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, number: str) -> str:
    return page(name).split(f"\n## {number}. ")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without the heads and the lines under them."""
    lines = re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines if not line.startswith("---")]


def defaults(model: type[BaseModel], prefix: str = "") -> dict[str, object]:
    """Every setting with its default, nested ones by their dotted names; lists are left out."""
    found: dict[str, object] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            found |= defaults(type(field.default), f"{prefix}{name}.")
        elif not isinstance(field.default, tuple):
            found[prefix + name] = field.default
    return found


def test_the_table_of_settings_has_each_with_its_default() -> None:
    told = {cells[0].strip("`"): cells[1] for cells in rows(section("design", "6")) if cells[0].startswith("`") and cells[1]}
    told.pop("fault_tolerance_config.")
    shown = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in defaults(FaultToleranceConfig).items()
    }
    assert told == {name: f"{value:g}" if isinstance(value, float | int) else str(value) for name, value in shown.items()}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("2", NodeManagerReason),
        ("3", ApiReason),
        ("3", ReportRefusal),
        ("4", ConflictReason),
        ("5", GateCode),
        ("5", FtPhase),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_reason_is_on_the_page_of_the_wire(number: str, words: type[StrEnum]) -> None:
    text = section("contracts", number)
    assert [word.value for word in words if not re.search(rf"\b{word.value}\b", text)] == []


@pytest.mark.parametrize(
    ("number", "model"),
    [
        ("2", RankEntry),
        ("2", StartRequest),
        ("3", RegisterRequest),
        ("3", RegisterReply),
        ("3", FtPacing),
        ("5", RuntimeRecord),
        ("5", FtCapability),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_field_is_on_the_page_of_the_wire(number: str, model: type[BaseModel]) -> None:
    text = section("contracts", number) + section("contracts", "1")
    assert [name for name in model.model_fields if not re.search(rf"\b{name}\b", text)] == []


def test_every_event_of_a_refresh_is_on_the_page() -> None:
    assert [event.value for event in RefreshEvent if f'"{event.value}"' not in section("contracts", "4")] == []


def test_the_table_of_phases_is_the_code_s() -> None:
    told: dict[FtPhase, set[FtPhase]] = {}
    for before, after in (cells for cells in rows(section("contracts", "5")) if cells[0] != "from"):
        for phase in re.findall(r"[A-Z_]{4,}", before):
            told[FtPhase(phase)] = set(map(FtPhase, re.findall(r"[A-Z_]{4,}", after)))
            if "back" in after:
                told[FtPhase(phase)] |= {FtPhase.NORMAL, FtPhase.SCALED_DOWN_RUNNING}
    assert told == {before: set(after) for before, after in TRANSITIONS.items() if before is not FtPhase.DISABLED}


def test_the_levels_of_hardware_faults_are_the_code_s() -> None:
    told = {
        word.strip(): cells[1]
        for cells in rows(section("contracts", "6"))
        if re.fullmatch(r"L\d", cells[1])
        for word in cells[0].split(",")
        if " " not in word.strip()
    }
    assert len(told) == 9
    assert {word: str(fault_level(word)) for word in told} == told


def test_every_drill_is_a_scenario_or_a_case_from_the_field() -> None:
    scenarios = {name for cells in rows(page("acceptance")) for name in QUOTED.findall(cells[0])}
    assert scenarios <= {*all_drills(), SUPERVISOR_TABLE}
    cases = {name for cells in rows(page("cases")) for name in re.findall(r"`([\w-]+)`", cells[-1])}
    assert {*all_drills(), SUPERVISOR_TABLE} <= scenarios | cases


def test_every_invariant_has_its_row() -> None:
    told = [cells[0] for cells in rows(page("invariants")) if re.fullmatch(r"I\d+", cells[0])]
    judged_by_replaying = "I12"
    assert sorted(told) == sorted([*(invariant.value for invariant in Invariant), judged_by_replaying])


@cache
def names_in_the_code() -> dict[str, set[str]]:
    """Every class, function and constant of ours, with what a class has."""
    found: dict[str, set[str]] = {}
    for path in sources():
        if path.suffix != ".py" or path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                members = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                members |= {name for part in node.body for name in _assigned(part)}
                members |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
                found.setdefault(node.name, set()).update(members)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, set())
            else:
                found |= {name: set() for name in _assigned(node) if name not in found}
    return found


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def glossary_names() -> list[str]:
    """What stands in the glossary's column *in code*."""
    return sorted({name for cells in rows(page("glossary")) if len(cells) == 4 for name in QUOTED.findall(cells[2])})


@pytest.mark.parametrize("name", glossary_names())
def test_what_the_glossary_names_is_there(name: str) -> None:
    known = names_in_the_code()
    if "/" in name:
        assert (ROOT / name).exists()
        return
    owner, _, member = name.rpartition(".")
    if owner:
        assert member in known[owner]
    else:
        assert member in known or any(member in members for members in known.values())


def test_no_word_of_the_glossary_is_explained_twice() -> None:
    words = [word for cells in rows(page("glossary")) if cells[0] != "word" for word in cells[0].split(", ")]
    assert sorted(words) == sorted(set(words))
