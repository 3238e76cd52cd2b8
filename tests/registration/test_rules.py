"""Who sits where: the pure rules of registration."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from domain.messages.registration import Admission, HoldReason, RegisterRequest
from domain.model import MAX_INSTANCE_ID
from domain.registration import (
    Assembly,
    RegisteredInstance,
    admit,
    agreed_capability,
    founded,
    hold,
    instances_by_node,
    number_for,
    other_owner,
    place_of,
    topology_of,
)
from domain.runtime import FtPhase
from domain.topology import NodeManagerAddress
from tests.registration.factories import CAPABLE, registration


def assembled(*requests: RegisterRequest) -> Assembly:
    first, *others = requests
    assembly = founded(7, first, until=600.0)
    for request in others:
        admitted = admit(assembly, request)
        assert not admitted.admission.refused, admitted.message
        assembly = admitted.assembly
    return assembly


@given(st.permutations(range(4)))
def test_ranks_come_from_node_rank_whatever_the_order_of_arrival(order: list[int]) -> None:
    arrived = assembled(*(registration(node_rank, nnodes=4, dp_size=8) for node_rank in order))
    topology = topology_of(arrived)
    assert {e.id: e.pod_ip for e in topology.endpoints} == {rank: f"10.0.0.{rank // 2 + 1}" for rank in range(8)}
    assert topology.node_managers[0].pod_ip == "10.0.0.1"
    assert topology.endpoint(5).business_port == 10005


arrivals = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.sampled_from(("10.0.0", "10.9.0"))), max_size=25)


@given(arrivals)
def test_however_pods_come_repeat_restart_and_move_one_seat_has_one_pod_and_no_displaced_one_returns(
    events: list[tuple[int, str, str]],
) -> None:
    requests = [
        registration(rank, nnodes=3, dp_size=3, life=f"{net}-{life}", pod_ip=f"{net}.{rank}") for rank, life, net in events
    ]
    if not requests:
        return
    assembly = founded(7, requests[0], until=600.0)
    for request in requests[1:]:
        admitted = admit(assembly, request)
        again = admit(admitted.assembly, request)
        assert again.assembly == admitted.assembly, "a repeated registration changes nothing"
        if request.incarnation in assembly.displaced:
            assert admitted.admission is Admission.SEAT_TAKEN
            assert admitted.assembly == assembly
        assembly = admitted.assembly
        assert not {seat.incarnation for seat in assembly.seats.values()} & set(assembly.displaced)
        assert len({seat.address for seat in assembly.seats.values()}) == len(assembly.seats)
    if assembly.complete:
        assert topology_of(assembly).ranks == (0, 1, 2)


def test_a_restarted_pod_keeps_its_seat_with_its_new_life() -> None:
    assembly = assembled(registration(0, life="a"), registration(0, life="b"))
    assert assembly.seats[0].incarnation == "b-0"
    assert assembly.missing == (1,)


def test_a_seat_keeps_all_that_its_pod_said() -> None:
    other = CAPABLE.model_copy(update={"num_redundant_experts": 0})
    said: list[dict[str, Any]] = [
        {},
        {"ft_capability": other, "device_ids": (("4", "5"), ("6", "7")), "dp_master_port": 4711},
        {"ft_capability": None},
        {"node_name": "", "nm_port": 9},
    ]
    requests = [registration(rank, nnodes=4, dp_size=8, **one) for rank, one in enumerate(said)]
    assembly = assembled(*requests)
    assert [assembly.pod(rank) for rank in range(4)] == [request.pod for request in requests]
    assert all(assembly.has(request) for request in requests)
    for changes in ({"incarnation": "x"}, {"node_name": "x"}, {"ft_capability": other}, {"job_name": "x"}):
        assert not assembly.has(requests[0].model_copy(update=changes))
    assert Assembly.model_validate_json(assembly.model_dump_json()) == assembly


def test_a_pod_that_is_alone_may_change_its_mind() -> None:
    assembly = assembled(registration(0), registration(0, model_name="other", life="b"))
    assert assembly.job.model_name == "other"
    assert admit(assembly, registration(1)).admission is Admission.CONTRADICTS


def test_two_pods_with_one_node_rank_do_not_take_turns() -> None:
    assembly = assembled(registration(0, life="old"), registration(0, life="new", pod_ip="10.0.0.9"))
    old_again = admit(assembly, registration(0, life="old"))
    assert old_again.admission is Admission.SEAT_TAKEN
    assert old_again.assembly.seats[0].pod_ip == "10.0.0.9"


@pytest.mark.parametrize(
    "changes",
    [{"model_name": "other"}, {"role": "decode"}, {"parallel_config": {"dp_size": 4, "tp_size": 2}}],
)
def test_a_pod_that_contradicts_the_others_is_refused_with_the_field(changes: dict[str, Any]) -> None:
    admitted = admit(assembled(registration(0)), registration(1, **changes))
    assert admitted.admission is Admission.CONTRADICTS
    assert next(iter(changes)) in admitted.message


def test_one_pod_has_one_node_rank() -> None:
    admitted = admit(assembled(registration(0)), registration(1, pod_ip="10.0.0.1", life="x"))
    assert admitted.admission is Admission.ADDRESS_TAKEN


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"node_rank": 2}, "node_rank"),
        ({"nnodes": 3}, "evenly"),
        ({"business_ports": (1,)}, "business_ports"),
        ({"device_ids": (("0",),)}, "device_ids"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        RegisterRequest.model_validate({**registration(0).model_dump(), **changes})


def test_a_rank_over_two_pods_is_reached_in_the_first_the_second_is_headless() -> None:
    pods = [registration(node, nnodes=4, dp_size=2, business_ports=(10000,)) for node in range(4)]
    topology = topology_of(assembled(*pods))
    assert [(e.id, e.headless) for e in topology.endpoints] == [(0, False), (0, True), (1, False), (1, True)]
    assert topology.ranks_of(pods[1].address) == ()


def test_capabilities_must_agree() -> None:
    weaker = CAPABLE.model_copy(update={"num_redundant_experts": 0})
    assert agreed_capability([CAPABLE, CAPABLE]) == (CAPABLE, True)
    assert agreed_capability([CAPABLE, None]) == (None, True)
    assert agreed_capability([CAPABLE, weaker]) == (CAPABLE, False)
    assert agreed_capability([None, CAPABLE, weaker]) == (None, False)


REQUEST = registration(0, life="a")
SAME = {"10.0.0.1:1026": "a-0"}
OTHER = {"10.0.0.1:1026": "before"}


@pytest.mark.parametrize(
    ("lives", "phase", "dead", "expected"),
    [
        (OTHER, FtPhase.RECONFIGURING, (), None),
        (OTHER, FtPhase.RECONFIGURING, (0, 1), None),
        (SAME, FtPhase.NORMAL, (), None),
        (OTHER, FtPhase.NORMAL, (), HoldReason.GROUP_LIVES),
        ({}, FtPhase.NORMAL, (), HoldReason.GROUP_LIVES),
        (OTHER, FtPhase.SCALED_DOWN_RUNNING, (3,), HoldReason.GROUP_LIVES),
        (SAME, FtPhase.SCALED_DOWN_RUNNING, (0, 1), HoldReason.COMMITTED),
        (SAME, FtPhase.SCALED_DOWN_RUNNING, (0,), None),
        (SAME, FtPhase.DECIDING, (), HoldReason.ROUND_RUNS),
        (OTHER, FtPhase.POST_SCALE_CLEANUP, (2,), HoldReason.ROUND_RUNS),
    ],
)
def test_a_pod_is_held_unless_the_group_is_formed_anew(
    lives: dict[str, str], phase: FtPhase, dead: tuple[int, ...], expected: HoldReason | None
) -> None:
    assert hold(REQUEST, lives, phase, dead) is expected


@given(st.sampled_from(sorted(set(FtPhase) - {FtPhase.RECONFIGURING})), st.booleans())
def test_in_no_phase_but_a_rebuild_is_a_dead_rank_let_back(phase: FtPhase, strategy_runs: bool) -> None:
    assert hold(REQUEST, SAME, phase, (0, 1), strategy_runs=strategy_runs) is not None
    assert hold(REQUEST, OTHER, phase, (0,), strategy_runs=strategy_runs) is not None


def test_an_assembled_instance_knows_its_pods() -> None:
    topology = topology_of(assembled(registration(0), registration(1)))
    assert place_of(topology, registration(1, life="new")) is None
    moved = place_of(topology, registration(1, pod_ip="10.0.0.7")) or ""
    for word in ("10.0.0.7:1026 is none of them", "in the place of 10.0.0.2:1026", "terminate_instance", '"instance_id": 7'):
        assert word in moved
    assert "ranks" in (place_of(topology, registration(0, pod_ip="10.0.0.2")) or "")
    assert "business_ports" in (place_of(topology, registration(1, business_ports=(1, 2))) or "")


def test_a_job_keeps_its_number() -> None:
    assert number_for(registration(0), {}, [], 1) == 1
    assert number_for(registration(0), {"job": 4}, [5], 6) == 4
    assert number_for(registration(0, known_instance_id=9), {}, [], 1) == 9
    assert number_for(registration(0, known_instance_id=9), {}, [9, 10], 10) == 11


def test_after_the_highest_number_come_the_free_ones_from_1() -> None:
    assert number_for(registration(0), {}, [1, MAX_INSTANCE_ID], MAX_INSTANCE_ID + 1) == 2
    assert number_for(registration(0), {}, [MAX_INSTANCE_ID], MAX_INSTANCE_ID) == 1


def test_a_node_leads_to_its_instances() -> None:
    one = RegisteredInstance.of(topology_of(assembled(registration(0), registration(1))), 1)
    assert instances_by_node([one]) == {"node-0": (7,), "node-1": (7,)}


def test_a_nodemanager_has_one_owner_whether_it_lives_is_assembled_or_is_ending() -> None:
    assembly = assembled(registration(0))
    living = RegisteredInstance.of(topology_of(assembled(registration(0), registration(1))), 1)
    mine, free = registration(0).address, registration(0, pod_ip="10.0.0.9").address
    states: tuple[tuple[list[RegisteredInstance], list[Assembly], dict[int, tuple[NodeManagerAddress, ...]]], ...] = (
        ([living], [], {}),
        ([], [assembly], {}),
        ([], [], {7: (mine,)}),
    )
    for state in states:
        owner = other_owner((free, mine), *state, than=78)
        assert owner is not None
        assert (owner.instance_id, owner.address) == (7, mine)
        assert "10.0.0.1:1026 belongs to instance 7" in owner.message
        assert other_owner((mine,), *state, than=7) is None, "its own"
        assert other_owner((free,), *state, than=None) is None
    other_port = mine.model_copy(update={"port": mine.port + 1})
    assert other_owner((other_port,), [living], [assembly], {}, than=None) is None, "another NodeManager on the same host"
