"""The sixteen clients: each sends a request, waits for its answer, and keeps to its share of the pace."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import httpx

from lab.drills.record.traffic import RequestRecord, TrafficClient
from lab.drills.supervisor_table.experiment import CLIENTS, REQUESTS_PER_SEC
from lab.drills.supervisor_table.site import MODEL

_TOKENS = 10


@contextlib.asynccontextmanager
async def sixteen_clients(url: str) -> AsyncIterator[list[RequestRecord]]:
    """Traffic while the block runs; the list holds every request that has ended, also those that end after the block."""
    traffic = TrafficClient(url, MODEL, max_tokens=_TOKENS)
    stop = asyncio.Event()
    limits = httpx.Limits(max_connections=4 * CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(timeout=30.0, limits=limits, trust_env=False) as http:
        running = [asyncio.create_task(_one(traffic, http, number, stop)) for number in range(CLIENTS)]
        try:
            yield traffic.records
        finally:
            stop.set()
            await asyncio.gather(*running)


async def _one(traffic: TrafficClient, http: httpx.AsyncClient, number: int, stop: asyncio.Event) -> None:
    period_sec = CLIENTS / REQUESTS_PER_SEC
    due_at = time.monotonic() + number / REQUESTS_PER_SEC
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, due_at - time.monotonic())):
                await stop.wait()
            return
        await traffic.send(http)
        due_at = max(due_at + period_sec, time.monotonic())
