"""The supervisor's own HTTP: three probes for Kubernetes, and one page for people.

`/ready` and `/readyz` say whether requests should come, `/health` whether the Pod should live. The difference is the
point: a group that recovers in place is not ready and must not be restarted.
"""

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from domain.model import Strict
from dp_supervisor.rules import Rules, ServerState, Standing
from dp_supervisor.supervisor import DpSupervisor
from service.http import create_app, failure, success


class RankState(Strict):
    """One server as last seen. `why` is empty while all is well."""

    rank: int
    port: int
    pid: int
    look: ServerState | None
    why: str


class SupervisorState(Strict):
    """GET /status."""

    rules: Rules
    ready: bool
    standing: Standing
    ranks: tuple[RankState, ...]


def supervisor_app(supervisor: DpSupervisor) -> FastAPI:
    """The application; it is served once the group was ready."""
    app = create_app("Autotomy DP supervisor")

    @app.get("/ready")
    @app.get("/readyz")
    async def ready() -> JSONResponse:
        return _answer(supervisor.ready, "no rank serves now")

    @app.get("/health")
    async def health() -> JSONResponse:
        return _answer(supervisor.healthy, "everything is being stopped")

    @app.get("/status")
    async def status() -> JSONResponse:
        return success(state_of(supervisor))

    return app


def state_of(supervisor: DpSupervisor) -> SupervisorState:
    """What /status shows."""
    ranks = tuple(
        RankState(rank=server.rank, port=server.plan.port, pid=server.pid, look=server.look, why=server.why)
        for server in supervisor.servers
    )
    return SupervisorState(rules=supervisor.options.rules, ready=supervisor.ready, standing=supervisor.standing, ranks=ranks)


def _answer(yes: bool, why_not: str) -> JSONResponse:
    return success() if yes else failure(503, "NOT_NOW", why_not)
