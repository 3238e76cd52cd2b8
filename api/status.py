"""GET /controller/fault_tolerance/status: the runtime record of one instance, or of all (RFC §7)."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.gateway import WorkflowUnknown, stamp
from api.state import Api
from domain.config import FaultToleranceConfig
from domain.instance.state import InstanceState
from domain.model import MAX_INSTANCE_ID
from domain.registration import Assembly, RegisteredInstance
from domain.runtime import FtPhase, RuntimeRecord, Waiting, iso
from service.http import success


def status_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["operators"])

    @router.get("/controller/fault_tolerance/status")
    async def status(instance_id: Annotated[int | None, Query(ge=0, le=MAX_INSTANCE_ID)] = None) -> Response:
        """Feature off: `{"phase": "DISABLED", "instances": []}`; else one record, or all."""
        if not api.config.enable_dp_scale_down_proxy:
            return success({"phase": FtPhase.DISABLED, "instances": []})
        if instance_id is not None:
            assembly = await api.instances.assembly(instance_id)
            if assembly is not None:
                return success(assembling_record(assembly, api.config))
            return success(await _record(api, await api.instance(instance_id)))
        view = await api.instances.view(fresh=True)
        records = await asyncio.gather(*(_record(api, one) for one in view.instances))
        coming = [assembling_record(assembly, api.config) for assembly in view.assemblies]
        return success({"instances": sorted([*records, *coming], key=lambda record: record.instance_id)})

    return router


def assembling_record(assembly: Assembly, config: FaultToleranceConfig) -> RuntimeRecord:
    """An instance that has no FaultManager yet: which Pods it waits for."""
    ranks = tuple(range(assembly.job.parallel_config.dp_size))
    there, missing = len(assembly.seats), ", ".join(map(str, assembly.missing))
    return RuntimeRecord(
        instance_id=assembly.instance_id,
        phase=FtPhase.RECONFIGURING,
        original_dp_ranks=ranks,
        alive_dp_ranks=ranks,
        fallback_strategy=config.fallback_strategy.value,
        waiting=Waiting(
            reason=f"{there} of {assembly.job.nnodes} Pods have registered; missing: node_rank {missing}",
            until=iso(assembly.until),
            then="the Pods that are still there begin the assembly anew",
        ),
    )


async def _record(api: Api, one: RegisteredInstance) -> RuntimeRecord:
    """Asked now. Between a declaration and its FaultManager's first breath: what that one will begin with."""
    try:
        return await api.instances.record(one.instance_id, fresh=True)
    except WorkflowUnknown:
        topology = await api.instances.topology(one)
        state = InstanceState(instance_id=one.instance_id, topology=topology, config=api.config)
        waiting = Waiting(reason="its FaultManager does not run", until=None, then="it is started by the next report")
        return state.record(waiting, stamp())
