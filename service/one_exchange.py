"""An httpx transport with a connection of its own for each request: opened, asked, read to the end, closed.

**Why not keep connections.** A server may close an idle connection in the moment of its next use. The caller then sees a
connection that broke: an engine that does not answer, which already is evidence of a death, or an apply that may have
arrived, after which nothing may be sent any more. With a new connection each failure means what it says: `ConnectError` and
`ConnectTimeout`: not a byte was sent; anything else: it may have been heard.

**Why not httpx's own transport.** It would do, with a pool that keeps nothing and some 40 lines around it; it takes 1.8
times the CPU of this one, and a round of 320 ranks takes a third longer (1.26 s instead of 1.01 of our share, measured in
turn: docs/records/0009). Here is HTTP/1.1 by h11 over asyncio streams, no proxies.

**Who uses it.** Whoever asks an engine, a NodeManager or a Coordinator at its own address: worker, API, NodeManager, DP
supervisor. What goes to the Controller is repeated until it is taken, and stays on kept connections.

The timeouts are httpx's: `connect` includes TLS, `read` is the longest silence. Answers are read whole, up to 16 MiB: what
streams without end is not whom we meant.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import h11
import httpx

_READ_BYTES: Final = 64 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_CONNECT_SHARE: Final = 0.8
_CLOSE: Final = (b"Connection", b"close")
_PORTS: Final = {"http": 80, "https": 443}


def one_exchange_client() -> httpx.AsyncClient:
    """A client over this transport; never through a proxy, which knows no Pods, and never redirected."""
    return httpx.AsyncClient(transport=OneExchangeTransport(), trust_env=False, follow_redirects=False)


def within(timeout_sec: float) -> httpx.Timeout:
    """The timeouts of a request that is bounded by `timeout_sec` as a whole: what cannot connect says so before that."""
    return httpx.Timeout(timeout_sec, connect=_CONNECT_SHARE * timeout_sec)


class OneExchangeTransport(httpx.AsyncBaseTransport):
    """Holds nothing but the TLS context, made at the first `https` URL (18 ms, 0.7 MB) and shared by all."""

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx's TransportErrors, as its own transport does."""
        body = await request.aread()
        async with self._connection(request) as (reader, writer):
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
            writer.write(_bytes_of(http, request, body))
            return await _answer(http, reader, _timeout_sec(request, "read"))

    @asynccontextmanager
    async def _connection(self, request: httpx.Request) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        url = request.url
        if url.scheme not in _PORTS:
            raise httpx.UnsupportedProtocol(f"{url}: neither http nor https")
        port = url.port or _PORTS[url.scheme]
        try:
            async with asyncio.timeout(_timeout_sec(request, "connect")):
                tls = self._tls_context() if url.scheme == "https" else None
                reader, writer = await _connected(url.raw_host.decode(), port, tls)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except (OSError, ValueError, OverflowError) as error:  # the latter two: a name or a port that cannot be one
            raise httpx.ConnectError(str(error)) from error
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        return self._tls


async def _connected(host: str, port: int, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address of `host` that takes one.

    Raises OSError: where none does, ConnectionRefusedError only if all refused.
    """
    server_name = host if tls else None
    failure: OSError | None = None
    for address in await _addresses(host, port):
        try:
            return await asyncio.open_connection(address, port, ssl=tls, server_hostname=server_name)
        except OSError as error:
            if failure is None or isinstance(failure, ConnectionRefusedError):
                failure = error
    raise failure or OSError(f"{host} has no address")


async def _addresses(host: str, port: int) -> tuple[str, ...]:
    """What to connect to, each once; a numeric address is taken as it is, without a resolver's thread."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    return (host,)


def _timeout_sec(request: httpx.Request, phase: str) -> float | None:
    seconds: float | None = request.extensions.get("timeout", {}).get(phase)
    return seconds


def _bytes_of(http: h11.Connection, request: httpx.Request, body: bytes) -> bytes:
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"connection"]
    try:
        events = (
            h11.Request(method=request.method, target=request.url.raw_path, headers=[*headers, _CLOSE]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        return b"".join(http.send(event) or b"" for event in events)
    except h11.LocalProtocolError as error:
        raise httpx.LocalProtocolError(str(error)) from error


async def _answer(http: h11.Connection, reader: asyncio.StreamReader, silence_sec: float | None) -> httpx.Response:
    head: h11.Response | None = None
    body = bytearray()
    while True:
        event = await _next_event(http, reader, silence_sec)
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_BODY_BYTES:
                raise httpx.RemoteProtocolError(f"an answer of more than {_MAX_BODY_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return httpx.Response(head.status_code, headers=list(head.headers.raw_items()), content=bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise httpx.RemoteProtocolError("the connection was closed without an answer")


async def _next_event(
    http: h11.Connection, reader: asyncio.StreamReader, silence_sec: float | None
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(silence_sec):
                http.receive_data(await reader.read(_READ_BYTES))
    except TimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except h11.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except OSError as error:
        raise httpx.ReadError(str(error)) from error
    return event
