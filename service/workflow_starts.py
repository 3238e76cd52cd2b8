"""How our processes start a workflow, or tell it something that starts it where it is gone (`domain.receivers`).

Each call is one request, of which Temporal makes both or neither. What goes wrong is raised as Temporal's own: it means
something else to a caller of the API (`api.gateway`) than to an activity (`activities.temporal_calls`).
"""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar, cast

from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from domain.receivers import TASK_TIMEOUT, Receiver

T = TypeVar("T")


async def ensure_running(client: Client, task_queue: str, receiver: Receiver, *, rpc_timeout: timedelta | None = None) -> None:
    """Starts `receiver` where it does not run."""
    await client.start_workflow(
        receiver.workflow,
        receiver.start,
        id=receiver.workflow_id,
        task_queue=task_queue,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        rpc_timeout=rpc_timeout,
    )


async def signal_with_start(
    client: Client, task_queue: str, receiver: Receiver, signal: str, argument: object, *, rpc_timeout: timedelta | None = None
) -> None:
    """Signals `receiver`. The signal is in its history when this returns."""
    await client.start_workflow(
        receiver.workflow,
        receiver.start,
        id=receiver.workflow_id,
        task_queue=task_queue,
        task_timeout=TASK_TIMEOUT,
        start_signal=signal,
        start_signal_args=[argument],
        rpc_timeout=rpc_timeout,
    )


async def update_with_start(
    client: Client,
    task_queue: str,
    receiver: Receiver,
    update: str,
    argument: object,
    result: type[T],
    *,
    update_id: str | None = None,
) -> T:
    """The result of an update of `receiver`, read as `result` (`object`: whatever it is)."""
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        receiver.workflow,
        receiver.start,
        id=receiver.workflow_id,
        task_queue=task_queue,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    started = asyncio.ensure_future(operation.workflow_handle())
    try:
        answer = await client.execute_update_with_start_workflow(
            update, argument, start_workflow_operation=operation, id=update_id, result_type=result
        )
    finally:  # a failure is told there as well, and complains when nobody fetches it
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)
    return cast(T, answer)
