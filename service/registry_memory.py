"""What an InstanceRegistry that has to be started anew must know, so that no declaration is lost with the old one.

The registry is one workflow, and a person may terminate it; whoever comes first, a worker or an API, starts the next one.
Its input is looked for in this order:

1. what the former registry knew last: a closed workflow answers queries from its history;
2. where there is no such history any more, the FaultManagers that run: each was started with its instance's topology.

Only where neither is found there never was an instance, and the registry begins empty.
"""

import logging
from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from domain.config import FaultToleranceConfig
from domain.messages.fault_manager import FAULT_MANAGER_WORKFLOW, FaultManagerStart
from domain.messages.instance_registry import (
    INSTANCE_REGISTRY_ID,
    INSTANCES_QUERY,
    RegisteredInstance,
    RegistryStart,
    RegistryView,
)

log = logging.getLogger(__name__)

_RPC_TIMEOUT: Final = timedelta(seconds=5)
_RUNNING: Final = f"WorkflowType = '{FAULT_MANAGER_WORKFLOW}' AND ExecutionStatus = 'Running'"


async def registry_start(client: Client, task_queue: str, config: FaultToleranceConfig) -> RegistryStart | None:
    """What to start a registry with; None: one runs. Needs a worker that polls `task_queue`.

    A former registry of another task queue cannot be asked, for nobody polls there: its FaultManagers are.

    Raises RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError: nobody can say now, so nothing may be started yet.
    """
    handle = client.get_workflow_handle(INSTANCE_REGISTRY_ID)
    try:
        former = await handle.describe(rpc_timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return await from_fault_managers(client, config)
    if former.status is WorkflowExecutionStatus.RUNNING:
        return None
    if former.task_queue != task_queue:
        return await from_fault_managers(client, config)
    known: RegistryView = await handle.query(INSTANCES_QUERY, result_type=RegistryView, rpc_timeout=_RPC_TIMEOUT)
    return registry_start_after(known, config)


def registry_start_after(known: RegistryView, config: FaultToleranceConfig) -> RegistryStart:
    """The same, by what a registry knew a moment ago."""
    return RegistryStart(
        instances=known.instances,
        version=max((known.version, *(one.version for one in known.instances))),
        configs={one.topology.instance_id: config for one in known.instances},
        assemblies=known.assemblies,
        lives=known.lives,
        job_ids=known.job_ids,
    )


async def from_fault_managers(client: Client, config: FaultToleranceConfig) -> RegistryStart:
    """The instances whose FaultManagers run, by the inputs these were started with. Raises RPCError."""
    found: dict[int, FaultManagerStart] = {}
    async for execution in client.list_workflows(_RUNNING, rpc_timeout=_RPC_TIMEOUT):
        start = await _input_of(client, execution)
        if start is not None:
            found[start.instance_id] = start
    if found:
        log.warning("no registry is remembered; its instances are those that FaultManagers run for", extra={"found": [*found]})
    topologies = [found[instance_id].topology for instance_id in sorted(found)]
    return RegistryStart(
        instances=tuple(RegisteredInstance(topology=one, version=number) for number, one in enumerate(topologies, start=1)),
        version=len(topologies),
        configs={one.instance_id: config for one in topologies},
        job_ids={one.job_name: one.instance_id for one in topologies},
    )


async def _input_of(client: Client, execution: WorkflowExecution) -> FaultManagerStart | None:
    """What a FaultManager's present run was started with; None where it has gone meanwhile."""
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        async for event in handle.fetch_history_events(page_size=1, rpc_timeout=_RPC_TIMEOUT):
            if event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                return None
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            (start,) = await client.data_converter.decode(payloads, [FaultManagerStart])
            return start if isinstance(start, FaultManagerStart) else None
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    return None
