"""``/v1/models``, ``/v1/completions`` and ``/v1/chat/completions``, streamed and not, in OpenAI's shapes.

A fault in the middle ends an answer with ``finish_reason: "abort"`` and HTTP 200; a stream then ends early.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lab.simulator.engine import Aborted, Engine, NotServing
from lab.simulator.http_errors import ApiError
from lab.simulator.openai_requests import Asked, read_request, token_text

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Piece:
    """A part of an answer; the last one has the finish reason."""

    text: str
    finish_reason: str | None = None


@dataclass
class _Answer:
    """An answer in the making: id, and how many tokens it has so far."""

    asked: Asked
    created: int = field(default_factory=lambda: int(time.time()))
    hex_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    tokens: int = 0
    text: str = ""

    @property
    def usage(self) -> dict[str, int]:
        prompt = self.asked.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": self.tokens, "total_tokens": prompt + self.tokens}

    def body(self, choices: list[dict[str, Any]], chunk: bool) -> dict[str, Any]:
        chat = self.asked.chat
        kind = "chat.completion" + (".chunk" if chunk else "") if chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.hex_id}",
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "choices": choices,
        }


def openai_routes(engine: Engine) -> list[Route]:
    """The three routes."""
    model = engine.options.model
    started = int(time.time())

    async def models(_request: Request) -> Response:
        card = {"id": model, "object": "model", "created": started, "owned_by": "autotomy-simulator", "root": model}
        return JSONResponse({"object": "list", "data": [card]})

    async def completions(request: Request) -> Response:
        return await _serve(engine, request, read_request(await request.body(), chat=False, model=model))

    async def chat_completions(request: Request) -> Response:
        return await _serve(engine, request, read_request(await request.body(), chat=True, model=model))

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    ]


async def _serve(engine: Engine, request: Request, asked: Asked) -> Response:
    answer = _Answer(asked)
    try:
        if asked.stream:
            # the status line is sent once the engine has taken the request: not serving must still be a 503
            pieces = _pieces(engine, answer)
            first = await _or_hang_up(request, anext(pieces))
            return StreamingResponse(_events(answer, first, pieces), media_type="text/event-stream")
        return await _or_hang_up(request, _whole(engine, answer))
    except NotServing as error:
        raise ApiError(503, str(error), "ServiceUnavailableError") from None


async def _whole(engine: Engine, answer: _Answer) -> Response:
    reason = None
    async with aclosing(_pieces(engine, answer)) as pieces:
        async for piece in pieces:
            reason = piece.finish_reason
    text: dict[str, Any] = {"text": answer.text}
    if answer.asked.chat:
        text = {"message": {"role": "assistant", "content": answer.text}}
    choice = {"index": 0, **text, "logprobs": None, "finish_reason": reason}
    return JSONResponse({**answer.body([choice], chunk=False), "usage": answer.usage})


async def _events(answer: _Answer, first: _Piece, rest: AsyncGenerator[_Piece, None]) -> AsyncIterator[str]:
    """The server-sent events of a stream, `[DONE]` included."""
    if answer.asked.chat:
        yield _event(answer.body([_delta({"role": "assistant", "content": ""}, None)], chunk=True))
    yield _event(_chunk(answer, first))
    async with aclosing(rest):
        async for piece in rest:
            yield _event(_chunk(answer, piece))
    if answer.asked.include_usage:
        yield _event({**answer.body([], chunk=True), "usage": answer.usage})
    yield "data: [DONE]\n\n"


def _chunk(answer: _Answer, piece: _Piece) -> dict[str, Any]:
    if answer.asked.chat:
        return answer.body([_delta({"content": piece.text}, piece.finish_reason)], chunk=True)
    choice = {"index": 0, "text": piece.text, "logprobs": None, "finish_reason": piece.finish_reason}
    return answer.body([choice], chunk=True)


def _delta(delta: dict[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


async def _pieces(engine: Engine, answer: _Answer) -> AsyncGenerator[_Piece, None]:
    """The answer, token burst by token burst; always ends with a finish reason."""
    asked, rank = answer.asked, engine.options.rank
    try:
        async with aclosing(engine.generate(asked.tokens)) as bursts:
            async for burst in bursts:
                before = answer.text
                for index in range(answer.tokens, answer.tokens + burst.made):
                    answer.text += token_text(rank, burst.epoch, index)
                    answer.tokens += 1
                    if (cut := _first_stop(answer.text, asked.stop)) is not None:
                        answer.text = answer.text[:cut]
                        yield _Piece(answer.text[len(before) :], "stop")
                        return
                last = ("stop" if asked.natural_end else "length") if burst.done else None
                yield _Piece(answer.text[len(before) :], last)
    except Aborted:
        yield _Piece("", "abort")


def _first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


async def _or_hang_up(request: Request, work: Awaitable[_T]) -> _T:
    """Do the work, but give it up when the client goes away: the group shall not step for a request without a reader."""
    working, hung_up = asyncio.ensure_future(work), asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait((working, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client closed the connection", "ClientClosedRequest")
        return working.result()
    finally:
        working.cancel()
        hung_up.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
