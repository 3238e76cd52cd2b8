"""Starts a stack, prints its run id and supervisor, and waits to be killed; run as a process by test_stack.py."""

import asyncio
import contextlib

from lab.stack.client import Stack
from lab.stack.spec import StackSpec


async def main() -> None:
    async with Stack.running(StackSpec.shaped(2, 1)) as stack:
        print(stack.run_id, stack.record.supervisor, stack.run_dir, flush=True)
        await asyncio.sleep(600)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
