"""The OpenAI side: a request comes in, goes to one rank, and its answer goes back as it comes.

Nothing is parsed but the request's `model`, nothing is buffered on the way back. `x-autotomy-rank` tells the client which
rank answered. What can go wrong, in the order of the request's life:

| | the client gets |
|---|---|
| body unreadable, no object, too large | 400 / 413 |
| no view yet, instance withdrawn, nothing accepts connections | 503 and Retry-After |
| model that no instance serves | 404 |
| connection refused before a byte was sent | nothing: another rank is tried |
| engine gone after it had the request | 502 (504 if it was silent too long), and no second try |
| engine gone in the middle of the answer | a cut connection, so that it cannot be taken for a complete answer |
| the client itself hangs up | the engine's connection is closed, which cancels its work |

A failed request says nothing about the view: endpoints come and go by refresh only.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from coordinator.figures import Figures
from coordinator.routing import NoSlot, Router, Slot, Target
from coordinator.upstream import NotSent, RawHeaders, Upstream, UpstreamFailed, UpstreamReply
from domain.address import host_port
from domain.messages.coordinator import INSTANCE_HEADER, RANK_HEADER
from service.json_reader import read_json

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
RETRY_AFTER_SEC: Final = 1

_NO_SEAT: Final = {
    NoSlot.NO_VIEW: "this Coordinator has not been told yet where to route",
    NoSlot.WITHDRAWN: "no endpoint serves at the moment",
    NoSlot.UNREACHABLE: "no endpoint accepts connections at the moment",
}


class _ClientGone(Exception):
    """The client hung up before its request was complete."""


class _Refusal(Exception):
    """Answered here, without an engine."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def openai_error(status: int, kind: str, message: str, param: str | None = None) -> JSONResponse:
    """An error as OpenAI's clients read it; a 503 invites them back after RETRY_AFTER_SEC seconds."""
    headers = {"retry-after": str(RETRY_AFTER_SEC)} if status == 503 else None
    error = {"message": message, "type": kind, "param": param, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def inference_app(router: Router, upstream: Upstream, figures: Figures) -> Starlette:
    """`/v1/models`, `/v1/completions`, `/v1/chat/completions` over the router's endpoints."""
    proxy = Proxy(router, upstream, figures)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await upstream.close()

    return Starlette(
        routes=[
            Route("/v1/completions", endpoint=proxy, methods=["POST"]),
            Route("/v1/chat/completions", endpoint=proxy, methods=["POST"]),
            Route("/v1/models", endpoint=Models(proxy, router), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _on_http_exception},
        lifespan=lifespan,
    )


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = "NotFoundError" if error.status_code == 404 else "BadRequestError"
    return openai_error(error.status_code, kind, f"{error.detail}: {request.method} {request.url.path}")


@dataclass(frozen=True, slots=True)
class _Call:
    """One client request, complete."""

    method: str
    path: str
    headers: RawHeaders
    body: bytes
    model: str | None


class Models:
    """GET /v1/models: an engine's own list where one model is served, else the names that the view holds."""

    def __init__(self, proxy: "Proxy", router: Router) -> None:
        self._proxy = proxy
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = self._router.models
        if len(names) > 1:
            data = [{"id": name, "object": "model", "created": 0, "owned_by": "autotomy"} for name in names]
            await JSONResponse({"object": "list", "data": data})(scope, receive, send)
        else:
            await self._proxy(scope, receive, send)


class Proxy:
    """Takes one request to one endpoint of the view."""

    def __init__(self, router: Router, upstream: Upstream, figures: Figures) -> None:
        self._router = router
        self._upstream = upstream
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = _parse(scope, await _read_body(receive))
        except _ClientGone:
            return
        except _Refusal as refusal:
            await refusal.response(scope, receive, send)
            return
        work = asyncio.ensure_future(self._answer(call, scope, receive, send))
        hung_up = asyncio.ensure_future(_until_client_hangs_up(receive))
        try:
            await asyncio.wait({work, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hung_up.cancel()
            if not work.done():
                self._figures.cancelled.inc()
                work.cancel()
            await asyncio.wait({work, hung_up})
        if not work.cancelled():
            work.result()

    async def _answer(self, call: _Call, scope: Scope, receive: Receive, send: Send) -> None:
        tried: list[Target] = []
        while True:
            with self._router.take(call.model, without=tried) as slot:
                if isinstance(slot, NoSlot):
                    self._figures.refused.labels(slot.value).inc()
                    await _no_seat(slot, call.model)(scope, receive, send)
                    return
                try:
                    await self._relay(call, slot, scope, receive, send)
                except NotSent as failure:
                    tried.append(slot.target)
                    self._figures.retried.inc()
                    log.debug("connection failed, trying another rank", extra=_place(slot) | {"why": str(failure)})
                else:
                    return

    async def _relay(self, call: _Call, slot: Slot, scope: Scope, receive: Receive, send: Send) -> None:
        """One attempt. Raises NotSent while nothing was sent; whatever comes later is answered here."""
        started = False
        try:
            async with self._upstream.send(
                slot.target.address, call.method, call.path, call.headers, call.body, lambda: slot.still_routed
            ) as reply:
                self._figures.routed.labels(str(slot.target.instance_id), str(slot.target.rank)).inc()
                started = True
                await _pass_on(reply, slot, send)
        except UpstreamFailed as failure:
            self._figures.failed.labels(str(slot.target.instance_id), str(slot.target.rank)).inc()
            log.warning("engine failed a request", extra=_place(slot) | {"why": str(failure), "cut": started})
            if started:
                return  # the answer stays incomplete, and the server cuts the connection
            status, kind = (504, "GatewayTimeout") if failure.timed_out else (502, "BadGateway")
            response = openai_error(status, kind, f"rank {slot.target.rank} failed this request: {failure}")
            response.raw_headers += _origin_headers(slot)
            await response(scope, receive, send)


async def _pass_on(reply: UpstreamReply, slot: Slot, send: Send) -> None:
    headers = reply.headers + _origin_headers(slot)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    async with aclosing(reply.chunks()) as chunks:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _origin_headers(slot: Slot) -> RawHeaders:
    return [
        (RANK_HEADER.encode(), str(slot.target.rank).encode()),
        (INSTANCE_HEADER.encode(), str(slot.target.instance_id).encode()),
    ]


def _place(slot: Slot) -> dict[str, object]:
    ip, port = slot.target.address
    return {"instance": slot.target.instance_id, "rank": slot.target.rank, "address": host_port(ip, port)}


def _no_seat(reason: NoSlot, model: str | None) -> JSONResponse:
    if reason is NoSlot.UNKNOWN_MODEL:
        return openai_error(404, "NotFoundError", f"the model {model!r} does not exist", "model")
    return openai_error(503, "ServiceUnavailable", f"{_NO_SEAT[reason]}; try again ({reason})")


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise _Refusal(openai_error(413, "BadRequestError", f"the body is larger than {MAX_BODY_BYTES} bytes"))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _until_client_hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _parse(scope: Scope, body: bytes) -> _Call:
    query = scope["query_string"]
    path = scope["raw_path"].decode("ascii") + (f"?{query.decode('ascii')}" if query else "")
    model = _model_of(body) if scope["method"] == "POST" else None
    return _Call(scope["method"], path, list(scope["headers"]), body, model)


def _model_of(body: bytes) -> str | None:
    """The request's `model`; None where it leaves the choice to the server."""
    try:
        content = read_json(body)
    except ValueError as error:
        raise _Refusal(openai_error(400, "BadRequestError", f"the body is not JSON: {error}")) from None
    if not isinstance(content, dict):
        raise _Refusal(openai_error(400, "BadRequestError", "the body must be a JSON object"))
    model = content.get("model")
    if model is not None and not isinstance(model, str):
        raise _Refusal(openai_error(400, "BadRequestError", "model must be a string", "model"))
    return model
