"""No drill judges anything by a check that has never been seen red: each has a planted fault, here or in `test_judge`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from domain.messages.strategy import RoundOutcome, RoundReason
from domain.runtime import GateRecord
from lab.drills.check import Check
from lab.drills.drill import Drill
from lab.drills.judge.commands import applied_once, no_apply, retried_once
from lab.drills.judge.endings import failed_rounds_aborted, first_round_ended, gate_refused, rounds_ended
from lab.drills.judge.every_drill import checks_of
from lab.drills.judge.processes import failed_stop_changes_nothing, pods_stopped_once, went_on
from lab.drills.judge.processes import killed as was_killed
from lab.drills.judge.processes import stopped as was_stopped
from lab.drills.judge.serving import nothing_starts, requests_go_on, routes_are_off
from lab.drills.outcome import StopAsked
from lab.drills.registry import all_drills
from lab.drills.restart.cell_drills import chains, restart_drill, unknown_drill
from lab.drills.restart.cells import Unknown, cells
from lab.drills.restart.pod_cell_drills import pod_restart_drill
from lab.drills.restart.pod_cells import pod_cells
from lab.stack.record import EventKind
from tests.lab.drills.recorded import MANAGERS, evidence, happened, killed, report, request, requests, started, stopped
from tests.lab.drills.test_judge import PLANTED, PLANTED_IN_A_REBUILD
from tests.lab.drills.test_retry import retried, told

FAILED = {"reason": RoundReason.APPLY_UNKNOWN, "outcome": RoundOutcome.FAILED, "committed": False}
CELL = "--kill one-of-two-workers --at after-guard"


def polled_verdicts(*, committed: bool) -> list[Any]:
    """What the observer saw, with another verdict."""
    return [
        event.model_copy(update={"committed": committed}) if hasattr(event, "committed") else event for event in evidence().polled
    ]


def failed(reason: RoundReason) -> dict[str, Any]:
    return {"reports": [report().model_copy(update={**FAILED, "reason": reason})]}


def refused(code: str) -> dict[str, Any]:
    gate = GateRecord(allowed=False, reason_codes=(code,))
    return {"reports": [report().model_copy(update={**FAILED, "reason": RoundReason.GATE_REFUSED, "gate": gate})]}


@dataclass(frozen=True)
class Planted:
    """What a check is judged on: once as it should be, once with a fault in it."""

    check: Check
    fine: dict[str, Any]
    wrong: dict[str, Any]


NO_ROUTES: dict[str, Any] = {"journals": {}, "ft_refused": dict.fromkeys(MANAGERS, 3)}
PLANTED_ELSEWHERE = [
    Planted(
        retried_once(),
        {"lives": retried().lives},
        {"lives": retried(rank2=[told(2), told(2, 103.5)]).lives},
    ),
    Planted(
        first_round_ended(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.SURVIVOR_DIED),
    ),
    Planted(
        first_round_ended(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.APPLY_UNKNOWN),
        {"reports": []},
    ),
    Planted(routes_are_off(), NO_ROUTES, {"journals": evidence().journals}),
    Planted(
        routes_are_off(),
        NO_ROUTES,
        {**NO_ROUTES, "journals": {MANAGERS[1]: evidence().journals[MANAGERS[1]]}},
    ),
    Planted(
        routes_are_off(),
        NO_ROUTES,
        {**NO_ROUTES, "ft_refused": {MANAGERS[0]: 3}},
    ),
    Planted(
        was_killed(1),
        {"stack_events": [*started(), *killed("api", 103.0, 105.0)], "killed": frozenset({"api"})},
        {"stack_events": [*started(), *killed("api", 103.0, 105.0)[:-1]], "killed": frozenset({"api"})},
    ),
    Planted(
        was_stopped(1, for_sec=10.0),
        {"stack_events": [*started(), *stopped("api", 103.0, 113.0)]},
        {"stack_events": [*started(), *stopped("api", 103.0, 103.1)]},
    ),
    Planted(went_on({CELL: 15.0}), {"late_sec": {CELL: 3.9}}, {"late_sec": {}}),
    Planted(
        went_on({CELL: 15.0}),
        {"late_sec": {CELL: 8.1}},
        {"late_sec": {CELL: 15.1}},
    ),
    Planted(
        rounds_ended(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.SURVIVOR_DIED),
    ),
    Planted(gate_refused("EPLB_REQUIRED"), refused("EPLB_REQUIRED"), refused("NO_SURVIVOR")),
    Planted(
        failed_rounds_aborted(),
        {**failed(RoundReason.ENGINE_FAILED), "polled": polled_verdicts(committed=False)},
        {**failed(RoundReason.ENGINE_FAILED), "polled": polled_verdicts(committed=True)},
    ),
    Planted(
        pods_stopped_once(MANAGERS[1]),
        {"stack_events": [*started(), happened(104.0, EventKind.EXITED, MANAGERS[1], "exit code 0")]},
        {"stack_events": started()},
    ),
    Planted(
        failed_stop_changes_nothing(MANAGERS[1]),
        {"stops_asked": {MANAGERS[1]: (StopAsked(at=104.15, given_up_at=109.15),)}},
        {"stops_asked": {MANAGERS[1]: (StopAsked(at=104.0, given_up_at=104.1),)}},
    ),
    Planted(nothing_starts(), {"last_injection": 105.0}, {"last_injection": 103.0}),
    Planted(
        requests_go_on((0, 2, 3)),
        {"requests": [r for r in requests() if r.ok], "last_injection": 100.0},
        {"requests": [*requests(), request(99, 100.5, 2, ok=False)], "last_injection": 100.0},
    ),
]


@pytest.mark.parametrize("planted", PLANTED_ELSEWHERE, ids=lambda planted: planted.check.name)
def test_planted_fault_turns_its_check_red(planted: Planted) -> None:
    assert not planted.check.find(evidence(**planted.wrong)).ok
    assert planted.check.find(evidence(**planted.fine)).ok


def every_drill() -> Iterator[Drill]:
    yield from all_drills().values()
    yield from (restart_drill(*chain) for chain in chains(list(cells())))
    yield from (unknown_drill(name) for name in Unknown)
    yield from (pod_restart_drill(cell) for cell in pod_cells())


def test_every_check_of_every_drill_has_a_planted_fault() -> None:
    asked = {check.name for each in every_drill() for check in checks_of(each)}
    elsewhere = {planted.check.name for planted in PLANTED_ELSEWHERE}
    assert asked == elsewhere | {planted.check for planted in (*PLANTED, *PLANTED_IN_A_REBUILD)}


def test_every_drill_has_each_check_once_and_says_what_engines_were_told_or_how_rounds_ended() -> None:
    told = {no_apply().name, retried_once().name, applied_once().name, rounds_ended().name, first_round_ended().name}
    for each in every_drill():
        names = [check.name for check in checks_of(each)]
        assert len(names) == len(set(names)), each.name
        assert told & set(names), each.name
        assert all(check.meaning.endswith(".") for check in checks_of(each)), each.name
