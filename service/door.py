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
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.json_reader import read_json

MAX_BODY_BYTES: Final = 1024 * 1024
"""Of a request on a route that names no other limit."""

HEAD_SEC: Final = 10.0
BODY_SEC: Final = 30.0

_LONGEST_LENGTH: Final = 15
"""Digits of a Content-Length that can be anybody's."""


class DoorReason(StrEnum):
    """Why a request was not let in."""

    MALFORMED_JSON = "MALFORMED_JSON"
    TOO_LARGE = "TOO_LARGE"
    TOO_SLOW = "TOO_SLOW"


class NotLetIn(HTTPException):
    """A request that does not pass the door; raised where its handler asks for the body."""

    def __init__(self, status: int, reason: DoorReason, message: str) -> None:
        rest_is_not_read = {"connection": "close"} if status != 400 else None
        super().__init__(status, message, headers=rest_is_not_read)
        self.reason = reason


class BodyDoor:
    """ASGI middleware. `limits`: bytes by the beginning of a path; the longest that fits counts.

    It stands where the body is asked for: an unknown route is a 404 and a switched-off one too, whatever they are sent.
    """

    def __init__(self, app: ASGIApp, *, limits: Mapping[str, int], body_sec: float = BODY_SEC) -> None:
        self._app = app
        self._limits = sorted(limits.items(), key=lambda one: len(one[0]), reverse=True)
        self._body_sec = body_sec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = False

        async def checked() -> Message:
            nonlocal asked
            if asked:
                return await receive()
            asked = True
            return await self._whole(scope, receive)

        await self._app(scope, checked, send)

    async def _whole(self, scope: Scope, receive: Receive) -> Message:
        """The body as one message, or that the client has hung up. Raises `NotLetIn`."""
        limit = next((limit for prefix, limit in self._limits if scope["path"].startswith(prefix)), MAX_BODY_BYTES)
        try:
            async with asyncio.timeout(self._body_sec):
                message = await _read(scope, receive, limit)
        except TimeoutError:
            raise NotLetIn(408, DoorReason.TOO_SLOW, f"the body was not complete within {self._body_sec:g} s") from None
        try:
            if message.get("body"):
                read_json(message["body"])
        except ValueError as error:
            raise NotLetIn(400, DoorReason.MALFORMED_JSON, f"the body is not JSON: {error}") from None
        return message


async def _read(scope: Scope, receive: Receive, limit: int) -> Message:
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    body = bytearray()
    too_large = len(announced) > _LONGEST_LENGTH or int(announced) > limit
    while not too_large:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message
        body += message.get("body", b"")
        too_large = len(body) > limit
        if not too_large and not message.get("more_body", False):
            return {"type": "http.request", "body": bytes(body), "more_body": False}
    raise NotLetIn(413, DoorReason.TOO_LARGE, f"the body is larger than {limit:,} bytes, the limit of {scope['path'][:200]}")


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
