"""Waiting in tests: for a condition, with a bound and a name; never for a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE_SEC = 30.0


async def eventually(holds: Callable[[], object | Awaitable[object]], what: str = "it", within_sec: float = PATIENCE_SEC) -> None:
    """Polls a condition; fails, naming it, when it does not come true in time."""
    until = time.monotonic() + within_sec
    while time.monotonic() < until:
        found = holds()
        if await found if isinstance(found, Awaitable) else found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen within {within_sec:g} s: {what}")
