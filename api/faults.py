"""POST /controller/report_software_fault, in both forms (contracts §3).

The API stamps when it received a report, checks against its cached topology that this Pod owns these ranks, and hands the
report on as a signal: once that is answered, the report is in the FaultManager's history, whatever dies next.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import ValidationError

from api.errors import ReportRefusal
from api.gateway import stamp
from api.state import Api
from domain.messages.controller import ReportReply, SoftwareFaultReport
from domain.messages.fault_manager import REPORT_SIGNAL
from domain.messages.node_manager import PodReport
from domain.topology import NodeManagerAddress, Topology
from service.http import invalid, success

Report = PodReport | SoftwareFaultReport


def fault_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["NodeManagers"])

    @router.post("/controller/report_software_fault")
    async def report_software_fault(body: Annotated[dict[str, Any], Body()]) -> Response:
        """One Pod's news in our form (`reports`, see PodReport), or one rank's in Motor's (SoftwareFaultReport)."""
        received_at = stamp()
        report = _read(body)
        topology = await api.topology(report.instance_id)
        refusal = why_not(topology, report)
        if refusal is not None:
            api.figures.reports.labels(refusal.value).inc()
            return success(ReportReply(accepted=False, reason=refusal))
        await api.gateway.signal_with_start(
            api.fault_manager(topology),
            REPORT_SIGNAL,
            {"report": report.model_dump(mode="json"), "received_at": received_at},
        )
        api.figures.reports.labels("accepted").inc()
        return success(ReportReply(accepted=True, reason=""))

    return router


def _read(body: dict[str, Any]) -> Report:
    try:
        return PodReport.model_validate(body) if "reports" in body else SoftwareFaultReport.model_validate(body)
    except ValidationError as error:
        raise invalid(error.errors()) from None


def why_not(topology: Topology, report: Report) -> ReportRefusal | None:
    """A Pod speaks for its own ranks only. None: it may."""
    ranks = [one.engine_id for one in report.reports] if isinstance(report, PodReport) else [report.engine_id]
    managers = [
        manager
        for manager in topology.managers
        if manager.ip == report.pod_ip and report.node_manager_port in (None, manager.port)
    ]
    if not managers:
        return ReportRefusal.FOREIGN_POD
    if any(rank not in topology.ranks for rank in ranks):
        return ReportRefusal.UNKNOWN_RANK
    if any(not _owned(topology, managers, rank) for rank in ranks):
        return ReportRefusal.FOREIGN_RANK
    return None


def _owned(topology: Topology, managers: list[NodeManagerAddress], rank: int) -> bool:
    return topology.manager_of_rank(rank) in managers
