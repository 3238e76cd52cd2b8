"""What Kubernetes asks of a worker: does it live, and does it poll.

A worker that is up but does not poll looks fine from outside and does nothing. So readiness asks the server whether this
worker's identity is among the task queue's pollers.
"""

import asyncio
import logging
import time
from typing import Final

from fastapi import FastAPI
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from service.http import HttpError, create_app, success

log = logging.getLogger(__name__)

_POLL_SEEN_SEC: Final = 90.0
"""A long poll lasts a minute; one that was not renewed after this is none."""

_TIMEOUT_SEC: Final = 1.5


def health_app(client: Client, worker: Worker, task_queue: str, identity: str) -> FastAPI:
    """`/liveness`, `/readiness`."""
    app = create_app("Autotomy worker")

    @app.get("/liveness")
    async def liveness() -> object:
        return success({"identity": identity})

    @app.get("/readiness")
    async def readiness() -> object:
        if not worker.is_running:
            raise HttpError(503, "NOT_RUNNING", "the worker has not started, or shuts down")
        try:
            async with asyncio.timeout(_TIMEOUT_SEC):
                polls = await _polls(client, task_queue, identity)
        except (TimeoutError, RPCError) as error:
            raise HttpError(503, "TEMPORAL_UNAVAILABLE", f"the Temporal server does not answer: {error}") from None
        if not polls:
            raise HttpError(503, "NOT_POLLING", f"{identity} is not among the pollers of task queue {task_queue}")
        return success({"identity": identity, "task_queue": task_queue})

    return app


async def _polls(client: Client, task_queue: str, identity: str) -> bool:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    reply = await client.workflow_service.describe_task_queue(request)
    return any(
        poller.identity == identity and time.time() - poller.last_access_time.ToSeconds() < _POLL_SEEN_SEC
        for poller in reply.pollers
    )
