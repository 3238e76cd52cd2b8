"""One request to one engine, byte for byte, and the one distinction that matters when it fails: had anything been sent?

Only a request of which no byte left may be tried elsewhere: an engine that got it may be working on it. The moment is
known from the transport's trace, not guessed from an exception's name: the first write of the request's headers. The
same hook asks the view a last time, so a request whose endpoint was withdrawn while its connection opened is not sent.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx

RawHeaders = list[tuple[bytes, bytes]]

_FIRST_BYTE: Final = "http11.send_request_headers.started"
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date", b"server"}


class NotSent(Exception):
    """No byte of the request has left: another endpoint may be tried."""


class Withdrawn(NotSent):
    """The view dropped the endpoint while the connection was opened."""


class UpstreamFailed(Exception):
    """The engine had (a part of) the request when it failed. `timed_out`: it was silent for too long."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class UpstreamReply:
    """An engine's answer: status and headers are here, the body follows chunk by chunk, as it was sent."""

    status: int
    headers: RawHeaders
    _response: httpx.Response

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, undecoded and unbuffered. Raises UpstreamFailed when it breaks off."""
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx.TransportError as error:
            raise _failed(error) from error


class Upstream:
    """The connections to all engines: one pool, kept alive."""

    def __init__(self, connect_timeout_sec: float, silence_timeout_sec: float) -> None:
        """`connect_timeout_sec` bounds opening a connection, `silence_timeout_sec` the time between two reads."""
        self._timeouts = {
            "connect": connect_timeout_sec,
            "read": silence_timeout_sec,
            "write": silence_timeout_sec,
            "pool": connect_timeout_sec,
        }
        # Idle connections are dropped before the engines drop them (uvicorn: 5 s); otherwise a request now and then
        # would be written into a connection that is just being closed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=512, keepalive_expiry=2.0)
        self._transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)

    async def close(self) -> None:
        await self._transport.aclose()

    @asynccontextmanager
    async def send(
        self, method: str, url: str, headers: RawHeaders, body: bytes, still_wanted: Callable[[], bool]
    ) -> AsyncIterator[UpstreamReply]:
        """Send the request; the reply's body can be read inside the block, leaving it early cuts the connection.

        `headers` are the client's; what belongs to its connection alone is not passed on. `still_wanted` is asked just
        before the first byte leaves. Raises NotSent (Withdrawn) or UpstreamFailed.
        """
        sent = False

        async def trace(event: str, _info: object) -> None:
            nonlocal sent
            if event == _FIRST_BYTE:
                if not still_wanted():
                    raise Withdrawn
                sent = True

        request = httpx.Request(
            method,
            url,
            headers=_without(headers, _NOT_FORWARDED),
            content=body,
            extensions={"timeout": self._timeouts, "trace": trace},
        )
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            if sent:
                raise _failed(error) from error
            raise NotSent(_text(error)) from error
        try:
            yield UpstreamReply(response.status_code, _without(response.headers.raw, _NOT_RETURNED), response)
        finally:
            await response.aclose()


def _without(headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]) -> RawHeaders:
    return [(name, value) for name, value in ((n.lower(), v) for n, v in headers) if name not in names]


def _failed(error: httpx.TransportError) -> UpstreamFailed:
    return UpstreamFailed(_text(error), timed_out=isinstance(error, httpx.TimeoutException))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
