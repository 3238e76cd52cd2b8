"""Signals and updates to other workflows, each starting its receiver where it is gone, with Temporal's errors as ours."""

import asyncio
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WithStartWorkflowOperation,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from domain.errors import AutotomyError, Refused, Transient
from service.temporal import UPDATE_CUT_OFF, UPDATE_NOT_TAKEN, raise_if_cancelled

T = TypeVar("T")

TASK_TIMEOUT: Final = timedelta(seconds=2)
"""A killed worker's workflow task is given to another one after this; Temporal's default costs 10 s."""

_HOPELESS: Final = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED})


async def signal_with_start(
    client: Client,
    *,
    workflow: str,
    workflow_id: str,
    start: BaseModel,
    task_queue: str,
    signal: str,
    argument: BaseModel,
    timeout_sec: float,
) -> None:
    """Signals `workflow_id`; starts it with `start` where it does not run. Raises Transient, Refused."""
    try:
        async with asyncio.timeout(timeout_sec):
            await client.start_workflow(
                workflow,
                start,
                id=workflow_id,
                task_queue=task_queue,
                task_timeout=TASK_TIMEOUT,
                start_signal=signal,
                start_signal_args=[argument],
            )
    except (TimeoutError, RPCError, RPCTimeoutOrCancelledError) as error:
        raise_if_cancelled()
        raise _trouble(workflow_id, f"signal {signal}", error) from None


async def update_with_start(
    client: Client,
    *,
    workflow: str,
    workflow_id: str,
    start: BaseModel,
    task_queue: str,
    update: str,
    argument: BaseModel,
    result: type[T],
    timeout_sec: float,
    update_id: str | None = None,
) -> T:
    """The result of an update of `workflow_id`, which is started with `start` where it does not run.

    `result` is what its reply is read as (`object`: whatever it is). Raises Transient: no answer, or the run ended
    meanwhile. Refused: the validator or the handler said no.
    """
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        workflow,
        start,
        id=workflow_id,
        task_queue=task_queue,
        task_timeout=TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    try:
        async with asyncio.timeout(timeout_sec):
            answer = await client.execute_update_with_start_workflow(
                update, argument, start_workflow_operation=operation, id=update_id, result_type=result
            )
    except (TimeoutError, RPCError, RPCTimeoutOrCancelledError, WorkflowUpdateFailedError) as error:
        raise_if_cancelled()
        raise _trouble(workflow_id, f"update {update}", error) from None
    return cast(T, answer)


def _trouble(workflow_id: str, what: str, error: Exception) -> AutotomyError:
    if isinstance(error, TimeoutError | RPCTimeoutOrCancelledError):
        return Transient(f"{workflow_id} did not answer {what} in time", reason="NO_ANSWER")
    if isinstance(error, WorkflowUpdateFailedError):
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type not in (UPDATE_CUT_OFF, UPDATE_NOT_TAKEN):
            return Refused(f"{workflow_id} refused {what}: {cause.message}", reason=cause.type or "UPDATE_REFUSED")
        return Transient(f"{workflow_id}: {what} came to no end: {cause}", reason="NO_ANSWER")
    if isinstance(error, RPCError) and error.status in _HOPELESS:
        return Refused(f"Temporal refuses {what} to {workflow_id}: {error.message}", reason="TEMPORAL_REFUSED")
    return Transient(f"Temporal could not take {what} to {workflow_id}: {error}", reason="TEMPORAL_UNAVAILABLE")
