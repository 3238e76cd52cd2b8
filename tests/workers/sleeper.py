"""A workflow that waits, acts and takes updates, and its worker: `python -m tests.workers.sleeper ADDRESS TASK_QUEUE`."""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from service.leave import leave
from service.stop import stop_event
from service.temporal import connect
from tests.leaving_worker import LeavingWorker
from workers.workflow_runner import workflow_runner

SLEEP_SEC = 2.0


@activity.defn
async def act(now: float) -> None:
    """Nothing but an event in the history: when the workflow believed to be."""


@workflow.defn
class Sleeper:
    """Sleeps, then has an activity; counts updates all the while."""

    def __init__(self) -> None:
        self._count = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(SLEEP_SEC)
        await workflow.execute_activity(act, workflow.time(), start_to_close_timeout=timedelta(seconds=60))
        await workflow.wait_condition(lambda: self._count < 0)

    @workflow.update
    def count(self) -> int:
        self._count += 1
        return self._count

    @workflow.query
    def counted(self) -> int:
        return self._count


def sleeper_worker(client: Client, task_queue: str) -> Worker:
    return LeavingWorker(
        client,
        task_queue=task_queue,
        workflows=[Sleeper],
        activities=[act],
        workflow_runner=workflow_runner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )


async def main(address: str, task_queue: str) -> None:
    stop = stop_event()
    client = await connect({"target_host": address, "namespace": "default"})
    async with sleeper_worker(client, task_queue):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    leave(0)
