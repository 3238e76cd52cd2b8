"""The refresh rules (contracts §4), as a table and as properties."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from coordinator.view import Conflict, Refreshed, View, refresh
from domain.messages.coordinator import RefreshRequest
from tests.coordinator.factories import body, endpoint, entry, refresh_request

LIFE = "life-1"


class Told:
    """A view that takes one refresh after the other, and remembers the last answer."""

    def __init__(self) -> None:
        self.view = View(LIFE)
        self.last: Refreshed | Conflict | None = None

    def __call__(self, event: str, *instances: dict[str, Any], incarnation: str | None = None) -> str:
        """`applied 7`, `unchanged 7`, `stale 8<5`, `409 REASON`, joined by blanks."""
        self.last = refresh(self.view, refresh_request(event, *instances, incarnation=incarnation))
        if isinstance(self.last, Conflict):
            return f"409 {self.last.reason}"
        self.view = self.last.view
        outcome = self.last.outcome
        words = [f"applied {i}" for i in outcome.applied] + [f"unchanged {i}" for i in outcome.unchanged]
        return " ".join(words + [f"stale {s.id} {s.revision}<{s.known}" for s in outcome.stale])

    def ranks(self, instance: int = 7) -> list[int] | None:
        known = self.view.instances.get(instance)
        return None if known is None else list(known.ranks)


@pytest.fixture
def told() -> Told:
    return Told()


class TestWithRevisions:
    def test_a_higher_revision_is_applied(self, told: Told) -> None:
        assert told("add", entry(7, [0, 1, 2, 3], 1)) == "applied 7"
        assert told("del", entry(7, [], 2)) == "applied 7"
        assert told.ranks() == []
        assert told("add", entry(7, [0, 2, 3], 3)) == "applied 7"
        assert told.ranks() == [0, 2, 3]

    @pytest.mark.parametrize("event", ["add", "del", "set", "pause", "resume"])
    def test_a_lower_one_is_stale_and_changes_nothing(self, told: Told, event: str) -> None:
        told("add", entry(7, [0, 2, 3], 5))
        before = told.view
        assert told(event, entry(7, [0, 1, 2, 3], 4)) == "stale 7 4<5"
        assert told.view.instances == before.instances

    @pytest.mark.parametrize("event", ["add", "set", "resume"])
    def test_an_equal_one_with_the_same_content_is_unchanged(self, told: Told, event: str) -> None:
        told("add", entry(7, [0, 2], 5))
        assert told(event, entry(7, [2, 0], 5)) == "unchanged 7"

    @pytest.mark.parametrize("event", ["add", "set", "resume", "del", "pause"])
    def test_an_equal_one_with_other_content_is_a_conflict(self, told: Told, event: str) -> None:
        told("add", entry(7, [0, 2], 5))
        assert told(event, entry(7, [0], 5)) == "409 IDENTITY_CONFLICT"
        assert told.ranks() == [0, 2]

    def test_other_addresses_are_other_content(self, told: Told) -> None:
        told("add", entry(7, {0: 10_000}, 5))
        assert told("add", entry(7, {0: 10_001}, 5)) == "409 IDENTITY_CONFLICT"
        assert told("add", entry(7, {0: 10_000}, 5, ip="10.0.0.2")) == "409 IDENTITY_CONFLICT"
        assert told("add", entry(7, {0: 10_000}, 5, model="other")) == "409 IDENTITY_CONFLICT"

    def test_the_senders_remark_on_an_endpoint_is_no_content(self, told: Told) -> None:
        told("add", entry(7, [0], 5))
        remarked = entry(7, [0], 5)
        remarked["endpoints"]["10.0.0.1"]["0"]["status"] = "abnormal"
        assert told("set", remarked, incarnation=LIFE) == "unchanged 7"

    def test_del_withdraws_whatever_endpoints_it_names(self, told: Told) -> None:
        told("add", entry(7, [0, 1], 1))
        assert told("del", entry(7, [0], 2)) == "applied 7"
        assert told.ranks() == []
        assert told("del", entry(7, [0, 1], 2)) == "unchanged 7"
        assert told("set", entry(7, [], 2), incarnation=LIFE) == "unchanged 7"

    def test_a_del_that_comes_first_is_remembered(self, told: Told) -> None:
        assert told("del", {"id": 7, "revision": 4}) == "applied 7"
        assert told("add", entry(7, [0, 1], 3)) == "stale 7 3<4"
        assert told.ranks() == []

    def test_pause_keeps_the_endpoints_and_resume_routes_again(self, told: Told) -> None:
        told("add", entry(7, [0, 2], 1))
        assert told("pause", {"id": 7, "revision": 2}) == "applied 7"
        assert told.ranks() == []
        assert told("pause", {"id": 7, "revision": 2}) == "unchanged 7"
        assert told("add", entry(7, [0, 1, 2], 1)) == "stale 7 1<2"
        assert told("resume", {"id": 7, "revision": 3}) == "applied 7"
        assert told.ranks() == [0, 2]
        assert told("pause", entry(7, [0, 2], 4)) == "applied 7"
        assert told("resume", entry(7, [0], 5)) == "applied 7"
        assert told.ranks() == [0]

    def test_several_instances_are_judged_one_by_one(self, told: Told) -> None:
        told("add", entry(7, [0], 1), entry(8, [0], 5))
        answer = told("set", entry(7, [0, 1], 2), entry(8, [1], 3), entry(9, [0], 1), incarnation=LIFE)
        assert answer == "applied 7 applied 9 stale 8 3<5"

    def test_set_never_removes_by_absence(self, told: Told) -> None:
        told("set", entry(7, [0], 1), entry(8, [0], 1), incarnation=LIFE)
        told("set", entry(8, [0], 1), incarnation=LIFE)
        told("set", incarnation=LIFE)
        told("set", entry(8, [0], 1))
        assert (told.ranks(7), told.ranks(8)) == ([0], [0])

    def test_headless_endpoints_are_kept_and_not_routed(self, told: Told) -> None:
        made = entry(7, [0], 1)
        made["endpoints"]["10.0.0.2"] = {"0": endpoint(0, headless=True)}
        assert told("add", made) == "applied 7"
        assert told.ranks() == [0]
        assert len(told.view.instances[7].endpoints) == 2


class TestIncarnation:
    @pytest.mark.parametrize("event", ["add", "del", "set", "pause", "resume"])
    def test_a_push_for_another_life_is_refused(self, told: Told, event: str) -> None:
        told("set", entry(7, [0], 1), incarnation=LIFE)
        assert told(event, entry(7, [0, 1], 2), incarnation="life-0") == "409 INCARNATION"
        assert told.ranks() == [0]

    def test_nothing_is_open_before_a_set_for_this_life(self, told: Told) -> None:
        told("add", entry(7, [0], 1), incarnation=LIFE)
        told("add", entry(8, [0]))
        told("set", entry(7, [0], 1))
        assert not told.view.opened
        told("set", entry(7, [0, 1], 1), incarnation=LIFE)
        assert isinstance(told.last, Conflict)
        assert not told.view.opened
        told("set", entry(7, [0], 1), incarnation=LIFE)
        assert told.view.opened

    def test_an_empty_set_for_this_life_opens(self, told: Told) -> None:
        told("set", incarnation=LIFE)
        assert told.view.opened

    def test_motors_set_opens_too(self, told: Told) -> None:
        told("set", entry(7, [0]))
        assert told.view.opened
        assert told.ranks() == [0]

    def test_a_wholly_stale_set_for_this_life_opens(self, told: Told) -> None:
        told("add", entry(7, [0, 2], 5))
        told("set", entry(7, [0, 1, 2], 4), incarnation=LIFE)
        assert told.view.opened
        assert told.ranks() == [0, 2]


class TestWithoutRevisions:
    def test_add_publishes_and_repeats_without_effect(self, told: Told) -> None:
        assert told("add", entry(7, [0, 1])) == "applied 7"
        assert told("add", entry(7, [1, 0])) == "unchanged 7"

    def test_add_of_another_identity_set_is_a_conflict(self, told: Told) -> None:
        told("add", entry(7, [0, 1]))
        assert told("add", entry(7, [0])) == "409 IDENTITY_CONFLICT"
        assert told("add", entry(7, {0: 1, 1: 2})) == "409 IDENTITY_CONFLICT"
        assert told.ranks() == [0, 1]

    def test_del_must_name_exactly_what_is_published(self, told: Told) -> None:
        told("add", entry(7, [0, 1]))
        assert told("del", entry(7, [0])) == "409 IDENTITY_CONFLICT"
        assert told("del", entry(7, [])) == "409 IDENTITY_CONFLICT"
        assert told("del", entry(7, [0, 1, 2])) == "409 IDENTITY_CONFLICT"
        assert told("del", entry(7, [0, 1])) == "applied 7"
        assert told.ranks() == []
        assert told("del", entry(7, [0, 1])) == "unchanged 7"

    def test_what_was_withdrawn_is_known_until_a_set_leaves_it_out(self, told: Told) -> None:
        """Its clients are told to come again (503), not that there is no such model."""
        told("add", entry(7, [0, 1]))
        told("del", entry(7, [0, 1]))
        told("add", entry(8, [0]))
        assert told.ranks() == []
        told("set", entry(8, [0]))
        assert told.ranks() is None

    def test_del_of_an_unknown_instance_is_unchanged(self, told: Told) -> None:
        assert told("del", entry(7, [0])) == "unchanged 7"

    def test_a_shrunk_view_needs_del_then_add(self, told: Told) -> None:
        told("add", entry(7, [0, 1]))
        told("del", entry(7, [0, 1]))
        assert told("add", entry(7, [0])) == "applied 7"
        assert told.ranks() == [0]

    def test_set_is_authoritative(self, told: Told) -> None:
        told("add", entry(7, [0, 1]), entry(8, [0]))
        assert told("set", entry(7, [0]), entry(9, [0])) == "applied 7 applied 9 applied 8"
        assert (told.ranks(7), told.ranks(8), told.ranks(9)) == ([0], None, [0])
        assert told("set", entry(7, [0]), entry(9, [0])) == "unchanged 7 unchanged 9"

    def test_an_empty_set_clears_everything(self, told: Told) -> None:
        told("add", entry(7, [0]))
        assert told("set") == "applied 7"
        assert not told.view.instances

    def test_pause_and_resume(self, told: Told) -> None:
        told("add", entry(7, [0, 1]))
        assert told("pause", entry(7, [0, 1])) == "applied 7"
        assert told.ranks() == []
        assert told("pause", {"id": 7}) == "unchanged 7"
        assert told("add", entry(7, [0, 1])) == "unchanged 7"
        assert told.ranks() == []
        assert told("resume", entry(7, [0])) == "409 IDENTITY_CONFLICT"
        assert told("resume", {"id": 7}) == "applied 7"
        assert told("resume", entry(7, [0, 1])) == "unchanged 7"
        assert told.ranks() == [0, 1]

    def test_pause_of_an_unknown_instance_is_unchanged_and_resume_publishes_it(self, told: Told) -> None:
        assert told("pause", entry(7, [0])) == "unchanged 7"
        assert told("resume", {"id": 7}) == "unchanged 7"
        assert told("resume", entry(7, [0])) == "applied 7"
        assert told.ranks() == [0]

    def test_a_known_revision_is_never_forgotten(self, told: Told) -> None:
        told("add", entry(7, [0, 2], 5))
        assert told("del", entry(7, [0, 2])) == "applied 7"
        assert told("add", entry(7, [0, 1, 2], 4)) == "stale 7 4<5"
        told("set")
        assert told("set", entry(7, [0, 2])) == "applied 7"
        assert told("add", entry(7, [0, 1, 2], 4)) == "stale 7 4<5"
        assert told.ranks() == [0, 2]


class TestAtomicity:
    def test_one_conflict_stops_everything(self, told: Told) -> None:
        told("add", entry(7, [0], 1), entry(8, [0], 1))
        before = told.view
        assert told("set", entry(7, [0, 1], 2), entry(8, [1], 1), incarnation=LIFE) == "409 IDENTITY_CONFLICT"
        assert told.view is before
        assert not told.view.opened

    def test_an_instance_listed_twice_is_refused(self, told: Told) -> None:
        assert told("add", entry(7, [0], 1), entry(7, [0], 1)) == "409 DUPLICATE_ID"
        assert told.ranks() is None

    def test_a_rank_in_two_pods_is_refused(self, told: Told) -> None:
        made = entry(7, [0], 1)
        made["endpoints"]["10.0.0.2"] = {"0": endpoint(0)}
        assert told("add", made) == "409 DUPLICATE_ID"

    def test_the_wrong_life_is_said_before_anything_else(self, told: Told) -> None:
        assert told("add", entry(7, [0]), entry(7, [0]), incarnation="life-0") == "409 INCARNATION"


class TestMalformed:
    @pytest.mark.parametrize(
        "change",
        [
            {"id": True},
            {"id": "7"},
            {"id": -1},
            {"revision": True},
            {"revision": -1},
            {"revision": "3"},
            {"revision": 1.5},
            {"model_name": ""},
            {"role": "both"},
            {"colour": "red"},
            {"endpoints": {"10.0.0.1": {"1": endpoint(0)}}},
            {"endpoints": {"10.0.0.1": {"0": endpoint(0) | {"business_port": 0}}}},
            {"endpoints": {"10.0.0.1": {"0": endpoint(0) | {"business_port": True}}}},
            {"endpoints": {"10.0.0.1": {"0": endpoint(0) | {"headless": 1}}}},
            {"endpoints": {"10.0.0.1": {"0": endpoint(0) | {"weight": 1}}}},
            {"endpoints": {"10.0.0.1": {"0": {"id": 0, "ip": "10.0.0.1"}}}},
            {"endpoints": [endpoint(0)]},
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            RefreshRequest.model_validate(body("add", entry(7, [0], 1) | change))

    @pytest.mark.parametrize(
        "change", [{"event": "ADD"}, {"event": "replace"}, {"instances": None}, {"coordinator_incarnation": ""}, {"x": 1}]
    )
    def test_so_is_a_request_of_another_shape(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            RefreshRequest.model_validate(body("add", entry(7, [0], 1)) | change)


# Properties. A history is what one sender says over time: at each revision one state, pushed as the event that fits it.

PushedState = tuple[int, str, tuple[int, ...]]


@st.composite
def histories(draw: st.DrawFn) -> list[PushedState]:
    """(revision, event, ranks), ascending; the last one may be anything."""
    length = draw(st.integers(min_value=1, max_value=6))
    ranks = st.sets(st.integers(min_value=0, max_value=4), min_size=1).map(lambda found: tuple(sorted(found)))
    pushes: list[PushedState] = []
    for revision in range(1, length + 1):
        event = draw(st.sampled_from(["add", "set", "resume", "del", "pause"]))
        pushes.append((revision, event, draw(ranks)))
    return pushes


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[PushedState], list[PushedState]]:
    """A history, and its pushes as the network delivers them: in any order, some twice, none lost."""
    history = draw(histories())
    again = draw(st.lists(st.sampled_from(history), max_size=6))
    return history, draw(st.permutations(history + again))


@given(deliveries())
@settings(max_examples=300, deadline=None)
def test_any_order_and_repetition_converges_to_the_highest_revision(
    delivered: tuple[list[PushedState], list[PushedState]],
) -> None:
    history, pushes = delivered
    told = Told()
    seen = 0
    for revision, event, ranks in pushes:
        before = told.view.instances.get(7)
        answer = told(event, entry(7, list(ranks), revision), incarnation=LIFE)
        if revision < seen:
            assert answer == f"stale 7 {revision}<{seen}"
            assert told.view.instances[7] == before
        elif revision == seen:
            assert answer == "unchanged 7"
            assert told.view.instances[7] == before
        else:
            assert answer == "applied 7"
        seen = max(seen, revision)
        assert told.view.instances[7].revision == seen
    _, event, ranks = history[-1]
    assert told.ranks() == ([] if event in ("del", "pause") else list(ranks))


@given(st.lists(st.tuples(st.sampled_from(["add", "del", "set"]), st.sets(st.integers(0, 2))), max_size=8))
@settings(max_examples=200, deadline=None)
def test_a_refused_refresh_leaves_the_very_same_view(pushes: list[tuple[str, set[int]]]) -> None:
    told = Told()
    for event, ranks in pushes:
        before = told.view
        if told(event, entry(7, sorted(ranks))).startswith("409"):
            assert told.view is before
