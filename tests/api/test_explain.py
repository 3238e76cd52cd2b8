"""What people read of an instance: a hold, a death that nobody has decided on, and a rebuild that is over."""

import pytest

from api.explain import explained
from domain.instance.decision import Action, Decision, DecisionReason, decide
from domain.instance.state import InstanceState
from domain.instance.strategies import INSTANCE_RECONFIGURATION
from domain.instance.strategy_life import took_end
from domain.messages.strategy import ReconfigurationReason, ReconfigurationReport, StrategyEnd, StrategyKind
from domain.runtime import RuntimeRecord, undecided_deaths
from tests.domain.instance_factories import T0, D, serving_state, with_statuses
from workflows.parts.instance_page import page

REBUILD = StrategyKind.INSTANCE_RECONFIGURATION
RELEASE = "`autotomy instance release 7`"


def recorded(state: InstanceState) -> RuntimeRecord:
    decision = decide(state.evidence, state.situation(), state.topology, state.config, T0 + 1)
    return state.record(state.waiting(decision), T0 + 1)


def rebuilt(reason: DecisionReason, detail: str = "") -> RuntimeRecord:
    decision = Decision(action=Action.RECONFIGURE, reason=reason)
    state, order = INSTANCE_RECONFIGURATION.start(
        serving_state(owed=reason, owed_detail=detail, last_error=detail), decision, "", T0
    )
    report = ReconfigurationReport(
        kind=REBUILD,
        instance_id=7,
        generation=order.generation,
        succeeded=True,
        reason=ReconfigurationReason.REBUILT,
        serving_published=True,
        engine_incarnations={rank: f"new-{rank}" for rank in range(4)},
    )
    workflow_id = REBUILD.workflow_id(7, order.generation)
    end = StrategyEnd(workflow_id=workflow_id, report=report)
    return recorded(took_end(state, end, T0 + 60))


@pytest.mark.parametrize("reason", [DecisionReason.ORDERED, DecisionReason.FORCED])
def test_a_rebuild_that_a_person_ordered_leaves_no_error(reason: DecisionReason) -> None:
    record = rebuilt(reason, "new weights")
    assert (record.can_serve, record.last_error) == (True, None)
    assert record.last_strategy_workflow_id == REBUILD.workflow_id(7, 2)
    assert f"The last strategy was workflow {record.last_strategy_workflow_id}." in explained(record, T0 + 60).text


def test_what_led_to_a_rebuild_is_told_as_past_once_it_has_succeeded() -> None:
    record = rebuilt(DecisionReason.ROUND_FAILED, "round failed: APPLY_REFUSED")
    assert record.last_error == "rebuilt because round failed: APPLY_REFUSED"


def test_a_known_death_is_told_while_the_instance_still_counts_as_complete() -> None:
    record = recorded(serving_state(evidence=with_statuses({1: D})))
    assert record.alive_dp_ranks == (0, 1, 2, 3)
    words = undecided_deaths(record)
    assert words is not None
    assert words.startswith("rank 1 is dead, not yet decided on: INCOMPLETE")
    text = explained(record, T0).text
    assert "all ranks are there" not in text[0]
    assert text[1].startswith("Rank 1 is dead, not yet decided on")
    assert words in page(record)


def test_without_a_death_nothing_is_told_of_one() -> None:
    assert undecided_deaths(recorded(serving_state())) is None


def test_while_held_what_comes_then_waits_for_the_release() -> None:
    record = recorded(serving_state(evidence=with_statuses({1: D}), held="maintenance"))
    assert record.waiting is not None
    assert record.waiting.then.startswith(f"what it decides waits for {RELEASE}")
    assert any(RELEASE in sentence and "maintenance" in sentence for sentence in explained(record, T0).text)
    assert f"**automation off**: maintenance (until {RELEASE})" in page(record)


def test_a_hold_does_not_stop_what_a_person_ordered() -> None:
    state = serving_state(held="maintenance", owed=DecisionReason.ORDERED)
    wait = Decision(action=Action.WAIT, reason=DecisionReason.BACK_OFF, until=T0 + 5, then="the instance is rebuilt")
    waiting = state.waiting(wait)
    assert waiting is not None
    assert waiting.then == "the instance is rebuilt"
