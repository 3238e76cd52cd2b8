"""A strategy workflow in a world of real sockets: a real worker, real NodeManager servers, a real Coordinator's rules.

The FaultManager is a recorder: it keeps what strategies tell it, so that these tests depend on the reports alone. Each
world has its own task queue and its own EventPusher.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from domain.messages.event_pusher import EVENT_PUSHER_ID, EventPusherState, ViewRecord, ViewsRecord
from domain.messages.fault_manager import FAULT_MANAGER_WORKFLOW, fault_manager_id
from domain.messages.round import CommitRecord
from domain.messages.strategy import (
    ReconfigurationOrder,
    ReconfigurationReport,
    RoundOrder,
    RoundReport,
    StrategyEnd,
    StrategyKind,
    StrategyProgress,
)
from domain.model import Strict
from domain.serving import known_view
from domain.topology import Topology
from service.one_exchange import one_exchange_client
from service.temporal import ensure_search_attributes
from tests.activities.fake_coordinators import FakeCoordinator, fake_coordinator
from tests.activities.fake_pods import FakeInstance, fake_instance
from tests.eventually import PATIENCE_SEC, eventually
from tests.leaving_worker import LeavingWorker
from workers.controller_worker import WORKFLOWS, activities
from workers.workflow_runner import workflow_runner
from workflows.event_pusher import EventPusher
from workflows.fault_manager import FaultManager
from workflows.instance_registry import InstanceRegistry

STRATEGIES = [kind for kind in WORKFLOWS if kind not in (FaultManager, InstanceRegistry)]
"""Every strategy, and EventPusher."""


def views_record(topology: Topology, revision: int, ranks: Iterable[int]) -> ViewsRecord:
    """One instance's view, as EventPusher is told it."""
    view = known_view(ViewRecord(topology=topology, revision=revision, ranks=tuple(ranks)))
    return ViewsRecord(views={topology.instance_id: view})


class Heard(Strict):
    """What strategies told the FaultManager."""

    progress: tuple[StrategyProgress, ...] = ()
    commits: tuple[CommitRecord, ...] = ()
    ends: tuple[StrategyEnd, ...] = ()


@workflow.defn(name=FAULT_MANAGER_WORKFLOW, sandboxed=False)
class RecordingFaultManager:
    """Takes every report and does nothing."""

    def __init__(self) -> None:
        self._heard = Heard()

    @workflow.run
    async def run(self, start: dict[str, Any]) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def strategy_progress(self, progress: StrategyProgress) -> None:
        self._heard = self._heard.model_copy(update={"progress": (*self._heard.progress, progress)})

    @workflow.signal
    def strategy_end(self, end: StrategyEnd) -> None:
        self._heard = self._heard.model_copy(update={"ends": (*self._heard.ends, end)})

    @workflow.update
    def record_commit(self, record: CommitRecord) -> bool:
        self._heard = self._heard.model_copy(update={"commits": (*self._heard.commits, record)})
        return True

    @workflow.query
    def heard(self) -> Heard:
        return self._heard


class StrategyWorld:
    """One instance, one Coordinator that knows its view, one worker."""

    def __init__(self, client: Client, instance: FakeInstance, coordinator: FakeCoordinator, task_queue: str) -> None:
        self.client = client
        self.instance = instance
        self.coordinator = coordinator
        self.task_queue = task_queue

    async def publish(self, revision: int = 1) -> None:
        """The instance is served, by a Coordinator that EventPusher knows."""
        pusher = self.client.get_workflow_handle(EVENT_PUSHER_ID)
        await pusher.execute_update("announce_coordinator", self.coordinator.record())
        where = self.instance.topology()
        await pusher.execute_update(EventPusher.record_views, views_record(where, revision, where.ranks))
        await eventually(lambda: bool(self.coordinator.ranks(self.instance.instance_id)), "the first view arrives")

    async def start_round(self, order: RoundOrder) -> "WorkflowHandle[Any, Any]":
        return await self.start("ScaleDownRound", order, StrategyKind.SCALE_DOWN)

    async def run_round(self, order: RoundOrder) -> RoundReport:
        """The round's report, whether it ended well or as a failure."""
        return await round_report(await self.start_round(order))

    async def rebuild(self, order: ReconfigurationOrder) -> ReconfigurationReport:
        handle = await self.start("InstanceReconfiguration", order, StrategyKind.INSTANCE_RECONFIGURATION)
        return ReconfigurationReport.model_validate(await result_or_failure_detail(handle))

    async def start(self, workflow_name: str, order: Any, kind: StrategyKind) -> "WorkflowHandle[Any, Any]":
        """Any strategy, as a FaultManager starts it."""
        return await self.client.start_workflow(
            workflow_name,
            order,
            id=kind.workflow_id(order.instance_id, order.generation),
            task_queue=self.task_queue,
            task_timeout=timedelta(seconds=2),
            execution_timeout=timedelta(seconds=120),
        )

    async def heard(self) -> Heard:
        handle = self.client.get_workflow_handle(fault_manager_id(self.instance.instance_id))
        return Heard.model_validate(await handle.query("heard"))


async def round_report(handle: "WorkflowHandle[Any, Any]") -> RoundReport:
    return RoundReport.model_validate(await result_or_failure_detail(handle))


async def result_or_failure_detail(handle: "WorkflowHandle[Any, Any]") -> Any:
    try:
        return await asyncio.wait_for(handle.result(), PATIENCE_SEC)
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.details:
            return error.cause.details[0]
        raise


def strategy_worker(client: Client, http: Any, task_queue: str, search_attributes: frozenset[str]) -> Worker:
    return LeavingWorker(
        client,
        task_queue=task_queue,
        workflows=[*STRATEGIES, RecordingFaultManager],
        activities=activities(client, http, task_queue, search_attributes),
        workflow_runner=workflow_runner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=timedelta(seconds=1),
        max_heartbeat_throttle_interval=timedelta(milliseconds=500),
    )


async def end_event_pusher(client: Client) -> None:
    """EventPusher's id is fixed: the one of the test before must be gone."""
    try:
        await client.get_workflow_handle(EVENT_PUSHER_ID).terminate("end of a test's world")
    except RPCError:
        pass


@asynccontextmanager
async def strategy_world(client: Client, pods: Any = ((0, 1), (2, 3)), *, work: bool = True) -> AsyncIterator[StrategyWorld]:
    """A published instance in a world of its own. `work` False: without a worker; the test brings its own."""
    task_queue = f"queue-{uuid.uuid4().hex}"
    await end_event_pusher(client)
    async with AsyncExitStack() as stack:
        instance = await stack.enter_async_context(fake_instance(pods))
        coordinator = await stack.enter_async_context(fake_coordinator())
        await client.start_workflow(
            "EventPusher", EventPusherState(set_interval_sec=0.5), id=EVENT_PUSHER_ID, task_queue=task_queue
        )
        stack.push_async_callback(end_event_pusher, client)
        world = StrategyWorld(client, instance, coordinator, task_queue)
        if work:
            http = await stack.enter_async_context(one_exchange_client())
            attributes = await ensure_search_attributes(client)
            await stack.enter_async_context(strategy_worker(client, http, task_queue, attributes))
            await world.publish()
        yield world
