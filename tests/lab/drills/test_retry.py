"""Fast recovery judged from the engines' own logs: one retry each, and never a scale-down after one that failed."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from domain.messages.node_manager import TransactionRecord
from lab.drills.drill import in_place
from lab.drills.judge.commands import published_after_recovery, retried_once, withdrawn_before_apply
from lab.drills.judge.every_drill import judge
from lab.drills.record.engine_log import EngineLife, EngineLine, observations
from lab.drills.record.evidence import Evidence
from lab.drills.record.failed_recoveries import failed_recoveries
from lab.drills.registry import all_drills
from lab.oracle.observations import FastRecoveryFailed, VerdictSeen
from tests.lab.drills.recorded import RANKS, drill, evidence, journal

RETRY = "fast-recovery-" + "0" * 32
RETRIED = drill(in_place(), retried_once(), withdrawn_before_apply(), published_after_recovery())


def told(rank: int, at: float = 103.0, **changes: Any) -> EngineLine:
    line = {"instruction": "retry", "params": {}, "request_id": RETRY, "http": 202}
    return EngineLine.model_validate({"mono": at, "event": "apply", "rank": rank, **line, **changes})


def ended(rank: int, *, ok: bool) -> EngineLine:
    line = {"instruction": "retry", "request_id": RETRY, "ok": ok, "error": None if ok else "store timeout"}
    return EngineLine.model_validate({"mono": 104.0, "event": "recovery_end", "rank": rank, **line})


def life(rank: int, *lines: EngineLine) -> EngineLife:
    started = EngineLine(mono=10.0, event="start", rank=rank)
    asked = EngineLine(mono=12.0, event="identity", rank=rank, ids=(rank,))
    return EngineLife(rank=rank, file=f"engine-{rank}-1.jsonl", lines=(started, asked, *lines))


def retried(**changed: list[EngineLine]) -> Evidence:
    """Every engine retried once; `rank2=[...]` replaces what one of them logged."""
    lines = {rank: changed.get(f"rank{rank}", [told(rank), ended(rank, ok=True)]) for rank in RANKS}
    return evidence(lives={rank: [life(rank, *own)] for rank, own in lines.items()})


def test_one_retry_each_is_green_and_asked_for_where_a_retry_is_expected() -> None:
    found = retried_once().find(retried())
    assert (found.ok, found.observations) == (True, len(RANKS))
    assert [name for name, each in all_drills().items() if retried_once() in each.checks] == [
        "all-unhealthy-fast",
        "all-unhealthy-fast-fails",
    ]


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
    assert not retried_once().find(retried(rank2=lines)).ok


def refused(rank: int) -> EngineLine:
    return EngineLine(mono=103.1, event="refused", rank=rank, instruction="retry", request_id=RETRY, error="status is HEALTHY")


@pytest.mark.parametrize(
    "lines",
    [[told(2), ended(2, ok=False)], [told(2), refused(2)], [told(2, http=400)], [told(2, http=200)]],
    ids=["recovery failed", "refused afterwards", "refused at once", "done at once"],
)
def test_scale_down_after_a_failed_retry_breaks_i9(lines: list[EngineLine]) -> None:
    shrunk = told(0, 105.0, instruction="scale_down", params={"removed_dp_ranks": [2]}, request_id="scale-down-1")
    found = retried(rank2=lines, rank0=[told(0), shrunk])
    assert [event for event in observations(found.lives, {}) if isinstance(event, FastRecoveryFailed)]
    red = {check.name.split()[0] for check in judge(RETRIED, found) if not check.ok}
    assert "I9" in red


def shrunk_after(**changes: Any) -> set[str]:
    """Every engine retried well, and was told to scale down at 106.0; what is red then."""
    shrunk = told(0, 106.0, instruction="scale_down", params={"removed_dp_ranks": [2]}, request_id="scale-down-1")
    found = replace(retried(rank0=[told(0), ended(0, ok=True), shrunk]), **changes)
    return {check.name.split()[0] for check in judge(RETRIED, found) if not check.ok}


def test_scale_down_after_a_fast_recovery_that_failed_as_a_whole_breaks_i9() -> None:
    aborted = TransactionRecord(request_id=RETRY, guarded=True, instruction="retry", verdict="aborted")
    journals = {"node-manager-0": journal("nm").model_copy(update={"transactions": (aborted,)})}
    verdict = VerdictSeen(at=105.0, manager="node-manager-0", request_id=RETRY, committed=False)
    assert "I9" not in shrunk_after()
    assert "I9" in shrunk_after(failed_recoveries=(105.0,))
    assert "I9" not in shrunk_after(failed_recoveries=(107.0,))
    assert "I9" in shrunk_after(journals=journals, polled=[*evidence().polled, verdict])


def test_end_of_each_failed_fast_recovery_is_read_from_its_history(tmp_path: Path) -> None:
    at = datetime.now(UTC)
    for number, type_ in enumerate(("FAILED", "COMPLETED")):
        end = {"eventType": f"EVENT_TYPE_WORKFLOW_EXECUTION_{type_}", "eventTime": at.isoformat(), "eventId": "9"}
        (tmp_path / f"fast-recovery-7-{number}.abc.json").write_text(json.dumps({"events": [end]}))
    (tmp_path / "fast-recovery-7-3.abc.json").write_text("{")
    (found,) = failed_recoveries(tmp_path)
    assert found == pytest.approx(time.monotonic(), abs=5.0)
