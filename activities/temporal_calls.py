"""Signals and updates to other workflows, each starting its receiver where it is gone, with Temporal's errors as ours."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from pydantic import BaseModel
from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from domain.errors import AutotomyError, Refused, Transient
from domain.receivers import Receiver
from service import workflow_starts
from service.temporal import UPDATE_CUT_OFF, UPDATE_NOT_TAKEN, raise_if_cancelled

T = TypeVar("T")

_HOPELESS: Final = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED})


async def signal_with_start(
    client: Client, task_queue: str, receiver: Receiver, signal: str, argument: BaseModel, *, timeout_sec: float
) -> None:
    """Signals `receiver`; starts it where it does not run. Raises Transient, Refused."""
    call = workflow_starts.signal_with_start(client, task_queue, receiver, signal, argument)
    await _within(timeout_sec, call, receiver.workflow_id, f"signal {signal}")


async def update_with_start(
    client: Client,
    task_queue: str,
    receiver: Receiver,
    update: str,
    argument: BaseModel,
    result: type[T],
    *,
    timeout_sec: float,
    update_id: str | None = None,
) -> T:
    """The result of an update of `receiver`, which is started where it does not run; read as `result`.

    Raises Transient: no answer, or the run ended meanwhile. Refused: the validator or the handler said no.
    """
    call = workflow_starts.update_with_start(client, task_queue, receiver, update, argument, result, update_id=update_id)
    return await _within(timeout_sec, call, receiver.workflow_id, f"update {update}")


async def _within(timeout_sec: float, call: Awaitable[T], workflow_id: str, what: str) -> T:
    try:
        async with asyncio.timeout(timeout_sec):
            return await call
    except (TimeoutError, RPCError, RPCTimeoutOrCancelledError, WorkflowUpdateFailedError) as error:
        raise_if_cancelled()
        raise _trouble(workflow_id, what, error) from None


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
