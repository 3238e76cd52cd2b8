"""A Controller under a test's thumb: takes reports and heartbeats, keeps them, answers as it is told."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from domain.messages.controller import HeartbeatRequest
from domain.messages.node_manager import PodReport, RankReport
from domain.messages.registration import RegisterRequest
from service.http import bind, url_of
from tests.listening import listening


@dataclass
class FakeController:
    """`report_codes`: answers to the next reports, then 200. Models parse what arrives: a wrong form fails the test."""

    report_codes: list[int] = field(default_factory=list)
    reports: list[PodReport] = field(default_factory=list)
    turned_away: int = 0
    heartbeats: list[HeartbeatRequest] = field(default_factory=list)
    heartbeat_reply: dict[str, Any] | None = None
    register_codes: list[int] = field(default_factory=list)
    registrations: list[RegisterRequest] = field(default_factory=list)
    register_reply: dict[str, Any] = field(default_factory=dict)
    url: str = ""

    async def _report(self, request: Request) -> Response:
        report = PodReport.model_validate_json(await request.body())
        code = self.report_codes.pop(0) if self.report_codes else 200
        if code != 200:
            self.turned_away += 1
            return JSONResponse({"code": code, "message": "no", "data": {"reason": "TEST"}}, status_code=code)
        self.reports.append(report)
        return JSONResponse({"code": 200, "message": "Success", "data": {"accepted": True, "reason": ""}})

    async def _heartbeat(self, request: Request) -> Response:
        self.heartbeats.append(HeartbeatRequest.model_validate_json(await request.body()))
        if self.heartbeat_reply is None:
            data = {"reason": "UNKNOWN_INSTANCE"}
            return JSONResponse({"code": 503, "message": "unknown instance", "data": data}, status_code=503)
        return JSONResponse({"code": 200, "message": "Success", "data": self.heartbeat_reply})

    async def _register(self, request: Request) -> Response:
        self.registrations.append(RegisterRequest.model_validate_json(await request.body()))
        code = self.register_codes.pop(0) if self.register_codes else 200
        if code != 200:
            return JSONResponse({"code": code, "message": "no", "data": {"reason": "TEST"}}, status_code=code)
        reply = {"instance_id": 7, "generation": 0, "dp_master_port": 29500, "hold": False} | self.register_reply
        return JSONResponse({"code": 200, "message": "Success", "data": reply})

    def told(self, rank: int) -> list[RankReport]:
        """All that was reported of a rank, in order of arrival."""
        return [one for report in self.reports for one in report.reports if one.engine_id == rank]

    def last(self, rank: int) -> RankReport | None:
        told = self.told(rank)
        return told[-1] if told else None

    def says(self, rank: int, status: int, source: str = "engine") -> Callable[[], bool]:
        def condition() -> bool:
            last = self.last(rank)
            return last is not None and (last.engine_status, last.source.value) == (status, source)

        return condition


HEALTHY, DEAD, UNHEALTHY = 0, 1, 2


@contextlib.asynccontextmanager
async def controller_serving(controller: FakeController, port: int = 0) -> AsyncIterator[FakeController]:
    sock = bind("127.0.0.1", port)
    controller.url = url_of(sock)
    app = Starlette(
        routes=[
            Route("/controller/report_software_fault", controller._report, methods=["POST"]),
            Route("/controller/register", controller._register, methods=["POST"]),
            Route("/controller/heartbeat", controller._heartbeat, methods=["POST"]),
        ]
    )
    async with listening(app, sock):
        yield controller
