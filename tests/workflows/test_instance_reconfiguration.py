"""InstanceReconfiguration against NodeManagers that are real HTTP servers: stopped first, then anew, or a reason."""

from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse
from temporalio.client import Client

from domain.messages.strategy import ReconfigurationOrder, ReconfigurationReason, ReconfigurationReport, StrategyKind
from tests.activities.fake_pods import fast_config, refuse, unhealthy
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, result_or_failure_detail, strategy_world

pytestmark = pytest.mark.verify


def order(world: StrategyWorld, *, deadline_sec: float = 10.0, **config: Any) -> ReconfigurationOrder:
    return ReconfigurationOrder(
        instance_id=world.instance.instance_id,
        generation=5,
        topology=world.instance.topology(),
        config=fast_config(**config).model_copy(update={"reconfiguration_deadline_sec": deadline_sec}),
        view_revision=1,
        why="every rank is dead",
    )


async def test_a_dead_instance_serves_again_with_every_rank(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(0, 1, 2, 3)
        lives = [pod.incarnation for pod in world.instance.pods]
        report = await world.rebuild(order(world))
        assert (report.succeeded, report.reason) == (True, ReconfigurationReason.REBUILT), report.detail
        assert report.serving_published
        assert report.view_revision == 3
        assert report.engine_incarnations.keys() == {0, 1, 2, 3}
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3)
        assert all(pod.incarnation != before for pod, before in zip(world.instance.pods, lives, strict=True))
        for pod in world.instance.pods:
            assert pod.started is not None
            assert pod.started["generation"] == 5
            assert pod.started["dead_committed"] == []
            assert len(pod.started["endpoints"]) == 4
            routes = [route for route, _ in pod.seen if route in ("stop", "start", "probe")]
            assert routes.index("stop") < routes.index("start") < routes.index("probe")
        heard = await world.heard()
        assert [end.report for end in heard.ends] == [report]


async def test_it_withdraws_before_it_stops(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        seen_while_stopping = []

        async def look(_body: dict[str, Any]) -> None:
            seen_while_stopping.append(world.coordinator.ranks(world.instance.instance_id))

        world.instance.pods[0].script("stop", look)
        assert (await world.rebuild(order(world))).succeeded
        assert seen_while_stopping == [()]


async def failed_rebuild(world: StrategyWorld, reason: ReconfigurationReason, **fields: Any) -> ReconfigurationReport:
    report = await world.rebuild(order(world, **fields))
    assert (report.succeeded, report.reason) == (False, reason), report.detail
    assert report.detail
    assert world.coordinator.ranks(world.instance.instance_id) == ()
    assert [end.report for end in (await world.heard()).ends] == [report]
    return report


async def test_a_node_manager_that_cannot_be_reached_fails_it_with_its_name(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        gone = world.instance.pods[1]
        await gone.vanish()
        report = await failed_rebuild(world, ReconfigurationReason.STOP_UNREACHABLE, deadline_sec=2.0)
        assert str(gone.address) in report.detail
        assert world.instance.pods[0].started is None


async def test_one_whose_heartbeat_is_lost_counts_as_stopped_and_is_started_when_it_comes_back(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        gone = world.instance.pods[1]
        await gone.vanish()
        asked = order(world).model_copy(update={"lost_node_managers": (gone.address,)})
        handle = await world.start("InstanceReconfiguration", asked, StrategyKind.INSTANCE_RECONFIGURATION)
        await eventually(lambda: world.instance.pods[0].started is not None, "the others are started")
        await gone.listen()
        report = ReconfigurationReport.model_validate(await result_or_failure_detail(handle))
        assert report.reason is ReconfigurationReason.REBUILT, report.detail
        assert gone.bodies("stop") == []
        assert len(gone.bodies("start")) >= 1
        steps = [progress.step.detail for progress in (await world.heard()).progress]
        assert f"count as stopped, nobody answers there: {gone.address}" in steps


async def test_a_lost_one_that_answers_after_all_is_stopped_like_the_others(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        back = world.instance.pods[1]
        asked = order(world).model_copy(update={"lost_node_managers": (back.address,)})
        assert (await world.rebuild(asked)).succeeded
        assert back.bodies("stop") != []


async def test_a_fault_that_outlives_the_engines_fails_it_before_it_serves(temporal_client: Client) -> None:
    """Ready, a completion on each, and then it shows: the rank is looked at once more before anything is published."""
    async with strategy_world(temporal_client) as world:
        pod = world.instance.pods[1]

        async def complete_and_break(body: dict[str, Any]) -> Response:
            answer = JSONResponse(pod.probe(body))
            pod.engines[3] = unhealthy(3, incarnation=pod.engines[3]["incarnation"])
            return answer

        pod.script("probe", complete_and_break)
        report = await failed_rebuild(world, ReconfigurationReason.FAULTS_REMAIN)
        assert "rank 3: unhealthy" in report.detail


async def test_a_node_manager_that_refuses_the_stop_fails_it(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.pods[1].script("stop", refuse("OLD_GENERATION"))
        report = await failed_rebuild(world, ReconfigurationReason.STOP_REFUSED)
        assert "OLD_GENERATION" in report.detail


async def test_engines_that_do_not_become_healthy_fail_it_in_time(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        pod = world.instance.pods[1]

        async def sick(_body: dict[str, Any]) -> None:
            pod.engines[3] = unhealthy(3, incarnation=pod.engines[3]["incarnation"])

        pod.script("status", *[sick] * 100)
        report = await failed_rebuild(world, ReconfigurationReason.NOT_READY_IN_TIME, deadline_sec=2.0)
        assert "rank 3: unhealthy" in report.detail


async def test_a_rank_without_a_completion_fails_it(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.pods[1].script("probe", *[refuse("ENGINE_PROTOCOL")] * 50)
        report = await failed_rebuild(world, ReconfigurationReason.VERIFY_FAILED)
        assert "rank 2" in report.detail


async def test_a_stop_ends_the_wait_and_leaves_it_withdrawn(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await world.instance.pods[1].vanish()
        asked = order(world, deadline_sec=60.0)
        handle = await temporal_client.start_workflow(
            "InstanceReconfiguration",
            asked,
            id=StrategyKind.INSTANCE_RECONFIGURATION.workflow_id(asked.instance_id, asked.generation),
            task_queue=world.task_queue,
        )
        await eventually(lambda: bool(world.instance.pods[0].bodies("stop")), "it stops")
        await handle.signal("stop")
        report = ReconfigurationReport.model_validate(await result_or_failure_detail(handle))
        assert report.reason is ReconfigurationReason.CANCELLED
        assert world.coordinator.ranks(world.instance.instance_id) == ()


async def test_with_the_feature_off_it_works_without_the_ft_routes(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        for pod in world.instance.pods:
            pod.script("status", *[refuse("DISABLED", status=404)] * 50)
        asked = order(world)
        off = asked.model_copy(update={"config": asked.config.model_copy(update={"enable_dp_scale_down": False})})
        report = await world.rebuild(off)
        assert report.succeeded, report.detail
        assert all(pod.bodies("probe") == [] for pod in world.instance.pods)
