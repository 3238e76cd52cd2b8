"""What a Controller worker consists of: which workflows, which activities, and how patient it is.

The timeouts are chosen for failover: another worker takes over a killed one's workflow task after the sticky queue's
second plus a workflow task timeout, its activities after their heartbeat timeout (2 s). Asked to stop, a worker lets quick
activities end and hands the looping ones over at once.
"""

from datetime import timedelta
from typing import Any, Final

import httpx
from temporalio.client import Client
from temporalio.worker import Worker

from activities.coordinator import CoordinatorActivities
from activities.fault_manager import FaultManagerActivities
from activities.journals import JournalActivities
from activities.node_manager import NodeManagerActivities
from activities.rebuild import RebuildActivities
from workers.versions import deployment_config
from workers.workflow_runner import workflow_runner
from workflows.event_pusher import EventPusher
from workflows.fault_manager import FaultManager
from workflows.instance_registry import InstanceRegistry
from workflows.strategies import STRATEGY_WORKFLOWS

WORKFLOWS: Final[tuple[type, ...]] = (
    FaultManager,
    InstanceRegistry,
    EventPusher,
    *STRATEGY_WORKFLOWS,
)

_STICKY: Final = timedelta(seconds=1)
_GRACE: Final = timedelta(seconds=2)
_HEARTBEAT_THROTTLE: Final = timedelta(milliseconds=500)
"""Heartbeats go out at least so often: it is how an activity hears that it was cancelled."""


def activities(client: Client, http: httpx.AsyncClient, task_queue: str, search_attributes: frozenset[str]) -> list[Any]:
    """Every activity of ours, bound to this worker's clients."""
    fault_manager = FaultManagerActivities(client, task_queue, search_attributes)
    coordinator = CoordinatorActivities(http, client, task_queue)
    node_manager = NodeManagerActivities(http)
    rebuild = RebuildActivities(http)
    journals = JournalActivities(http, client)
    return [
        node_manager.guard,
        node_manager.look,
        node_manager.apply,
        node_manager.verify,
        node_manager.finalize,
        node_manager.stop_pods,
        node_manager.pace,
        node_manager.fresh_look,
        node_manager.wake,
        rebuild.stop_node_managers,
        rebuild.stop_engines,
        rebuild.start_node_managers,
        rebuild.await_engines_ready,
        journals.read_journals,
        coordinator.push_view,
        coordinator.push_set_loop,
        fault_manager.usable_search_attributes,
        fault_manager.report_progress,
        fault_manager.report_commit,
        fault_manager.report_end,
        fault_manager.look_up_strategy,
        fault_manager.owned_topology,
    ]


def controller_worker(
    client: Client,
    http: httpx.AsyncClient,
    task_queue: str,
    search_attributes: frozenset[str],
    identity: str | None = None,
    build_id: str | None = None,
) -> Worker:
    """A worker, not yet running. `search_attributes`: those that the server knows; `build_id`: its version, if it has one."""
    return Worker(
        client,
        task_queue=task_queue,
        workflows=list(WORKFLOWS),
        activities=activities(client, http, task_queue, search_attributes),
        workflow_runner=workflow_runner(),
        identity=identity,
        deployment_config=None if build_id is None else deployment_config(build_id),
        sticky_queue_schedule_to_start_timeout=_STICKY,
        graceful_shutdown_timeout=_GRACE,
        max_heartbeat_throttle_interval=_HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=_HEARTBEAT_THROTTLE,
    )
