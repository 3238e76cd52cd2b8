"""A connection of its own for each request, against servers that do what servers should not."""

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from domain.engine import Dialect, Instruction
from domain.errors import Transient
from domain.messages.controller import ReportReply
from engine.client import EngineClient, EngineCommand
from service.one_exchange import one_exchange_client
from service.peer import PeerSilent, get
from tests.listening import Answering, answering, free_port

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with one_exchange_client() as client:
        yield client


@contextlib.asynccontextmanager
async def server(answer: Answering) -> AsyncIterator[str]:
    """`answer` has the connection for itself after the request's head came in; it is closed afterwards."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await answer(reader, writer)
        writer.transport.abort()

    async with answering(serve) as url:
        yield url


def saying(*pieces: bytes) -> Answering:
    """Reads the head, writes the pieces one by one, and ends the connection in order."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()
        await reader.read()

    return answer


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """Where a process is stopped, or stuck: its kernel takes connections until the queue is full, and then is silent."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield int(full.getsockname()[1])


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        pytest.param([HEAD + b"Content-Length: 5\r\n\r\nhello"], b"hello", id="length"),
        pytest.param([HEAD + b"Content-Length: 5\r\n\r\n", b"he", b"llo"], b"hello", id="drop by drop"),
        pytest.param([HEAD + b"Content-Length: 5\r\n\r\nhello and more"], b"hello", id="more than announced"),
        pytest.param([HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"], b"hello", id="chunked"),
        pytest.param([HEAD + b"\r\n", b"hello"], b"hello", id="until the end"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 0\r\n\r\n"], b"", id="continue first"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nhello"], b"hello", id="1.0"),
        pytest.param([HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"hello")], b"hello", id="compressed"),
    ],
)
async def test_whatever_http_allows_is_read(http: httpx.AsyncClient, pieces: list[bytes], body: bytes) -> None:
    async with server(saying(*pieces)) as url:
        response = await http.get(url, timeout=5)
    assert (response.status_code, response.content) == (200, body)


@pytest.mark.parametrize(
    ("pieces", "raised"),
    [
        pytest.param([], httpx.RemoteProtocolError, id="nothing"),
        pytest.param([b"HTTP/1.1 2"], httpx.RemoteProtocolError, id="half a line"),
        pytest.param([b"SSH-2.0-OpenSSH_9.6\r\n"], httpx.RemoteProtocolError, id="another protocol"),
        pytest.param([b"\x16\x03\x01\x00\xff" * 40], httpx.RemoteProtocolError, id="bytes"),
        pytest.param([HEAD + b"X: " + b"y" * 200_000], httpx.RemoteProtocolError, id="endless head"),
        pytest.param([HEAD + b"Content-Length: 50\r\n\r\nhello"], httpx.RemoteProtocolError, id="half a body"),
        pytest.param([HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel"], httpx.RemoteProtocolError, id="half a chunk"),
        pytest.param([HEAD + b"Content-Length: -1\r\n\r\n"], httpx.RemoteProtocolError, id="impossible length"),
        pytest.param([HEAD + b"Content-Encoding: gzip\r\n\r\nplain"], httpx.DecodingError, id="not what it says"),
    ],
)
async def test_what_is_no_answer_may_have_been_heard(
    http: httpx.AsyncClient, pieces: list[bytes], raised: type[httpx.HTTPError]
) -> None:
    async with server(saying(*pieces)) as url:
        with pytest.raises(raised) as error:
            await http.post(url, content=b"x", timeout=5)
    assert not isinstance(error.value, httpx.ConnectError | httpx.ConnectTimeout)


async def test_a_reset_is_a_broken_connection(http: httpx.AsyncClient) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async with server(reset) as url:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await http.get(url, timeout=5)


async def test_silence_is_bounded_and_the_connection_ends_with_it(http: httpx.AsyncClient) -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()
        left.set()

    async with server(silent) as url:
        with pytest.raises(httpx.ReadTimeout):
            await http.get(url, timeout=httpx.Timeout(5, read=0.05))
        async with asyncio.timeout(5):
            await left.wait()


async def test_a_caller_that_gives_up_takes_the_connection_with_it(http: httpx.AsyncClient) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        left.set()

    async with server(silent) as url, asyncio.timeout(5):
        asking = asyncio.create_task(http.get(url, timeout=5))
        await asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await left.wait()


async def test_where_nobody_listens_not_a_byte_was_sent(http: httpx.AsyncClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(httpx.ConnectError) as error:
            await http.post(f"http://127.0.0.1:{taken.getsockname()[1]}/", content=b"x", timeout=5)
    assert isinstance(error.value.__cause__, ConnectionRefusedError)
    assert error.value.request.method == "POST"


@pytest.mark.parametrize(
    "where",
    ["no-such-host.invalid", "an-empty..label:1026", f"{'a' * 64}.label-too-long:1026", "127.0.0.1:99999"],
)
async def test_what_cannot_be_an_address_cannot_be_reached(http: httpx.AsyncClient, where: str) -> None:
    with pytest.raises(httpx.ConnectError):
        await http.get(f"http://{where}/", timeout=5)


def names(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """The name `coordinator.test` has these addresses."""

    async def found(_loop: object, _host: str, port: int, **_more: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", found)


async def test_a_name_of_which_each_address_refuses_is_refused(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Coordinator whose process is down does not route; one behind a broken way might."""
    port = free_port()
    names(monkeypatch, "127.0.0.1", "127.0.0.2")
    with pytest.raises(httpx.ConnectError) as error:
        await http.get(f"http://coordinator.test:{port}/", timeout=5)
    assert isinstance(error.value.__cause__, ConnectionRefusedError)
    names(monkeypatch, "127.0.0.1", "255.255.255.255", "127.0.0.2")
    with pytest.raises(httpx.ConnectError) as error:
        await http.get(f"http://coordinator.test:{port}/", timeout=5)
    assert not isinstance(error.value.__cause__, ConnectionRefusedError)


async def test_a_name_is_reached_at_the_address_that_answers(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(saying(HEAD + b"Content-Length: 5\r\n\r\nhello")) as url:
        names(monkeypatch, "127.0.0.2", "127.0.0.1")
        response = await http.get(f"http://coordinator.test:{httpx.URL(url).port}/", timeout=5)
    assert response.text == "hello"


async def test_an_answer_without_an_end_is_given_up(http: httpx.AsyncClient) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"\r\n")
        while True:
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    async with server(endless) as url:
        with pytest.raises(httpx.RemoteProtocolError, match="more than"):
            await http.get(url, timeout=30)


async def test_a_server_that_takes_no_more_connections_has_heard_nothing(http: httpx.AsyncClient) -> None:
    """Also where the request is bounded as a whole: an apply that was not sent must not count as one that may have been."""
    with full_port() as port:
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(httpx.ConnectTimeout):
            await http.get(url, timeout=0.2)
        with pytest.raises(PeerSilent) as silent:
            await get(http, url, ReportReply, 0.3)
        assert not silent.value.may_have_heard
        engine = EngineClient(0, url, http)
        engine.dialect = Dialect.V1
        with pytest.raises(Transient, match="was not sent"):
            await engine.apply(EngineCommand(instruction=Instruction.RETRY, params={}, request_id="r"), 0.3)


async def test_each_request_has_a_connection_of_its_own_and_says_so(http: httpx.AsyncClient) -> None:
    heads: list[bytes] = []
    peers: set[Any] = set()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        peers.add(writer.get_extra_info("peername"))
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        await reader.read()

    async with server(note) as url:
        for _ in range(3):
            await http.get(f"{url}/status?whole=1", headers={"Connection": "keep-alive"}, timeout=5)
    assert len(peers) == 3
    for head in heads:
        assert head.startswith(b"GET /status?whole=1 HTTP/1.1\r\n")
        assert head.lower().count(b"connection: close") == 1
        assert b"keep-alive" not in head


async def test_a_body_arrives_whole(http: httpx.AsyncClient) -> None:
    sent = b"x" * 3_000_000

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = await reader.readexactly(len(sent))
        writer.write(HEAD + b"Content-Length: 7\r\n\r\n%d" % len(got))
        await reader.read()

    async with server(count) as url:
        assert (await http.post(url, content=sent, timeout=5)).text == str(len(sent))


async def test_a_server_that_refuses_before_it_has_read_is_understood(http: httpx.AsyncClient) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read()

    async with server(refuse) as url:
        response = await http.post(url, content=b"x" * 3_000_000, timeout=5)
    assert (response.status_code, response.text) == (413, "no")


async def test_a_request_that_http_does_not_allow_is_not_sent(http: httpx.AsyncClient) -> None:
    async with server(saying(HEAD + b"\r\n")) as url:
        with pytest.raises(httpx.LocalProtocolError):
            await http.get(url, headers={"X-Words": "one\r\nX-Other: two"}, timeout=5)
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get(url.replace("http:", "ftp:"), timeout=5)


async def test_plain_where_tls_was_wanted_is_no_connection(http: httpx.AsyncClient) -> None:
    async def plain(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\n")
        await writer.drain()

    async with server(plain) as url:
        with pytest.raises(httpx.ConnectError):
            await http.get(url.replace("http:", "https:"), timeout=5)


async def test_what_is_dear_to_make_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TLS context for each of forty NodeManagers would take most of a second at the first guard after a quiet time."""
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def counted(*arguments: Any, **options: Any) -> ssl.SSLContext:
        made.append(make(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    async with one_exchange_client() as http:
        for scheme, contexts in (("http", 0), ("https", 1)):
            for host in range(2, 12):
                with contextlib.suppress(httpx.ConnectError):
                    await http.get(f"{scheme}://127.0.0.{host}:9/", timeout=5)
            assert len(made) == contexts
