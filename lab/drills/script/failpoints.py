"""The driver's side of failpoints: it hears when a process has arrived at a named place, and decides when that goes on.

A process with an armed failpoint (`service.failpoints`) connects to this Unix socket, says where it is, and waits for
`go`. From `hold` on, the first hit of a name is held until `release`; every earlier one (the same place is passed while
the installation starts) and every later one (the restarted process comes by again) goes on at once, until the next `hold`.
When the driver closes, everybody is released.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from pydantic import ValidationError

from domain.errors import Transient
from domain.model import Tolerant
from service.failpoints import socket_path

_RELEASE: Final = b"go\n"


class FailpointNotHit(Transient):
    """No process came to the named place in time."""

    default_reason = "FAILPOINT_NOT_HIT"


class Hit(Tolerant):
    """A process stands at a failpoint."""

    name: str
    pid: int
    process: str = ""


class FailpointDriver:
    """A Unix-socket server, as an async context manager. `hits` are all hits with their `time.monotonic()`.

    Its socket is an abstract one: a run directory may be deeper than the path of a socket may be long.
    """

    def __init__(self) -> None:
        self.socket = f"@autotomy-failpoints-{secrets.token_hex(8)}"
        self.hits: list[tuple[float, Hit]] = []
        self._wanted: set[str] = set()
        self._held: dict[str, Hit] = {}
        self._arrived: dict[str, asyncio.Event] = {}
        self._released: dict[str, asyncio.Event] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, path=socket_path(self.socket))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for event in self._released.values():
            event.set()
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._server.wait_closed()

    def armed(self, *names: str) -> Mapping[str, str]:
        """Failpoint → socket, as `StackSpec.failpoints` takes it."""
        return dict.fromkeys(names, self.socket)

    def hold(self, name: str) -> None:
        """From now on the first to come to `name` is held there; again after a release: the next one."""
        self._wanted.add(name)
        for events in (self._arrived, self._released):
            events.pop(name, None)
        self._held.pop(name, None)

    async def wait_for(self, name: str, within_sec: float) -> Hit:
        """The process that stands at `name`; it stays there until `release`. Raises FailpointNotHit."""
        try:
            async with asyncio.timeout(within_sec):
                await self._event(self._arrived, name).wait()
        except TimeoutError:
            came = ", ".join(sorted({hit.name for _, hit in self.hits})) or "none"
            raise FailpointNotHit(f"nobody came to failpoint {name} within {within_sec:g} s (came to: {came})") from None
        return self._held[name]

    def release(self, name: str) -> None:
        """Let whoever stands at `name`, or comes there later, go on."""
        self._event(self._released, name).set()

    def last_hit(self, name: str) -> Hit:
        """Who came to `name` last, held or not. Raises FailpointNotHit."""
        for _, hit in reversed(self.hits):
            if hit.name == name:
                return hit
        raise FailpointNotHit(f"nobody has come to failpoint {name}")

    def first_hit_after(self, name: str, at: float) -> float | None:
        """When somebody first came to `name` after this `time.monotonic()`; None where nobody has."""
        return next((when for when, hit in self.hits if hit.name == name and when > at), None)

    def _event(self, events: dict[str, asyncio.Event], name: str) -> asyncio.Event:
        return events.setdefault(name, asyncio.Event())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            hit = await _read_hit(reader)
            if hit is not None:
                await self._hold(hit, reader)
            writer.write(_RELEASE)
            await writer.drain()
        writer.close()

    async def _hold(self, hit: Hit, reader: asyncio.StreamReader) -> None:
        """Until released, or until the process itself is gone (its socket closes when it is killed)."""
        self.hits.append((time.monotonic(), hit))
        if hit.name not in self._wanted or hit.name in self._held:
            return
        self._held[hit.name] = hit
        self._event(self._arrived, hit.name).set()
        released = asyncio.ensure_future(self._event(self._released, hit.name).wait())
        gone = asyncio.ensure_future(reader.read())
        await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (released, gone):
            waiting.cancel()


async def _read_hit(reader: asyncio.StreamReader) -> Hit | None:
    line = await reader.readline()
    try:
        return Hit.model_validate(json.loads(line))
    except (ValueError, ValidationError):
        return None
