"""Waiting for a process's end in an event loop, told by the kernel."""

import asyncio

from service.process_identity import ProcessIdentity, pidfd_of


async def until_readable(pidfd: int) -> None:
    """Return when the process behind `pidfd` has exited."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(pidfd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(pidfd)


async def until_gone(identity: ProcessIdentity) -> None:
    """Return when exactly that process has exited, at once if it has already."""
    with pidfd_of(identity) as pidfd:
        if pidfd is not None:
            await until_readable(pidfd)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, whatever that is."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at, so that nobody complains that it was not
