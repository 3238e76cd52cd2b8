"""Every rule of design §3, one row each, and what must hold for all of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import EngineStatus, EntrySource
from domain.instance.decision import (
    ABANDONED_ROUNDS_ALLOWED,
    FIRST_BACK_OFF_SEC,
    Action,
    Decision,
    DecisionReason,
    Situation,
    decide,
)
from domain.instance.evidence import Evidence
from domain.topology import NodeManagerAddress
from tests.domain.instance_factories import T0, D, H, U, config, ready, report, told, topology, with_statuses

Statuses = dict[int, EngineStatus]
COLLECTION_SEC = config().software_collection_timeout_sec


def decided(statuses: Statuses, after_sec: float = 1.0, *, settings: Any = None, **situation: Any) -> Decision:
    """The decision `after_sec` seconds after these statuses were reported to an ACTIVE instance of four ranks."""
    evidence = with_statuses(statuses)
    return decide(evidence, Situation(**situation), topology(), settings or config(), T0 + after_sec)


TABLE: list[tuple[str, Statuses, dict[str, Any], Action, DecisionReason]] = [
    ("nothing is wrong", {}, {}, Action.NOTHING, DecisionReason.NO_EVIDENCE),
    ("all healthy", {0: H, 1: H, 2: H, 3: H}, {}, Action.NOTHING, DecisionReason.NO_EVIDENCE),
    ("rule 2: a strategy runs", {1: D, 0: U, 2: U, 3: U}, {"strategy_runs": True}, Action.KEEP, DecisionReason.STRATEGY_RUNS),
    ("rule 5: being rebuilt", {1: D}, {"rebuilding": True}, Action.RECONFIGURE, DecisionReason.NOT_ACTIVE),
    ("rule 6: all unhealthy", {0: U, 1: U, 2: U, 3: U}, {}, Action.WAIT, DecisionReason.ALL_UNHEALTHY),
    ("rule 7: all dead", {0: D, 1: D, 2: D, 3: D}, {}, Action.RECONFIGURE, DecisionReason.ALL_DEAD),
    ("rule 8: one dead, the rest unhealthy", {1: D, 0: U, 2: U, 3: U}, {}, Action.SCALE_DOWN, DecisionReason.COMPLETE),
    ("rule 8: rank 0 dead", {0: D, 1: U, 2: U, 3: U}, {}, Action.SCALE_DOWN, DecisionReason.COMPLETE),
    ("rule 8: several dead", {0: D, 1: D, 2: U, 3: D}, {}, Action.SCALE_DOWN, DecisionReason.COMPLETE),
    (
        "rule 8: what was removed does not count",
        {0: U, 2: U, 3: D},
        {"dead_committed": (1,)},
        Action.SCALE_DOWN,
        DecisionReason.COMPLETE,
    ),
    ("rule 10: one dead, the rest silent", {1: D}, {}, Action.WAIT, DecisionReason.INCOMPLETE),
    ("rule 10: one survivor still healthy", {1: D, 0: U, 2: U, 3: H}, {}, Action.WAIT, DecisionReason.INCOMPLETE),
    ("rule 10: some unhealthy, none dead", {0: U, 2: U}, {}, Action.WAIT, DecisionReason.INCOMPLETE),
    (
        "rule 10: a removed rank's death is no evidence",
        {1: D},
        {"dead_committed": (1,)},
        Action.NOTHING,
        DecisionReason.NO_EVIDENCE,
    ),
    (
        "rule 11: only a lost NodeManager",
        {},
        {"lost_node_managers": (NodeManagerAddress(ip="10.0.0.1", port=1026),)},
        Action.RECONFIGURE,
        DecisionReason.NODE_MANAGER_LOST,
    ),
    (
        "rule 11: a lost NodeManager whose ranks were all removed",
        {},
        {"dead_committed": (0, 1), "lost_node_managers": (NodeManagerAddress(ip="10.0.0.1", port=1026),)},
        Action.NOTHING,
        DecisionReason.NO_EVIDENCE,
    ),
    ("owed: a round failed", {}, {"owed": DecisionReason.ROUND_FAILED}, Action.RECONFIGURE, DecisionReason.ROUND_FAILED),
    (
        "owed: later evidence does not lift it",
        {1: D, 0: U, 2: U, 3: U},
        {"owed": DecisionReason.ROUND_FAILED},
        Action.RECONFIGURE,
        DecisionReason.ROUND_FAILED,
    ),
    (
        "forced: pre-empts a round before its commit",
        {},
        {"owed": DecisionReason.FORCED, "strategy_runs": True, "preemptible": True},
        Action.PREEMPT,
        DecisionReason.FORCED,
    ),
    (
        "forced: waits for a round that has committed",
        {},
        {"owed": DecisionReason.FORCED, "strategy_runs": True},
        Action.KEEP,
        DecisionReason.STRATEGY_RUNS,
    ),
    (
        "forced: passes the budget",
        {},
        {"owed": DecisionReason.FORCED, "budget_spent": True, "rebuilt_at": (T0, T0, T0)},
        Action.RECONFIGURE,
        DecisionReason.FORCED,
    ),
    (
        "budget: spent",
        {1: D, 0: D, 2: D, 3: D},
        {"rebuilt_at": (T0 - 30, T0 - 20, T0 - 10)},
        Action.STAY_WITHDRAWN,
        DecisionReason.BUDGET_SPENT,
    ),
    (
        "budget: spent stays spent until a person comes",
        {},
        {"owed": DecisionReason.REBUILD_FAILED, "budget_spent": True},
        Action.STAY_WITHDRAWN,
        DecisionReason.BUDGET_SPENT,
    ),
]


@pytest.mark.parametrize(("statuses", "situation", "action", "reason"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_rule(statuses: Statuses, situation: dict[str, Any], action: Action, reason: DecisionReason) -> None:
    decision = decided(statuses, **situation)
    assert (decision.action, decision.reason) == (action, reason)


def test_a_spent_budget_names_its_cause_once_however_often_it_is_judged() -> None:
    spent: dict[str, Any] = {"rebuilt_at": (T0 - 30, T0 - 20, T0 - 10)}
    first = decided({1: D, 0: D, 2: D, 3: D}, **spent)
    assert first.detail == "ALL_DEAD: every active rank is dead"
    again = decided({}, owed=DecisionReason.BUDGET_SPENT, owed_detail=first.detail, budget_spent=True, **spent)
    assert (again.reason, again.detail) == (first.reason, first.detail)


def test_rule_1_with_the_feature_off_a_software_fault_takes_the_original_strategy() -> None:
    off = config(enable_dp_scale_down=False)
    complete = {1: D, 0: U, 2: U, 3: U}
    assert decided(complete, settings=off).reason is DecisionReason.FEATURE_OFF
    assert decided(complete, settings=off).action is Action.ENGINE_RELAUNCH
    no_relaunch = config(enable_dp_scale_down=False, enable_engine_relaunch=False)
    assert decided(complete, settings=no_relaunch).action is Action.RECONFIGURE
    assert decided({}, settings=off).action is Action.NOTHING
    assert decided(complete, settings=off, strategy_runs=True).action is Action.KEEP
    assert decided(complete, settings=config(enable_fault_tolerance=False)).reason is DecisionReason.FEATURE_OFF


def test_rule_1_heartbeat_loss_counts_with_the_feature_off_too() -> None:
    lost = (NodeManagerAddress(ip="10.0.0.2", port=1026),)
    assert decided({}, settings=config(enable_dp_scale_down=False), lost_node_managers=lost).reason is (
        DecisionReason.NODE_MANAGER_LOST
    )


def test_rule_5_a_rank_that_was_never_ready_makes_the_instance_not_active() -> None:
    evidence = ready([0, 1, 2]).merge_all([report(1, D)], ())
    decision = decide(evidence, Situation(), topology(), config(), T0 + 1)
    assert (decision.action, decision.reason) == (Action.RECONFIGURE, DecisionReason.NOT_ACTIVE)
    assert "[3]" in decision.detail


def test_rule_5_an_instance_that_is_not_active_and_has_no_fault_just_waits() -> None:
    assert decide(ready([0, 1]), Situation(), topology(), config(), T0).action is Action.NOTHING


def test_rule_8_names_the_dead_and_nobody_else() -> None:
    assert decided({3: D, 1: D, 0: U, 2: U}).ranks == (1, 3)


def test_rule_8_gives_up_on_rounds_that_keep_finding_the_dead_alive() -> None:
    complete = {1: D, 0: U, 2: U, 3: U}
    abandoned = (T0 - 30.0,) * ABANDONED_ROUNDS_ALLOWED
    assert decided(complete, abandoned_at=abandoned).action is Action.SCALE_DOWN
    assert decided(complete, abandoned_at=(*abandoned, T0 - 20.0)).reason is DecisionReason.ABANDONED_TOO_OFTEN
    long_ago = (T0 - config().reconfiguration_window_sec - 1,) * 9
    assert decided(complete, abandoned_at=long_ago).action is Action.SCALE_DOWN


@pytest.mark.parametrize("statuses", [{1: D}, {0: U, 1: U, 2: U, 3: U}], ids=["incomplete", "all unhealthy"])
def test_rule_10_waits_then_looks_once_then_rebuilds(statuses: Statuses) -> None:
    waiting = decided(statuses, COLLECTION_SEC - 0.1)
    assert (waiting.action, waiting.until) == (Action.WAIT, T0 + COLLECTION_SEC)
    assert "look" in waiting.then
    assert decided(statuses, COLLECTION_SEC).action is Action.FRESH_LOOK
    looked = decided(statuses, COLLECTION_SEC, looked_for=T0)
    assert looked.action is Action.RECONFIGURE
    assert looked.reason in (DecisionReason.INCOMPLETE, DecisionReason.ALL_UNHEALTHY)


def test_rule_10_after_the_look_complete_evidence_still_becomes_a_round() -> None:
    assert decided({1: D, 0: U, 2: U, 3: U}, COLLECTION_SEC + 1, looked_for=T0).action is Action.SCALE_DOWN


def test_rule_10_evidence_that_is_gone_is_forgotten() -> None:
    evidence = with_statuses({1: D}).merge_all([report(1, H, T0 + 5)], ())
    assert decide(evidence, Situation(), topology(), config(), T0 + COLLECTION_SEC + 1).action is Action.NOTHING


def test_rule_10_a_look_for_an_older_fault_does_not_count_for_a_newer_one() -> None:
    assert decided({1: D}, COLLECTION_SEC, looked_for=T0 - 100).action is Action.FRESH_LOOK


def test_the_collection_time_counts_from_the_first_standing_fault() -> None:
    evidence = with_statuses({1: D}).merge_all([report(0, U, T0 + 40), report(2, U, T0 + 50)], ())
    assert decide(evidence, Situation(), topology(), config(), T0 + 55).until == T0 + COLLECTION_SEC


def test_protocol_errors_are_neither_death_nor_sickness() -> None:
    nonsense = report(1, D, source=EntrySource.PROTOCOL_ERROR)
    evidence = ready().merge_all([nonsense, *(report(rank, U) for rank in (0, 2, 3))], ())
    assert decide(evidence, Situation(), topology(), config(), T0 + 1).reason is DecisionReason.INCOMPLETE


def test_rebuilds_pause_longer_each_time_and_end_with_the_budget() -> None:
    all_dead = dict.fromkeys(range(4), D)
    first = decided(all_dead)
    assert first.action is Action.RECONFIGURE
    second = decided(all_dead, 1.0, rebuilt_at=(T0 - 60,), rebuild_ended_at=T0)
    assert (second.action, second.reason, second.until) == (Action.WAIT, DecisionReason.BACK_OFF, T0 + FIRST_BACK_OFF_SEC)
    assert decided(all_dead, 5.0, rebuilt_at=(T0 - 60,), rebuild_ended_at=T0).action is Action.RECONFIGURE
    third = decided(all_dead, 5.0, rebuilt_at=(T0 - 90, T0 - 60), rebuild_ended_at=T0)
    assert third.until == T0 + 2 * FIRST_BACK_OFF_SEC
    spent = decided(all_dead, 60.0, rebuilt_at=(T0 - 120, T0 - 90, T0 - 60), rebuild_ended_at=T0)
    assert spent.action is Action.STAY_WITHDRAWN
    assert "--force" in spent.then


def test_rebuilds_outside_the_window_cost_nothing() -> None:
    old = (T0 - config().reconfiguration_window_sec - 1,) * 5
    assert decided(dict.fromkeys(range(4), D), rebuilt_at=old).action is Action.RECONFIGURE


statuses_of = st.dictionaries(st.integers(0, 3), st.sampled_from([H, U, D]))
situations = st.builds(
    Situation,
    dead_committed=st.sets(st.integers(0, 3), max_size=3).map(lambda ranks: tuple(sorted(ranks))),
    rebuilding=st.booleans(),
    strategy_runs=st.booleans(),
    preemptible=st.booleans(),
    owed=st.sampled_from([None, DecisionReason.ROUND_FAILED, DecisionReason.FORCED, DecisionReason.IN_DOUBT]),
    looked_for=st.sampled_from([None, T0]),
    abandoned_at=st.lists(st.just(T0 - 5), max_size=4).map(tuple),
    rebuilt_at=st.lists(st.just(T0 - 50), max_size=4).map(tuple),
    rebuild_ended_at=st.sampled_from([None, T0 - 1]),
    budget_spent=st.booleans(),
)


@given(statuses_of, situations, st.floats(0, 200), st.booleans(), st.booleans())
def test_whatever_the_evidence_a_decision_is_safe(
    statuses: Statuses, situation: Situation, after_sec: float, feature: bool, was_ready: bool
) -> None:
    evidence = with_statuses(statuses) if was_ready else told(*(report(rank, status) for rank, status in statuses.items()))
    now = T0 + after_sec
    decision = decide(evidence, situation, topology(), config(enable_dp_scale_down=feature), now)
    active = set(range(4)) - set(situation.dead_committed)
    dead = {rank for rank, status in statuses.items() if status is D} & active
    if decision.action is Action.SCALE_DOWN:
        unhealthy = {rank for rank, status in statuses.items() if status is U} & active
        assert feature
        assert not situation.strategy_runs
        assert situation.owed is None
        assert set(decision.ranks) == dead
        assert dead | unhealthy == active
        assert unhealthy, "a round leaves at least one survivor"
    if situation.strategy_runs:
        assert decision.action in (Action.KEEP, Action.PREEMPT), "one strategy at a time"
    if decision.action is Action.PREEMPT:
        assert situation.preemptible
        assert situation.owed is DecisionReason.FORCED
    if decision.action is Action.RECONFIGURE and decision.reason is not DecisionReason.FORCED:
        assert not situation.budget_spent
        assert len(situation.rebuilt_at) < config().reconfiguration_budget
    if decision.action is Action.WAIT:
        assert decision.until is not None
        assert decision.until > now, "a wait has an end, and it lies ahead"
        assert decision.then
    if not dead and not (set(statuses) & active) and situation.owed is None and not situation.strategy_runs:
        assert decision.action is Action.NOTHING
    assert decide(evidence, situation, topology(), config(enable_dp_scale_down=feature), now) == decision


@given(statuses_of, st.floats(0, 59))
def test_waits_always_come_to_an_end(statuses: Statuses, after_sec: float) -> None:
    """From any evidence, following `until` and taking the look leads to an action or to rest in a bounded number of steps."""
    evidence, now, looked_for = with_statuses(statuses), T0 + after_sec, None
    for _ in range(4):
        decision = decide(evidence, Situation(looked_for=looked_for), topology(), config(), now)
        if decision.action is Action.WAIT:
            assert decision.until is not None
            now = decision.until
        elif decision.action is Action.FRESH_LOOK:
            looked_for = evidence.first_fault_at(range(4))
        else:
            break
    assert decision.action in (Action.NOTHING, Action.RECONFIGURE, Action.SCALE_DOWN)


def test_no_evidence_at_all_is_no_decision() -> None:
    assert decide(Evidence(), Situation(), topology(), config(), T0).action is Action.NOTHING


def test_a_rank_that_answers_nonsense_is_not_called_well() -> None:
    evidence = with_statuses({1: D}).merge_all([report(2, U, T0 + 1, source=EntrySource.PROTOCOL_ERROR)], ())
    detail = decide(evidence, Situation(), topology(), config(), T0 + 2).detail
    assert "answering nonsense: [2]" in detail
    assert "without a fault: [0, 3]" in detail
    well_again = evidence.merge_all([report(2, H, T0 + 2)], ())
    assert "without a fault: [0, 2, 3]" in decide(well_again, Situation(), topology(), config(), T0 + 3).detail


def test_a_rank_behind_a_lost_node_manager_is_not_called_well() -> None:
    lost = (NodeManagerAddress(ip="10.0.0.2", port=1026),)
    detail = decide(with_statuses({1: D}), Situation(lost_node_managers=lost), topology(), config(), T0 + 1).detail
    assert "behind a lost NodeManager: [2, 3]" in detail
    assert "without a fault: [0]" in detail
