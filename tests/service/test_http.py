"""Every answer is in the envelope, and a listener comes and goes cleanly. Real sockets throughout."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI
from pydantic import Field, StrictInt, model_validator
from starlette.responses import StreamingResponse

from domain.errors import ConfigError, Transient
from domain.model import Strict
from service.http import AddressUnavailable, HttpError, StartupFailed, bind, create_app, serve, success, url_of
from service.metrics import add_metrics_route, new_registry


class Order(Strict):
    engine_id: Annotated[StrictInt, Field(ge=0)]
    peers: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _not_its_own_peer(self) -> "Order":
        if self.engine_id in (self.peers or ()):
            raise ValueError(f"engine {self.engine_id} cannot be its own peer")
        return self


def example_app() -> FastAPI:
    app = create_app("example")

    @app.post("/orders")
    async def order(order: Order) -> object:
        return success({"engine": order.engine_id})

    @app.get("/refuse")
    async def refuse() -> object:
        raise HttpError(409, "WRONG_SET", "endpoints differ", expected=[0, 2])

    @app.get("/transient")
    async def transient() -> object:
        raise Transient("the peer is away", reason="AWAY")

    @app.get("/config")
    async def config() -> object:
        raise ConfigError("x = 1: too small")

    @app.get("/bug")
    async def bug() -> object:
        raise ZeroDivisionError("secret detail")

    @app.get("/stream")
    async def stream() -> object:
        async def forever() -> AsyncIterator[bytes]:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(forever())

    return app


@asynccontextmanager
async def listening(app: FastAPI, **options: float) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Task[None]]]:
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, "127.0.0.1", 0, stop=stop, on_ready=ready.set_result, **options))  # type: ignore[arg-type]
    try:
        yield await asyncio.wait_for(ready, 5), stop, task
    finally:
        stop.set()
        await asyncio.wait_for(task, 5)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with listening(example_app()) as (url, _, _), httpx.AsyncClient(base_url=url) as client:
        yield client


async def test_a_success_is_in_the_envelope(client: httpx.AsyncClient) -> None:
    reply = await client.post("/orders", json={"engine_id": 3})
    assert (reply.status_code, reply.json()) == (200, {"code": 200, "message": "Success", "data": {"engine": 3}})


async def test_a_refusal_carries_its_reason_and_data(client: httpx.AsyncClient) -> None:
    reply = await client.get("/refuse")
    assert reply.status_code == 409
    assert reply.json() == {
        "code": 409,
        "message": "endpoints differ",
        "data": {"reason": "WRONG_SET", "expected": [0, 2]},
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"engine_id": "3"}', "engine_id"),
        ('{"engine_id": true}', "engine_id"),
        ('{"engine_id": -1}', "engine_id"),
        ("{}", "engine_id"),
        ('{"engine_id": 1, "engin": 2}', "engin"),
    ],
)
async def test_invalid_input_is_400_and_names_the_field(client: httpx.AsyncClient, body: str, field: str) -> None:
    reply = await client.post("/orders", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    data = reply.json()["data"]
    assert data["reason"] == "INVALID"
    assert [error["field"] for error in data["errors"]] == [field]
    assert field in reply.json()["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"engine_id": 1, "peers": [1]}', "engine 1 cannot be its own peer"),
        ('{"engine_id": true}', "engine_id: Input should be a valid integer (got true)"),
        ('{"engine_id": null}', "engine_id: Input should be a valid integer (got null)"),
        ('{"engine_id": "3"}', 'engine_id: Input should be a valid integer (got "3")'),
    ],
)
async def test_a_refusal_reads_as_json_and_shows_nobody_the_whole_body_again(
    client: httpx.AsyncClient, body: str, message: str
) -> None:
    reply = await client.post("/orders", content=body)
    assert (reply.status_code, reply.json()["message"]) == (400, message)


@pytest.mark.parametrize("body", ['{"engine_id": ', "", "\xff", "[1,2]", "null"])
async def test_a_body_that_is_no_object_is_400(client: httpx.AsyncClient, body: str) -> None:
    reply = await client.post("/orders", content=body.encode("latin-1"), headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["data"]["reason"] in {"MALFORMED_JSON", "INVALID"}


async def test_malformed_json_says_so(client: httpx.AsyncClient) -> None:
    reply = await client.post("/orders", content="{nope", headers={"content-type": "application/json"})
    assert reply.json()["data"]["reason"] == "MALFORMED_JSON"


async def test_json_without_a_content_type_is_understood(client: httpx.AsyncClient) -> None:
    assert (await client.post("/orders", content='{"engine_id": 3}')).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nowhere", 404, "NOT_FOUND"),
        ("DELETE", "/orders", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/transient", 503, "AWAY"),
        ("GET", "/config", 502, "CONFIG"),
    ],
)
async def test_other_failures_have_the_envelope(
    client: httpx.AsyncClient, method: str, path: str, status: int, reason: str
) -> None:
    reply = await client.request(method, path)
    assert reply.status_code == reply.json()["code"] == status
    assert reply.json()["data"]["reason"] == reason


async def test_a_bug_is_500_without_its_details_which_are_logged(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await client.get("/bug")
    assert reply.status_code == 500
    assert reply.json()["data"]["reason"] == "INTERNAL"
    assert "secret" not in reply.text
    assert any(record.exc_info and "secret detail" in str(record.exc_info[1]) for record in caplog.records)


async def test_metrics_are_served_as_text() -> None:
    app = create_app("measured")
    add_metrics_route(app, new_registry())
    async with listening(app) as (url, _, _), httpx.AsyncClient(base_url=url) as client:
        assert "process_cpu_seconds_total" in (await client.get("/metrics")).text


async def test_a_taken_port_is_one_clear_refusal() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnavailable) as caught:
            bind("127.0.0.1", port, option="--management-port")
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "--management-port" in str(caught.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
async def test_an_address_that_is_not_ours_is_a_clear_refusal(host: str) -> None:
    with pytest.raises(AddressUnavailable, match="cannot listen on"):
        bind(host, 0)


async def test_stop_cuts_open_streams_after_the_grace() -> None:
    async with (
        listening(example_app(), grace_sec=0.3) as (url, stop, task),
        httpx.AsyncClient(base_url=url) as client,
        client.stream("GET", "/stream") as reply,
    ):
        lines = reply.aiter_lines()
        assert await anext(lines) == "tick"
        started = time.monotonic()
        stop.set()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in lines:
                pass
        await asyncio.wait_for(task, 3)
        assert time.monotonic() - started < 2.5


async def test_the_port_is_free_again_after_stop() -> None:
    async with listening(example_app()) as (url, stop, task):
        stop.set()
        await asyncio.wait_for(task, 3)
    bind("127.0.0.1", httpx.URL(url).port or 0).close()


async def test_a_lifespan_that_fails_is_startup_failed(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def broken(_app: FastAPI) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    caplog.set_level(logging.CRITICAL)
    with pytest.raises(StartupFailed):
        await serve(create_app("broken", lifespan=broken), "127.0.0.1", 0, stop=asyncio.Event())


def test_ipv6_addresses_are_printed_as_urls() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    try:
        sock = bind("::1", 0)
    except AddressUnavailable as error:
        pytest.skip(str(error))
    with sock:
        assert url_of(sock).startswith("http://[::1]:")
