"""The API server's routes.

vLLM's own: ``/health`` (200 as long as the process answers, whatever the status says), ``/metrics``, the OpenAI API and
the FT API. The stand-in's: ``GET /simulator/state`` and ``POST /simulator/misbehave``.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lab.simulator.engine import Engine
from lab.simulator.ft_routes import ft_routes, is_apply, log_apply
from lab.simulator.http_errors import ApiError, answer_api_error, answer_http_exception
from lab.simulator.misbehaviour import Misbehaviour
from lab.simulator.openai_routes import openai_routes


def http_app(engine: Engine) -> Starlette:
    """The ASGI application of one rank."""
    return Starlette(
        routes=[*ft_routes(engine), *openai_routes(engine), *_own_routes(engine)],
        middleware=[Middleware(_ApiKey, engine=engine)] if engine.options.api_key else [],
        exception_handlers={ApiError: answer_api_error, HTTPException: answer_http_exception},
    )


class _ApiKey:
    """With an API key, everything under /v1/ wants it; the legacy FT paths are not under /v1/."""

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app = app
        self._engine = engine
        self._expected = f"Bearer {engine.options.api_key}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            request = Request(scope, receive)
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), self._expected.encode()):
                if is_apply(scope["path"]):
                    log_apply(self._engine, await request.body(), 401)
                await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _own_routes(engine: Engine) -> list[Route]:
    async def health(_request: Request) -> Response:
        return Response()

    async def metrics(_request: Request) -> Response:
        name, label = "vllm:num_requests_running", f'{{model_name="{engine.options.model}"}}'
        lines = (
            f"# HELP {name} Number of requests in model execution batches.",
            f"# TYPE {name} gauge",
            f"{name}{label} {engine.running}",
        )
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=1.0.0; charset=utf-8")

    async def state(_request: Request) -> Response:
        looked = await engine.look()
        return JSONResponse(
            {
                "rank": engine.options.rank,
                "status": engine.entry.status,
                "epoch": engine.epoch,
                "dead_dp_ranks": sorted(engine.dead),
                "store_rank": engine.store_rank,
                "worker_pid": engine.worker.pid,
                "worker": looked._asdict() if looked else None,
                "misbehave": engine.misbehaviour.knobs,
            }
        )

    async def misbehave(request: Request) -> Response:
        engine.misbehaviour = _read_knobs(await request.body())
        engine.log.write("misbehave", knobs=engine.misbehaviour.knobs)
        return JSONResponse({"misbehave": engine.misbehaviour.knobs})

    return [
        _only_get("/health", health),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/simulator/state", state, methods=["GET"]),
        Route("/simulator/misbehave", misbehave, methods=["POST"]),
    ]


def _only_get(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """Starlette answers HEAD wherever it answers GET; vLLM's server has 405 for it."""
    route = Route(path, endpoint, methods=["GET"])
    assert route.methods is not None
    route.methods.discard("HEAD")
    return route


def _read_knobs(body: bytes) -> Misbehaviour:
    try:
        said = json.loads(body)
        return Misbehaviour.parse(said["knobs"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ApiError(400, f'want {{"knobs": "NAME[=VALUE],..."}}: {error}') from None
