"""ScaleDownRound on a real Temporal server, against NodeManagers and a Coordinator that are real HTTP servers."""

from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from domain.messages.strategy import RoundOrder, RoundOutcome, RoundReason, RoundReport, StrategyKind
from domain.runtime import FtPhase
from tests.activities.fake_pods import answer, fast_config, hang, healthy, refuse, unhealthy
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, round_report, strategy_world, views_record
from workflows.event_pusher import EventPusher

pytestmark = pytest.mark.verify


async def test_a_dead_rank_is_removed_and_the_survivors_are_published(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        report = await world.run_round(world.instance.order(1))
        assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.COMMITTED), report.detail
        assert report.dead_committed == (1,)
        assert report.serving_published
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)
        assert len(world.instance.applies()) == 2
        heard = await world.heard()
        assert [commit.dead_committed for commit in heard.commits] == [(1,)]
        assert [end.report for end in heard.ends] == [report]


async def test_the_fault_manager_is_told_the_phases_that_it_cannot_know_by_itself(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        await world.run_round(world.instance.order(1))
        progress = (await world.heard()).progress
        assert [p.step.step for p in progress] == sorted(p.step.step for p in progress)
        phases = [p.step.phase for p in progress]
        assert phases[-1] is FtPhase.SCALING_DOWN
        assert set(phases) <= {FtPhase.WAITING_ENGINE_FAULT, FtPhase.SCALING_DOWN}


async def test_rank_zero_leaves_the_lowest_survivor_as_master(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(0)
        report = await world.run_round(world.instance.order(0))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        assert {body["params"]["dp_master_rank"] for body in world.instance.applies()} == {1}


async def test_a_pod_without_survivors_that_is_gone_does_not_stop_the_round(temporal_client: Client) -> None:
    async with strategy_world(temporal_client, pods=((0, 1), (2,), (3,))) as world:
        world.instance.kill(3)
        await world.instance.pod_of(3).vanish()
        report = await world.run_round(world.instance.order(3))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        gone = str(world.instance.pod_of(3).address)
        assert report.absent_node_managers == (gone,)
        assert gone in report.pending_finalize


async def test_emptied_pods_are_stopped_once_where_scale_up_is_on(temporal_client: Client) -> None:
    async with strategy_world(temporal_client, pods=((0, 1), (2,), (3,))) as world:
        world.instance.kill(3)
        world.instance.pod_of(3).script("stop", refuse("JOURNAL"))
        report = await world.run_round(world.instance.order(3, config=fast_config(scale_up=True)))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        await eventually(lambda: len(world.instance.pod_of(3).bodies("stop")) == 1, "the emptied Pod is told to stop")
        assert world.instance.pod_of(0).bodies("stop") == []


async def failed_round(world: StrategyWorld, reason: RoundReason, **fields: Any) -> None:
    """Runs a round for rank 1 that must fail with this reason, abort everywhere, and be red in the Web UI."""
    order = world.instance.order(1, **fields)
    handle = await world.start_round(order)
    report = await round_report(handle)
    assert (report.outcome, report.reason) == (RoundOutcome.FAILED, reason), report.detail
    assert report.detail
    assert not report.committed
    assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    heard = await world.heard()
    assert [end.report for end in heard.ends] == [report]
    assert heard.commits == ()
    for pod in world.instance.pods:
        assert pod.verdicts.get(order.request_id) in (False, None)


@pytest.mark.parametrize(
    ("route", "behaviour", "reason"),
    [
        ("guard", refuse("GUARD_HELD", holder="scale-down-other"), RoundReason.GUARD_REFUSED),
        ("status", refuse("ENGINE_PROTOCOL"), RoundReason.ENGINE_PROTOCOL),
        ("apply", refuse("ENGINE_REFUSED", engines={"2": {"http": 400}}), RoundReason.APPLY_REFUSED),
        ("apply", refuse("OUTCOME_UNKNOWN"), RoundReason.APPLY_UNKNOWN),
        ("apply", refuse("DISABLED", status=404), RoundReason.APPLY_REFUSED),
    ],
)
async def test_a_node_manager_that_says_no_ends_the_round(
    temporal_client: Client, route: str, behaviour: object, reason: RoundReason
) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.pod_of(2).script(route, behaviour)  # type: ignore[arg-type]
        await failed_round(world, reason)
        assert all(len(pod.applied) <= 1 for pod in world.instance.pods)


async def test_a_node_manager_that_stays_away_past_the_apply_deadline_ends_the_round_and_nobody_is_called_again(
    temporal_client: Client,
) -> None:
    """D 11: it has heard the command and never answers; the other one has accepted."""
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        accepted, away = world.instance.pod_of(0), world.instance.pod_of(2)
        away.script("apply", *[hang(30.0)] * 10)
        order = world.instance.order(1)
        report = await world.run_round(order)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.APPLY_UNKNOWN), report.detail
        assert str(away.address) in report.detail
        assert len(accepted.bodies("apply")) == 1
        assert {body["request_id"] for body in away.bodies("apply")} == {order.request_id}
        assert accepted.verdicts[order.request_id] is False


async def test_engines_that_fail_to_recover_end_the_round_without_a_second_apply(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.recovery_sec = None
        order = world.instance.order(1)
        handle = await world.start_round(order)
        await eventually(lambda: len(world.instance.applies()) == 2, "both Pods are applied")
        world.instance.pod_of(2).engines[2] = unhealthy(2, ft_state="failed", ft_error="store timeout")
        report = await round_report(handle)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.ENGINE_FAILED)
        assert [len(pod.bodies("apply")) for pod in world.instance.pods] == [1, 1]
        assert [pod.verdicts[order.request_id] for pod in world.instance.pods] == [False, False]


async def test_survivors_that_never_become_ready_end_the_round_in_time(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.pod_of(3).engines[3] = healthy(3)
        await failed_round(world, RoundReason.NOT_READY_IN_TIME, config=fast_config(execution_deadline_sec=1.0))
        assert world.instance.applies() == []


async def test_a_rank_that_lives_after_all_abandons_the_round(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.pod_of(1).engines[1] = unhealthy(1)
        handle = await world.start_round(world.instance.order(1))
        report = await round_report(handle)
        assert (report.outcome, report.reason) == (RoundOutcome.ABANDONED, RoundReason.FALSE_ALARM)
        assert not report.withdrawn
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3)
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_survivor_that_is_dead_too_is_absorbed(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1, 2)
        report = await world.run_round(world.instance.order(1))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        assert report.dead_committed == (1, 2)
        assert {tuple(body["params"]["removed_dp_ranks"]) for body in world.instance.applies()} == {(1, 2)}


async def test_a_slow_node_manager_is_asked_again_with_the_same_request(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.pod_of(2).script("apply", hang(1.3), answer(500, "oops"))
        report = await world.run_round(world.instance.order(1, config=fast_config(apply_deadline_sec=4.0)))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        bodies = world.instance.pod_of(2).bodies("apply")
        assert len(bodies) > 1
        assert all(body == bodies[0] for body in bodies)


async def test_a_lease_that_is_too_short_is_renewed_before_the_apply(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.pod_of(2).script("apply", refuse("LEASE_TOO_SHORT"))
        report = await world.run_round(world.instance.order(1))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        seen = [route for route, _ in world.instance.pod_of(2).seen if route in ("guard", "apply")]
        assert seen == ["guard", "apply", "guard", "apply"]


async def test_a_coordinator_that_does_not_answer_ends_the_round_before_apply(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        higher = views_record(world.instance.topology(), 9, (0, 1, 2, 3))
        await temporal_client.get_workflow_handle("event-pusher").execute_update(EventPusher.record_views, higher)
        await failed_round(world, RoundReason.WITHDRAW_UNCONFIRMED)
        assert world.instance.applies() == []


async def test_an_unconfirmed_view_is_said_and_rolls_nothing_back(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.recovery_sec = None
        handle = await world.start_round(world.instance.order(1))
        await eventually(lambda: len(world.instance.applies()) == 2, "both Pods are applied")
        await world.coordinator.vanish()
        world.instance.recover((0, 2, 3))
        report = await round_report(handle)
        assert report.outcome is RoundOutcome.SUCCEEDED
        assert report.committed
        assert not report.serving_published
        assert "not confirmed" in report.detail


async def test_a_refused_gate_touches_nothing(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        config = fast_config().model_copy(update={"enable_dp_scale_down": False})
        await failed_round(world, RoundReason.GATE_REFUSED, config=config)
        assert all(pod.bodies("guard") == [] for pod in world.instance.pods)


async def test_a_person_can_read_the_round(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.pod_of(2).script("apply", refuse("ENGINE_REFUSED", engines={"2": {"http": 400}}))
        order = world.instance.order(1)
        handle = await world.start_round(order)
        report = await round_report(handle)
        status = await handle.query("status")
        assert RoundOrder.model_validate(status["order"]) == order
        assert RoundReport.model_validate(status["report"]) == report
        details = await handle.query("__temporal_workflow_metadata")
        assert "APPLY_REFUSED" in str(details)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert "ENGINE_REFUSED" in str(caught.value.cause)
        assert "reconfiguration" in str(caught.value.cause)
        summaries = await _summaries(temporal_client, handle.id)
        assert "apply: remove ranks 1 → engines 0,2,3" in summaries
        assert "guard 2 NodeManagers for 15 s" in summaries


async def test_the_round_is_found_by_its_search_attributes(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        report = await world.run_round(world.instance.order(1))
        assert report.outcome is RoundOutcome.SUCCEEDED, report
        query = f'InstanceId = {report.instance_id} AND Outcome = "succeeded" AND DeadRanks = "1" AND ServingPublished = true'

        async def listed() -> bool:
            found = [run.id async for run in temporal_client.list_workflows(query)]
            return found == [StrategyKind.SCALE_DOWN.workflow_id(report.instance_id, report.generation)]

        await eventually(listed, "the round is listed")


async def _summaries(client: Client, workflow_id: str) -> list[str]:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    found = []
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            found.append(client.data_converter.payload_converter.from_payload(event.user_metadata.summary, str))
    return found
