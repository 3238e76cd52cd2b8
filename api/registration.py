"""POST /controller/register: a Pod takes its place in an instance, or hears where it belongs (contracts §3).

Pods ask again and again: until their instance is assembled, and after every restart of theirs or ours. What the registry
knows already is answered from the API's cache, so only news reaches the workflow and its history.
"""

from collections.abc import Mapping

from fastapi import APIRouter, Response

from api.errors import ApiReason
from api.gateway import UpdateRefused, WorkflowUnknown
from api.heartbeats import removed_for
from api.registry import tell_registry
from api.state import Api
from domain.messages.instance_registry import REGISTER_UPDATE, RegisterCall, RegisterResult
from domain.messages.registration import HoldReason, RegisterReply, RegisterRequest
from domain.registration import (
    Assembly,
    RegisteredInstance,
    RegistryState,
    assembled_for,
    endpoints_of,
    hold,
    joining,
    place_of,
)
from domain.runtime import FtPhase, RuntimeRecord
from domain.topology import Topology
from service.http import HttpError, success


def registration_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["NodeManagers"])

    @router.post("/controller/register")
    async def register(body: RegisterRequest) -> Response:
        """Where this Pod belongs. The same Pod in the same life gets the same answer."""
        view = await api.instances.view()
        instance, assembly = _find(view, body)
        if instance is None and not (assembly is not None and assembly.has(body)):
            result = await _register(api, body, is_joining=False)
            view = await api.instances.view(version=result.version)
            instance, assembly = _find(view, body)
        if instance is not None:
            return success(await _assembled(api, instance, body))
        if assembly is None:
            raise HttpError(503, ApiReason.UNKNOWN_INSTANCE, "the instance was removed in this moment; register again")
        return success(_waiting(api, assembly, body))

    return router


def _find(view: RegistryState, body: RegisterRequest) -> tuple[RegisteredInstance | None, Assembly | None]:
    instance = assembled_for(view.instances, body)
    return instance, next((one for one in view.assemblies if one.job_name == body.job_name), None)


async def _register(api: Api, body: RegisterRequest, *, is_joining: bool) -> RegisterResult:
    call = RegisterCall(request=body, config=api.config, joining=is_joining)
    try:
        async with api.registering:
            result = await tell_registry(api, REGISTER_UPDATE, call, RegisterResult)
    except UpdateRefused as refused:
        raise HttpError(503, ApiReason.ENDING, str(refused), headers={"Retry-After": "1"}) from None
    if result.admission.refused:
        raise HttpError(409, ApiReason(result.admission.value), result.message, instance_id=result.instance_id)
    return result


async def _assembled(api: Api, instance: RegisteredInstance, body: RegisterRequest) -> RegisterReply:
    topology, lives = await api.instances.topology(instance), instance.lives
    if (why := place_of(topology, body)) is not None:
        api.strangers.note(topology.instance_id, body.address, why)
        raise HttpError(409, ApiReason.FOREIGN_POD, why, instance_id=topology.instance_id)
    record = await _record(api, topology)
    if record is not None and joining(record.phase) and lives.get(str(body.address)) != body.incarnation:
        await _register(api, body, is_joining=True)
        api.instances.forget()
    held = _hold(body, lives, record)
    if held is not None and record is not None and lives.get(str(body.address)) != body.incarnation:
        record = await _record(api, topology, fresh=True)  # a fresh life acts on it: a rebuild may have begun a moment ago
        held = _hold(body, lives, record)
    dead = removed_for(record) if record is not None else ()
    return RegisterReply(
        instance_id=topology.instance_id,
        generation=record.generation if record is not None else 0,
        dead_committed=dead,
        endpoints=topology.endpoints,
        master_dp_ip=topology.endpoint(0).ip,
        dp_master_port=topology.dp_master_port,
        hold=held is not None,
        hold_reason=held,
        fault_tolerance_config=api.pacing(),
    )


def _hold(body: RegisterRequest, lives: Mapping[str, str], record: RuntimeRecord | None) -> HoldReason | None:
    phase = record.phase if record is not None else FtPhase.NORMAL
    dead = removed_for(record) if record is not None else ()
    return hold(body, lives, phase, dead, strategy_runs=record is not None and record.active_strategy is not None)


async def _record(api: Api, topology: Topology, *, fresh: bool = False) -> RuntimeRecord | None:
    """None: its FaultManager does not run this moment, so nobody knows the phase: a fresh engine is then held."""
    try:
        return await api.instances.record(topology.instance_id, fresh=fresh)
    except WorkflowUnknown:
        await api.gateway.ensure_running(api.fault_manager(topology))
        return None


def _waiting(api: Api, assembly: Assembly, body: RegisterRequest) -> RegisterReply:
    first = assembly.seats.get(0)
    return RegisterReply(
        instance_id=assembly.instance_id,
        generation=0,
        endpoints=endpoints_of(body),
        master_dp_ip=first.pod_ip if first is not None else None,
        dp_master_port=(first if first is not None else body).dp_master_port,
        hold=False,
        waiting_for=assembly.missing,
        fault_tolerance_config=api.pacing(),
    )
