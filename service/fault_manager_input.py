"""What a FaultManager was started with: where an instance's topology is to be found (docs/registration.md).

A workflow's input is the first event of its history, and a continue-as-new hands the topology on. So it is read without
asking the workflow: whether it runs, was terminated or cannot be replayed, and whether a worker lives, does not matter.
"""

from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from domain.messages.fault_manager import FaultManagerStart

_RPC_TIMEOUT: Final = timedelta(seconds=5)


async def fault_manager_input(client: Client, workflow_id: str, run_id: str | None = None) -> FaultManagerStart | None:
    """Of this run, or the newest; None where Temporal knows none. Raises RPCError, RPCTimeoutOrCancelledError."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
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
