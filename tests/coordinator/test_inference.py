"""OpenAI requests through a real Coordinator to real engines' sockets."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest

from coordinator.upstream import Address, RawHeaders, UpstreamReply
from tests.coordinator.factories import MODEL, entry, refresh_request
from tests.coordinator.harness import LIFE, Engine, RunningCoordinator, coordinator, engines, served
from tests.eventually import eventually
from tests.listening import free_port


@pytest.fixture
async def four() -> AsyncIterator[list[Engine]]:
    async with engines(4) as made:
        yield made


@pytest.fixture
async def running(four: list[Engine]) -> AsyncIterator[RunningCoordinator]:
    async with coordinator() as running:
        await running.push("set", served(four, 1, 0, 1, 2, 3))
        yield running


def rank_of(reply: httpx.Response) -> int:
    return int(reply.headers["x-autotomy-rank"])


@asynccontextmanager
async def raw_engine(answer: bytes | None) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Takes one request, says `answer` (None: nothing) and hangs up; its port, and an event when it got something."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


async def test_requests_are_spread_over_the_view_and_say_who_answered(running: RunningCoordinator) -> None:
    replies = [await running.complete() for _ in range(8)]
    assert Counter(rank_of(reply) for reply in replies) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert all(reply.json()["choices"][0]["text"] == f"rank {rank_of(reply)}" for reply in replies)
    assert replies[0].headers["x-autotomy-instance"] == "7"


async def test_a_busy_rank_is_spared(running: RunningCoordinator, four: list[Engine]) -> None:
    four[0].gate.clear()
    held = asyncio.create_task(running.complete())
    await eventually(lambda: bool(four[0].requests), "rank 0 has the request")
    assert 0 not in [rank_of(await running.complete()) for _ in range(9)]
    four[0].gate.set()
    assert rank_of(await held) == 0
    await eventually(lambda: sum(running.in_flight().values()) == 0, "nothing is in flight any more")


async def test_body_query_and_headers_reach_the_engine_as_they_were(running: RunningCoordinator, four: list[Engine]) -> None:
    asked = {"model": MODEL, "prompt": "héllo", "temperature": 0.25}
    reply = await running.inference.post(
        "/v1/chat/completions?trace=1", json=asked, headers={"authorization": "Bearer k", "x-request-id": "r-1"}
    )
    engine = four[rank_of(reply)]
    assert engine.requests == [asked]
    assert engine.headers[0]["authorization"] == "Bearer k"
    assert engine.headers[0]["x-request-id"] == "r-1"
    assert engine.headers[0]["host"] == f"127.0.0.1:{engine.port}"


async def test_an_engines_refusal_is_passed_on_and_costs_it_nothing(running: RunningCoordinator) -> None:
    replies = [await running.complete("fail") for _ in range(4)]
    assert [reply.status_code for reply in replies] == [503] * 4
    assert replies[0].headers["x-engine"] == "yes"
    assert {rank_of(reply) for reply in replies} == {0, 1, 2, 3}


async def test_chunks_arrive_one_by_one_as_the_engine_makes_them(running: RunningCoordinator, four: list[Engine]) -> None:
    asked = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 2}
    async with running.inference.stream("POST", "/v1/completions", json=asked) as reply:
        rank = rank_of(reply)
        assert reply.headers["content-type"].startswith("text/event-stream")
        chunks = reply.aiter_bytes()
        for number in range(2):
            four[rank].next_chunk.release()
            assert await asyncio.wait_for(anext(chunks), 5) == f"data: {rank}:{number}\n\n".encode()
        assert await asyncio.wait_for(anext(chunks), 5) == b"data: [DONE]\n\n"
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


async def test_a_removed_rank_finishes_its_stream_and_gets_nothing_new(running: RunningCoordinator, four: list[Engine]) -> None:
    asked = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 2}
    async with running.inference.stream("POST", "/v1/completions", json=asked) as reply:
        rank = rank_of(reply)
        survivors = [r for r in range(4) if r != rank]
        await running.push("del", served(four, 2, 0, 1, 2, 3))
        assert (await running.complete()).status_code == 503
        await running.push("add", served(four, 3, *survivors))
        seen = {rank_of(await running.complete()) for _ in range(12)}
        assert seen == set(survivors)
        for _ in range(2):
            four[rank].next_chunk.release()
        assert (await asyncio.wait_for(reply.aread(), 5)).endswith(b"[DONE]\n\n")


async def test_no_request_goes_to_a_rank_after_its_removal_was_acknowledged(
    running: RunningCoordinator, four: list[Engine]
) -> None:
    stop = asyncio.Event()
    answered: list[tuple[float, int]] = []

    async def client() -> None:
        while not stop.is_set():
            started = time.monotonic()
            answered.append((started, rank_of(await running.complete())))

    clients = [asyncio.create_task(client()) for _ in range(8)]
    await eventually(lambda: len(answered) > 40, "traffic")
    await running.push("add", served(four, 2, 0, 2, 3))
    removed_at = time.monotonic()
    taken = len(four[1].requests)
    before = len(answered)
    await eventually(lambda: len(answered) > before + 60, "traffic after the removal")
    stop.set()
    await asyncio.gather(*clients)
    assert len(four[1].requests) == taken
    assert [rank for started, rank in answered if started > removed_at].count(1) == 0
    assert 1 in [rank for started, rank in answered if started < removed_at]


async def test_an_endpoint_that_refuses_connections_is_passed_over_and_stays(four: list[Engine]) -> None:
    async with coordinator() as running:
        made = entry(7, {0: four[0].port, 1: free_port()}, 1, ip="127.0.0.1")
        await running.push("set", made)
        assert [rank_of(await running.complete()) for _ in range(6)] == [0] * 6
        assert running.state.view.instances[7].ranks == (0, 1)


async def test_where_nobody_accepts_connections_the_client_may_come_back() -> None:
    async with coordinator() as running:
        await running.push("set", entry(7, {0: free_port(), 1: free_port()}, 1, ip="127.0.0.1"))
        reply = await running.complete()
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert "UNREACHABLE" in reply.json()["error"]["message"]


async def test_an_engine_that_had_the_request_is_never_replaced_by_another(four: list[Engine]) -> None:
    async with raw_engine(None) as (port, asked), coordinator() as running:
        await running.push("set", entry(7, {0: port, 1: four[1].port}, 1, ip="127.0.0.1"))
        reply = await running.complete()
        assert asked.is_set()
        assert (reply.status_code, rank_of(reply)) == (502, 0)
        assert reply.json()["error"]["code"] == 502
        assert four[1].requests == []
        assert running.state.view.instances[7].ranks == (0, 1)


@pytest.mark.parametrize(
    "head", [b"content-length: 100\r\n\r\nhalf", b"transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"], ids=["length", "chunked"]
)
async def test_an_answer_that_breaks_off_is_cut_not_completed(head: bytes) -> None:
    async with raw_engine(b"HTTP/1.1 200 OK\r\n" + head) as (port, _), coordinator() as running:
        await running.push("set", entry(7, {0: port}, 1, ip="127.0.0.1"))
        with pytest.raises(httpx.RemoteProtocolError):
            await running.complete()
        await eventually(lambda: running.in_flight() == {0: 0}, "the slot is given back")


async def test_a_silent_engine_is_given_up_after_the_silence_timeout(four: list[Engine]) -> None:
    four[0].gate.clear()
    async with coordinator(silence=0.2) as running:
        await running.push("set", served(four, 1, 0))
        reply = await running.complete()
    assert (reply.status_code, rank_of(reply)) == (504, 0)
    four[0].gate.set()


async def test_a_client_that_hangs_up_cancels_the_engines_work(running: RunningCoordinator, four: list[Engine]) -> None:
    four[0].gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        await running.inference.post("/v1/completions", json={"model": MODEL}, timeout=httpx.Timeout(5, read=0.3))
    assert four[0].requests
    await eventually(lambda: running.in_flight()[0] == 0, "the slot is given back")


async def test_a_client_that_leaves_a_stream_cancels_it(running: RunningCoordinator, four: list[Engine]) -> None:
    asked = {"model": MODEL, "stream": True, "max_tokens": 100}
    async with running.inference.stream("POST", "/v1/completions", json=asked) as reply:
        engine = four[rank_of(reply)]
        engine.next_chunk.release()
        await asyncio.wait_for(anext(reply.aiter_bytes()), 5)
    await asyncio.wait_for(engine.cancelled.wait(), 5)
    await eventually(lambda: running.in_flight()[engine.rank] == 0, "the slot is given back")


async def test_before_a_set_nothing_is_routed(four: list[Engine]) -> None:
    async with coordinator() as running:
        assert (await running.complete()).status_code == 503
        await running.push("add", served(four, 1, 0, 1))
        reply = await running.complete()
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["type"] == "ServiceUnavailable"
        await running.push("set", served(four, 1, 0, 1))
        assert (await running.complete()).status_code == 200


async def test_a_withdrawn_instance_is_503_and_an_unknown_model_404(running: RunningCoordinator, four: list[Engine]) -> None:
    reply = await running.complete(model="gpt-0")
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model")
    await running.push("del", served(four, 2))
    assert (await running.complete()).status_code == 503


async def test_the_model_decides_the_instance(four: list[Engine]) -> None:
    async with coordinator() as running:
        first = entry(7, {0: four[0].port}, 1, ip="127.0.0.1", model="a")
        second = entry(8, {1: four[1].port}, 1, ip="127.0.0.1", model="b")
        await running.push("set", first, second)
        assert {rank_of(await running.complete(model="a")) for _ in range(3)} == {0}
        assert {rank_of(await running.complete(model="b")) for _ in range(3)} == {1}
        listed = (await running.inference.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["a", "b"]


async def test_one_models_list_is_the_engines_own(running: RunningCoordinator) -> None:
    reply = await running.inference.get("/v1/models")
    assert reply.json()["data"] == [{"id": MODEL, "max_model_len": 4096}]
    assert rank_of(reply) in range(4)


@pytest.mark.parametrize("content", ["{nope", "", "[]", '"text"', '{"model": 3}', "\xff\xfe", "[" * 100_000])
async def test_a_body_that_makes_no_sense_is_400_in_openais_shape(running: RunningCoordinator, content: str) -> None:
    reply = await running.inference.post("/v1/completions", content=content.encode("latin-1"))
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)])
async def test_other_routes_are_refused_in_openais_shape(
    running: RunningCoordinator, method: str, path: str, status: int
) -> None:
    reply = await running.inference.request(method, path)
    assert reply.status_code == reply.json()["error"]["code"] == status


async def test_a_request_whose_rank_is_withdrawn_while_it_connects_is_not_sent_there(
    running: RunningCoordinator, four: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view changes after the choice and before the first byte: the request goes to another rank."""
    send = running.upstream.send
    withdrawn: list[Engine] = []

    def send_with_a_change_meanwhile(
        address: Address, method: str, path: str, headers: RawHeaders, body: bytes, still_wanted: Callable[[], bool]
    ) -> AbstractAsyncContextManager[UpstreamReply]:
        def asked_at_the_first_byte() -> bool:
            if not withdrawn:
                withdrawn.append(next(engine for engine in four if engine.port == address[1]))
                survivors = [engine.rank for engine in four if engine not in withdrawn]
                running.state.apply(refresh_request("add", served(four, 2, *survivors), incarnation=LIFE))
            return still_wanted()

        return send(address, method, path, headers, body, asked_at_the_first_byte)

    monkeypatch.setattr(running.upstream, "send", send_with_a_change_meanwhile)
    reply = await running.complete()
    assert reply.status_code == 200
    assert [engine.requests for engine in withdrawn] == [[]]
    assert rank_of(reply) != withdrawn[0].rank
