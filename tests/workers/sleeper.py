"""A workflow that waits, acts and takes updates, and its worker: `python -m tests.workers.sleeper ADDRESS TASK_QUEUE [stock]`.

`stock`: in the SDK's own sandbox, and not in ours.
"""

import asyncio
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from service.leave import leave
from service.stop import stop_event
from service.temporal import connect
from tests.leaving_worker import LeavingWorker
from workers.workflow_runner import PASSED_THROUGH, workflow_runner

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


def stock_runner() -> SandboxedWorkflowRunner:
    """The SDK's, with what this module imports passed through, and nothing else of ours."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


def sleeper_worker(client: Client, task_queue: str, *, stock: bool = False) -> Worker:
    return LeavingWorker(
        client,
        task_queue=task_queue,
        workflows=[Sleeper],
        activities=[act],
        workflow_runner=stock_runner() if stock else workflow_runner(),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
    )


async def main(address: str, task_queue: str, runner: str = "") -> None:
    stop = stop_event()
    client = await connect({"target_host": address, "namespace": "default"})
    async with sleeper_worker(client, task_queue, stock=runner == "stock"):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    leave(0)
