"""The fault-tolerance routes: what a round says to this Pod.

The whole prefix is switched by `enable_dp_scale_down_proxy`; off, it answers 404 before anything of the body is read, as
if this version had no such routes.
"""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from domain.messages.node_manager import (
    FT_PREFIX,
    ApplyReply,
    ApplyRequest,
    FinalizeReply,
    FinalizeRequest,
    GuardReply,
    GuardRequest,
    JournalReply,
    NodeManagerReason,
    PaceRequest,
    ProbeReply,
    ProbeRequest,
    StatusReply,
    StatusRequest,
)
from node_manager.journal import Journal
from node_manager.node import NodeManager
from service.http import failure


class FtSwitch:
    """In front of everything: the FT routes exist or they do not."""

    def __init__(self, app: ASGIApp, enabled: Callable[[], bool]) -> None:
        self._app = app
        self._enabled = enabled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(FT_PREFIX) and not self._enabled():
            why = "fault tolerance by scale-down is switched off (enable_fault_tolerance and enable_dp_scale_down)"
            await failure(404, NodeManagerReason.DISABLED, why)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def add_ft_routes(app: FastAPI, node: NodeManager) -> None:
    """status, guard, apply, finalize; and ours: probe, pace, journal."""

    @app.post(f"{FT_PREFIX}/status")
    async def status(request: StatusRequest) -> StatusReply:
        _must_be_usable(node.journal)
        entries = await node.engines.look(request.endpoint_ids)
        return StatusReply(engines=entries, node_manager_incarnation=node.incarnation)

    @app.post(f"{FT_PREFIX}/guard")
    async def guard(request: GuardRequest) -> GuardReply:
        return await node.transactions.guard(request)

    @app.post(f"{FT_PREFIX}/apply")
    async def apply(request: ApplyRequest) -> ApplyReply:
        return await node.transactions.apply(request)

    @app.post(f"{FT_PREFIX}/finalize")
    async def finalize(request: FinalizeRequest) -> FinalizeReply:
        return await node.transactions.finalize(request)

    @app.post(f"{FT_PREFIX}/probe")
    async def probe(request: ProbeRequest) -> ProbeReply:
        _must_be_usable(node.journal)
        return ProbeReply(engines=await node.engines.probe(request.endpoint_ids, request.timeout_sec))

    @app.post(f"{FT_PREFIX}/pace")
    async def pace(request: PaceRequest) -> dict[str, float]:
        node.poller.set_pace(request.poll_interval_sec)
        return {"poll_interval_sec": node.poller.interval_sec}

    @app.get(f"{FT_PREFIX}/journal")
    async def journal() -> JournalReply:
        return node.transactions.journal_reply(node.incarnation)


def _must_be_usable(journal: Journal) -> None:
    """Raises `JournalError` over a broken journal: then nothing under this prefix can be relied on."""
    _ = journal.standing
