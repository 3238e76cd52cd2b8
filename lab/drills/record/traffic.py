"""Steady OpenAI traffic through the Coordinator, and what became of every single request.

The client is an ordinary one: it knows the Coordinator's address and a model name, nothing of ranks. It starts requests
at a fixed pace whether or not earlier ones have ended (a stalled group must not slow the clock that measures it), in
turn streamed and not, completions and chats, each with a prompt of its own. A request is *ok* when the answer is HTTP
200, complete, and not aborted; everything else failed, with the reason (contracts §8).
"""

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Final

import httpx
from pydantic import JsonValue

from domain.model import Strict

RANK_HEADER: Final = "x-autotomy-rank"
_NAMED_RANK: Final = re.compile(r"\brank[ =_-]?(\d+)")
_DONE: Final = "[DONE]"


class Failure(StrEnum):
    """Why a request counts as failed."""

    HTTP_STATUS = "http_status"  # an answer other than 200
    TRANSPORT = "transport"  # refused, reset, or nobody there
    TIMED_OUT = "timed_out"  # no complete answer in time
    ABORTED = "aborted"  # finish_reason "abort": the engine gave it up
    CUT_STREAM = "cut_stream"  # the stream ended without its end marker
    MALFORMED = "malformed"  # 200 with something that is no completion


class RequestRecord(Strict):
    """One request as its client saw it. `started_at`, `ended_at`: `time.monotonic()` in seconds."""

    number: int
    kind: str
    streamed: bool
    started_at: float
    ended_at: float
    ok: bool
    why: Failure | None = None
    http: int | None = None
    rank: int | None = None
    answered_by: int | None = None
    finish_reason: str | None = None
    detail: str = ""


class Answer(Strict):
    """What a complete answer held."""

    text: str
    finish_reason: str | None
    complete: bool


class RequestFailed(Exception):
    """The request is not ok; `why` says how."""

    def __init__(self, why: Failure, detail: str = "") -> None:
        super().__init__(f"{why}: {detail}")
        self.why = why
        self.detail = detail


class TrafficClient:
    """Sends requests to one Coordinator; `records` holds all that have ended, in the order of their end."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        requests_per_sec: float = 10.0,
        max_tokens: int = 6,
        timeout_sec: float = 20.0,
        on_end: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.records: list[RequestRecord] = []
        self._url = url.rstrip("/")
        self._model = model
        self._pause_sec = 1.0 / requests_per_sec
        self._max_tokens = max_tokens
        self._timeout_sec = timeout_sec
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._pending: set[asyncio.Task[RequestRecord]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Start requests at the pace until `stop` is set, then wait for those under way (each is bounded)."""
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=self._timeout_sec, limits=limits, trust_env=False) as client:
            due_at = time.monotonic()
            while not stop.is_set():
                task = asyncio.create_task(self.send(client))
                self._pending.add(task)
                task.add_done_callback(self._pending.discard)
                due_at = max(due_at + self._pause_sec, time.monotonic() - 1.0)
                await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            if self._pending:
                await asyncio.wait(set(self._pending))

    async def send(self, client: httpx.AsyncClient) -> RequestRecord:
        """One request, whatever comes of it."""
        number = next(self._numbers)
        streamed, chat = number % 2 == 0, number % 4 >= 2
        kind = "chat" if chat else "completion"
        seen: dict[str, int | None] = {}
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_sec):
                answer = await self._ask(client, number, chat=chat, streamed=streamed, seen=seen)
            failed = _judge(answer)
        except RequestFailed as error:
            answer, failed = None, error
        except TimeoutError:
            answer, failed = None, RequestFailed(Failure.TIMED_OUT, f"nothing complete within {self._timeout_sec:g} s")
        record = RequestRecord(
            number=number,
            kind=kind,
            streamed=streamed,
            started_at=started_at,
            ended_at=time.monotonic(),
            ok=failed is None,
            why=failed.why if failed else None,
            http=seen.get("http"),
            rank=seen.get("rank"),
            answered_by=named_rank(answer.text) if answer else None,
            finish_reason=answer.finish_reason if answer else None,
            detail=failed.detail if failed else "",
        )
        self.records.append(record)
        if self._on_end:
            self._on_end(record)
        return record

    async def _ask(
        self, client: httpx.AsyncClient, number: int, *, chat: bool, streamed: bool, seen: dict[str, int | None]
    ) -> Answer:
        """`seen` gets HTTP status and rank as soon as the head of the answer is there. Raises RequestFailed."""
        prompt = f"request {number}: which rank are you"
        body: dict[str, JsonValue] = {"model": self._model, "max_tokens": self._max_tokens, "stream": streamed}
        body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        try:
            async with client.stream("POST", self._url + path, json=body) as response:
                seen["http"] = response.status_code
                seen["rank"] = _header_rank(response)
                if response.status_code != 200:
                    detail = (await response.aread()).decode(errors="replace")
                    raise RequestFailed(Failure.HTTP_STATUS, detail[:200])
                if streamed:
                    return await read_stream(response.aiter_lines())
                return read_whole(await response.aread())
        except httpx.TimeoutException as error:
            raise RequestFailed(Failure.TIMED_OUT, type(error).__name__) from None
        except httpx.RemoteProtocolError as error:
            raise RequestFailed(Failure.CUT_STREAM if seen.get("http") == 200 else Failure.TRANSPORT, str(error)) from None
        except httpx.TransportError as error:
            raise RequestFailed(Failure.TRANSPORT, f"{type(error).__name__}: {error}"[:200]) from None


def read_whole(body: bytes) -> Answer:
    """The answer in a body that was not streamed. Raises RequestFailed."""
    try:
        choice = json.loads(body)["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return Answer(text=text or "", finish_reason=choice.get("finish_reason"), complete=True)
    except (ValueError, LookupError, TypeError) as error:
        raise RequestFailed(Failure.MALFORMED, f"{type(error).__name__}: {error}"[:200]) from None


async def read_stream(lines: AsyncIterator[str]) -> Answer:
    """The answer in a stream of server-sent events; `complete` only when it ended with its marker. Raises RequestFailed."""
    pieces: list[str] = []
    finish_reason: str | None = None
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == _DONE:
            return Answer(text="".join(pieces), finish_reason=finish_reason, complete=True)
        try:
            choice = json.loads(data)["choices"][0]
            piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
        except (ValueError, LookupError, TypeError) as error:
            raise RequestFailed(Failure.MALFORMED, f"{type(error).__name__}: {error}"[:200]) from None
        pieces.append(piece or "")
        finish_reason = choice.get("finish_reason") or finish_reason
    return Answer(text="".join(pieces), finish_reason=finish_reason, complete=False)


def named_rank(text: str) -> int | None:
    """The rank that an answer's text names (the simulated engine's do)."""
    found = _NAMED_RANK.search(text)
    return int(found[1]) if found else None


def _judge(answer: Answer) -> RequestFailed | None:
    if answer.finish_reason == "abort":
        return RequestFailed(Failure.ABORTED, "finish_reason abort")
    if not answer.complete:
        return RequestFailed(Failure.CUT_STREAM, "the stream ended without its end marker")
    if answer.finish_reason is None:
        return RequestFailed(Failure.MALFORMED, "no finish_reason")
    return None


def _header_rank(response: httpx.Response) -> int | None:
    value = response.headers.get(RANK_HEADER, "")
    return int(value) if value.isdigit() else None
