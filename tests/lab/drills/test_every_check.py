"""No drill judges anything by a check that has never been seen red: each has a planted fault, here or in `test_judge`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from domain.messages.round import RoundOutcome, RoundReason
from domain.runtime import GateRecord
from lab.drills.drill import Drill, Expectation, Outcome
from lab.drills.judge.judge import CheckFunction, checks_of
from lab.drills.outcome import Check, StopAsked
from lab.drills.record.evidence import Evidence
from lab.drills.registry import all_drills
from lab.drills.scenarios.pod_restart import pod_cells
from lab.drills.scenarios.pod_restart_run import pod_restart_drill
from lab.drills.scenarios.restart import Unknown, cells
from lab.drills.scenarios.restart_run import chains, restart_drill, unknown_drill
from lab.stack.record import EventKind
from tests.lab.drills.recorded import MANAGERS, drill, evidence, happened, killed, report, request, requests, started, stopped
from tests.lab.drills.test_judge import PLANTED, PLANTED_IN_A_REBUILD
from tests.lab.drills.test_retry import retried, told

REBUILT = {"outcome": Outcome.REBUILT}
IN_PLACE = {"outcome": Outcome.IN_PLACE, "losses": ((1,),)}
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
    """What an expectation is judged on: once as it should be, once with a fault in it."""

    check: str
    expected: dict[str, Any]
    fine: dict[str, Any]
    wrong: dict[str, Any]


NO_ROUTES: dict[str, Any] = {"journals": {}, "ft_refused": dict.fromkeys(MANAGERS, 3)}
PLANTED_ELSEWHERE = [
    Planted(
        "one retry per engine",
        {"outcome": Outcome.IN_PLACE, "retried": True},
        {"lives": retried().lives},
        {"lives": retried(rank2=[told(2), told(2, 103.5)]).lives},
    ),
    Planted(
        "reason of the fallback",
        {**REBUILT, "reasons": (RoundReason.APPLY_UNKNOWN,)},
        failed(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.SURVIVOR_DIED),
    ),
    Planted(
        "reason of the fallback",
        {**REBUILT, "reasons": (RoundReason.APPLY_UNKNOWN,)},
        failed(RoundReason.APPLY_UNKNOWN),
        {"reports": []},
    ),
    Planted("no fault-tolerance routes", {**REBUILT, "feature_off": True}, NO_ROUTES, {"journals": evidence().journals}),
    Planted(
        "no fault-tolerance routes",
        {**REBUILT, "feature_off": True},
        NO_ROUTES,
        {**NO_ROUTES, "journals": {MANAGERS[1]: evidence().journals[MANAGERS[1]]}},
    ),
    Planted(
        "no fault-tolerance routes",
        {**REBUILT, "feature_off": True},
        NO_ROUTES,
        {**NO_ROUTES, "ft_refused": {MANAGERS[0]: 3}},
    ),
    Planted(
        "killed and back",
        {**IN_PLACE, "killed": 1},
        {"stack_events": [*started(), *killed("api", 103.0, 105.0)], "killed": frozenset({"api"})},
        {"stack_events": [*started(), *killed("api", 103.0, 105.0)[:-1]], "killed": frozenset({"api"})},
    ),
    Planted(
        "stopped and continued",
        {**IN_PLACE, "stopped": 1, "stopped_for_sec": 10.0},
        {"stack_events": [*started(), *stopped("api", 103.0, 113.0)]},
        {"stack_events": [*started(), *stopped("api", 103.0, 103.1)]},
    ),
    Planted(
        "the other worker went on", {**IN_PLACE, "goes_on_within_sec": {CELL: 15.0}}, {"late_sec": {CELL: 3.9}}, {"late_sec": {}}
    ),
    Planted(
        "the other worker went on",
        {**IN_PLACE, "goes_on_within_sec": {CELL: 15.0}},
        {"late_sec": {CELL: 8.1}},
        {"late_sec": {CELL: 15.1}},
    ),
    Planted(
        "how the rounds ended",
        {**REBUILT, "endings": (RoundReason.APPLY_UNKNOWN,)},
        failed(RoundReason.APPLY_UNKNOWN),
        failed(RoundReason.SURVIVOR_DIED),
    ),
    Planted("gate codes", {**REBUILT, "gates": (("EPLB_REQUIRED",),)}, refused("EPLB_REQUIRED"), refused("NO_SURVIVOR")),
    Planted(
        "failed rounds aborted",
        {**REBUILT, "aborted": True},
        {**failed(RoundReason.ENGINE_FAILED), "polled": polled_verdicts(committed=False)},
        {**failed(RoundReason.ENGINE_FAILED), "polled": polled_verdicts(committed=True)},
    ),
    Planted(
        "Pod stopped once",
        {**IN_PLACE, "stopped_pods": (MANAGERS[1],)},
        {"stack_events": [*started(), happened(104.0, EventKind.EXITED, MANAGERS[1], "exit code 0")]},
        {"stack_events": started()},
    ),
    Planted(
        "failed stop changes nothing",
        {**IN_PLACE, "unstoppable_pods": (MANAGERS[1],)},
        {"stops_asked": {MANAGERS[1]: (StopAsked(at=104.15, given_up_at=109.15),)}},
        {"stops_asked": {MANAGERS[1]: (StopAsked(at=104.0, given_up_at=104.1),)}},
    ),
    Planted("nothing starts", {**IN_PLACE, "quiet_after": True}, {"last_injection": 105.0}, {"last_injection": 103.0}),
    Planted(
        "requests go on",
        {**IN_PLACE, "undisturbed": (0, 2, 3)},
        {"requests": [r for r in requests() if r.ok], "last_injection": 100.0},
        {"requests": [*requests(), request(99, 100.5, 2, ok=False)], "last_injection": 100.0},
    ),
]


def judged(planted: Planted, changes: dict[str, Any]) -> Check:
    """This one check of a drill that expects so."""
    found, expected = evidence(**changes), Expectation.model_validate(planted.expected)
    return next(check for check in by_name(checks_of(drill(expected)), found, expected) if check.name == planted.check)


def by_name(functions: list[CheckFunction], found: Evidence, expected: Expectation) -> Iterator[Check]:
    yield from (function(found, expected) for function in functions)


@pytest.mark.parametrize("planted", PLANTED_ELSEWHERE, ids=lambda planted: planted.check)
def test_planted_fault_turns_its_check_red(planted: Planted) -> None:
    assert not judged(planted, planted.wrong).ok
    assert judged(planted, planted.fine).ok


def every_drill() -> Iterator[Drill]:
    yield from all_drills().values()
    yield from (restart_drill(*chain) for chain in chains(list(cells())))
    yield from (unknown_drill(name) for name in Unknown)
    yield from (pod_restart_drill(cell) for cell in pod_cells())


def test_every_check_of_every_drill_has_a_planted_fault() -> None:
    asked = {check.name for each in every_drill() for check in by_name(checks_of(each), evidence(), each.expected)}
    elsewhere = {planted.check for planted in PLANTED_ELSEWHERE}
    assert asked == elsewhere | {planted.check for planted in (*PLANTED, *PLANTED_IN_A_REBUILD)}
