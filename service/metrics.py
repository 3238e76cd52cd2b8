"""Prometheus figures of one process, at `/metrics`.

Each process makes one registry at start and hands it to what counts; nothing is registered at import, so two apps in one
interpreter (the tests) do not share figures.
"""

from typing import Final

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

NAMESPACE: Final = "autotomy"


def new_registry() -> CollectorRegistry:
    """A registry that already knows the process itself: CPU, memory, file descriptors, garbage collector."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def add_metrics_route(app: FastAPI, registry: CollectorRegistry) -> None:
    """GET /metrics in Prometheus's text form."""

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
