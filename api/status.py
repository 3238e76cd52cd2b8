"""GET /controller/fault_tolerance/status: the runtime record of one instance, or of all (RFC §7)."""

import asyncio

from fastapi import APIRouter, Response

from api.gateway import WorkflowUnknown, stamp
from api.state import Api
from domain.instance import InstanceState
from domain.runtime import FtPhase, RuntimeRecord, Waiting
from domain.topology import Topology
from service.http import success


def status_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["operators"])

    @router.get("/controller/fault_tolerance/status")
    async def status(instance_id: int | None = None) -> Response:
        """Feature off: `{"phase": "DISABLED", "instances": []}`; else one record, or all."""
        if not api.config.enable_dp_scale_down_proxy:
            return success({"phase": FtPhase.DISABLED, "instances": []})
        if instance_id is not None:
            return success(await _record(api, await api.topology(instance_id)))
        known = [one.topology for one in await api.instances.all()]
        records = await asyncio.gather(*(_record(api, topology) for topology in known))
        return success({"instances": sorted(records, key=lambda record: record.instance_id)})

    return router


async def _record(api: Api, topology: Topology) -> RuntimeRecord:
    """Asked now. Between a declaration and its FaultManager's first breath: what that one will begin with."""
    try:
        return await api.instances.record(topology.instance_id, fresh=True)
    except WorkflowUnknown:
        state = InstanceState(instance_id=topology.instance_id, topology=topology, config=api.config)
        waiting = Waiting(reason="its FaultManager does not run", until=None, then="it is started by the next report")
        return state.record(waiting, stamp())
