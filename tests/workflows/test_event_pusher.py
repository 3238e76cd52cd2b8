"""EventPusher against real Coordinators' rules over HTTP: whatever was lost is repaired, and idleness costs nothing."""

import time
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError

from domain.config import FaultToleranceConfig
from domain.messages.event_pusher import EVENT_PUSHER_ID, CoordinatorRecord, EventPusherState, RecordedViews
from tests.activities.fake_coordinators import fake_coordinator
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, strategy_world, views_record
from workflows.event_pusher import EventPusher


def pusher(client: Client) -> "WorkflowHandle[Any, Any]":
    return client.get_workflow_handle(EVENT_PUSHER_ID)


async def state(client: Client) -> EventPusherState:
    return EventPusherState.model_validate(await pusher(client).query("state"))


async def record(world: StrategyWorld, revision: int, *ranks: int) -> RecordedViews:
    views = views_record(world.instance.topology(), revision, ranks)
    return await pusher(world.client).execute_update(EventPusher.record_views, views)


async def pushes(world: StrategyWorld, count: int) -> None:
    """Returns when the Coordinator has got so many more SETs that say nothing new."""
    figure = world.coordinator.state.figures.refreshes.labels("unchanged")
    before = figure._value.get()
    await eventually(lambda: figure._value.get() >= before + count, f"{count} periodic SETs arrive", 10)


async def test_a_new_view_reaches_every_coordinator_at_once(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world, fake_coordinator() as second:
        await pusher(temporal_client).execute_update("announce_coordinator", second.record())
        await record(world, 2, 0, 2, 3)
        both = (world.coordinator, second)
        await eventually(lambda: {c.ranks(world.instance.instance_id) for c in both} == {(0, 2, 3)}, "the view arrives", 3)


async def test_a_coordinator_that_restarted_gets_the_view_for_its_new_life(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        before = world.coordinator.incarnation
        await world.coordinator.vanish()
        await world.coordinator.listen()
        assert world.coordinator.incarnation != before
        await pusher(temporal_client).execute_update("announce_coordinator", world.coordinator.record())
        await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3), "SET arrives", 3)
        assert world.coordinator.state.view.opened


async def test_a_withdrawn_instance_is_listed_without_endpoints(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await record(world, 2)
        await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (), "withdrawn", 3)
        found = world.coordinator.instance(world.instance.instance_id)
        assert found is not None
        assert found.revision == 2


async def test_what_a_coordinator_lost_is_repaired_within_the_interval(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await record(world, 2, 0, 2)
        await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (0, 2), "the view arrives", 3)
        for life in range(2):  # it comes back and nobody announces it: still the same address, another life
            await world.coordinator.vanish()
            await world.coordinator.listen()
            await pusher(temporal_client).signal("announce_coordinator", world.coordinator.record())
            await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (0, 2), f"life {life}", 15)


async def test_an_older_revision_changes_nothing_and_the_newest_is_told(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await record(world, 5, 0)
        reply = await record(world, 4, 0, 1, 2, 3)
        assert reply.revisions == {world.instance.instance_id: 5}
        known = (await state(temporal_client)).views[world.instance.instance_id]
        assert (known.revision, known.ranks) == (5, (0,))


async def test_one_view_at_a_time_is_taken_from_an_older_worker(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        where = world.instance.topology()
        view = {"topology": where, "revision": 5, "ranks": (0, 2)}
        reply = await pusher(temporal_client).execute_update("record_view", view)
        assert reply["known_revision"] == 5
        with pytest.raises(WorkflowUpdateFailedError):
            await pusher(temporal_client).execute_update("record_view", {"topology": where, "revision": 6, "ranks": (17,)})
        known = (await state(temporal_client)).views[world.instance.instance_id]
        assert (known.revision, known.ranks) == (5, (0, 2))


@pytest.mark.parametrize(
    "spoilt",
    [
        {"ports": "no ports"},
        {"ports": {"": {"0": 8000}}},
        {"ports": {"127.0.0.2": {"0": 0}}},
        {"model_name": ""},
        {"id": 77},
        {"revision": "\u0000"},
    ],
)
async def test_a_view_that_no_set_could_carry_is_refused(temporal_client: Client, spoilt: dict[str, Any]) -> None:
    async with strategy_world(temporal_client) as world:
        where = world.instance.topology()
        good = views_record(where, 2, (0, 1)).views[where.instance_id].model_dump()
        for views in ({where.instance_id: good | spoilt}, {where.instance_id + 1: good}):
            with pytest.raises(WorkflowUpdateFailedError):
                await pusher(temporal_client).execute_update("record_views", {"views": views})
        assert (await state(temporal_client)).views[where.instance_id].revision == 1
        assert where.instance_id + 1 not in (await state(temporal_client)).views


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("announce_coordinator", ()),
        ("announce_coordinator", ({"url": "x"},)),
        ("announce_coordinator", ([1, 2],)),
        ("config_changed", ("no config",)),
        ("config_changed", ({"set_interval_sec": 2},)),
        ("forget_instance", ({"instance_id": 1}, {"instance_id": 2})),
        ("no-such-signal", ("anything",)),
    ],
)
async def test_garbage_is_recorded_and_nothing_else_happens(temporal_client: Client, name: str, inputs: tuple[Any, ...]) -> None:
    async with strategy_world(temporal_client) as world:
        before = await state(temporal_client)
        await pusher(temporal_client).signal(name, args=inputs)
        after = await state(temporal_client)
        assert [refused.name for refused in after.rejected] == [name]
        assert after.rejected[0].reason
        assert after.model_copy(update={"rejected": ()}) == before
        await record(world, 2, 0)
        await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (0,), "it still works", 15)


async def test_idleness_adds_nothing_to_the_history(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await record(world, 2, 0)
        await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (0,), "settled", 15)
        await pushes(world, 4)  # superseded loops have ended by then
        before = (await pusher(temporal_client).describe()).history_length
        await pushes(world, 4)
        assert (await pusher(temporal_client).describe()).history_length == before


async def test_a_silent_coordinator_is_forgotten(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        gone = CoordinatorRecord(url="http://127.0.0.1:9", incarnation="x", has_view=True, last_answer_at=time.time() - 59)
        reply = await pusher(temporal_client).execute_update("announce_coordinator", gone)
        assert len(reply["coordinators"]) == 2

        async def forgotten() -> bool:
            return set((await state(temporal_client)).coordinators) == {world.coordinator.url}

        await eventually(forgotten, "it is forgotten", 8)


async def test_views_survive_continue_as_new(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        first = (await pusher(temporal_client).describe()).run_id
        for revision in range(2, 520):
            await pusher(temporal_client).signal("config_changed", FaultToleranceConfig(set_interval_sec=0.5 + revision % 2))

        async def renewed() -> bool:
            return (await pusher(temporal_client).describe()).run_id != first

        await eventually(renewed, "a new run")
        await record(world, 600, 3)
        await eventually(lambda: world.coordinator.ranks(world.instance.instance_id) == (3,), "it still pushes", 5)
