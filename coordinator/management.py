"""The Controller's side of a Coordinator: refreshes in, the view out, and what Kubernetes asks."""

from typing import Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry

from coordinator.state import CoordinatorState
from coordinator.view import Conflict
from domain.messages.coordinator import INSTANCES_PATH, REFRESH_PATH, CoordinatorView, RefreshReply, RefreshRequest
from service.failpoints import failpoint
from service.http import HttpError, create_app, success
from service.metrics import add_metrics_route

_MAX_REFRESH_BYTES: Final = 64 * 1024 * 1024
"""A SET of 100 instances of 320 ranks is 3 MB."""


def management_app(state: CoordinatorState, registry: CollectorRegistry) -> FastAPI:
    """`/instances/refresh`, `/instances`, `/liveness`, `/readiness`, `/metrics`."""
    app = create_app("Autotomy Coordinator", body_limits={REFRESH_PATH: _MAX_REFRESH_BYTES})

    @app.post(REFRESH_PATH, response_model=RefreshReply)
    async def refresh(request: RefreshRequest) -> object:
        await failpoint("coordinator.refresh.before")
        result = state.apply(request)
        await failpoint("coordinator.refresh.after")
        if isinstance(result, Conflict):
            return _conflict(result, state.view.incarnation)
        return RefreshReply(data=result.outcome)

    @app.get(INSTANCES_PATH, response_model=CoordinatorView)
    async def instances() -> CoordinatorView:
        return state.published()

    @app.get("/liveness")
    async def liveness() -> object:
        return success({"incarnation": state.view.incarnation})

    @app.get("/readiness")
    async def readiness() -> object:
        if not state.router.has_view:
            raise HttpError(503, "NO_VIEW", "no SET for this life has come yet; nothing is routed")
        return success({"incarnation": state.view.incarnation, "models": state.router.models})

    add_metrics_route(app, registry)
    return app


def _conflict(conflict: Conflict, incarnation: str) -> JSONResponse:
    """409 with the reason at the top, where the contract has it, and in the envelope, where every process has it."""
    body = {
        "reason": conflict.reason,
        "code": 409,
        "message": conflict.message,
        "data": {"reason": conflict.reason, "incarnation": incarnation},
    }
    return JSONResponse(body, status_code=409)
