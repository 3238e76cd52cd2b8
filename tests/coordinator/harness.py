"""A Coordinator with real listeners in this event loop, and engines that do what a test needs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from coordinator.figures import Figures
from coordinator.inference import inference_app
from coordinator.management import management_app
from coordinator.routing import Router
from coordinator.state import CoordinatorState
from coordinator.upstream import Upstream
from coordinator.view import View
from coordinator.view_log import ViewLog
from service.metrics import new_registry
from tests.coordinator.factories import MODEL, body, entry
from tests.listening import listening

LIFE = "life-1"


@dataclass
class Engine:
    """One rank's API server. `gate` closed: it takes requests and answers them when the gate opens."""

    rank: int
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    next_chunk: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/v1/chat/completions", self._completion, methods=["POST"]),
                Route("/v1/models", self._models),
            ]
        )

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "max_model_len": 4096}]})

    async def _completion(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        if asked.get("prompt") == "fail":
            return JSONResponse({"error": {"message": "not healthy"}}, status_code=503, headers={"x-engine": "yes"})
        if asked.get("stream"):
            return StreamingResponse(self._stream(asked), media_type="text/event-stream")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return JSONResponse({"choices": [{"text": f"rank {self.rank}", "finish_reason": "length"}]})

    async def _stream(self, asked: dict[str, Any]) -> AsyncIterator[bytes]:
        try:
            for number in range(asked.get("max_tokens", 3)):
                await self.next_chunk.acquire()
                yield f"data: {self.rank}:{number}\n\n".encode()
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@dataclass
class RunningCoordinator:
    """Both listeners of one life, with a client for each."""

    state: CoordinatorState
    upstream: Upstream
    inference: httpx.AsyncClient
    management: httpx.AsyncClient

    async def push(
        self, event: str, *instances: dict[str, Any], incarnation: str | None = LIFE, status: int = 200
    ) -> dict[str, Any]:
        reply = await self.management.post("/instances/refresh", json=body(event, *instances, incarnation=incarnation))
        assert reply.status_code == status, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    async def complete(self, prompt: str = "hello", **more: object) -> httpx.Response:
        return await self.inference.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **more})

    def in_flight(self) -> dict[int, int]:
        return {rank: count for (_, rank), count in self.state.router.loads.items()}


@asynccontextmanager
async def coordinator(view_log: Path | None = None, **timeouts: float) -> AsyncIterator[RunningCoordinator]:
    router, registry = Router(), new_registry()
    state = CoordinatorState(View(LIFE), router, Figures(registry, router), ViewLog(view_log))
    state.view_log.start(state.view)
    upstream = Upstream(timeouts.get("connect", 1.0), timeouts.get("silence", 10.0))
    async with AsyncExitStack() as stack:
        stack.callback(state.view_log.close)
        inference = await stack.enter_async_context(listening(inference_app(router, upstream, state.figures)))
        management = await stack.enter_async_context(listening(management_app(state, registry)))
        limits = httpx.Limits(max_connections=200)
        yield RunningCoordinator(
            state,
            upstream,
            await stack.enter_async_context(httpx.AsyncClient(base_url=inference, limits=limits, timeout=10)),
            await stack.enter_async_context(httpx.AsyncClient(base_url=management, timeout=10)),
        )


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[Engine]]:
    """`count` engines, ranks 0…, with open gates."""
    made = [Engine(rank) for rank in range(count)]
    async with AsyncExitStack() as stack:
        for engine in made:
            engine.url = await stack.enter_async_context(listening(engine.app()))
            engine.gate.set()
        yield made


def served(made: list[Engine], revision: int | None, *ranks: int, instance: int = 7) -> dict[str, Any]:
    """An entry that publishes these ranks of these engines."""
    return entry(instance, {rank: made[rank].port for rank in ranks}, revision, ip="127.0.0.1")
