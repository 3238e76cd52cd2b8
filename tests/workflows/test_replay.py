"""Histories replay to the same commands (I12), whatever happened in them; and the replayer does go red."""

from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory

from service.one_exchange import one_exchange_client
from service.temporal import ensure_search_attributes
from tests.activities.fake_pods import fast_config, hang, healthy, refuse
from tests.eventually import eventually
from tests.workflows.strategy_world import STRATEGIES, StrategyWorld, round_report, strategy_worker, strategy_world
from tests.workflows.test_instance_reconfiguration import order as rebuild_order
from workers.replay import replayer

pytestmark = pytest.mark.verify


async def replay(history: WorkflowHistory) -> Exception | None:
    """What the replayer objects to, or None."""
    return (await replayer(STRATEGIES).replay_workflow(history, raise_on_replay_failure=False)).replay_failure


async def succeeded(world: StrategyWorld) -> "WorkflowHandle[Any, Any]":
    return await ended(world)


async def failed(world: StrategyWorld) -> "WorkflowHandle[Any, Any]":
    world.instance.pod_of(2).script("apply", refuse("OUTCOME_UNKNOWN"))
    return await ended(world)


async def cancelled(world: StrategyWorld) -> "WorkflowHandle[Any, Any]":
    world.instance.pod_of(2).script("guard", hang(0.5))
    handle = await world.start_round(world.instance.order(1))
    await eventually(lambda: bool(world.instance.pod_of(2).bodies("guard")), "guard is asked")
    await handle.cancel()
    await round_report(handle)
    return handle


async def stopped_while_it_looks(world: StrategyWorld) -> "WorkflowHandle[Any, Any]":
    world.instance.pod_of(2).engines[2] = healthy(2)
    handle = await world.start_round(world.instance.order(1, config=fast_config(execution_deadline_sec=30.0)))
    await eventually(lambda: len(world.instance.pod_of(2).bodies("status")) > 2, "it looks")
    await handle.signal("stop")
    await round_report(handle)
    return handle


async def ended(world: StrategyWorld) -> "WorkflowHandle[Any, Any]":
    handle = await world.start_round(world.instance.order(1))
    await round_report(handle)
    return handle


@pytest.mark.parametrize("scenario", [succeeded, failed, cancelled, stopped_while_it_looks])
async def test_a_rounds_history_replays(temporal_client: Client, scenario: Any) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        handle = await scenario(world)
        history = await handle.fetch_history()
    assert await replay(history) is None


async def test_every_prefix_of_a_history_replays(temporal_client: Client) -> None:
    """A worker may take over at any workflow task."""
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        history = await (await ended(world)).fetch_history()
    ends = [i + 1 for i, event in enumerate(history.events) if event.HasField("workflow_task_completed_event_attributes")]
    assert len(ends) > 5
    for end in ends:
        assert await replay(WorkflowHistory(history.workflow_id, history.events[:end])) is None


async def test_a_rebuilds_and_the_pushers_histories_replay(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await world.rebuild(rebuild_order(world))
        instance_id = world.instance.instance_id
        rebuild = await temporal_client.get_workflow_handle(f"instance-reconfiguration-{instance_id}-5").fetch_history()
        pusher = await temporal_client.get_workflow_handle("event-pusher").fetch_history()
    assert await replay(rebuild) is None
    assert await replay(pusher) is None


async def test_the_replayer_goes_red_for_another_order_of_steps(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        history = await (await ended(world)).fetch_history()
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == "apply":
            scheduled.activity_type.name = "verify"
    failure = await replay(history)
    assert failure is not None
    assert "verify" in str(failure)


async def test_a_running_round_is_evicted_cleanly(temporal_client: Client) -> None:
    """A worker that stops lets go of a round in every one of its waits; another goes on."""
    async with strategy_world(temporal_client, work=False) as world:
        attributes = await ensure_search_attributes(temporal_client)
        world.instance.kill(1)
        world.instance.recovery_sec = None
        config = fast_config(execution_deadline_sec=30.0)
        async with one_exchange_client() as http:
            async with strategy_worker(temporal_client, http, world.task_queue, attributes):
                await world.publish()
                handle = await world.start_round(world.instance.order(1, config=config))
                await eventually(lambda: len(world.instance.applies()) == 2, "it looks for the recovery")
                await handle.cancel()
            async with strategy_worker(temporal_client, http, world.task_queue, attributes):
                report = await round_report(handle)
        assert report.outcome == "cancelled"
        history = await handle.fetch_history()
    assert not [e for e in history.events if e.HasField("workflow_task_failed_event_attributes")]
