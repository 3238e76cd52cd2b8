"""Two versions of the worker at once (docs/changing-workflows.md): a pinned round ends where it began."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio import workflow
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior
from temporalio.service import RPCError
from temporalio.worker import Worker

from service.one_exchange import one_exchange_client
from service.temporal import ensure_search_attributes
from tests.activities.fake_pods import fast_config, healthy, unhealthy
from tests.eventually import eventually
from tests.leaving_worker import LeavingWorker
from tests.workflows.strategy_world import RecordingFaultManager, StrategyWorld, round_report, strategy_world
from workers.controller_worker import activities
from workers.versions import deployment_config
from workers.workflow_runner import workflow_runner
from workflows.event_pusher import EventPusher
from workflows.strategies import ScaleDownRound

pytestmark = pytest.mark.verify


@workflow.defn(name="ScaleDownRound", sandboxed=False)
class ChangedRound:
    """The next version: other commands from the first task on."""

    @workflow.run
    async def run(self, order: dict[str, Any]) -> str:
        await workflow.sleep(0.01)
        return f"generation {order['generation']} by the next version"


async def versioned_worker(client: Client, world: StrategyWorld, http: httpx.AsyncClient, build_id: str, rounds: type) -> Worker:
    attributes = await ensure_search_attributes(client)
    return LeavingWorker(
        client,
        task_queue=world.task_queue,
        workflows=[rounds, EventPusher, RecordingFaultManager],
        activities=activities(client, http, world.task_queue, attributes),
        workflow_runner=workflow_runner(),
        graceful_shutdown_timeout=timedelta(seconds=1),
        deployment_config=deployment_config(build_id, world.task_queue, VersioningBehavior.PINNED),
    )


async def make_current(client: Client, world: StrategyWorld, build_id: str) -> None:
    """What `temporal worker deployment set-current-version` does; refused until a worker of that version has polled."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=world.task_queue, build_id=build_id
    )

    async def taken() -> bool:
        try:
            await client.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:
            return False
        return True

    await eventually(taken, f"version {build_id} becomes current")


async def test_a_running_round_ends_on_the_version_it_began_on_and_the_next_one_begins_on_the_new(
    temporal_client: Client,
) -> None:
    async with strategy_world(temporal_client, work=False) as world, one_exchange_client() as http:
        async with await versioned_worker(temporal_client, world, http, "1", ScaleDownRound):
            await make_current(temporal_client, world, "1")
            await world.publish()
            world.instance.kill(1)
            world.instance.pod_of(2).engines[2] = healthy(2)
            first = world.instance.order(1, config=fast_config(execution_deadline_sec=60.0))
            old = await world.start_round(first)
            await eventually(lambda: len(world.instance.pod_of(2).bodies("status")) > 1, "the round waits for a survivor")
            async with await versioned_worker(temporal_client, world, http, "2", ChangedRound):
                await make_current(temporal_client, world, "2")
                second = first.model_copy(update={"generation": first.generation + 1})
                new = await world.start_round(second)
                assert await new.result() == f"generation {second.generation} by the next version"
                world.instance.pod_of(2).engines[2] = unhealthy(2)
                report = await round_report(old)
        assert (report.outcome, report.serving_published) == ("succeeded", True), report.detail
        history = await old.fetch_history()
        assert not [e for e in history.events if e.HasField("workflow_task_failed_event_attributes")]
        assert [len(pod.applied) for pod in world.instance.pods] == [1, 1]
