"""What a heartbeat may name and what it is told, by the instance's phase."""

import pytest
from pydantic import ValidationError

from api.heartbeats import _named, may_name, removed_for
from domain.messages.controller import HeartbeatRequest
from domain.runtime import FtPhase, RuntimeRecord


def record(phase: FtPhase, dead: tuple[int, ...] = (), **more: object) -> RuntimeRecord:
    alive = tuple(rank for rank in range(4) if rank not in dead)
    fields = {"instance_id": 7, "phase": phase, "original_dp_ranks": (0, 1, 2, 3), "fallback_strategy": "InstanceReconfiguration"}
    return RuntimeRecord.model_validate({**fields, "dead_committed": dead, "alive_dp_ranks": alive, "generation": 4, **more})


def test_a_shrunk_instance_tells_its_pods_which_ranks_are_gone() -> None:
    assert removed_for(record(FtPhase.SCALED_DOWN_RUNNING, dead=(1,))) == (1,)


def test_a_rebuild_starts_every_rank_so_no_pod_is_told_to_retire_what_the_old_group_lost() -> None:
    assert removed_for(record(FtPhase.RECONFIGURING, dead=(1,))) == ()


@pytest.mark.parametrize("named", [{0, 1}, {0}])
def test_while_it_is_rebuilt_a_pod_of_the_old_and_of_the_new_life_pass(named: set[int]) -> None:
    assert may_name({0, 1}, named, record(FtPhase.RECONFIGURING, dead=(1,)))


@pytest.mark.parametrize(("named", "passes"), [({0}, True), ({0, 1}, False), (set(), False), ({0, 7}, False)])
def test_a_resting_instance_wants_exactly_the_ranks_that_are_left(named: set[int], passes: bool) -> None:
    assert may_name({0, 1}, named, record(FtPhase.SCALED_DOWN_RUNNING, dead=(1,))) is passes


def test_a_pod_whose_ranks_are_all_gone_names_nobody() -> None:
    assert may_name({1}, set(), record(FtPhase.SCALED_DOWN_RUNNING, dead=(1,)))


def test_while_a_finalize_is_pending_both_sets_pass() -> None:
    late = record(FtPhase.SCALED_DOWN_RUNNING, dead=(1,), pending_finalize=("10.0.0.1:1026",))
    assert may_name({0, 1}, {0, 1}, late)
    assert may_name({0, 1}, {0}, late)


@pytest.mark.parametrize(
    ("named", "passes"),
    [({0}, True), ({0, 2}, True), ({0, 1, 2}, True), ({0, 3}, False), ({1, 2}, False), ({0, 1, 2, 3}, False), (set(), False)],
)
def test_a_pod_that_missed_the_finalize_of_a_later_round_is_told_and_not_refused(named: set[int], passes: bool) -> None:
    second_round = record(FtPhase.SCALED_DOWN_RUNNING, dead=(1, 2), pending_finalize=("10.0.0.1:1026",))
    assert may_name({0, 1, 2}, named, second_round) is passes


@pytest.mark.parametrize("named", [{0, 2}, {0}])
def test_a_second_round_takes_a_pod_that_knows_the_first_ones_end(named: set[int]) -> None:
    assert may_name({0, 1, 2}, named, record(FtPhase.POST_SCALE_CLEANUP, dead=(1, 2)))


@pytest.mark.parametrize(("named", "passes"), [({0, 1}, True), ({0}, False), (set(), False), ({0, 1, 2}, False)])
def test_where_nothing_was_ever_removed_only_the_complete_set_will_do(named: set[int], passes: bool) -> None:
    assert may_name({0, 1}, named, record(FtPhase.NORMAL)) is passes


@pytest.mark.parametrize(
    "phase", [FtPhase.DECIDING, FtPhase.WAITING_ENGINE_FAULT, FtPhase.SCALING_DOWN, FtPhase.POST_SCALE_CLEANUP]
)
def test_while_a_round_runs_a_pod_may_know_of_its_end_already_or_not_yet(phase: FtPhase) -> None:
    under_way = record(phase, pending_removed_ranks=(1,))
    assert may_name({0, 1}, {0, 1}, under_way)
    assert may_name({0, 1}, {0}, under_way)
    assert not may_name({0, 1}, {1}, under_way)
    assert not may_name({0, 1}, set(), under_way)


def test_a_headless_pod_names_nobody() -> None:
    assert may_name(set(), set(), record(FtPhase.NORMAL))


def test_a_key_of_many_digits_is_a_wrong_rank_not_an_error() -> None:
    body = {"job_name": "j", "instance_id": 7, "pod_ip": "127.0.0.2", "nm_port": 1, "endpoints": {"9" * 500: "normal"}}
    assert _named(HeartbeatRequest.model_validate(body)) == {-1}


def test_a_pod_without_an_ip_is_malformed() -> None:
    body = {"job_name": "j", "instance_id": 7, "pod_ip": "", "nm_port": 1, "endpoints": {}}
    with pytest.raises(ValidationError, match="pod_ip"):
        HeartbeatRequest.model_validate(body)
