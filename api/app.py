"""The Controller's HTTP service, put together. Each group of routes is in its own module."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from api.cache import Instances
from api.coordinators import coordinator_routes
from api.errors import ApiReason
from api.faults import fault_routes
from api.gateway import Gateway, WorkflowUnknown
from api.hardware import hardware_routes
from api.health import health_routes
from api.heartbeats import heartbeat_routes
from api.instance_figures import InstanceFigures
from api.instances import instance_routes
from api.pulse_watch import PulseWatch
from api.registration import registration_routes
from api.state import Api, Figures
from api.status import status_routes
from service.http import HttpError, create_app, failure
from service.loops import Loops
from service.metrics import add_metrics_route, new_registry
from service.one_exchange import one_exchange_client
from service.settings import Settings
from service.singletons import ensure_event_pusher, ensure_instance_registry

log = logging.getLogger(__name__)

_AGAIN_SEC: Final = 0.5

_MIB: Final = 1024 * 1024
_BODY_LIMITS: Final = {
    "/controller/instances/": 8 * _MIB,  # a declaration of 4,096 ranks is 1 MiB
    "/controller/report_software_fault": 8 * _MIB,  # the ranks of a whole Pod, each with what its engine says
}


def controller_app(settings: Settings, gateway: Gateway, loops: Loops | None = None) -> FastAPI:
    """The application. Its lifespan connects to Temporal in the background: it answers (503) from the first moment.

    `loops`: those of its process, which ends with them.
    """
    loops = loops or Loops(asyncio.Event())
    registry = new_registry()
    api = Api(
        gateway=gateway,
        instances=Instances(gateway),
        config=settings.fault_tolerance_config,
        figures=Figures(registry),
    )
    registry.register(InstanceFigures(api.instances))

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with one_exchange_client() as http:
            loops.start("connect to Temporal", _begin(api), may_end=True)
            loops.start("watch heartbeats", PulseWatch(api, http).run())
            try:
                yield
            finally:
                await loops.end()

    app = create_app("Autotomy Controller", lifespan=lifespan, body_limits=_BODY_LIMITS)
    app.add_exception_handler(WorkflowUnknown, _on_unknown_workflow)
    groups = (
        fault_routes,
        hardware_routes,
        heartbeat_routes,
        registration_routes,
        coordinator_routes,
        instance_routes,
        status_routes,
        health_routes,
    )
    for routes in groups:
        app.include_router(routes(api))
    add_metrics_route(app, registry)
    return app


async def _on_unknown_workflow(_request: Request, _error: Exception) -> JSONResponse:
    """Declared, but its workflow does not run: it is started by the next report or heartbeat."""
    return failure(503, ApiReason.NO_WORKER, "the workflow that would answer does not run yet; try again in a moment")


async def _begin(api: Api) -> None:
    """Connect, and see to it that the two workflows that there is one of are there. For as long as it takes."""
    await api.gateway.connect()
    while True:
        try:
            queue = api.gateway.task_queue
            await api.gateway.ask(partial(ensure_event_pusher, task_queue=queue, config=api.config))
            await api.gateway.ask(partial(ensure_instance_registry, task_queue=queue))
        except (HttpError, WorkflowUnknown) as error:
            log.warning("not ready yet, trying again", extra={"why": str(error)})
            await asyncio.sleep(_AGAIN_SEC)
        else:
            return
