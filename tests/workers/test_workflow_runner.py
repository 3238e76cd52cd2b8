"""A query that meets events before their workflow task leaves a history that replays (workers/workflow_runner.py)."""

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Replayer

from tests.eventually import eventually
from tests.workers.sleeper import SLEEP_SEC, Sleeper
from workers.workflow_runner import workflow_runner

ROOT = Path(__file__).parents[2]

Handle = WorkflowHandle[Sleeper, None]


@contextlib.asynccontextmanager
async def worker_process(address: str, task_queue: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.workers.sleeper", address, task_queue, cwd=ROOT)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def kinds(handle: Handle) -> list[str]:
    events = (await handle.fetch_history()).events
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events]


async def test_a_query_between_two_workers_leaves_a_history_that_replays(temporal_client: Client, temporal_server: str) -> None:
    """The first worker is killed; a query looks for it, and while it does a timer fires; then comes an update.

    Without the guard the activity's command stood before the update's acceptance in the history, and after it in replay.
    """
    queue = f"sleeper-{uuid.uuid4().hex}"
    async with worker_process(temporal_server, queue) as first:
        handle: Handle = await temporal_client.start_workflow(Sleeper.run, id=queue, task_queue=queue)

        async def sleeps() -> bool:
            return "TIMER_STARTED" in await kinds(handle)

        await eventually(sleeps, "the workflow sleeps", within_sec=20)
        first.kill()
        await first.wait()
        async with worker_process(temporal_server, queue):
            await asyncio.sleep(SLEEP_SEC - 0.2)
            query = asyncio.create_task(handle.query(Sleeper.counted))

            async def woken() -> bool:
                return "TIMER_FIRED" in await kinds(handle)

            await eventually(woken, "the timer fires", within_sec=20)
            counted = await handle.execute_update(Sleeper.count)
            assert (await query, counted) in {(0, 1), (1, 1)}

            async def acted() -> bool:
                return "ACTIVITY_TASK_COMPLETED" in await kinds(handle)

            await eventually(acted, "the activity is done", within_sec=20)
    history = await handle.fetch_history()
    await Replayer(workflows=[Sleeper], workflow_runner=workflow_runner()).replay_workflow(history)
    await handle.terminate()
