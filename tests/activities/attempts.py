"""Runs activities without a server, on the clock and with the memory that a test wants."""

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio.testing import ActivityEnvironment

from activities.node_manager import NodeManagerActivities
from service.one_exchange import one_exchange_client

R = TypeVar("R")


def environment(*, attempt: int = 1, memory: BaseModel | None = None, started_at: float | None = None) -> ActivityEnvironment:
    """`started_at`: the server's time at the start of this attempt (epoch seconds; now). `memory`: of the attempt before."""
    env = ActivityEnvironment()
    env.info = dataclasses.replace(
        env.info,
        attempt=attempt,
        started_time=datetime.fromtimestamp(started_at if started_at is not None else time.time(), UTC),
        heartbeat_details=[memory.model_dump_json()] if memory is not None else [],
    )
    return env


async def run(activity: Callable[[Any], Coroutine[Any, Any, R]], call: BaseModel, **fields: Any) -> R:
    """The activity's result in a fresh attempt."""
    return await environment(**fields).run(activity, call)


@asynccontextmanager
async def node_manager_activities() -> AsyncIterator[NodeManagerActivities]:
    async with one_exchange_client() as http:
        yield NodeManagerActivities(http)


def within(seconds: float) -> float:
    """A deadline, `seconds` from now."""
    return time.time() + seconds
