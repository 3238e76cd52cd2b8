"""An engine's HTTP side under a test's thumb: a real server on a real port, whose every answer the test chooses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.http import bind, url_of
from tests.listening import listening


@dataclass
class FakeEngine:
    """`status_*` and `apply_*` may be changed at any time; `status_raw` is sent as it is. `applies`: every body that arrived."""

    rank: int = 0
    dialect: str = "v1"
    api_key: str | None = None
    status_code: int = 200
    status_body: object | None = None
    status_raw: bytes | None = None
    status_delay_sec: float = 0.0
    entry: dict[str, Any] = field(default_factory=dict)
    health_code: int = 200
    apply_code: int = 202
    apply_delay_sec: float = 0.0
    apply_barrier: asyncio.Barrier | None = None
    finish_reason: str = "length"
    applies: list[dict[str, Any]] = field(default_factory=list)
    statuses_asked: int = 0
    url: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def host(self) -> str:
        return self.url.rsplit(":", 1)[0].removeprefix("http://")

    def app(self) -> Starlette:
        prefix = {"v1": "/v1/fault_tolerance", "legacy": "/fault_tolerance", "off": "/none"}[self.dialect]
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route(f"{prefix}/status", self._status),
                Route(f"{prefix}/apply", self._apply, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _health(self, _request: Request) -> Response:
        return Response(status_code=self.health_code)

    async def _status(self, request: Request) -> Response:
        self.statuses_asked += 1
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": {"message": "wrong key"}}, status_code=401)
        answer = self._status_now()
        await asyncio.sleep(self.status_delay_sec)
        return answer

    def _status_now(self) -> Response:
        if self.status_raw is not None:
            return Response(self.status_raw, status_code=self.status_code, media_type="application/json")
        if isinstance(self.status_body, str):
            return Response(self.status_body, status_code=self.status_code)
        entry = {"id": self.rank, "status": "healthy", **self.entry}
        body = self.status_body or {"schema_version": 1, "total_engines": 1, "engines": [entry]}
        return JSONResponse(body, status_code=self.status_code)

    async def _apply(self, request: Request) -> Response:
        body = await request.json()
        self.applies.append(body)
        if self.apply_barrier is not None:
            await self.apply_barrier.wait()
        await asyncio.sleep(self.apply_delay_sec)
        if self.apply_code == 202:
            return JSONResponse({"message": "queued", "request_id": body["request_id"]}, status_code=202)
        return JSONResponse({"error": {"message": "no", "type": "t", "param": None, "code": 1}}, status_code=self.apply_code)

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"data": [{"id": "simulated"}]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        assert body["max_tokens"] == 1
        return JSONResponse({"choices": [{"finish_reason": self.finish_reason, "text": "1"}]})


@contextlib.asynccontextmanager
async def serving(engine: FakeEngine, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[FakeEngine]:
    """The engine at a free port, for the length of the block."""
    sock = bind(host, port)
    engine.url = url_of(sock)
    async with listening(engine.app(), sock):
        yield engine
