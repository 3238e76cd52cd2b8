"""docs/reasons.md has a row for every reason that a decision, the gate or a strategy can give, and for no other."""

import re
from collections import Counter
from enum import StrEnum
from pathlib import Path

import pytest

from domain.instance.situation import DecisionReason
from domain.messages.strategy import ReconfigurationReason, ReinferenceReason, RoundReason
from domain.round.gate import GateCode, RetryGateCode
from domain.watch import WatchReason

PAGE = (Path(__file__).parents[2] / "docs" / "reasons.md").read_text(encoding="utf-8")

SECTIONS: dict[str, tuple[type[StrEnum], ...]] = {
    "Decisions": (DecisionReason,),
    "Gate": (GateCode, RetryGateCode),
    "Rounds and fast recoveries": (RoundReason, WatchReason),
    "Rebuilds and relaunches": (ReconfigurationReason,),
    "TokenReinference": (ReinferenceReason,),
}


def rows(section: str) -> list[list[str]]:
    """The cells of each row of a section's table."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")]


def test_every_section_is_looked_at() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == list(SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_each_reason_once_and_says_what_to_do(section: str) -> None:
    found = Counter(cells[0].strip("`") for cells in rows(section))
    assert found == Counter({reason.value for reasons in SECTIONS[section] for reason in reasons})
    assert len({len(cells) for cells in rows(section)}) == 1
    assert all(all(cells) for cells in rows(section))


def test_the_gate_says_whose_code_it_is() -> None:
    for code, of, *_ in rows("Gate"):
        name = code.strip("`")
        whose = {(True, True): "both", (True, False): "round", (False, True): "retry"}
        assert of == whose[name in set(GateCode), name in set(RetryGateCode)], name
