"""What a process lets in, over real sockets: complete in time, not too large, readable (`service.door`)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from domain.model import Said, Strict
from service.door import BodyDoor, PunctualProtocol
from service.http import bind, create_app, serve_socket, success, url_of

LIMIT = 10_000
LARGER = 100_000


class Note(Strict):
    text: Said
    number: int = 0


def an_app() -> FastAPI:
    app = create_app("notes", body_limits={"/large": LARGER})

    @app.post("/notes")
    async def take(note: Note) -> object:
        return success(note)

    @app.post("/large")
    async def take_large(note: Note) -> object:
        return success(len(note.text))

    return app


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    stop, sock = asyncio.Event(), bind("127.0.0.1", 0)
    serving = asyncio.create_task(serve_socket(app, sock, stop=stop))
    try:
        async with httpx.AsyncClient(base_url=url_of(sock), trust_env=False, timeout=10) as http:
            yield http
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize(
    "body",
    [
        b'{"text":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"text":"\xff"}',
        b"[" * 200_000,
        b'{"number":' + b"9" * 6_000 + b"}",
        b'{"number":NaN}',
        b'{"text":"a"',
        b'{"text":"a"} trailing',
    ],
    ids=["half-pair", "half-pair-in-key", "no-utf-8", "deep", "digits", "nan", "cut-off", "trailing"],
)
async def test_what_cannot_be_read_is_refused_with_where(body: bytes) -> None:
    async with served(an_app()) as http:
        reply = await http.post("/notes", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["data"]["reason"] == "MALFORMED_JSON"
    assert "line 1 column" in reply.json()["message"]


async def test_an_infinite_number_is_shown_and_refused() -> None:
    async with served(an_app()) as http:
        reply = await http.post("/notes", content=b'{"text":"a","number":1e999}', headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["data"]["reason"]) == (400, "INVALID")


async def test_a_large_value_is_shown_cut_and_many_errors_are_counted() -> None:
    wrong = {"text": "a", **{f"field-{number}": ["x" * 100] * 100 for number in range(50)}}
    async with served(an_app()) as http:
        reply = await http.post("/notes", json=wrong)
    assert reply.status_code == 400
    assert "and 30 more" in reply.json()["message"]
    assert len(reply.content) < 20_000


async def test_a_body_over_its_routes_limit_is_refused_before_it_is_read() -> None:
    async with served(an_app()) as http:
        assert (await http.post("/large", json={"text": "x" * 50_000})).status_code == 200
        too_large = await http.post("/large", json={"text": "x" * LARGER})
        assert (too_large.status_code, too_large.json()["data"]["reason"]) == (413, "TOO_LARGE")

        async def without_end() -> AsyncIterator[bytes]:
            while True:
                yield b" " * 65_536

        with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it closes while we still send
            endless = await http.post("/notes", content=without_end())
            assert endless.status_code == 413
        assert (await http.post("/notes", json={"text": "a"})).status_code == 200


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BodyDoor.__init__, "__kwdefaults__", {"body_sec": 0.2})
    async with served(an_app()) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(b"POST /notes HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["data"]["reason"] == "TOO_SLOW"


async def test_an_unknown_route_is_a_404_whatever_it_is_sent() -> None:
    async with served(an_app()) as http:
        for body in (b"{", b"x" * 2_000_000):
            assert (await http.post("/nowhere", content=body)).status_code == 404


@pytest.mark.parametrize("sent", [b"", b"POST /notes HT", b"GET / HTTP/1.1\r\nhost: a\r\n"], ids=["nothing", "half", "no-end"])
@pytest.mark.parametrize("first", [True, False], ids=["at-once", "after-a-request"])
async def test_a_head_that_does_not_end_ends_the_connection(sent: bytes, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not first and not sent:
        return  # that is a kept connection, which has its own, longer time
    monkeypatch.setattr(PunctualProtocol, "head_sec", 0.3)
    async with served(an_app()) as http:
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        if not first:
            writer.write(b"GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 404")
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_slow_work_is_no_slow_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PunctualProtocol, "head_sec", 0.1)
    app = create_app("slow")

    @app.get("/slow")
    async def slow() -> object:
        await asyncio.sleep(0.5)
        return success("done")

    async with served(app) as http:
        assert (await http.get("/slow")).json()["data"] == "done"
        assert (await http.get("/slow")).json()["data"] == "done"
