"""The connection to an engine: kept, not trusted, and never used for a second try."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from coordinator.upstream import Address, NotSent, RawHeaders, Upstream, UpstreamFailed
from tests.eventually import eventually

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Server:
    """Follows one script for each connection, and counts connections and requests."""

    script: Script
    address: Address = ("", 0)
    connections: int = 0
    closed: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(reader, writer)
        finally:
            self.closed += 1
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bool:
        """Read one request without a body; False when the client has closed."""
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return True


@asynccontextmanager
async def serving(make_script: Callable[[Server], Script]) -> AsyncIterator[Server]:
    async def nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        return

    server = Server(nothing)
    server.script = make_script(server)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.address = listener.sockets[0].getsockname()
        yield server


def answering(answer: bytes, *, then_close: bool = False) -> Callable[[Server], Script]:
    def make(server: Server) -> Script:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await server.request(reader):
                writer.write(answer)
                await writer.drain()
                if then_close:
                    return

        return script

    return make


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream(connect_timeout_sec=1.0, silence_timeout_sec=2.0)
    yield made
    await made.close()


async def ask(upstream: Upstream, address: Address, headers: RawHeaders | None = None) -> tuple[int, bytes]:
    async with upstream.send(address, "GET", "/x", headers or [], b"", lambda: True) as reply:
        return reply.status, b"".join([chunk async for chunk in reply.chunks()])


async def test_a_connection_is_used_again(upstream: Upstream) -> None:
    async with serving(answering(OK)) as server:
        assert [await ask(upstream, server.address) for _ in range(5)] == [(200, b"ok")] * 5
        assert (server.connections, len(server.requests)) == (1, 5)
        await upstream.close()
        await eventually(lambda: server.closed == 1, "closed with the pool")


async def test_a_connection_that_the_engine_closed_meanwhile_is_not_used(upstream: Upstream) -> None:
    async with serving(answering(OK, then_close=True)) as server:
        for _ in range(3):
            assert await ask(upstream, server.address) == (200, b"ok")
            await eventually(lambda: server.closed == server.connections, "closed by the engine")
            await asyncio.sleep(0.01)
        assert server.connections == 3


async def test_what_an_engine_says_unasked_is_nobodys_answer(upstream: Upstream) -> None:
    def make(server: Server) -> Script:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(OK)
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            await reader.read()

        return script

    async with serving(make) as server:
        assert await ask(upstream, server.address) == (200, b"ok")
        await asyncio.sleep(0.15)
        assert await ask(upstream, server.address) == (200, b"ok")
        assert server.connections == 2


async def test_an_answer_with_something_behind_it_ends_the_connection(upstream: Upstream) -> None:
    async with serving(answering(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother")) as server:
        assert [await ask(upstream, server.address) for _ in range(2)] == [(200, b"ok")] * 2
        assert server.connections == 2


async def test_interim_answers_are_skipped(upstream: Upstream) -> None:
    async with serving(answering(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)) as server:
        assert await ask(upstream, server.address) == (200, b"ok")


async def test_a_body_that_ends_with_the_connection_is_complete(upstream: Upstream) -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", then_close=True)) as server:
        assert await ask(upstream, server.address) == (200, b"all of it")


async def test_leaving_early_closes_the_connection(upstream: Upstream) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
    async with serving(answering(head)) as server:
        async with upstream.send(server.address, "GET", "/x", [], b"", lambda: True) as reply:
            assert reply.status == 200
        await eventually(lambda: server.closed == 1, "the engine sees its client gone")


async def test_a_refused_connection_is_not_sent(upstream: Upstream) -> None:
    async with serving(answering(OK)) as server:
        address = server.address
    with pytest.raises(NotSent):
        await ask(upstream, address)


async def test_an_unwanted_request_is_not_sent_and_closes_its_connection(upstream: Upstream) -> None:
    async with serving(answering(OK)) as server:
        with pytest.raises(NotSent):
            async with upstream.send(server.address, "GET", "/x", [], b"", lambda: False):
                pass
        await eventually(lambda: server.closed == 1, "closed")
        assert server.requests == []


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"]
)
async def test_an_answer_that_is_none_is_a_failure_after_sending(upstream: Upstream, answer: bytes) -> None:
    async with serving(answering(answer, then_close=True)) as server:
        with pytest.raises(UpstreamFailed) as caught:
            await ask(upstream, server.address)
        assert not caught.value.timed_out
        assert len(server.requests) == 1


@pytest.mark.parametrize("then_close", [False, True], ids=["stays", "closes"])
async def test_an_answer_that_comes_before_the_request_was_read_counts(upstream: Upstream, then_close: bool) -> None:
    """401 or 413 to a prompt of many megabytes; the connection, half way through it, is not used again."""
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno"
    async with serving(answering(refusal, then_close=then_close)) as server:
        for _ in range(2):
            async with upstream.send(server.address, "POST", "/v1/completions", [], b"x" * 16_000_000, lambda: True) as reply:
                assert (reply.status, b"".join([chunk async for chunk in reply.chunks()])) == (413, b"no")
        assert server.connections == 2


async def test_an_idle_connection_is_closed_after_a_while(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.upstream._IDLE_SEC", 0.05)
    async with serving(answering(OK)) as server:
        await ask(upstream, server.address)
        await eventually(lambda: server.closed == 1, "closed when idle")
        assert await ask(upstream, server.address) == (200, b"ok")


async def test_headers_of_the_clients_connection_stay_there(upstream: Upstream) -> None:
    headers = [(b"host", b"coordinator"), (b"connection", b"close"), (b"te", b"trailers"), (b"x-mine", b"1")]
    async with serving(answering(OK)) as server:
        await ask(upstream, server.address, headers)
        assert server.requests[0].lower() == (
            f"get /x http/1.1\r\nhost: 127.0.0.1:{server.address[1]}\r\nx-mine: 1\r\n\r\n".encode()
        )
