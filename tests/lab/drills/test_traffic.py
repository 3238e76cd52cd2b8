"""The client tells every way in which a request can fail from one that is ok."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from lab.drills.record.traffic import Failure, RequestRecord, TrafficClient, named_rank
from tests.eventually import eventually
from tests.listening import listening

HEADERS = {"x-autotomy-rank": "2"}


def answering(mode: str) -> FastAPI:
    """An OpenAI server that answers everything in one way."""
    app = FastAPI()

    @app.post("/v1/{path:path}")
    async def answer(path: str, request: Request) -> Response:
        body = await request.json()
        chat = path.startswith("chat")
        if mode == "busy":
            return JSONResponse({"error": {"message": "nobody to route to"}}, status_code=503)
        if mode == "nonsense":
            return PlainTextResponse("data: nonsense\n\n" if body["stream"] else "nonsense")
        if body["stream"]:
            return StreamingResponse(events(mode, chat), media_type="text/event-stream", headers=HEADERS)
        reason = "abort" if mode == "abort" else None if mode == "cut" else "length"
        said = {"message": {"content": "rank 2 epoch 0"}} if chat else {"text": "rank 2 epoch 0"}
        return JSONResponse({"choices": [{**said, "finish_reason": reason}]}, headers=HEADERS)

    return app


async def events(mode: str, chat: bool) -> AsyncIterator[str]:
    said = {"delta": {"content": "rank 2 epoch 0"}} if chat else {"text": "rank 2 epoch 0"}
    yield f"data: {json.dumps({'choices': [{**said, 'finish_reason': None}]})}\n\n"
    if mode == "cut":
        return
    end: dict[str, object] = {"delta": {}} if chat else {"text": ""}
    yield f"data: {json.dumps({'choices': [{**end, 'finish_reason': 'abort' if mode == 'abort' else 'length'}]})}\n\n"
    yield "data: [DONE]\n\n"


async def send(url: str, count: int = 4) -> list[RequestRecord]:
    """All four kinds: completion and chat, streamed and not."""
    client = TrafficClient(url, "m", timeout_sec=5)
    async with httpx.AsyncClient(trust_env=False) as http:
        return [await client.send(http) for _ in range(count)]


async def test_answers_of_all_kinds_are_ok_and_name_their_rank() -> None:
    async with listening(answering("fine")) as url:
        records = await send(url)
    assert [(r.kind, r.streamed) for r in records] == [
        ("completion", False),
        ("chat", True),
        ("chat", False),
        ("completion", True),
    ]
    assert all(r.ok and r.http == 200 and r.rank == r.answered_by == 2 and r.finish_reason == "length" for r in records)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("busy", {Failure.HTTP_STATUS}),
        ("abort", {Failure.ABORTED}),
        ("cut", {Failure.CUT_STREAM, Failure.MALFORMED}),
        ("nonsense", {Failure.MALFORMED}),
    ],
)
async def test_every_bad_answer_fails_with_its_reason(mode: str, why: set[Failure]) -> None:
    async with listening(answering(mode)) as url:
        records = await send(url)
    assert not any(r.ok for r in records)
    assert {r.why for r in records} == why


async def test_nobody_listening_is_a_transport_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (record,) = await send(f"http://127.0.0.1:{taken.getsockname()[1]}", count=1)
    assert record.why is Failure.TRANSPORT
    assert record.http is None


async def test_silence_ends_in_a_timeout() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = TrafficClient(f"http://127.0.0.1:{port}", "m", timeout_sec=0.2)
    async with server, httpx.AsyncClient(trust_env=False) as http:
        record = await client.send(http)
    assert record.why is Failure.TIMED_OUT


async def test_stream_that_breaks_after_its_head_is_cut() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-autotomy-rank: 1\r\n\r\n"

    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"10\r\ndata: ")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(breaks, "127.0.0.1", 0)
    async with server:
        (record,) = await send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", count=1)
    assert (record.why, record.http, record.rank) == (Failure.CUT_STREAM, 200, 1)


async def test_pace_does_not_depend_on_answers() -> None:
    app = FastAPI()
    arrived: list[str] = []
    release = asyncio.Event()

    @app.post("/v1/{path:path}")
    async def stall(path: str, request: Request) -> Response:
        arrived.append((await request.body()).decode())
        await release.wait()
        return JSONResponse({"choices": [{"text": "", "finish_reason": "length"}]})

    stop = asyncio.Event()
    async with listening(app) as url:
        client = TrafficClient(url, "m", requests_per_sec=50)
        running = asyncio.create_task(client.run(stop))
        await eventually(lambda: len(arrived) >= 5, "requests come in")
        release.set()
        stop.set()
        await asyncio.wait_for(running, timeout=10)
    assert len(client.records) == len(arrived) >= 5
    assert len(set(arrived)) == len(arrived), "each prompt is its own"


def test_rank_is_read_from_the_text() -> None:
    assert named_rank("rank 12 epoch 3 token1") == 12
    assert named_rank("hello") is None
