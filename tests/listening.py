"""What tests put at ports of this machine: an app or bare bytes behind a real socket, and ports that nobody has."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from service.http import bind, serve_socket, url_of

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_START_OR_STOP_SEC = 10.0


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has now."""
    with bind(host, 0, listen=False) as sock:
        return int(sock.getsockname()[1])


@asynccontextmanager
async def listening(app: ASGIApp, sock: socket.socket | None = None) -> AsyncIterator[str]:
    """The app for the length of the block, at `sock` or else at a free port; its URL."""
    sock = sock or bind("127.0.0.1", 0)
    stop, ready = asyncio.Event(), asyncio.Event()
    served = asyncio.create_task(serve_socket(app, sock, stop=stop, on_ready=lambda _url: ready.set(), grace_sec=0.1))
    try:
        await asyncio.wait_for(ready.wait(), _START_OR_STOP_SEC)
        yield url_of(sock)
    finally:
        stop.set()
        await asyncio.wait_for(served, _START_OR_STOP_SEC)


@asynccontextmanager
async def answering(answer: Answering) -> AsyncIterator[str]:
    """A server without HTTP for the length of the block: `answer` has each connection for itself, and ends it. Its URL."""
    sock = bind("127.0.0.1", 0)
    server = await asyncio.start_server(answer, sock=sock)
    try:
        yield url_of(sock)
    finally:
        server.close()
        await server.wait_closed()
