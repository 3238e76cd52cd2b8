"""What a process of ours lets in: requests that are complete in time, not larger than their route needs, and readable.

| what comes | what it gets |
|---|---|
| a request head that is not complete `HEAD_SEC` after it began (or the connection did) | the connection is closed |
| a body larger than its route's limit | 413 TOO_LARGE, before more of it is read |
| a body that is not complete within `BODY_SEC` | 408 TOO_SLOW |
| a body that is no JSON (`service.json_reader`) | 400 MALFORMED_JSON |

So a handler sees only bodies that it can hold and whose text can be written down again, and who connects and says nothing
costs a connection for seconds.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.json_reader import read_json

MAX_BODY_BYTES: Final = 1024 * 1024
"""Of a request on a route that names no other limit."""

HEAD_SEC: Final = 10.0
BODY_SEC: Final = 30.0


class DoorReason(StrEnum):
    """Why a request was not let in."""

    MALFORMED_JSON = "MALFORMED_JSON"
    TOO_LARGE = "TOO_LARGE"
    TOO_SLOW = "TOO_SLOW"


Refuse = Callable[[int, str, str], Response]
"""Makes the answer of a refusal, in the envelope of its process: HTTP status, reason, message."""


class BodyDoor:
    """ASGI middleware. `limits`: bytes by the beginning of a path; the longest that fits counts."""

    def __init__(self, app: ASGIApp, *, limits: Mapping[str, int], refuse: Refuse, body_sec: float = BODY_SEC) -> None:
        self._app = app
        self._limits = sorted(limits.items(), key=lambda one: len(one[0]), reverse=True)
        self._refuse = refuse
        self._body_sec = body_sec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = next((limit for prefix, limit in self._limits if scope["path"].startswith(prefix)), MAX_BODY_BYTES)
        try:
            async with asyncio.timeout(self._body_sec):
                body = await _body(scope, receive, limit)
        except _TooLarge:
            why = f"the body is larger than {limit:,} bytes, which is the limit of {scope['path'][:200]}"
            await self._close(413, DoorReason.TOO_LARGE, why, scope, receive, send)
            return
        except TimeoutError:
            why = f"the body was not complete within {self._body_sec:g} s"
            await self._close(408, DoorReason.TOO_SLOW, why, scope, receive, send)
            return
        except _Gone:
            return
        try:
            if body:
                read_json(body)
        except ValueError as error:
            answer = self._refuse(400, DoorReason.MALFORMED_JSON, f"the body is not JSON: {error}")
            await answer(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)

    async def _close(self, status: int, reason: str, message: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The rest of the body is not waited for."""
        answer = self._refuse(status, reason, message)
        answer.headers["connection"] = "close"
        await answer(scope, receive, send)


class _TooLarge(Exception):
    """More than its route takes."""


class _Gone(Exception):
    """The client hung up before its request was complete."""


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes:
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if len(announced) > 15 or int(announced) > limit:
        raise _TooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _TooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then whatever comes after it."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


class PunctualProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 over h11, which by itself waits for the head of a request without end."""

    head_sec: float = HEAD_SEC
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_head()
        elif self._head_timer is None:
            self._wait_for_head()

    def on_response_complete(self) -> None:
        self._forget_head()  # of what was pipelined behind it a new one is heard soon enough
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_sec, self.transport.close)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
