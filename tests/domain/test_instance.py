"""What happens to an instance's state: strategies begin, report, commit, end or fall silent; a new FaultManager takes over."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import RankEntry
from domain.instance.decision import Action, Decision, DecisionReason, decide
from domain.instance.learning import after_journals, assembled, seeded
from domain.instance.state import InstanceState, Life
from domain.instance.strategies import INSTANCE_RECONFIGURATION, SCALE_DOWN
from domain.instance.strategy_life import after_loss, took_commit, took_end, took_progress
from domain.messages.fault_manager import FaultManagerStart, FreshLookResult, JournalsResult
from domain.messages.round import CommitRecord
from domain.messages.strategy import (
    ReconfigurationReason,
    ReconfigurationReport,
    RoundOrder,
    RoundOutcome,
    RoundReason,
    RoundReport,
    StepReport,
    StrategyEnd,
    StrategyKind,
    StrategyProgress,
)
from domain.runtime import REJECTED_SIGNALS_KEPT, SERVING_PHASES, FtPhase, rejected_signal
from tests.domain.instance_factories import T0, D, H, U, config, report, serving_state, topology

ROUND = StrategyKind.SCALE_DOWN
REBUILD = StrategyKind.INSTANCE_RECONFIGURATION
SHED_1 = Decision(action=Action.SCALE_DOWN, reason=DecisionReason.COMPLETE, ranks=(1,))
GIVE_UP = Decision(action=Action.RECONFIGURE, reason=DecisionReason.ALL_DEAD)


def in_round(**changes: Any) -> tuple[InstanceState, RoundOrder]:
    evidence = serving_state().evidence.merge_all([report(1, D, engine="e1"), *(report(r, U) for r in (0, 2, 3))], ())
    return SCALE_DOWN.start(serving_state(evidence=evidence, **changes), SHED_1, "a" * 32, T0 + 1)


def step(order: RoundOrder, number: int, phase: FtPhase) -> StrategyProgress:
    return StrategyProgress(
        kind=ROUND,
        instance_id=7,
        generation=order.generation,
        workflow_id=ROUND.workflow_id(7, order.generation),
        step=StepReport(
            step=number, phase=phase, detail=f"step {number}", request_id=order.request_id, pending_ranks=(1,), at=T0 + number
        ),
    )


def round_end(order: RoundOrder, outcome: RoundOutcome = RoundOutcome.SUCCEEDED, **changes: Any) -> StrategyEnd:
    succeeded = outcome is RoundOutcome.SUCCEEDED
    looked = {rank: RankEntry(id=rank, status="healthy", sequence=99) for rank in (0, 2, 3)} if succeeded else {}
    fields: dict[str, Any] = {
        "kind": ROUND,
        "instance_id": 7,
        "generation": order.generation,
        "request_id": order.request_id,
        "outcome": outcome,
        "reason": RoundReason.COMMITTED if succeeded else RoundReason.ENGINE_FAILED,
        "committed": succeeded,
        "dead_committed": (1,) if succeeded else (),
        "removed_dp_ranks": (1,),
        "serving_published": succeeded,
        "view_revision": order.view_revision + 2 if succeeded else order.view_revision,
        "last_entries": looked,
    }
    workflow_id = ROUND.workflow_id(7, order.generation)
    report_ = RoundReport(**{**fields, **changes})
    return StrategyEnd(workflow_id=workflow_id, report=report_)


def rebuild_end(generation: int, succeeded: bool = True, **changes: Any) -> StrategyEnd:
    fields: dict[str, Any] = {
        "kind": REBUILD,
        "instance_id": 7,
        "generation": generation,
        "succeeded": succeeded,
        "reason": ReconfigurationReason.REBUILT if succeeded else ReconfigurationReason.NOT_READY_IN_TIME,
        "serving_published": succeeded,
        "engine_incarnations": {rank: f"new-{rank}" for rank in range(4)} if succeeded else {},
    }
    report_ = ReconfigurationReport(**{**fields, **changes})
    workflow_id = REBUILD.workflow_id(7, generation)
    return StrategyEnd(workflow_id=workflow_id, report=report_)


def decided(state: InstanceState, now: float = T0 + 30) -> Decision:
    return decide(state.evidence, state.situation(), state.topology, state.config, now)


def test_a_round_is_ordered_with_all_that_it_needs_and_owns_two_revisions() -> None:
    state, order = in_round()
    assert (order.generation, order.pending_ranks, order.view_revision) == (2, (1,), 1)
    assert order.reported_incarnations == {1: "e1"}
    assert order.first_unhealthy_at == {0: T0, 2: T0, 3: T0}
    assert order.published_ranks == (0, 1, 2, 3)
    assert (state.generation, state.view_revision, state.phase) == (2, 3, FtPhase.DECIDING)
    record = state.record(None, T0)
    assert (record.pending_removed_ranks, record.alive_dp_ranks) == ((1,), (0, 2, 3))
    assert record.active_strategy == "scale-down"


@pytest.mark.parametrize("state", [serving_state(), in_round()[0], in_round()[0].but(config=config(set_interval_sec=7.0))])
def test_what_continues_as_new_loses_nothing_and_has_its_topology_once(state: InstanceState) -> None:
    carried = FaultManagerStart.model_validate_json(state.carried().model_dump_json())
    assert InstanceState.of(carried) == state
    assert carried.topology == state.topology
    assert carried.state is not None
    assert "endpoints" not in carried.state


def test_progress_is_taken_in_its_order_only() -> None:
    state, order = in_round()
    state = took_progress(state, step(order, 3, FtPhase.SCALING_DOWN), T0 + 3)
    assert (state.phase, state.serving_published) == (FtPhase.SCALING_DOWN, False)
    late = took_progress(state, step(order, 2, FtPhase.WAITING_ENGINE_FAULT), T0 + 4)
    assert late == state


def test_a_phase_that_the_table_forbids_is_refused_and_recorded() -> None:
    state, order = in_round()
    odd = took_progress(state, step(order, 1, FtPhase.POST_SCALE_CLEANUP), T0 + 2)
    assert odd.phase is FtPhase.DECIDING
    assert "table of transitions" in odd.rejected_signals[-1].reason


def test_success_leaves_the_survivors_serving_and_nothing_to_decide() -> None:
    state, order = in_round()
    for number, phase in enumerate((FtPhase.DECIDING, FtPhase.SCALING_DOWN, FtPhase.POST_SCALE_CLEANUP), start=1):
        state = took_progress(state, step(order, number, phase), T0 + number)
    state, recorded = took_commit(state, commit(order), T0 + 4)
    assert recorded
    assert state.record(None, T0).dead_committed == (1,)
    state = took_end(state, round_end(order), T0 + 5)
    record = state.record(None, T0 + 5)
    assert (record.phase, record.can_serve, record.alive_dp_ranks) == (FtPhase.SCALED_DOWN_RUNNING, True, (0, 2, 3))
    assert (record.view_revision, record.dead_committed) == (3, (1,))
    assert decided(state).action is Action.NOTHING


def commit(order: RoundOrder) -> CommitRecord:
    return CommitRecord(
        instance_id=7,
        generation=order.generation,
        request_id=order.request_id,
        dead_committed=(1,),
        view_revision=order.view_revision + 2,
    )


def test_success_is_the_same_when_every_word_before_the_end_was_lost() -> None:
    state, order = in_round()
    state = took_end(state, round_end(order), T0 + 5)
    assert (state.phase, state.dead_committed, state.serving_published) == (FtPhase.SCALED_DOWN_RUNNING, (1,), True)
    halfway = took_progress(in_round()[0], step(order, 1, FtPhase.SCALING_DOWN), T0 + 2)
    assert took_end(halfway, round_end(order), T0 + 5).phase is FtPhase.SCALED_DOWN_RUNNING


def test_a_view_that_not_everybody_confirmed_is_not_served_but_wanted() -> None:
    state, order = in_round()
    state = took_end(state, round_end(order, serving_published=False), T0 + 5)
    record = state.record(None, T0)
    assert (record.phase, record.can_serve, record.serving_published) == (FtPhase.SCALED_DOWN_RUNNING, False, False)
    assert record.last_error
    assert (state.view.revision, state.view.ranks, state.view.confirmed) == (3, (0, 2, 3), False)


def test_a_death_reported_during_the_cleanup_is_judged_after_the_round() -> None:
    state, order = in_round()
    state, _ = took_commit(state, commit(order), T0 + 4)
    evidence, _ = state.evidence.merge(report(2, D, T0 + 4.5), state.dead_committed)
    state = took_end(state.but(evidence=evidence), round_end(order), T0 + 5)
    assert state.evidence.standing(D, state.active) == (2,)
    assert decided(state).reason is DecisionReason.INCOMPLETE


def test_a_failed_round_owes_a_rebuild_and_serves_nothing() -> None:
    state, order = in_round()
    state = took_progress(state, step(order, 1, FtPhase.SCALING_DOWN), T0 + 2)
    state = took_end(state, round_end(order, RoundOutcome.FAILED, withdrawn=True, detail="rank 2"), T0 + 5)
    assert (state.phase, state.view.ranks) == (FtPhase.RECONFIGURING, ())
    assert state.view.revision > order.view_revision + 2
    decision = decided(state)
    assert (decision.action, decision.reason) == (Action.RECONFIGURE, DecisionReason.ROUND_FAILED)
    assert "rank 2" in (state.last_error or "")


def test_an_abandoned_round_changes_nothing_but_the_evidence() -> None:
    state, order = in_round()
    looked = {1: RankEntry(id=1, status="healthy", incarnation="e1", sequence=7)}
    state = took_end(state, round_end(order, RoundOutcome.ABANDONED, last_entries=looked), T0 + 5)
    assert (state.phase, state.serving_published, len(state.abandoned_at)) == (FtPhase.NORMAL, True, 1)
    assert state.evidence.standing(D, state.active) == ()
    assert decided(state).action is Action.WAIT


@pytest.mark.parametrize(
    ("withdrawn", "owed", "reason"),
    [(False, None, None), (True, None, DecisionReason.ROUND_FAILED), (False, DecisionReason.FORCED, DecisionReason.FORCED)],
    ids=["nothing was touched", "the view was withdrawn", "a person ordered a rebuild"],
)
def test_a_cancelled_round(withdrawn: bool, owed: DecisionReason | None, reason: DecisionReason | None) -> None:
    state, order = in_round()
    end = round_end(order, RoundOutcome.CANCELLED, withdrawn=withdrawn)
    assert took_end(state.but(owed=owed), end, T0 + 5).owed is reason


def test_a_late_verdict_is_owed_to_the_nodemanagers_that_did_not_take_it() -> None:
    state, order = in_round()
    state = took_end(state, round_end(order, pending_finalize=("10.0.0.1:1026",)), T0 + 5)
    (pending,) = state.pending_finalize
    assert (str(pending.manager), pending.commit, pending.retired, pending.dead_committed) == ("10.0.0.1:1026", True, (1,), (1,))
    assert state.record(None, T0).pending_finalize == ("10.0.0.1:1026",)


def test_a_rebuild_makes_the_group_whole_again() -> None:
    state, order = INSTANCE_RECONFIGURATION.start(serving_state(dead_committed=(1,)), GIVE_UP, "", T0)
    assert (state.phase, state.serving_published, order.generation) == (FtPhase.RECONFIGURING, False, 2)
    state = took_end(state, rebuild_end(2), T0 + 60)
    record = state.record(None, T0 + 60)
    assert (record.phase, record.can_serve, record.alive_dp_ranks) == (FtPhase.NORMAL, True, (0, 1, 2, 3))
    assert (record.dead_committed, record.budget and record.budget.used) == ((), 1)
    assert decided(state, T0 + 61).action is Action.NOTHING


def test_failing_rebuilds_use_up_the_budget_and_then_wait_for_a_person() -> None:
    state, now = serving_state(), T0
    for used in range(3):
        decision = GIVE_UP if used == 0 else decided(state, now)
        assert decision.action is Action.RECONFIGURE
        state, _ = INSTANCE_RECONFIGURATION.start(state, decision, "", now)
        state = took_end(state, rebuild_end(state.generation, succeeded=False), now + 10)
        now += 100
    assert decided(state, now).action is Action.STAY_WITHDRAWN
    assert not state.record(None, now).can_serve
    forced = state.but(owed=DecisionReason.FORCED)
    state, _ = INSTANCE_RECONFIGURATION.start(forced, decided(forced, now), "", now)
    assert state.rebuilt_at == (now,)


def test_a_strategy_that_ended_without_a_word_leaves_doubt() -> None:
    state, _ = in_round()
    state = after_loss(state, "scale-down-7-2 ended without a report", T0 + 70)
    assert (state.phase, state.reseed, state.strategy) == (FtPhase.RECONFIGURING, True, None)
    assert decided(state).reason is DecisionReason.STRATEGY_LOST


def test_ends_and_commits_of_other_strategies_change_nothing() -> None:
    state, order = in_round()
    older = order.model_copy(update={"generation": 1})
    assert took_end(state, round_end(older), T0) == state
    assert took_commit(state, commit(older), T0) == (state, False)
    ended = took_end(state, round_end(order), T0 + 5)
    assert took_end(ended, round_end(order), T0 + 6) == ended
    assert took_commit(ended, commit(order), T0 + 6) == (ended, True)


def test_a_younger_strategy_that_nobody_here_started_is_attached() -> None:
    _, order = in_round()
    stranger = order.model_copy(update={"generation": 9})
    state = took_progress(serving_state(), step(stranger, 4, FtPhase.POST_SCALE_CLEANUP), T0)
    assert state.strategy is not None
    assert (state.generation, state.phase, state.strategy.generation) == (9, FtPhase.POST_SCALE_CLEANUP, 9)
    assert took_end(state, round_end(stranger), T0 + 1).dead_committed == (1,)


def learning() -> InstanceState:
    return InstanceState(instance_id=7, topology=topology(), config=config())


def learnt(looked: FreshLookResult | None = None, **journals: Any) -> InstanceState:
    found = JournalsResult(**{"complete": True, **journals})
    return after_journals(learning(), found, looked or FreshLookResult(), T0)


def test_nothing_seen_anywhere_is_a_new_instance() -> None:
    state = learnt()
    assert (state.life, state.generation, state.phase) == (Life.ASSEMBLING, 1, FtPhase.RECONFIGURING)
    assert learnt(complete=False).life is Life.ASSEMBLING


def test_an_assembly_that_was_under_way_goes_on_with_its_generation() -> None:
    assert (learnt(started=True, highest_generation=1).life, learnt(started=True, highest_generation=1).generation) == (
        Life.ASSEMBLING,
        1,
    )


def test_a_serving_instance_is_taken_over_as_it_is() -> None:
    state = learnt(started=True, highest_generation=4, dead_committed=(1,), view_revision=6, published_ranks=(0, 2, 3))
    assert (state.phase, state.dead_committed, state.generation) == (FtPhase.SCALED_DOWN_RUNNING, (1,), 4)
    assert (state.view.revision, state.view.ranks) == (7, (0, 2, 3))
    assert decided(state).action is Action.NOTHING


@pytest.mark.parametrize(
    "found",
    [
        {"published_ranks": (0, 1, 2, 3), "dead_committed": (1,), "view_revision": 3},
        {"published_ranks": (), "view_revision": 3},
        {"published_ranks": (0, 1, 2, 3), "view_revision": 3, "open_request_ids": {"10.0.0.1:1026": "scale-down-x"}},
        {"published_ranks": (0, 1, 2, 3), "view_revision": 3, "complete": False},
        {"published_ranks": (), "dead_committed": (1,)},
    ],
    ids=["a dead rank is published", "withdrawn", "a transaction is open", "a journal is missing", "shrunk, nothing published"],
)
def test_in_doubt_it_is_rebuilt_and_never_starts_as_normal(found: dict[str, Any]) -> None:
    state = learnt(started=True, highest_generation=3, **found)
    assert state.phase is FtPhase.RECONFIGURING
    assert not state.record(None, T0).can_serve
    assert decided(state).reason is DecisionReason.IN_DOUBT
    assert state.view.ranks == ()
    assert state.view.revision > found["view_revision"] if "view_revision" in found else state.view.revision == 0


def test_faults_found_at_the_takeover_are_judged_by_the_rules() -> None:
    entries = {0: "unhealthy", 1: "dead", 2: "unhealthy", 3: "unhealthy"}
    looked = FreshLookResult(last_entries={rank: RankEntry(id=rank, status=word) for rank, word in entries.items()})
    state = learnt(looked, started=True, highest_generation=1, view_revision=1, published_ranks=(0, 1, 2, 3))
    assert decided(state).action is Action.SCALE_DOWN


def test_counters_never_go_back_whatever_a_journal_says() -> None:
    state = seeded(serving_state(), JournalsResult(complete=True, highest_generation=0, view_revision=0))
    assert (state.generation, state.view_revision) == (1, 1)


def test_assembly_ends_in_the_first_view() -> None:
    state = assembled(serving_state(life=Life.ASSEMBLING, phase=FtPhase.RECONFIGURING, view_revision=0), T0)
    assert (state.life, state.phase, state.view.revision, state.view.ranks) == (Life.RUNNING, FtPhase.NORMAL, 1, (0, 1, 2, 3))
    assert not state.record(None, T0).can_serve, "not before the Coordinators have confirmed it"


def test_only_the_last_refusals_are_kept() -> None:
    state = serving_state()
    for number in range(REJECTED_SIGNALS_KEPT + 5):
        state = state.rejecting(rejected_signal("x", f"no {number}", "p" * 1000, T0))
    assert len(state.rejected_signals) == REJECTED_SIGNALS_KEPT
    assert state.rejected_signals[-1].reason == "no 24"
    assert len(state.rejected_signals[-1].payload) == 200


def test_the_state_survives_its_journey_through_json() -> None:
    state, _ = in_round()
    assert InstanceState.model_validate_json(state.model_dump_json(exclude_defaults=True)) == state


EVENTS = st.lists(
    st.sampled_from(["progress", "commit", "success", "failure", "abandoned", "loss", "rebuild", "rebuilt", "rebuild failed"]),
    max_size=12,
)


@given(EVENTS)
def test_whatever_happens_counters_grow_and_no_committed_rank_is_served(events: list[str]) -> None:
    """I5, I6 and I16 over any sequence of events, sensible or not."""
    state, order = in_round()
    now = T0 + 10
    for event in events:
        before, now = state, now + 7
        state = _after(event, state, order, now)
        record = state.record(None, now)
        assert state.generation >= before.generation
        assert state.view_revision >= before.view_revision
        assert state.view.revision <= state.view_revision
        assert not set(state.view.ranks) & set(state.dead_committed) or state.phase not in SERVING_PHASES
        assert not record.can_serve or (record.phase in SERVING_PHASES and record.serving_published)
        if before.view.revision == state.view.revision and before.view.ranks:
            assert state.view.ranks in (before.view.ranks, ()), "one revision, one content"


def _after(event: str, state: InstanceState, order: RoundOrder, now: float) -> InstanceState:
    match event:
        case "progress":
            return took_progress(state, step(order, int(now - T0), FtPhase.SCALING_DOWN), now)
        case "commit":
            return took_commit(state, commit(order), now)[0]
        case "success":
            return took_end(state, round_end(order), now)
        case "failure":
            return took_end(state, round_end(order, RoundOutcome.FAILED), now)
        case "abandoned":
            return took_end(state, round_end(order, RoundOutcome.ABANDONED), now)
        case "loss":
            return after_loss(state, "lost", now)
        case "rebuild" if state.strategy is None:
            return INSTANCE_RECONFIGURATION.start(state, GIVE_UP, "", now)[0]
        case "rebuilt":
            return took_end(state, rebuild_end(state.generation), now)
        case "rebuild failed":
            return took_end(state, rebuild_end(state.generation, succeeded=False), now)
        case _:
            return state.but(evidence=state.evidence.merge_all([report(2, H, now)], ()))
