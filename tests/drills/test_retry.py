"""Fast recovery judged from the engines' own logs: one retry each, and never a scale-down after one that failed."""

from typing import Any

import pytest

from domain.observations import FastRecoveryFailed
from drills.drill import Expectation, Outcome
from drills.engine_log import EngineLife, EngineLine, observations
from drills.evidence import Evidence
from drills.judge import checks_of, judge, one_retry_each
from tests.drills.recorded import RANKS, drill, evidence

RETRY = "fast-recovery-" + "0" * 32
RETRIED = Expectation(outcome=Outcome.IN_PLACE, retried=True)


def told(rank: int, at: float = 103.0, **changes: Any) -> EngineLine:
    line = {"instruction": "retry", "params": {}, "request_id": RETRY, "http": 202}
    return EngineLine.model_validate({"mono": at, "event": "apply", "rank": rank, **line, **changes})


def ended(rank: int, *, ok: bool) -> EngineLine:
    line = {"instruction": "retry", "request_id": RETRY, "ok": ok, "error": None if ok else "store timeout"}
    return EngineLine.model_validate({"mono": 104.0, "event": "recovery_end", "rank": rank, **line})


def life(rank: int, *lines: EngineLine) -> EngineLife:
    started = EngineLine(mono=10.0, event="start", rank=rank)
    return EngineLife(rank=rank, file=f"engine-{rank}-1.jsonl", lines=(started, *lines))


def retried(**changed: list[EngineLine]) -> Evidence:
    """Every engine retried once; `rank2=[...]` replaces what one of them logged."""
    lines = {rank: changed.get(f"rank{rank}", [told(rank), ended(rank, ok=True)]) for rank in RANKS}
    return evidence(lives={rank: [life(rank, *own)] for rank, own in lines.items()})


def test_one_retry_each_is_green_and_asked_for_where_a_retry_is_expected() -> None:
    check = one_retry_each(retried(), RETRIED)
    assert (check.ok, check.observations) == (True, len(RANKS))
    assert one_retry_each in checks_of(drill(RETRIED))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [told(2), told(2, 103.5)],
        [told(2, http=400)],
        [told(2, request_id="another")],
        [told(2), told(2, 105.0, instruction="scale_down", params={"removed_dp_ranks": [1]}, request_id="scale-down-1")],
    ],
    ids=["left out", "twice", "refused", "another id", "scaled down afterwards"],
)
def test_planted_fault_turns_it_red(lines: list[EngineLine]) -> None:
    assert not one_retry_each(retried(rank2=lines), RETRIED).ok


def test_scale_down_after_a_failed_retry_breaks_i9() -> None:
    shrunk = told(0, 105.0, instruction="scale_down", params={"removed_dp_ranks": [2]}, request_id="scale-down-1")
    found = retried(rank2=[told(2), ended(2, ok=False)], rank0=[told(0), shrunk])
    assert [event for event in observations(found.lives, {}) if isinstance(event, FastRecoveryFailed)]
    red = {check.name.split()[0] for check in judge(drill(RETRIED), found) if not check.ok}
    assert "I9" in red
