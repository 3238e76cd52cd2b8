"""Probes: /startup and /liveness are about this process, /readiness about what it needs: Temporal and a polling worker.

Readiness asks the InstanceRegistry workflow something. An answer proves the whole way: server, task queue, worker; a
worker that is up but does not poll gives none.
"""

from fastapi import APIRouter, Response

from api.state import Api
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCES_QUERY
from domain.registration import RegistryState
from service.http import success


def health_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["probes"])

    @router.get("/startup")
    async def startup() -> Response:
        return success({"status": "up"})

    @router.get("/liveness")
    async def liveness() -> Response:
        return success({"status": "up"})

    @router.get("/readiness")
    async def readiness() -> Response:
        """200 when instances can be declared and faults be taken; else 503 that says which part is missing."""
        view = await api.gateway.query(INSTANCE_REGISTRY_ID, INSTANCES_QUERY, RegistryState)
        return success({"status": "ready", "instances": len(view.instances)})

    return router
