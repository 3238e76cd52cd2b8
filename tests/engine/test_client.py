"""One engine's HTTP API: dialects, what counts as nonsense, and what is known of an apply that went wrong."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from domain.engine import Dialect, Instruction
from domain.errors import OutcomeUnknown, ProtocolError, Transient
from engine.client import EngineClient, EngineCommand, FtApiAbsent
from service.one_exchange import one_exchange_client
from tests.engine.fake_engine import FakeEngine, serving
from tests.listening import answering

COMMAND = EngineCommand(Instruction.SCALE_DOWN, {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_store_port": 2}, "r-1")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with one_exchange_client() as client:
        yield client


@contextlib.asynccontextmanager
async def listener_that_hangs_up_after(received: int) -> AsyncIterator[str]:
    """A server that reads up to `received` bytes, then closes the connection without an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if received:
            await reader.read(received)
        writer.close()

    async with answering(serve) as url:
        yield url


def nobody_there() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("dialect", [Dialect.V1, Dialect.LEGACY])
async def test_the_dialect_is_found_by_asking_and_remembered(http: httpx.AsyncClient, dialect: Dialect) -> None:
    async with serving(FakeEngine(rank=3, dialect=dialect.value)) as fake:
        client = EngineClient(3, fake.url, http)
        entry = await client.status(5)
        assert (entry.id, entry.status, client.dialect) == (3, "healthy", dialect)
        fake.status_code = 404
        with pytest.raises(ProtocolError, match="HTTP 404"):
            await client.status(5)
        assert client.dialect is dialect


async def test_404_in_both_dialects_means_no_ft_api_and_is_asked_once(http: httpx.AsyncClient) -> None:
    async with serving(FakeEngine(dialect="off")) as fake:
        client = EngineClient(0, fake.url, http)
        with pytest.raises(FtApiAbsent):
            await client.status(5)
    with pytest.raises(FtApiAbsent):  # the server is gone: nobody asked it
        await client.status(5)


@pytest.mark.parametrize(
    ("code", "body", "why"),
    [
        (500, None, "HTTP 500"),
        (401, None, "api_key"),
        (200, "{not json", "not JSON"),
        (200, {"schema_version": 1, "engines": []}, "answered for ranks"),
        (200, {"schema_version": 1, "engines": [{"id": 1, "status": "healthy"}]}, "answered for ranks"),
        (200, {"schema_version": 1, "engines": [{"id": 0, "status": "dead"}, {"id": 0, "status": "dead"}]}, "ranks"),
        (200, {"schema_version": 1, "engines": [{"status": "dead"}]}, "cannot be read"),
        (200, {"schema_version": 1, "engines": [{"id": True, "status": "dead"}]}, "cannot be read"),
        (200, {"schema_version": 2, "engines": [{"id": 0, "status": "dead"}]}, "schema 2"),
    ],
)
async def test_nonsense_is_a_protocol_error_and_names_the_engine(
    http: httpx.AsyncClient, code: int, body: object, why: str
) -> None:
    async with serving(FakeEngine(status_code=code, status_body=body)) as fake:
        with pytest.raises(ProtocolError, match=f"engine 0.*{why}"):
            await EngineClient(0, fake.url, http).status(5)


async def test_silence_is_transient_refused_slow_or_cut_off(http: httpx.AsyncClient) -> None:
    with pytest.raises(Transient, match="engine 0"):
        await EngineClient(0, nobody_there(), http).status(5)
    async with listener_that_hangs_up_after(0) as url:
        with pytest.raises(Transient):
            await EngineClient(0, url, http).status(5)
    async with serving(FakeEngine(status_delay_sec=5)) as fake:
        with pytest.raises(Transient):
            await EngineClient(0, fake.url, http).status(0.05)


async def test_api_key_is_sent(http: httpx.AsyncClient) -> None:
    async with serving(FakeEngine(api_key="secret")) as fake:
        assert (await EngineClient(0, fake.url, http, api_key="secret").status(5)).status == "healthy"


async def test_apply_sends_the_engines_form_and_only_202_is_accepted(http: httpx.AsyncClient) -> None:
    async with serving(FakeEngine()) as fake:
        client = EngineClient(0, fake.url, http)
        assert (await client.apply(COMMAND, 5)).accepted
        assert fake.applies == [{"instruction": "scale_down", "params": dict(COMMAND.params), "request_id": "r-1"}]
        for code in (200, 400, 409, 500):
            fake.apply_code = code
            answer = await client.apply(COMMAND, 5)
            assert (answer.accepted, answer.http, answer.message) == (False, code, "no")


async def test_apply_to_nobody_was_certainly_not_delivered(http: httpx.AsyncClient) -> None:
    client = EngineClient(0, nobody_there(), http)
    client.dialect = Dialect.V1
    with pytest.raises(Transient, match="not sent"):
        await client.apply(COMMAND, 5)


async def test_apply_whose_answer_is_lost_is_unknown(http: httpx.AsyncClient) -> None:
    async with listener_that_hangs_up_after(65536) as url:
        client = EngineClient(0, url, http)
        client.dialect = Dialect.V1
        with pytest.raises(OutcomeUnknown):
            await client.apply(COMMAND, 5)
    async with serving(FakeEngine(apply_delay_sec=5)) as fake:
        client = EngineClient(0, fake.url, http)
        await client.status(5)
        with pytest.raises(OutcomeUnknown):
            await client.apply(COMMAND, 0.1)
        assert len(fake.applies) == 1


@pytest.mark.parametrize(("reason", "ok"), [("length", True), ("stop", True), ("abort", False)])
async def test_a_completion_proves_service_unless_it_was_aborted(http: httpx.AsyncClient, reason: str, ok: bool) -> None:
    async with serving(FakeEngine(finish_reason=reason)) as fake:
        done = await EngineClient(0, fake.url, http).complete_one_token(5)
        assert (done.ok, done.http, done.finish_reason) == (ok, 200, reason)


async def test_a_completion_of_nobody_fails_with_words(http: httpx.AsyncClient) -> None:
    done = await EngineClient(0, nobody_there(), http).complete_one_token(5)
    assert not done.ok
    assert done.http is None
    assert "does not answer" in (done.detail or "")


async def test_health_is_200_and_nothing_else(http: httpx.AsyncClient) -> None:
    async with serving(FakeEngine()) as fake:
        client = EngineClient(0, fake.url, http)
        assert await client.healthy(5)
        fake.health_code = 503
        assert not await client.healthy(5)
    assert not await client.healthy(5)
