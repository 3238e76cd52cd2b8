"""While an L3 isolation stands, ADD is withheld: a round ends withdrawn, and the FaultManager publishes when it was cleared."""

from typing import Any

from domain.hardware import HardwareEvidence, fault_key, mapped_fault
from domain.instance.decision import Action, Decision, DecisionReason, decide
from domain.instance.state import InstanceState
from domain.instance.strategies import SCALE_DOWN
from domain.instance.strategy_life import took_end
from domain.messages.strategy import RoundOutcome, StrategyEnd, StrategyKind
from domain.runtime import FtPhase
from tests.domain.instance_factories import T0, D, U, config, on_nodes, report, serving_state
from tests.domain.round_factories import ScriptedPorts, order, played

ISOLATED = mapped_fault(on_nodes(), "node-0", "81078603", "Ascend910-0", "L3", T0)
SHED_1 = Decision(action=Action.SCALE_DOWN, reason=DecisionReason.COMPLETE, ranks=(1,))


def isolated(**changes: Any) -> InstanceState:
    """Serving as far as it knows, rank 1 dead, and rank 0's card with an L3."""
    evidence = serving_state().evidence.merge_all([report(1, D), *(report(rank, U) for rank in (0, 2, 3))], ())
    evidence = evidence.model_copy(update={"hardware": HardwareEvidence().report(ISOLATED)})
    return serving_state(topology=on_nodes(), evidence=evidence, **changes)


def followed(state: InstanceState) -> InstanceState:
    return state.following(decide(state.evidence, state.situation(), state.topology, state.config, T0 + 60))


async def test_an_isolated_round_commits_and_leaves_the_view_withdrawn() -> None:
    ports = ScriptedPorts()
    told = await played(ports, order(1, isolated=True))
    assert "publish" not in [name for name, _ in ports.calls]
    assert (told.outcome, told.committed, told.serving_published) == (RoundOutcome.SUCCEEDED, True, False)
    assert told.view_revision == 11


async def test_after_the_clear_the_survivors_are_published_under_a_new_revision() -> None:
    state, ordered = SCALE_DOWN.start(isolated(), SHED_1, "0" * 32, T0 + 1)
    assert ordered.isolated
    told = await played(ScriptedPorts(), ordered.model_copy(update={"topology": order(1).topology}))
    end = StrategyEnd(workflow_id=StrategyKind.SCALE_DOWN.workflow_id(7, ordered.generation), report=told)
    state = took_end(state, end, T0 + 30)
    assert (state.phase, state.view.ranks, state.view.confirmed) == (FtPhase.SCALED_DOWN_RUNNING, (), True)
    assert followed(state) == state, "it still stands"
    key = fault_key("node-0", "81078603", "Ascend910-0")
    hardware = state.evidence.hardware.clear(key, T0 + 40)
    cleared = followed(state.but(evidence=state.evidence.model_copy(update={"hardware": hardware})))
    assert cleared.view.ranks == (0, 2, 3)
    assert cleared.view.revision > ordered.view_revision + 1


def test_an_l3_withdraws_a_serving_instance_and_observing_it_does_not() -> None:
    assert followed(isolated()).view.ranks == ()
    assert followed(isolated(config=config(observe_only=True))).view.ranks == (0, 1, 2, 3)
    assert followed(isolated(held="maintenance")).view.ranks == (0, 1, 2, 3)
    assert not isolated(config=config(observe_only=True)).isolated
