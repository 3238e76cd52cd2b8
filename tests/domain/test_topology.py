"""An instance's topology: it contradicts itself nowhere, or is refused with the reason."""

from typing import Any

import pytest
from pydantic import ValidationError

from domain.topology import Endpoint, NodeManagerAddress, NodeManagerPlace, Topology
from tests.domain.instance_factories import topology


def changed(**changes: Any) -> Topology:
    return Topology.model_validate({**topology().model_dump(), **changes})


def endpoint(rank: int, pod_ip: str = "10.0.0.1", **changes: Any) -> Endpoint:
    return Endpoint(**{"id": rank, "pod_ip": pod_ip, "ip": pod_ip, "business_port": 10000 + rank, **changes})


def test_ranks_are_grouped_by_nodemanager() -> None:
    groups = topology().by_manager([3, 0, 1])
    assert {str(manager): ranks for manager, ranks in groups.items()} == {"10.0.0.1:1026": (0, 1), "10.0.0.2:1026": (3,)}
    assert topology().by_manager([]) == {}
    assert str(topology().manager_of_rank(2)) == "10.0.0.2:1026"


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ((0, 1, 2), "exactly 0..3"),
        ((0, 1, 2, 2), r"duplicate: \[2\]"),
        ((1, 2, 3, 4), "exactly 0..3"),
        ((0, 1, 2, 3, 4), "exactly 0..3"),
    ],
    ids=["one missing", "one twice", "shifted", "one too many"],
)
def test_routable_ids_are_exactly_the_ranks(ids: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        changed(endpoints=[endpoint(rank) for rank in ids])


def test_headless_members_are_participants_but_not_ranks() -> None:
    shape = changed(endpoints=[*topology().endpoints, endpoint(1, "10.0.0.2", headless=True)])
    assert shape.ranks == (0, 1, 2, 3)
    assert shape.ranks_of(NodeManagerAddress(ip="10.0.0.2", port=1026)) == (2, 3)
    assert not shape.endpoint(1).headless


def test_two_nodemanagers_on_one_ip_are_told_apart_by_their_ports() -> None:
    places = [NodeManagerPlace(pod_ip="10.0.0.1", port=port) for port in (1026, 1027)]
    ports = (1026, 1026, 1027, 1027)
    shape = changed(node_managers=places, endpoints=[endpoint(rank, node_manager_port=ports[rank]) for rank in range(4)])
    assert [str(shape.manager_of_rank(rank)) for rank in (1, 2)] == ["10.0.0.1:1026", "10.0.0.1:1027"]
    with pytest.raises(ValidationError, match="set node_manager_port"):
        changed(node_managers=places, endpoints=[endpoint(rank) for rank in range(4)])


def test_an_endpoint_without_a_nodemanager_is_refused() -> None:
    with pytest.raises(ValidationError, match="matches 0 NodeManagers"):
        changed(endpoints=[*topology().endpoints[:3], endpoint(3, "10.0.0.9")])


def test_a_nodemanager_is_listed_once() -> None:
    with pytest.raises(ValidationError, match="holds an address twice"):
        changed(node_managers=[*topology().node_managers, topology().node_managers[0]])


def test_a_rank_that_is_none_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        topology().endpoint(4)


@pytest.mark.parametrize("value", [True, "4", 0, 5000, 2.0], ids=repr)
def test_the_group_size_is_a_number_in_range(value: object) -> None:
    with pytest.raises(ValidationError, match="dp_size"):
        changed(parallel_config={"dp_size": value})
