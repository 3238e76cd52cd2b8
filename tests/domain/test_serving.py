"""The serving view is a projection: original − committed, original numbers, empty Pods dropped."""

import pytest

from domain.serving import project, serving_ranks
from tests.domain.round_factories import pod, topology


def test_served_are_the_original_ranks_without_the_committed_ones() -> None:
    assert serving_ranks(topology(), (1,)) == (0, 2, 3)
    assert serving_ranks(topology(), ()) == (0, 1, 2, 3)


def test_ranks_keep_their_numbers_and_addresses() -> None:
    instance = project(topology(), (2, 0, 3), revision=5)
    assert instance.revision == 5
    assert instance.ranks == (0, 2, 3)
    assert instance.endpoints[pod(1).ip]["2"].business_port == 10002
    assert (instance.id, instance.job_name, instance.model_name) == (7, "job", "model")


def test_a_pod_without_served_ranks_is_dropped() -> None:
    assert project(topology(), (2, 3), revision=1).endpoints.keys() == {pod(1).ip}


def test_nothing_served_is_withdrawn() -> None:
    assert project(topology(), (), revision=1).endpoints == {}


def test_headless_members_are_not_served() -> None:
    with_headless = topology(headless=[(0, 2)])
    assert project(with_headless, (0, 1, 2, 3), revision=1).endpoints.keys() == {pod(0).ip, pod(1).ip}


def test_a_rank_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        project(topology(), (4,), revision=1)
