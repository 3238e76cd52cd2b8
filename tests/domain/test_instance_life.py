"""A longer life of one instance, in pure domain terms: hypothesis plays the world, `decide` and the state answer it.

The world reports faults and takes them back, late, twice and for ranks that are gone; cards fail and are mended; rounds,
recoveries and rebuilds report, commit, end in every way or fall silent; heartbeats are lost, persons give orders, and the
FaultManager forgets everything and asks the journals. After each move the invariants of acceptance B are judged as far as
they concern the state alone:

| invariant | judged here as |
|---|---|
| I1 | no request id and no generation is ordered twice, and one strategy runs at a time |
| I2, I7 | an order removes what was committed before and ranks that software reported DEAD, no others |
| I3 | served are original ranks, and never one that was removed |
| I4 | dead_committed changes at a commit and at an end only; what is pending is not in it |
| I5 | no wanted view holds a committed rank, and no revision stands for two contents |
| I6 | who can serve is in a serving phase and published |
| I9 | after a failure comes a rebuild, never a round or another retry |
| I11 | evidence is never just held: something runs, or waits until a given moment, or for a person |
| I13 | an order leaves at least one survivor |
| I16 | generation and view revisions never go back |
| I17 | a complete group is not rebuilt without one of the reasons that the design names |

Phases follow the table of transitions: a refused one is recorded in the state, and here no move may cause any.
I8, I10, I12, I14 and I15 are not about this state; the drills and the simulation of rounds judge those.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from domain.instance import state as instance
from domain.instance.decision import Action, Decision, DecisionReason, decide
from domain.instance.state import InstanceState
from domain.instance.strategy_life import took_commit, took_end, took_progress
from domain.messages.strategy import RoundReason
from domain.runtime import FtPhase
from tests.domain import life_strategies
from tests.domain.life_faults import Faults
from tests.domain.life_strategies import Strategies, start

pytestmark = pytest.mark.verify


class InstanceLife(Faults, Strategies):
    """Everything that may happen, in any order."""


def live(examples: int, moves: int, *, same_every_time: bool, to_the_point: bool = True) -> None:
    """`to_the_point`: a failure is shrunk to the shortest life that shows it."""
    run_state_machine_as_test(
        InstanceLife,
        settings=settings(
            max_examples=examples,
            stateful_step_count=moves,
            deadline=None,
            derandomize=same_every_time,
            database=None,
            phases=[Phase.generate, Phase.shrink] if to_the_point else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_an_instance_keeps_its_invariants_through_a_long_life() -> None:
    live(120, 70, same_every_time=True)


@pytest.mark.soak
def test_many_instances_keep_their_invariants_through_longer_lives() -> None:
    live(2_000, 150, same_every_time=False)


def _a_rank_dies(life: InstanceLife) -> None:
    life.a_rank_dies_under_traffic(rank=1)


def _all_notice(life: InstanceLife) -> None:
    life.everybody_notices_something()


def _an_l2_comes(life: InstanceLife) -> None:
    life.hardware_fails(node="node-10.0.0.1", code="0x00F1FEF5", card="Ascend910-0", level="L2")


Move = Callable[[InstanceLife], None]
TAKEN_OVER: dict[str, tuple[dict[str, Any], Move, Move, FtPhase]] = {
    "a round that succeeds": (
        {},
        _a_rank_dies,
        lambda life: life.the_round_goes_well_to_its_end(told=False),
        FtPhase.SCALED_DOWN_RUNNING,
    ),
    "a round that is abandoned": ({}, _a_rank_dies, lambda life: life.the_round_is_abandoned(), FtPhase.NORMAL),
    "a fast recovery that succeeds": (
        {"enable_fast_recovery": True},
        _all_notice,
        lambda life: life.the_fast_recovery_succeeds(published=True),
        FtPhase.NORMAL,
    ),
    "a token reinference that heals": ({}, _an_l2_comes, lambda life: life.the_reinference_ends(healed=True), FtPhase.NORMAL),
    "a token reinference without a word": (
        {},
        _an_l2_comes,
        lambda life: life.the_strategy_falls_silent(really=True),
        FtPhase.NORMAL,
    ),
    "a relaunch that succeeds": (
        {"enable_dp_scale_down": False},
        _a_rank_dies,
        lambda life: life.the_engines_are_started_anew(published=True),
        FtPhase.NORMAL,
    ),
    "a round that fails": (
        {},
        _a_rank_dies,
        lambda life: life.the_round_fails(reason=RoundReason.APPLY_UNKNOWN),
        FtPhase.RECONFIGURING,
    ),
}


@pytest.mark.parametrize("what", TAKEN_OVER)
@pytest.mark.parametrize("late", [False, True])
def test_a_fault_manager_without_memory_takes_over_what_runs_and_its_end(what: str, late: bool) -> None:
    """It ends where one with memory would have ended; it is never left withdrawn with nobody to wait for."""
    changes, begins, ends, phase = TAKEN_OVER[what]
    life = InstanceLife()
    life.assemble(changes=changes)
    begins(life)
    life.the_fault_manager_turns_and_the_state_is_sound()
    life.the_fault_manager_forgets_everything(really=True, late=late, finalized=not late)
    life.the_fault_manager_turns_and_the_state_is_sound()
    ends(life)
    life.the_fault_manager_turns_and_the_state_is_sound()
    assert life.here.phase is phase


# What is broken on purpose must be noticed.


def _decides(change: Callable[[Decision, tuple[int, ...]], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """`decide`, with its decisions changed."""

    def broken(evidence: Any, situation: Any, topology: Any, config: Any, now: float) -> Decision:
        decision = decide(evidence, situation, topology, config, now)
        active = tuple(rank for rank in topology.ranks if rank not in situation.dead_committed)
        return decision.model_copy(update=change(decision, active))

    return lambda: {"decide": broken}


def _one_more_rank(decision: Decision, active: tuple[int, ...]) -> dict[str, Any]:
    return {"ranks": active[: len(decision.ranks) + 1]} if decision.action is Action.SCALE_DOWN else {}


def _everybody(decision: Decision, active: tuple[int, ...]) -> dict[str, Any]:
    return {"ranks": active} if decision.action is Action.SCALE_DOWN else {}


def _rebuild_at_once(decision: Decision, active: tuple[int, ...]) -> dict[str, Any]:
    if decision.action is not Action.SCALE_DOWN:
        return {}
    return {"action": Action.RECONFIGURE, "reason": DecisionReason.ALL_UNHEALTHY}


def _forget_to_wait(decision: Decision, active: tuple[int, ...]) -> dict[str, Any]:
    return {"action": Action.NOTHING} if decision.action is Action.WAIT else {}


def _commit_without_withdrawal(state: InstanceState, record: Any, now: float) -> tuple[InstanceState, bool]:
    after, recorded = took_commit(state, record, now)
    return after.but(view=state.view), recorded


def _commit_at_the_start(state: InstanceState, progress: Any, now: float) -> InstanceState:
    return took_progress(state, progress, now).but(dead_committed=progress.step.pending_ranks)


def _start_under_the_same_generation(state: InstanceState, decision: Decision, unique: str, now: float) -> Any:
    after, order = start(state.but(generation=max(0, state.generation - 1)), decision, unique, now)
    return after, order


def _forgive_failures(state: InstanceState, end: Any, now: float) -> InstanceState:
    return took_end(state, end, now).but(owed=None)


def _end_in_any_phase(state: InstanceState, end: Any, now: float) -> InstanceState:
    return took_end(state, end, now).entering(FtPhase.POST_SCALE_CLEANUP, now)


BROKEN: dict[str, Callable[[], dict[str, Any]]] = {
    "I2, I7: a rank more is removed": _decides(_one_more_rank),
    "I13: nobody is left": _decides(_everybody),
    "I17: rebuilt although complete": _decides(_rebuild_at_once),
    "I11: nothing waits": _decides(_forget_to_wait),
    "I5: committed and still in the view": lambda: {"took_commit": _commit_without_withdrawal},
    "I4: committed too early": lambda: {"took_progress": _commit_at_the_start},
    "I16: a generation twice": lambda: {"start": _start_under_the_same_generation},
    "I9: a failure is forgotten": lambda: {"took_end": _forgive_failures},
    "phases: not in the table": lambda: {"took_end": _end_in_any_phase},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_broken_on_purpose_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, replacement in BROKEN[broken]().items():
        monkeypatch.setattr(life_strategies, name, replacement)
    with pytest.raises(AssertionError):
        live(200, 70, same_every_time=True, to_the_point=False)


def test_serving_in_any_phase_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6."""
    monkeypatch.setattr(instance, "can_serve", lambda phase, published: True)
    with pytest.raises(AssertionError, match="I6"):
        live(20, 20, same_every_time=True, to_the_point=False)


def test_another_view_under_the_same_revision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """I5."""
    following = InstanceState.following

    def same_revision(state: InstanceState, decision: Decision) -> InstanceState:
        after = following(state, decision)
        view = after.view.model_copy(update={"revision": state.view.revision})
        return after.but(view=view, view_revision=state.view_revision)

    monkeypatch.setattr(InstanceState, "following", same_revision)
    with pytest.raises(AssertionError, match="I5"):
        live(200, 70, same_every_time=True, to_the_point=False)
