"""Each judgement of how rounds ended turns red on a planted fault."""

from domain.messages.strategy import RoundOutcome, RoundReason
from domain.runtime import GateRecord
from lab.drills.judge.endings import failed_rounds_aborted, gate_refused, rounds_ended
from lab.drills.judge.processes import failed_stop_changes_nothing, pods_stopped_once
from lab.drills.judge.serving import nothing_starts
from lab.drills.outcome import StopAsked
from lab.stack.record import EventKind, StackEvent
from tests.lab.drills.recorded import evidence, report

COMMITTED = RoundReason.COMMITTED


def test_rounds_must_end_as_provoked_and_no_others_may_be() -> None:
    assert rounds_ended(COMMITTED).find(evidence()).ok
    assert not rounds_ended(RoundReason.APPLY_REFUSED).find(evidence()).ok
    assert not rounds_ended(COMMITTED).find(evidence(reports=[report(), report()])).ok
    assert not rounds_ended(COMMITTED).find(evidence(reports=[])).ok


def test_the_gate_must_name_exactly_what_was_missing() -> None:
    refused = report().model_copy(update={"gate": GateRecord(allowed=False, reason_codes=("EPLB_REQUIRED",))})
    assert gate_refused("EPLB_REQUIRED").find(evidence(reports=[refused])).ok
    assert not gate_refused("NO_SURVIVOR").find(evidence(reports=[refused])).ok
    assert not gate_refused("EPLB_REQUIRED").find(evidence()).ok


def test_a_failed_round_that_somebody_committed_is_told() -> None:
    failed = {"reason": RoundReason.ENGINE_FAILED, "outcome": RoundOutcome.FAILED, "committed": False}
    told = failed_rounds_aborted().find(evidence(reports=[report().model_copy(update=failed)]))
    assert (told.ok, "committed" in told.detail) == (False, True)


def test_a_pod_is_stopped_once() -> None:
    end = StackEvent(mono=104, time="", event=EventKind.EXITED, name="node-manager-1")
    once = pods_stopped_once("node-manager-1")
    assert once.find(evidence(stack_events=[end])).ok
    assert not once.find(evidence(stack_events=[])).ok
    assert not once.find(evidence(stack_events=[end, end])).ok


def test_a_stop_that_fails_is_tried_once_and_nobody_waits_for_it() -> None:
    def told(*asked: StopAsked, **changes: object) -> bool:
        check = failed_stop_changes_nothing("node-manager-1")
        return check.find(evidence(stops_asked={"node-manager-1": asked}, **changes)).ok

    meanwhile = StopAsked(at=104.15, given_up_at=109.15)  # the survivors are published at 104.2
    assert told(meanwhile)
    assert not told()
    assert not told(meanwhile, StopAsked(at=110.0, given_up_at=115.0))
    assert not told(StopAsked(at=104.0, given_up_at=104.1)), "it was waited for"
    assert not told(meanwhile, stack_events=[StackEvent(mono=105.0, time="", event=EventKind.POD_RESTARTED, name="pod-1")])


def test_a_view_after_the_last_injection_is_not_quiet() -> None:
    assert nothing_starts().find(evidence(last_injection=105.0)).ok
    assert not nothing_starts().find(evidence(last_injection=103.0)).ok
    assert not nothing_starts().find(evidence()).ok
