"""FastRecovery on a real Temporal server, against NodeManagers and a Coordinator that are real HTTP servers."""

import uuid
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from domain.engine import Dialect, FtCapability
from domain.messages.strategy import FastRecoveryOrder, FastRecoveryReport, RoundOutcome, RoundReason, StrategyKind
from domain.runtime import FtPhase
from tests.activities.fake_pods import exited, fast_config, hang, refuse, unhealthy
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, result_or_failure_detail, strategy_world
from tests.workflows.test_replay import replay

RELEASED = FtCapability(
    enabled=True, scale_down_supported=False, retry_supported=True, external_lb=True, eplb_enabled=False, dialect=Dialect.LEGACY
)


def order(world: StrategyWorld, **fields: Any) -> FastRecoveryOrder:
    quick = {"enable_fast_recovery": True, "fast_recovery_stability_sec": 0.2}
    base: dict[str, Any] = {
        "instance_id": world.instance.instance_id,
        "generation": 4,
        "request_id": f"fast-recovery-{uuid.uuid4().hex}",
        "dead_committed": (),
        "phase_before": FtPhase.NORMAL,
        "topology": world.instance.topology().model_copy(update={"ft_capability": RELEASED}),
        "config": fast_config().model_copy(update=quick),
        "published_ranks": (0, 1, 2, 3),
        "view_revision": 1,
    }
    return FastRecoveryOrder(**{**base, **fields})


async def start(world: StrategyWorld, asked: FastRecoveryOrder) -> Any:
    return await world.start("FastRecovery", asked, StrategyKind.FAST_RECOVERY)


async def ended(handle: Any) -> FastRecoveryReport:
    return FastRecoveryReport.model_validate(await result_or_failure_detail(handle))


async def test_all_ranks_retry_under_one_id_and_serve_again(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        asked = order(world)
        handle = await start(world, asked)
        report = await ended(handle)
        assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.RECOVERED), report.detail
        assert report.serving_published
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3)
        bodies = world.instance.applies()
        assert {(body["instruction"], body["request_id"]) for body in bodies} == {("retry", asked.request_id)}
        assert [body["endpoint_ids"] for body in bodies] == [[0, 1], [2, 3]]
        assert all(pod.verdicts == {asked.request_id: True} and pod.retired == set() for pod in world.instance.pods)
        heard = await world.heard()
        assert [end.report for end in heard.ends] == [report]
        assert {progress.step.phase for progress in heard.progress} == {FtPhase.DECIDING}
        assert heard.commits == ()
        assert FastRecoveryReport.model_validate((await handle.query("status"))["report"]) == report
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
        history = await handle.fetch_history()
    assert await replay(history) is None


async def test_it_is_withdrawn_while_the_engines_retry(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        served: list[tuple[int, ...]] = []

        async def look(_body: dict[str, Any]) -> None:
            served.append(world.coordinator.ranks(world.instance.instance_id))

        world.instance.pods[0].script("apply", look)
        await ended(await start(world, order(world)))
        assert served == [()]


async def test_ranks_that_were_removed_before_stay_removed(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.pods[0].retired.add(1)
        world.instance.kill()
        report = await ended(await start(world, order(world, dead_committed=(1,), published_ranks=(0, 2, 3))))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)
        assert sorted(rank for body in world.instance.applies() for rank in body["endpoint_ids"]) == [0, 2, 3]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (refuse("ENGINE_REFUSED", engines={"2": {"http": 400}}), RoundReason.APPLY_REFUSED),
        (refuse("OUTCOME_UNKNOWN"), RoundReason.APPLY_UNKNOWN),
    ],
)
async def test_a_refused_or_lost_retry_fails_it_without_a_second_one(
    temporal_client: Client, behaviour: Any, reason: RoundReason
) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        world.instance.pod_of(2).script("apply", behaviour)
        asked = order(world)
        handle = await start(world, asked)
        report = await ended(handle)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, reason), report.detail
        assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
        assert len(world.instance.pod_of(2).bodies("apply")) == 1
        assert [pod.verdicts.get(asked.request_id) for pod in world.instance.pods] == [False, False]
        assert world.coordinator.ranks(world.instance.instance_id) == ()
        assert [end.report for end in (await world.heard()).ends] == [report]


async def test_a_failure_under_the_servers_own_id_is_understood(temporal_client: Client) -> None:
    """Legacy engines do not know our request id: the error that was not there before is ours."""
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        world.instance.recovery_sec = None
        world.instance.pod_of(2).engines[2] = unhealthy(2, ft_error="store timeout", last_ft_request_id="server-1")
        handle = await start(world, order(world, config=_patient()))
        await eventually(lambda: len(world.instance.applies()) == 2, "both Pods are told")
        world.instance.pod_of(2).engines[2] = unhealthy(2, ft_error="store timeout", last_ft_request_id="server-2")
        report = await ended(handle)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.ENGINE_FAILED), report.detail


async def test_a_dead_rank_abandons_it_untouched(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        world.instance.pod_of(3).engines[3] = exited(3)
        handle = await start(world, order(world))
        report = await ended(handle)
        assert (report.outcome, report.reason) == (RoundOutcome.ABANDONED, RoundReason.RANK_DIED), report.detail
        assert world.instance.applies() == []
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 1, 2, 3)
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_stop_in_the_stability_time_ends_it_early_and_aborts(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        config = _patient().model_copy(update={"fast_recovery_stability_sec": 60.0})
        asked = order(world, config=config)
        handle = await start(world, asked)

        async def waits() -> bool:
            status = await handle.query("status")
            return any("stay healthy" in call["what"] for call in status["calls"])

        await eventually(waits, "it waits")
        await handle.signal("stop")
        report = await ended(handle)
        assert report.outcome is RoundOutcome.CANCELLED
        assert [pod.verdicts.get(asked.request_id) for pod in world.instance.pods] == [False, False]
        history = await handle.fetch_history()
    assert await replay(history) is None


async def test_a_slow_node_manager_is_asked_again_with_the_same_request(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill()
        world.instance.pod_of(2).script("apply", hang(1.3))
        report = await ended(await start(world, order(world, config=_patient())))
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail
        bodies = world.instance.pod_of(2).bodies("apply")
        assert len(bodies) > 1
        assert all(body == bodies[0] for body in bodies)


def _patient() -> Any:
    quick = {"enable_fast_recovery": True, "fast_recovery_stability_sec": 0.2}
    return fast_config(execution_deadline_sec=30.0, apply_deadline_sec=4.0).model_copy(update=quick)
