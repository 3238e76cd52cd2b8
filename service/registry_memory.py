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

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from domain.messages.fault_manager import FAULT_MANAGER_WORKFLOW
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCES_QUERY
from domain.registration import RegisteredInstance, RegistryState
from domain.topology import Topology
from service.fault_manager_input import fault_manager_input

log = logging.getLogger(__name__)

_RPC_TIMEOUT: Final = timedelta(seconds=5)
_RUNNING: Final = f"WorkflowType = '{FAULT_MANAGER_WORKFLOW}' AND ExecutionStatus = 'Running'"


async def registry_start(client: Client, task_queue: str) -> RegistryState | None:
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
        return await from_fault_managers(client)
    if former.status is WorkflowExecutionStatus.RUNNING:
        return None
    if former.task_queue != task_queue:
        return await from_fault_managers(client)
    known: RegistryState = await handle.query(INSTANCES_QUERY, result_type=RegistryState, rpc_timeout=_RPC_TIMEOUT)
    return known


async def from_fault_managers(client: Client) -> RegistryState:
    """The instances whose FaultManagers run, by the inputs these were started with. Raises RPCError."""
    found: dict[int, Topology] = {}
    async for execution in client.list_workflows(_RUNNING, rpc_timeout=_RPC_TIMEOUT):
        start = await fault_manager_input(client, execution.id, execution.run_id)
        if start is not None:
            found[start.instance_id] = start.topology
    if found:
        log.warning("no registry is remembered; its instances are those that FaultManagers run for", extra={"found": [*found]})
    topologies = [topology for _, topology in sorted(found.items())]
    return RegistryState(
        instances=tuple(RegisteredInstance.of(one, version) for version, one in enumerate(topologies, start=1)),
        version=len(topologies),
        job_ids={one.job_name: one.instance_id for one in topologies},
    )
