"""Who gets the next request."""

from contextlib import ExitStack
from typing import Any

import pytest

from coordinator.routing import NoSlot, Router, Slot
from coordinator.view import Conflict, View, refresh
from tests.coordinator.factories import MODEL, endpoint, entry, refresh_request


class Routed:
    """A router over a view that is changed by refreshes."""

    def __init__(self, *instances: dict[str, Any]) -> None:
        self.view = View("life")
        self.router = Router()
        self.refresh("set", *instances)

    def refresh(self, event: str, *instances: dict[str, Any]) -> None:
        result = refresh(self.view, refresh_request(event, *instances, incarnation="life"))
        assert not isinstance(result, Conflict)
        self.view = result.view
        self.router.adopt(self.view)

    def take(self, stack: ExitStack, model: str | None = MODEL, without: list[Slot] | None = None) -> Slot:
        slot = stack.enter_context(self.router.take(model, [s.target for s in without or []]))
        assert isinstance(slot, Slot)
        return slot

    def refusal(self, model: str | None = MODEL) -> NoSlot:
        with self.router.take(model) as slot:
            assert isinstance(slot, NoSlot)
            return slot


def test_idle_endpoints_take_turns() -> None:
    routed = Routed(entry(7, [0, 1, 2], 1))
    ranks = []
    for _ in range(6):
        with ExitStack() as stack:
            ranks.append(routed.take(stack).target.rank)
    assert ranks == [0, 1, 2, 0, 1, 2]


def test_the_least_loaded_endpoint_is_next() -> None:
    routed = Routed(entry(7, [0, 1, 2], 1))
    with ExitStack() as held:
        first, second = routed.take(held), routed.take(held)
        third = routed.take(held)
        assert {first.target.rank, second.target.rank, third.target.rank} == {0, 1, 2}
        with ExitStack() as short:
            busy = routed.take(short).target
            assert busy.in_flight == 2
            assert routed.take(held).target is not busy
    assert set(routed.router.loads.values()) == {0}


def test_a_removed_endpoint_keeps_its_requests_and_gets_no_new_ones() -> None:
    routed = Routed(entry(7, [0, 1], 1))
    with ExitStack() as held:
        seats = [routed.take(held), routed.take(held)]
        removed = next(slot for slot in seats if slot.target.rank == 1)
        routed.refresh("add", entry(7, [0], 2))
        assert not removed.still_routed
        assert {routed.take(held).target.rank for _ in range(10)} == {0}
        assert routed.router.loads[7, 1] == 1
    assert (7, 1) not in routed.router.loads


def test_an_endpoint_that_comes_back_still_counts_what_is_on_it() -> None:
    routed = Routed(entry(7, [0, 1], 1))
    with ExitStack() as held:
        seats = [routed.take(held), routed.take(held)]
        routed.refresh("del", entry(7, [], 2))
        assert routed.refusal() is NoSlot.WITHDRAWN
        routed.refresh("add", entry(7, [0, 1], 3))
        assert all(slot.still_routed for slot in seats)
        assert routed.router.loads == {(7, 0): 1, (7, 1): 1}


def test_the_model_name_selects_the_instances() -> None:
    routed = Routed(entry(7, [0], 1, model="a"), entry(8, [0], 1, model="b"), entry(9, [1], 1, model="b"))
    with ExitStack() as held:
        assert {routed.take(held, "a").target.instance_id for _ in range(4)} == {7}
        assert {routed.take(held, "b").target.instance_id for _ in range(4)} == {8, 9}
        assert {routed.take(held, None).target.instance_id for _ in range(9)} == {7, 8, 9}
    assert routed.router.models == ("a", "b")


def test_headless_endpoints_get_nothing() -> None:
    made = entry(7, [0], 1)
    made["endpoints"]["10.0.0.2"] = {"1": endpoint(1, headless=True)}
    routed = Routed(made)
    with ExitStack() as held:
        assert {routed.take(held).target.rank for _ in range(4)} == {0}


def test_tried_endpoints_are_left_out_until_none_is_left() -> None:
    routed = Routed(entry(7, [0, 1], 1))
    with ExitStack() as held:
        first = routed.take(held)
        second = routed.take(held, without=[first])
        assert first.target is not second.target
        with routed.router.take(MODEL, [first.target, second.target]) as nothing:
            assert nothing is NoSlot.UNREACHABLE


@pytest.mark.parametrize(
    ("instances", "model", "reason"),
    [
        ([], MODEL, NoSlot.UNKNOWN_MODEL),
        ([], None, NoSlot.WITHDRAWN),
        ([entry(7, [], 1)], MODEL, NoSlot.WITHDRAWN),
        ([entry(7, [0], 1)], "other", NoSlot.UNKNOWN_MODEL),
    ],
)
def test_where_there_is_no_endpoint_the_reason_is_given(
    instances: list[dict[str, Any]], model: str | None, reason: NoSlot
) -> None:
    assert Routed(*instances).refusal(model) is reason


def test_without_a_view_nothing_is_routed() -> None:
    router = Router()
    with router.take(MODEL) as nothing:
        assert nothing is NoSlot.NO_VIEW
    assert not router.has_view
