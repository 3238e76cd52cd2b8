"""The one way in which the loops here wait: for an event, but not for ever."""

import asyncio


async def set_within(event: asyncio.Event, timeout_sec: float) -> bool:
    """True as soon as `event` is set, False after `timeout_sec` seconds."""
    try:
        async with asyncio.timeout(timeout_sec):  # wait_for would swallow a cancel that meets the event
            await event.wait()
    except TimeoutError:
        return False
    return True
