"""A Pod whose NodeManager cannot carry out a stop: it takes the request and never answers.

The real NodeManager is killed and kept away, and this listens at its address meanwhile, on a real socket: what a Pod is
like whose NodeManager hangs. A stop is held open until whoever asked gives up; everything else is answered with 503. So
it knows what no NodeManager could tell afterwards: how often it was asked, and how long somebody was ready to wait.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

from lab.drills.outcome import StopAsked
from lab.drills.record.observer import NotSeen
from lab.drills.script.scene import Scene

STOP_PATH: Final = "/node-manager/stop"
_HEAD_LIMIT_SEC: Final = 5.0
_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HangingPod:
    """The requests to stop that came, in their order; `serving` is the HTTP side."""

    def __init__(self) -> None:
        self.stops: list[StopAsked] = []
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self, url: str) -> AsyncIterator[None]:
        """Listen at the address in `url` while the context lasts. Raises OSError where somebody else still does."""
        where = urlsplit(url)
        server = await asyncio.start_server(self._serve, where.hostname, where.port)
        try:
            yield
        finally:
            server.close()
            for connection in list(self._connections):
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            async with asyncio.timeout(_HEAD_LIMIT_SEC):
                head = await reader.readuntil(b"\r\n\r\n")
            if head.split(b" ", 2)[:2] == [b"POST", STOP_PATH.encode()]:
                await self._hang(reader)
            else:
                writer.write(_UNAVAILABLE)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # whoever it was has gone, or speaks no HTTP
        finally:
            self._connections.discard(connection)
            writer.close()

    async def _hang(self, reader: asyncio.StreamReader) -> None:
        number, at = len(self.stops), time.monotonic()
        self.stops.append(StopAsked(at=at))
        with contextlib.suppress(ConnectionError):
            while await reader.read(1024):  # the body, and then the end of the asker's patience
                pass
        self.stops[number] = StopAsked(at=at, given_up_at=time.monotonic())


@contextlib.asynccontextmanager
async def hanging_pod(scene: Scene, manager: str) -> AsyncIterator[HangingPod]:
    """While the context lasts something hangs in the place of this NodeManager; afterwards the real one comes back."""
    url = next(place.url for place in scene.stack.addresses.node_managers if place.name == manager)
    pod = HangingPod()
    async with scene.process_away(manager):
        async with pod.serving(url):
            yield pod
        scene.stops_asked[manager] = tuple(pod.stops)


async def until_asked(scene: Scene, pod: HangingPod, within_sec: float) -> None:
    """Somebody wants the Pod stopped and waits for the answer. Raises NotSeen."""
    await scene.until("the Pod is asked to stop", lambda: bool(pod.stops), within_sec)
    if pod.stops[0].given_up_at is not None:
        raise NotSeen("whoever asked the Pod to stop hung up before anything else was done")


async def until_given_up(scene: Scene, pod: HangingPod, within_sec: float) -> None:
    """Nobody waits for an answer any more. Raises NotSeen."""
    await scene.until(
        "whoever asked the Pod to stop gives up", lambda: all(stop.given_up_at is not None for stop in pod.stops), within_sec
    )
