"""One request to one engine, byte for byte, and the one distinction that matters when it fails: had anything been sent?

Only a request of which no byte left may be tried elsewhere: an engine that got it may be working on it. Here that moment
is one line of code. First a connection (kept alive or new); then, without an await between, the view is asked a last time
whether the endpoint is still routed, and the request is written. So a request is never sent to an endpoint whose removal
was acknowledged before, even if the removal came while the connection was being opened.

HTTP/1.1 by h11 over asyncio streams. The pool is a stack of idle connections per address: what general clients do beyond
that (they look at every connection for every request) cost more than all the rest of the way through this process.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, SupportsIndex

import h11

from domain.address import host_port

RawHeaders = list[tuple[bytes, bytes]]
Address = tuple[str, int]

_READ_BYTES: Final = 64 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
_IDLE_SEC: Final = 2.0
"""Idle connections are closed before the engines close them (uvicorn: 5 s); otherwise a request now and then would be
written into a connection that is just going away."""

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
    _connection: "_Connection"

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body, undecoded and unbuffered. Raises UpstreamFailed when it breaks off."""
        while isinstance(event := await self._connection.next_event(), h11.Data):
            yield bytes(event.data)


class Upstream:
    """The connections to all engines, kept alive between requests."""

    def __init__(self, connect_timeout_sec: float, silence_timeout_sec: float) -> None:
        """`connect_timeout_sec` bounds opening a connection, `silence_timeout_sec` each wait for the engine."""
        self._connect_timeout_sec = connect_timeout_sec
        self._silence_timeout_sec = silence_timeout_sec
        self._idle: defaultdict[Address, list[_Connection]] = defaultdict(list)

    async def close(self) -> None:
        """Close the idle connections."""
        idle = [connection for connections in self._idle.values() for connection in connections]
        self._idle.clear()
        for connection in idle:
            connection.abort()
        await asyncio.sleep(0)

    @asynccontextmanager
    async def send(
        self,
        address: Address,
        method: str,
        path: str,
        headers: RawHeaders,
        body: bytes,
        still_wanted: Callable[[], bool],
    ) -> AsyncIterator[UpstreamReply]:
        """Send the request; the reply's body can be read inside the block, leaving it early cuts the connection.

        `headers` are the client's; what belongs to its connection alone is not passed on. `still_wanted` is asked just
        before the first byte leaves: False, and nothing is sent. Raises NotSent or UpstreamFailed.
        """
        request = _request(address, method, path, headers, body)
        connection = self._reused(address) or await self._opened(address)
        try:
            if not still_wanted():
                raise NotSent("the view has dropped the endpoint")
            connection.write(request, body)
            response = await connection.head()
            yield UpstreamReply(response.status_code, _without(response.headers, _NOT_RETURNED), connection)
        finally:
            if connection.is_clean():
                self._keep(address, connection)
            else:
                connection.abort()

    async def _opened(self, address: Address) -> "_Connection":
        try:
            async with asyncio.timeout(self._connect_timeout_sec):
                return await _Connection.open(address, self._silence_timeout_sec)
        except TimeoutError:
            raise NotSent(f"no connection within {self._connect_timeout_sec:g} s") from None
        except OSError as error:
            raise NotSent(str(error)) from error

    def _reused(self, address: Address) -> "_Connection | None":
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            connection.begin()
            if connection.is_alive():
                return connection
            connection.abort()
        return None

    def _keep(self, address: Address, connection: "_Connection") -> None:
        idle = self._idle[address]
        connection.next_cycle()

        def expired() -> None:
            idle.remove(connection)
            connection.abort()
            if not idle:
                self._idle.pop(address, None)

        connection.expire(asyncio.get_running_loop().call_later(_IDLE_SEC, expired))
        idle.append(connection)


class _Reader(asyncio.StreamReader):
    """Notices what arrives while nothing was asked: an answer to nobody must not become the next request's."""

    idle = False
    disturbed = False

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.disturbed |= self.idle
        super().feed_data(data)

    def feed_eof(self) -> None:
        self.disturbed |= self.idle
        super().feed_eof()


class _Connection:
    """One connection to an engine; one request at a time."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter, silence_timeout_sec: float) -> None:
        self._reader = reader
        self._writer = writer
        self._silence_timeout_sec = silence_timeout_sec
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._expiry: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, address: Address, silence_timeout_sec: float) -> "_Connection":
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, *address)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), silence_timeout_sec)

    def write(self, request: h11.Request, body: bytes) -> None:
        """Hand the whole request to the transport, at once. It is not waited for: an engine may answer before it has read all."""
        parts = (self._http.send(event) for event in (request, h11.Data(data=body), h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in parts if part))

    async def head(self) -> h11.Response:
        """Status and headers; interim answers (100 Continue) are skipped."""
        while True:
            event = await self.next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise UpstreamFailed("the engine closed the connection without an answer")

    async def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What the engine says next."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._silence_timeout_sec):
                    self._http.receive_data(await self._reader.read(_READ_BYTES))
        except TimeoutError:
            raise UpstreamFailed(f"silent for {self._silence_timeout_sec:g} s", timed_out=True) from None
        except h11.RemoteProtocolError as error:
            raise UpstreamFailed(f"the answer broke off: {error}") from error
        except OSError as error:
            raise UpstreamFailed(f"the answer broke off: {error or type(error).__name__}") from error
        return event

    def is_clean(self) -> bool:
        """Whether request and answer are complete, nothing came after them, and it may carry another request."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        sent = self._writer.transport.get_write_buffer_size() == 0
        return done and sent and not self._http.trailing_data[0] and self.is_alive()

    def is_alive(self) -> bool:
        """False once the engine has closed it or spoken unasked; known from the event loop, not by asking the kernel."""
        return not (self._reader.disturbed or self._reader.at_eof() or self._writer.is_closing())

    def next_cycle(self) -> None:
        """Between two requests: whatever arrives now ends its use."""
        self._http.start_next_cycle()
        self._reader.idle = True

    def begin(self) -> None:
        """It carries a request from now on."""
        self.expire(None)
        self._reader.idle = False

    def expire(self, timer: asyncio.TimerHandle | None) -> None:
        """Set the timer that closes it while it is idle; None: it is in use."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = timer

    def abort(self) -> None:
        """Close it now; an engine that still works on a request sees its client gone."""
        self.expire(None)
        self._writer.transport.abort()


def _request(address: Address, method: str, path: str, headers: RawHeaders, body: bytes) -> h11.Request:
    ip, port = address
    own = [(b"host", host_port(ip, port).encode())]
    if body or method == "POST":
        own.append((b"content-length", str(len(body)).encode()))
    return h11.Request(method=method, target=path, headers=own + _without(headers, _NOT_FORWARDED))


def _without(headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]) -> RawHeaders:
    """h11 and uvicorn give header names in lower case."""
    return [(bytes(name), bytes(value)) for name, value in headers if name not in names]
