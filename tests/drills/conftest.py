"""Little real servers for the drills' own parts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import uvicorn
from fastapi import FastAPI

Serving = Callable[[FastAPI], AbstractAsyncContextManager[str]]


async def eventually(holds: Callable[[], bool], within_sec: float = 10.0) -> None:
    """Return when it holds. Raises TimeoutError."""
    async with asyncio.timeout(within_sec):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _serving(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await asyncio.wait({task}, timeout=5)


@pytest.fixture
def serving() -> Serving:
    """`async with serving(app) as url`: the app behind a real socket."""
    return _serving
