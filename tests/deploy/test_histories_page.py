"""docs/changing-workflows.md names, for each strategy, exactly the ends of which tests/histories has no history."""

import re
from enum import StrEnum
from pathlib import Path

import pytest

from domain.messages.strategy import ReconfigurationReason, ReinferenceReason, RoundReason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "changing-workflows.md").read_text(encoding="utf-8")

ENDS: dict[str, frozenset[StrEnum]] = {
    "ScaleDownRound": frozenset(RoundReason) - {RoundReason.RECOVERED, RoundReason.RELAPSED, RoundReason.RANK_DIED},
    "FastRecovery": frozenset(RoundReason) - {RoundReason.COMMITTED, RoundReason.ALREADY_COMMITTED, RoundReason.NO_SURVIVOR},
    "InstanceReconfiguration": frozenset(ReconfigurationReason)
    - {ReconfigurationReason.RELAUNCHED, ReconfigurationReason.BAD_ORDER},
    "EngineRelaunch": frozenset(ReconfigurationReason) - {ReconfigurationReason.REBUILT},
    "TokenReinference": frozenset(ReinferenceReason),
}
"""The ends that each can have."""


@pytest.mark.parametrize("workflow", ENDS)
def test_every_end_has_a_history_or_is_named_as_one_that_has_none(workflow: str) -> None:
    recorded = {file.stem.split("-")[2] for file in (ROOT / "tests" / "histories").glob(f"{workflow}-*.json")}
    (row,) = re.findall(rf"^\| `{workflow}` \| (.+) \|$", PAGE, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", row))
    assert named.isdisjoint(recorded)
    assert named | recorded == {end.value for end in ENDS[workflow]}
