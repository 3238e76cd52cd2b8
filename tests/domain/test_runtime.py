"""The phases and which may follow which (contracts §5)."""

from itertools import product

import pytest

from domain.runtime import SERVING_PHASES, TRANSACTION_PHASES, TRANSITIONS, FtPhase, can_serve, may_follow, resting_phase

P = FtPhase
ALLOWED = {
    (P.NORMAL, P.DECIDING),
    (P.NORMAL, P.RECONFIGURING),
    (P.SCALED_DOWN_RUNNING, P.DECIDING),
    (P.SCALED_DOWN_RUNNING, P.RECONFIGURING),
    (P.DECIDING, P.WAITING_ENGINE_FAULT),
    (P.DECIDING, P.SCALING_DOWN),
    (P.DECIDING, P.RECONFIGURING),
    (P.DECIDING, P.NORMAL),
    (P.DECIDING, P.SCALED_DOWN_RUNNING),
    (P.WAITING_ENGINE_FAULT, P.SCALING_DOWN),
    (P.WAITING_ENGINE_FAULT, P.RECONFIGURING),
    (P.WAITING_ENGINE_FAULT, P.NORMAL),
    (P.WAITING_ENGINE_FAULT, P.SCALED_DOWN_RUNNING),
    (P.SCALING_DOWN, P.POST_SCALE_CLEANUP),
    (P.SCALING_DOWN, P.RECONFIGURING),
    (P.POST_SCALE_CLEANUP, P.SCALED_DOWN_RUNNING),
    (P.POST_SCALE_CLEANUP, P.RECONFIGURING),
    (P.RECONFIGURING, P.NORMAL),
    (P.RECONFIGURING, P.SCALED_DOWN_RUNNING),
}


@pytest.mark.parametrize(("before", "after"), list(product(FtPhase, FtPhase)), ids=lambda phase: phase.value)
def test_the_table_of_transitions(before: FtPhase, after: FtPhase) -> None:
    assert may_follow(before, after) == (before is after or (before, after) in ALLOWED)


def test_every_phase_has_a_row_and_disabled_is_never_stored() -> None:
    assert TRANSITIONS.keys() == set(FtPhase)
    assert not any(P.DISABLED in row for row in TRANSITIONS.values())


def test_after_the_commit_point_nothing_goes_back_to_serving_with_all_ranks() -> None:
    assert not may_follow(P.POST_SCALE_CLEANUP, P.NORMAL)
    assert not may_follow(P.SCALING_DOWN, P.NORMAL)


@pytest.mark.parametrize("phase", list(FtPhase))
@pytest.mark.parametrize("published", [True, False])
def test_an_instance_serves_only_in_a_serving_phase_and_published(phase: FtPhase, published: bool) -> None:
    assert can_serve(phase, published) == (published and phase in {P.NORMAL, P.SCALED_DOWN_RUNNING})


def test_a_shrunk_group_never_rests_as_normal() -> None:
    assert resting_phase(()) is P.NORMAL
    assert resting_phase((1,)) is P.SCALED_DOWN_RUNNING


def test_reconfiguring_protects_nothing_from_partial_loss() -> None:
    assert {P.DECIDING, P.WAITING_ENGINE_FAULT, P.SCALING_DOWN, P.POST_SCALE_CLEANUP} == TRANSACTION_PHASES
    assert not TRANSACTION_PHASES & SERVING_PHASES
