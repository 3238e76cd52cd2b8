"""Each judgement of how rounds ended turns red on a planted fault."""

from domain.messages.round import RoundOutcome, RoundReason
from domain.runtime import GateRecord
from lab.drills.drill import Expectation, Outcome
from lab.drills.judge import endings
from lab.drills.outcome import StopAsked
from lab.stack.record import EventKind, StackEvent
from tests.lab.drills.recorded import evidence, report

COMMITTED = RoundReason.COMMITTED


def expecting(**changes: object) -> Expectation:
    return Expectation.model_validate({"outcome": Outcome.REBUILT, **changes})


def test_rounds_must_end_as_provoked_and_no_others_may_be() -> None:
    assert endings.rounds_ended(evidence(), expecting(endings=(COMMITTED,))).ok
    assert not endings.rounds_ended(evidence(), expecting(endings=(RoundReason.APPLY_REFUSED,))).ok
    assert not endings.rounds_ended(evidence(reports=[report(), report()]), expecting(endings=(COMMITTED,))).ok
    assert not endings.rounds_ended(evidence(reports=[]), expecting(endings=(COMMITTED,))).ok


def test_the_gate_must_name_exactly_what_was_missing() -> None:
    refused = report().model_copy(update={"gate": GateRecord(allowed=False, reason_codes=("EPLB_REQUIRED",))})
    assert endings.gate_codes(evidence(reports=[refused]), expecting(gates=(("EPLB_REQUIRED",),))).ok
    assert not endings.gate_codes(evidence(reports=[refused]), expecting(gates=(("NO_SURVIVOR",),))).ok
    assert not endings.gate_codes(evidence(), expecting(gates=(("EPLB_REQUIRED",),))).ok


def test_a_failed_round_that_somebody_committed_is_told() -> None:
    failed = {"reason": RoundReason.ENGINE_FAILED, "outcome": RoundOutcome.FAILED, "committed": False}
    told = endings.aborted(evidence(reports=[report().model_copy(update=failed)]), expecting(aborted=True))
    assert (told.ok, "committed" in told.detail) == (False, True)


def test_a_pod_is_stopped_once() -> None:
    end = StackEvent(mono=104, time="", event=EventKind.EXITED, name="node-manager-1")
    expected = expecting(stopped_pods=("node-manager-1",))
    assert endings.pods_stopped_once(evidence(stack_events=[end]), expected).ok
    assert not endings.pods_stopped_once(evidence(stack_events=[]), expected).ok
    assert not endings.pods_stopped_once(evidence(stack_events=[end, end]), expected).ok


def test_a_stop_that_fails_is_tried_once_and_nobody_waits_for_it() -> None:
    def told(*asked: StopAsked, **changes: object) -> bool:
        expected = expecting(unstoppable_pods=("node-manager-1",))
        return endings.stop_failed(evidence(stops_asked={"node-manager-1": asked}, **changes), expected).ok

    meanwhile = StopAsked(at=104.15, given_up_at=109.15)  # the survivors are published at 104.2
    assert told(meanwhile)
    assert not told()
    assert not told(meanwhile, StopAsked(at=110.0, given_up_at=115.0))
    assert not told(StopAsked(at=104.0, given_up_at=104.1)), "it was waited for"
    assert not told(meanwhile, stack_events=[StackEvent(mono=105.0, time="", event=EventKind.POD_RESTARTED, name="pod-1")])


def test_a_view_after_the_last_injection_is_not_quiet() -> None:
    assert endings.quiet_after(evidence(last_injection=105.0), expecting(quiet_after=True)).ok
    assert not endings.quiet_after(evidence(last_injection=103.0), expecting(quiet_after=True)).ok
    assert not endings.quiet_after(evidence(), expecting(quiet_after=True)).ok
