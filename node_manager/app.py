"""The NodeManager's HTTP side (contracts §2): the Pod's life, and what the Pod says about itself.

The fault-tolerance routes are in `ft_app`. Here a success is the bare reply model; a failure is the envelope that
everybody has, with the reason and, where it helps, the holder of the guard and the engines that stand in the way.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from domain.messages.node_manager import (
    EngineRestartAction,
    EngineRestartReply,
    EngineRestartRequest,
    LivenessReply,
    NodeManagerReason,
    PauseReply,
    PodStatusReply,
    StartReply,
    StartRequest,
    StopReply,
    StopRequest,
)
from node_manager.ft_app import FtSwitch, add_ft_routes
from node_manager.node import NodeManager
from node_manager.transactions import CommandRefused
from service.http import create_app, failure
from service.metrics import add_metrics_route

_MAX_START_BYTES: Final = 8 * 1024 * 1024
"""A start names every endpoint of the instance: 4,096 are 1 MiB."""


def node_manager_app(node: NodeManager, *, fault_tolerance: bool = True) -> FastAPI:
    """The application; the NodeManager runs as long as it is served. Without `fault_tolerance` it has no such routes at
    all: what a NodeManager whose switch is off must be like."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with node.running():
            yield

    app = create_app("Autotomy NodeManager", lifespan=lifespan, body_limits={"/node-manager/start": _MAX_START_BYTES})
    app.add_exception_handler(CommandRefused, _on_refused)
    if fault_tolerance:
        app.add_middleware(FtSwitch, enabled=lambda: node.proxy_enabled)
        add_ft_routes(app, node)
    _add_life_routes(app, node)
    _add_state_routes(app, node)
    add_metrics_route(app, node.registry)
    return app


def _add_life_routes(app: FastAPI, node: NodeManager) -> None:
    @app.post("/node-manager/start")
    async def start(request: StartRequest) -> StartReply:
        reply = node.daemon.start(request)
        if reply.status == "started":
            node.pace(request.fault_tolerance_config, reset_interval=True)
        return reply

    @app.post("/node-manager/stop")
    async def stop(request: StopRequest) -> StopReply:
        if request.incarnation is not None and request.incarnation != node.incarnation:
            return StopReply(status="ignored", incarnation=node.incarnation)
        node.daemon.stop(request.generation, request.instance_id)
        return StopReply(status="stopping", incarnation=node.incarnation)

    @app.post("/node-manager/engine-restart")
    async def engine_restart(request: EngineRestartRequest) -> EngineRestartReply:
        if request.action is EngineRestartAction.RESTART:
            node.daemon.restart_engines(request.generation, request.instance_id)
            return EngineRestartReply(status="restarting", incarnation=node.incarnation)
        if request.action is EngineRestartAction.STOP:
            gone = node.daemon.stop_engines(request.generation, request.instance_id)
            return EngineRestartReply(status="stopped" if gone else "stopping", incarnation=node.incarnation)
        aborted = node.daemon.abort_restart()
        return EngineRestartReply(status="aborted" if aborted else "unchanged", incarnation=node.incarnation)

    @app.post("/node-manager/pause")
    async def pause() -> PauseReply:
        """PreStop: this Pod is taken down on purpose. No fault reports, no suicide, not ready; until `resume`."""
        node.reporter.pause()
        return PauseReply(status="paused", incarnation=node.incarnation)

    @app.post("/node-manager/resume")
    async def resume() -> PauseReply:
        """It stays after all: what was kept back is reported."""
        node.reporter.resume()
        return PauseReply(status="running", incarnation=node.incarnation)


def _add_state_routes(app: FastAPI, node: NodeManager) -> None:
    @app.get("/node-manager/status")
    async def status(relaxed: bool = False) -> PodStatusReply:
        return PodStatusReply(status=node.pod_status(relaxed=relaxed))

    @app.get("/liveness")
    async def liveness() -> LivenessReply:
        """That this process answers, and for which instance; engines are no part of it."""
        start = node.engines.start
        return LivenessReply(
            status="alive", incarnation=node.incarnation, instance_id=start.instance_id if start is not None else None
        )

    @app.get("/readiness")
    async def readiness() -> Response:
        """That commands can be taken, not over a broken journal, and that everything goes on which must go on by itself."""
        if node.journal.broken is not None:
            return failure(503, NodeManagerReason.JOURNAL, f"journal {node.config.journal} {node.journal.broken}")
        if (trouble := node.loops.trouble) is not None:
            return failure(503, NodeManagerReason.LOOP_FAILED, f"what must go on by itself failed of late: {trouble}")
        if node.reporter.paused:
            return failure(503, NodeManagerReason.STOPPING, "paused: this Pod is being taken down")
        return JSONResponse({"status": "ready", "incarnation": node.incarnation})


async def _on_refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CommandRefused)
    refusal, named = error.refusal, dict[str, Any]()
    if refusal.holder is not None:
        named["holder"] = refusal.holder
    if refusal.engines is not None:
        named["engines"] = dict(refusal.engines)
    return failure(error.status, refusal.reason, refusal.message, **named)
