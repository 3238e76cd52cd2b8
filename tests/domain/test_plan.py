"""The dry run says what a round would do, by the round's own means, and what the rules would choose instead."""

import pytest

from domain.config import FaultToleranceConfig
from domain.instance.decision import Action, DecisionReason
from domain.instance.plan import plan
from domain.runtime import FtPhase
from tests.domain.instance_factories import T0, D, config, on_nodes, report, serving_state


def test_a_dead_rank_is_a_scale_down_of_all_others() -> None:
    found = plan(serving_state(), [1], T0)
    assert (found.decision.action, found.decision.reason) == (Action.SCALE_DOWN, DecisionReason.COMPLETE)
    assert (found.dead, found.unhealthy, found.automation_off) == ((1,), (0, 2, 3), None)
    assert found.round is not None
    assert found.round.gate.allowed
    assert (found.round.survivors, found.round.removed_dp_ranks) == ((0, 2, 3), (1,))
    assert [(one.node_manager, one.survivors, one.leaving) for one in found.round.participants] == [
        ("10.0.0.1:1026", (0,), (1,)),
        ("10.0.0.2:1026", (2, 3), ()),
    ]
    assert (found.round.generation, found.round.withdraw_revision, found.round.publish_revision) == (2, 2, 3)


def test_the_apply_body_is_cumulative_and_names_the_lowest_survivor() -> None:
    found = plan(serving_state(dead_committed=(1,)), [0], T0)
    assert found.round is not None
    assert found.round.master is not None
    assert (found.round.master.rank, found.round.master.ip, found.round.master.store_port) == (2, "10.0.0.2", 29502)
    assert [(one.node_manager, one.body.endpoint_ids) for one in found.round.apply] == [("10.0.0.2:1026", (2, 3))]
    params = found.round.apply[0].body.params
    assert (params.removed_dp_ranks, params.dp_master_ip, params.dp_master_rank) == ((0, 1), "10.0.0.2", 2)
    (emptied,) = [one for one in found.round.participants if one.emptied]
    assert (emptied.node_manager, emptied.may_be_absent) == ("10.0.0.1:1026", True)


def test_the_lease_is_shown_as_its_sum() -> None:
    found = plan(serving_state(), [1], T0)
    assert found.round is not None
    lease = found.round.lease
    assert (lease.lease_sec, lease.apply_margin_sec, lease.engines_give_up_sec) == (85.0, 35.0, 120.0)
    assert lease.sum.endswith("= 85")


def test_a_closed_gate_is_told_with_its_codes() -> None:
    bare = on_nodes(ft_capability=None)
    found = plan(serving_state(topology=bare), [1], T0)
    assert found.round is not None
    assert found.round.gate.reason_codes == ("FT_CAPABILITY_MISSING",)
    assert "rebuilt" in found.outlook


@pytest.mark.parametrize(
    ("dead", "ft", "action", "reason"),
    [
        ([0, 1, 2, 3], config(), Action.RECONFIGURE, DecisionReason.ALL_DEAD),
        ([1, 2], config(min_alive_ranks=3), Action.RECONFIGURE, DecisionReason.TOO_FEW_SURVIVORS),
        ([1], FaultToleranceConfig(), Action.ENGINE_RELAUNCH, DecisionReason.FEATURE_OFF),
    ],
    ids=["nobody left", "too few left", "feature off"],
)
def test_where_no_round_would_run_the_plan_says_what_would(
    dead: list[int], ft: FaultToleranceConfig, action: Action, reason: DecisionReason
) -> None:
    found = plan(serving_state(config=ft), dead, T0)
    assert (found.decision.action, found.decision.reason) == (action, reason)


def test_a_rank_that_is_dead_already_is_in_the_plan() -> None:
    state = serving_state()
    evidence, _ = state.evidence.merge(report(3, D, T0 - 1), ())
    found = plan(state.but(evidence=evidence), [1], T0)
    assert found.dead == (1, 3)


def test_a_rank_that_was_removed_before_needs_no_round() -> None:
    found = plan(serving_state(dead_committed=(1,)), [1], T0)
    assert (found.removed_already, found.round, found.phase) == ((1,), None, FtPhase.SCALED_DOWN_RUNNING)
    assert (found.decision.action, found.outlook) == (Action.NOTHING, "nothing happens")


def test_held_automation_is_said() -> None:
    assert plan(serving_state(held="an upgrade"), [1], T0).automation_off == "held: an upgrade"


@pytest.mark.parametrize(("dead", "said"), [([], "no rank"), ([1, 9], r"ranks 0..3, not \[9\]")])
def test_ranks_that_are_not_there_are_refused(dead: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(serving_state(), dead, T0)
