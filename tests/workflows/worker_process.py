"""A worker in a process of its own, to be killed: `python -m tests.workflows.worker_process ADDRESS TASK_QUEUE`."""

import asyncio
import sys

from service.leave import leave
from service.logging import configure_logging
from service.one_exchange import one_exchange_client
from service.stop import stop_event
from service.temporal import connect, ensure_search_attributes
from tests.workflows.strategy_world import strategy_worker


async def main(address: str, task_queue: str) -> None:
    stop = stop_event()
    client = await connect({"target_host": address, "namespace": "default"})
    async with (
        one_exchange_client() as http,
        strategy_worker(client, http, task_queue, await ensure_search_attributes(client)),
    ):
        await stop.wait()


if __name__ == "__main__":
    configure_logging("test-worker")
    asyncio.run(main(*sys.argv[1:]))
    leave(0)
