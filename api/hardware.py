"""POST /controller/report_hardware_fault and /controller/clear_hardware_fault (contracts §3, §6).

A fault names a node; every instance with a Pod on that node is told, each by a signal with the time of receipt. What the
fault means there (which ranks, which level) its FaultManager decides. A node that no instance is on is nobody's fault.
A word for a level that nobody knows is accepted, and said in the log: it counts as the worst, never as harmless.
"""

import logging
from typing import Annotated

from fastapi import APIRouter, Body, Response

from api.errors import ReportRefusal
from api.gateway import stamp
from api.state import Api
from domain.hardware import fault_level
from domain.messages.fault_manager import CLEAR_HARDWARE_SIGNAL, REPORT_HARDWARE_SIGNAL
from domain.messages.resource_monitor import HardwareFaultClear, HardwareFaultReport, HardwareReply
from service.http import success

log = logging.getLogger(__name__)


def hardware_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["resource monitors"])

    @router.post("/controller/report_hardware_fault")
    async def report_hardware_fault(report: Annotated[HardwareFaultReport, Body()]) -> Response:
        """A card's or node's fault. The same again is no news; a higher level of it is another fault."""
        if fault_level(report.level) is None:
            log.warning(
                "hardware fault of a level that nobody knows; it counts as an L6 that cannot be mapped",
                extra={"node": report.node_name, "code": report.fault_code, "level": report.level},
            )
        return await _tell(api, REPORT_HARDWARE_SIGNAL, report)

    @router.post("/controller/clear_hardware_fault")
    async def clear_hardware_fault(clear: Annotated[HardwareFaultClear, Body()]) -> Response:
        """That fault is gone; an isolation for it ends."""
        return await _tell(api, CLEAR_HARDWARE_SIGNAL, clear)

    return router


async def _tell(api: Api, signal: str, message: HardwareFaultReport | HardwareFaultClear) -> Response:
    """All instances on the node; raises HttpError 503 where one could not be told, and the monitor sends it again."""
    received_at = stamp()
    instances = await api.instances.on_node(message.node_name)
    if not instances:
        api.figures.reports.labels(ReportRefusal.UNKNOWN_NODE.value).inc()
        return success(HardwareReply(accepted=False, reason=ReportRefusal.UNKNOWN_NODE))
    told = {"report": message.model_dump(mode="json"), "received_at": received_at}
    for instance_id in instances:
        await api.gateway.signal_with_start(api.fault_manager(await api.topology(instance_id)), signal, told)
    api.figures.reports.labels("accepted").inc()
    return success(HardwareReply(accepted=True, reason="", instances=instances))
