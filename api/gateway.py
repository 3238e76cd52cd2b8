"""The API's way to Temporal: bounded calls, and a 503 that says which part is missing.

A caller of the API gets an answer within two seconds, whatever is down. Each call has `CALL_LIMIT_SEC`; when it ends
without an answer, a short look at the task queue tells *no Temporal server* from *no worker polls*. The connection is made
in the background for as long as it takes, so the API starts without Temporal and recovers by itself; gRPC reconnects by
itself afterwards.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from pydantic import BaseModel
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.envconfig import ClientConnectConfig
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from api.errors import ApiReason
from domain.receivers import Receiver
from service import workflow_starts
from service.failpoints import failpoint
from service.http import HttpError
from service.temporal import DEFAULT_ADDRESS, UPDATE_CUT_OFF, UPDATE_NOT_TAKEN, connect, connection_settings, raise_if_cancelled

log = logging.getLogger(__name__)

CALL_LIMIT_SEC: Final = 1.3
"""One call to Temporal."""

_LOOK_LIMIT_SEC: Final = 0.4
"""The look at the task queue after a call without an answer; with what the cache waits before (`api.cache`) below two seconds."""

_POLL_SEC: Final = 70.0
"""A worker that waits for work polls anew at least once a minute."""

_AGAIN_SEC: Final = 0.05
_RETRY_AFTER: Final = {"Retry-After": "1"}

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class WorkflowUnknown(Exception):
    """No workflow runs, or ran, under that id."""


class UpdateRefused(Exception):
    """The workflow's validator refused an update: `reason` and message are its own."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Gateway:
    """One client for the whole process. `task_queue` is where the Controller workers poll."""

    def __init__(self, task_queue: str, settings: ClientConnectConfig | None = None) -> None:
        self.task_queue = task_queue
        self._settings = settings or connection_settings()
        self._client: Client | None = None

    @property
    def address(self) -> str:
        return self._settings.get("target_host", DEFAULT_ADDRESS)

    async def connect(self) -> None:
        """Returns when the server has answered once; until then every call is a 503. Cancel it to give up."""
        self._client = await connect(self._settings, identity="autotomy-api")

    async def query(
        self, workflow_id: str, name: str, result: type[M], argument: BaseModel | None = None, *, open_only: bool = False
    ) -> M:
        """A query's answer. Raises WorkflowUnknown, and HttpError 503.

        A workflow that has ended answers too, from its history, unless `open_only`: then it counts as unknown.
        """

        async def ask(client: Client) -> M:
            answer = await client.get_workflow_handle(workflow_id).query(
                name,
                args=[] if argument is None else [argument],
                result_type=result,
                reject_condition=QueryRejectCondition.NOT_OPEN if open_only else None,
                rpc_timeout=timedelta(seconds=CALL_LIMIT_SEC),
            )
            assert isinstance(answer, result)
            return answer

        return await self._bounded(ask)

    async def update(
        self, workflow_id: str, name: str, argument: BaseModel | None, result: type[M], update_id: str | None = None
    ) -> M:
        """An update's result. Raises WorkflowUnknown, UpdateRefused, and HttpError 503."""

        async def ask(client: Client) -> M:
            arguments = [] if argument is None else [argument]
            answer = await client.get_workflow_handle(workflow_id).execute_update(
                name, args=arguments, id=update_id, result_type=result
            )
            assert isinstance(answer, result)
            return answer

        return await self._recorded("update", ask)

    async def update_with_start(self, receiver: Receiver, name: str, argument: BaseModel, result: type[M]) -> M:
        """The same, of a workflow that is started where it does not run. Raises UpdateRefused, and HttpError 503."""

        async def ask(client: Client) -> M:
            answer = await workflow_starts.update_with_start(client, self.task_queue, receiver, name, argument, result)
            assert isinstance(answer, result)
            return answer

        return await self._recorded("update", ask)

    async def signal_with_start(self, receiver: Receiver, name: str, argument: object) -> None:
        """Signals a workflow, which is started where it does not run. It is in its history when this returns."""

        async def send(client: Client) -> None:
            await workflow_starts.signal_with_start(
                client, self.task_queue, receiver, name, argument, rpc_timeout=timedelta(seconds=CALL_LIMIT_SEC)
            )

        await self._recorded("signal", send)

    async def ensure_running(self, receiver: Receiver) -> None:
        """Starts a workflow where it does not run."""

        async def begin(client: Client) -> None:
            limit = timedelta(seconds=CALL_LIMIT_SEC)
            await workflow_starts.ensure_running(client, self.task_queue, receiver, rpc_timeout=limit)

        await self._bounded(begin)

    async def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Anything else that no failpoint stands around. Raises WorkflowUnknown, and HttpError 503."""
        return await self._bounded(question)

    async def _recorded(self, effect: str, call: Callable[[Client], Awaitable[T]]) -> T:
        """A call that changes a history, with failpoints `api.<effect>.before|after` around it."""
        await failpoint(f"api.{effect}.before")
        answer = await self._bounded(call)
        await failpoint(f"api.{effect}.after")
        return answer

    async def _bounded(self, call: Callable[[Client], Awaitable[T]]) -> T:
        client = self._client
        if client is None:
            raise self._no_temporal("not connected yet")
        try:
            async with asyncio.timeout(CALL_LIMIT_SEC):
                return await _until_taken(partial(call, client))
        except WorkflowUpdateFailedError as error:
            raise _refused(error) from None
        except WorkflowQueryRejectedError:
            raise WorkflowUnknown from None
        except WorkflowQueryFailedError as error:
            raise HttpError(503, ApiReason.NO_WORKER, f"the workflow cannot answer now: {error}", headers=_RETRY_AFTER) from None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise WorkflowUnknown from None
            raise await self._why_silent(client, error.message) from None
        except (TimeoutError, RPCTimeoutOrCancelledError):  # the client makes the latter of the timeout's cancellation
            raise_if_cancelled()
            raise await self._why_silent(client, f"no answer within {CALL_LIMIT_SEC:g} s") from None

    async def _why_silent(self, client: Client, what: str) -> HttpError:
        """The 503 for a call without an answer: which of the two is missing."""
        try:
            async with asyncio.timeout(_LOOK_LIMIT_SEC):
                newest = await self._newest_poll(client)
        except (RPCError, TimeoutError):
            return self._no_temporal(what)
        if newest is None or time.time() - newest > _POLL_SEC:
            why = f"no worker polls task queue {self.task_queue!r}"
        else:
            why = f"no worker answers on task queue {self.task_queue!r} (last poll {time.time() - newest:.0f} s ago)"
        return HttpError(503, ApiReason.NO_WORKER, f"{why}: start one with `autotomy worker`", headers=_RETRY_AFTER)

    async def _newest_poll(self, client: Client) -> float | None:
        request = DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=self.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        reply = await client.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=_LOOK_LIMIT_SEC))
        return max((_polled_at(poller) for poller in reply.pollers), default=None)

    def _no_temporal(self, what: str) -> HttpError:
        message = f"no Temporal server answers at {self.address} ({what})"
        return HttpError(503, ApiReason.TEMPORAL_UNAVAILABLE, message, headers=_RETRY_AFTER)


async def _until_taken(call: Callable[[], Awaitable[T]]) -> T:
    """Again where an update met a run that was just making room for the next."""
    while True:
        try:
            return await call()
        except WorkflowUpdateFailedError as error:
            if not isinstance(error.cause, ApplicationError) or error.cause.type != UPDATE_NOT_TAKEN:
                raise
        await asyncio.sleep(_AGAIN_SEC)


def _polled_at(poller: PollerInfo) -> float:
    return poller.last_access_time.ToDatetime(tzinfo=UTC).timestamp()


def _refused(error: WorkflowUpdateFailedError) -> Exception:
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        return HttpError(503, ApiReason.NO_WORKER, f"the workflow ended meanwhile: {cause}", headers=_RETRY_AFTER)
    if cause.type == UPDATE_CUT_OFF:
        return WorkflowUnknown()
    return UpdateRefused(cause.type or ApiReason.REFUSED, cause.message)


def stamp() -> float:
    """When a request was received: epoch seconds, UTC."""
    return datetime.now(UTC).timestamp()
