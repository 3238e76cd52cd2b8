"""EngineRelaunch and TokenReinference on a real Temporal server, against NodeManagers that are real HTTP servers."""

from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus

from domain.messages.strategy import (
    ReconfigurationReason,
    ReinferenceOrder,
    ReinferenceReason,
    ReinferenceReport,
    RelaunchOrder,
    RelaunchReport,
    StrategyKind,
)
from tests.activities.fake_pods import exited, fast_config, refuse, unhealthy
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, result_or_failure_detail, strategy_world
from tests.workflows.test_replay import replay


async def relaunched(world: StrategyWorld, dead_committed: tuple[int, ...] = (), **fields: Any) -> tuple[RelaunchReport, Any]:
    base: dict[str, Any] = {
        "instance_id": world.instance.instance_id,
        "generation": 5,
        "topology": world.instance.topology(),
        "config": fast_config(),
        "dead_committed": dead_committed,
        "view_revision": 1,
        "why": "a rank is dead, and scale-down is off",
    }
    handle = await world.start("EngineRelaunch", RelaunchOrder(**{**base, **fields}), StrategyKind.ENGINE_RELAUNCH)
    return RelaunchReport.model_validate(await result_or_failure_detail(handle)), handle


async def test_new_engines_serve_and_the_node_managers_stay(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        lives = [pod.incarnation for pod in world.instance.pods]
        report, handle = await relaunched(world)
        assert (report.succeeded, report.reason) == (True, ReconfigurationReason.RELAUNCHED), report.detail
        assert report.engine_incarnations.keys() == {0, 1, 2, 3}
        assert (report.view_revision, report.serving_published) == (3, True)
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3)
        assert [pod.incarnation for pod in world.instance.pods] == lives
        assert [end.report for end in (await world.heard()).ends] == [report]
        history = await handle.fetch_history()
    assert await replay(history) is None


async def test_no_engine_is_started_before_every_old_one_is_gone(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        slow, quick = world.instance.pods
        started_meanwhile: list[Any] = []

        async def still_stopping(_body: dict[str, Any]) -> None:
            started_meanwhile.append(quick.started)

        slow.script("engine_restart", refuse("STOPPING"), still_stopping)
        report, _ = await relaunched(world)
        assert report.succeeded, report.detail
        assert started_meanwhile == [None]
        assert len(slow.bodies("engine_restart")) == 2


async def test_what_was_removed_stays_removed(temporal_client: Client) -> None:
    async with strategy_world(temporal_client, pods=((0, 1), (2,), (3,))) as world:
        await world.instance.pod_of(3).vanish()
        report, _ = await relaunched(world, dead_committed=(1, 3))
        assert report.succeeded, report.detail
        assert (report.dead_committed, sorted(report.engine_incarnations)) == ((1, 3), [0, 2])
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2)
        started = world.instance.pod_of(0).started
        assert started is not None
        assert started["dead_committed"] == [1, 3]


async def test_a_node_manager_with_wanted_ranks_that_is_away_fails_it(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        await world.instance.pods[1].vanish()
        config = fast_config().model_copy(update={"reconfiguration_deadline_sec": 2.0})
        report, handle = await relaunched(world, config=config)
        assert (report.succeeded, report.reason) == (False, ReconfigurationReason.STOP_UNREACHABLE)
        assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
        assert world.coordinator.ranks(world.instance.instance_id) == ()
        assert world.instance.pods[0].started is None


async def test_with_the_feature_off_it_works_without_the_ft_routes(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        for pod in world.instance.pods:
            pod.script("status", *[refuse("DISABLED", status=404)] * 50)
        report, _ = await relaunched(world, config=fast_config().model_copy(update={"enable_dp_scale_down": False}))
        assert report.succeeded, report.detail
        assert all(pod.bodies("probe") == [] for pod in world.instance.pods)


def reinference(world: StrategyWorld, within_sec: float) -> ReinferenceOrder:
    return ReinferenceOrder(
        instance_id=world.instance.instance_id,
        generation=5,
        topology=world.instance.topology(),
        config=fast_config().model_copy(update={"token_reinference_deadline_sec": within_sec}),
        ranks=(2, 3),
        why="L2 0x08520003 on node-1",
    )


async def waited(handle: Any) -> ReinferenceReport:
    return ReinferenceReport.model_validate(await result_or_failure_detail(handle))


async def test_ranks_that_heal_by_themselves_are_waited_for_and_nothing_is_touched(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        pod = world.instance.pod_of(2)
        pod.engines[2] = unhealthy(2)
        handle = await world.start("TokenReinference", reinference(world, 60.0), StrategyKind.TOKEN_REINFERENCE)
        await eventually(lambda: len(pod.bodies("status")) > 1, "it looks")
        world.instance.recover((2,))
        report = await waited(handle)
        assert (report.healed, report.reason) == (True, ReinferenceReason.HEALED), report.detail
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3)
        assert {route for pod in world.instance.pods for route, _ in pod.seen} <= {"status", "probe"}
        assert [end.report for end in (await world.heard()).ends] == [report]
        history = await handle.fetch_history()
    assert await replay(history) is None


async def test_ranks_that_do_not_heal_end_the_wait_in_time(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.pod_of(2).engines[2] = unhealthy(2)
        handle = await world.start("TokenReinference", reinference(world, 1.0), StrategyKind.TOKEN_REINFERENCE)
        report = await waited(handle)
        assert (report.healed, report.reason) == (False, ReinferenceReason.NOT_HEALED_IN_TIME)
        assert "rank 2: unhealthy" in report.detail
        assert report.last_entries[2].status == "unhealthy"
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_process_that_is_gone_does_not_heal(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.pod_of(2).engines[2] = exited(2)
        handle = await world.start("TokenReinference", reinference(world, 60.0), StrategyKind.TOKEN_REINFERENCE)
        assert (await waited(handle)).reason is ReinferenceReason.RANK_DIED
