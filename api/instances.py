"""What operators do with instances: declare, look, command, remove (contracts §3)."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import StrictBool, ValidationError

from api.errors import ApiReason
from api.explain import explained
from api.gateway import UpdateRefused, WorkflowUnknown, stamp
from api.registry import tell_registry
from api.state import Api, unknown
from api.status import assembling_record
from domain.instance.plan import Plan, PlanRequest
from domain.messages.controller import InstanceDeclaration, TerminateRequest
from domain.messages.fault_manager import (
    HOLD_UPDATE,
    PLAN_QUERY,
    RECONFIGURE_UPDATE,
    RELEASE_UPDATE,
    REPUBLISH_UPDATE,
    CommandReply,
    HoldCall,
    ReconfigureCall,
    fault_manager_id,
)
from domain.messages.instance_registry import (
    DECLARE_UPDATE,
    REMOVE_UPDATE,
    DeclareCall,
    RegistryOutcome,
    RegistryReply,
    RemoveCall,
)
from domain.model import MAX_INSTANCE_ID, Said, Strict
from domain.topology import Topology
from service.http import HttpError, HttpReason, invalid, success

InstanceId = Annotated[int, Path(ge=0, le=MAX_INSTANCE_ID)]


class ReconfigureBody(Strict):
    """`force` passes the budget, starts it anew, and stops a round that has not committed yet."""

    force: StrictBool = False
    why: Said = ""


class HoldBody(Strict):
    """`why` is shown to everybody who asks what the instance waits for."""

    why: Said = ""


class Nothing(Strict):
    """A body without fields."""


def instance_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["operators"])

    @router.put("/controller/instances/{instance_id}")
    async def declare(instance_id: InstanceId, declaration: InstanceDeclaration) -> Response:
        """Declare an instance; its FaultManager then assembles it. The same again changes nothing, another one is a 409."""
        topology = _topology(declaration, instance_id)
        reply = await _registry(api, DECLARE_UPDATE, DeclareCall(topology=topology, config=api.config))
        if reply.outcome is RegistryOutcome.CONFLICT:
            raise HttpError(409, ApiReason.CONFLICT, reply.message)
        if reply.outcome is RegistryOutcome.UNCHANGED:  # should its FaultManager be gone, nobody else may have the topology
            await api.gateway.ensure_running(api.fault_manager(topology))
        return success(reply)

    @router.get("/controller/instances")
    async def list_instances() -> Response:
        """All declarations."""
        known = await api.instances.all()
        return success({"instances": await asyncio.gather(*(api.instances.topology(one) for one in known))})

    @router.get("/controller/instances/{instance_id}")
    async def show(instance_id: InstanceId) -> Response:
        """One declaration, in the form in which it can be declared again."""
        topology = await api.topology(instance_id)
        return success(topology.model_dump(mode="json", exclude={"instance_id"}))

    @router.delete("/controller/instances/{instance_id}")
    async def remove(instance_id: InstanceId) -> Response:
        """Withdraw an instance and forget it. Its engines are left alone (see terminate_instance)."""
        return await _remove(api, RemoveCall(instance_id=instance_id, reason="removed by an operator"))

    @router.post("/controller/terminate_instance")
    async def terminate(body: TerminateRequest) -> Response:
        """Withdraw an instance, stop its engines, and forget it."""
        return await _remove(api, RemoveCall(instance_id=body.instance_id, reason=body.reason, stop_engines=True))

    @router.post("/controller/instances/{instance_id}/reconfigure")
    async def reconfigure(instance_id: InstanceId, body: ReconfigureBody | None = None) -> Response:
        """Rebuild the whole instance: stop all engines, start all ranks, serve again."""
        given = body or ReconfigureBody()
        return await _command(api, instance_id, RECONFIGURE_UPDATE, ReconfigureCall(force=given.force, why=given.why))

    @router.post("/controller/instances/{instance_id}/republish")
    async def republish(instance_id: InstanceId, body: Nothing | None = None) -> Response:
        """Push the serving view to the Coordinators once more, as a new revision."""
        return await _command(api, instance_id, REPUBLISH_UPDATE, None)

    @router.post("/controller/instances/{instance_id}/hold")
    async def hold(instance_id: InstanceId, body: HoldBody | None = None) -> Response:
        """Automation off: what is decided is recorded and not done. A strategy that runs goes on to its end."""
        return await _command(api, instance_id, HOLD_UPDATE, HoldCall(why=(body or HoldBody()).why))

    @router.post("/controller/instances/{instance_id}/release")
    async def release(instance_id: InstanceId, body: Nothing | None = None) -> Response:
        """Automation on: what stands by now is decided on, and acted on. Refused where it is on."""
        return await _command(api, instance_id, RELEASE_UPDATE, None)

    @router.get("/controller/instances/{instance_id}/plan")
    async def dry_run(instance_id: InstanceId, dead: Annotated[str, Query(max_length=4_000)]) -> Response:
        """What would happen if the ranks `dead` (`1` or `1,2`) died now: a dry run, nothing is touched."""
        topology = await api.topology(instance_id)
        request = PlanRequest(dead=_ranks(topology, dead))
        return success(await api.gateway.query(fault_manager_id(instance_id), PLAN_QUERY, Plan, request, open_only=True))

    @router.get("/controller/instances/{instance_id}/explain")
    async def explain(instance_id: InstanceId) -> Response:
        """Does it serve, what runs, why it waits, until when, and what comes then."""
        assembly = await api.instances.assembly(instance_id)
        if assembly is not None:
            return success(explained(assembling_record(assembly, api.config), stamp()))
        await api.instance(instance_id)
        record = await api.instances.record(instance_id, fresh=True)
        return success(explained(record, stamp(), api.strangers.of(instance_id)))

    return router


def _topology(declaration: InstanceDeclaration, instance_id: int) -> Topology:
    try:
        return declaration.topology(instance_id)
    except ValidationError as error:
        raise invalid(error.errors()) from None


def _ranks(topology: Topology, text: str) -> tuple[int, ...]:
    """`1,2` as ranks of this instance. Raises HttpError 400 that names what is wrong."""
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and int(word) in topology.ranks)]
    if wrong:
        theirs = f"instance {topology.instance_id}, which has 0..{topology.ranks[-1]}"
        why = f"dead: {', '.join(map(repr, wrong))} is no rank of {theirs}; name ranks as in 1 or 1,2"
        raise HttpError(400, HttpReason.INVALID, why)
    return tuple(sorted({int(word) for word in words}))


async def _registry(api: Api, update: str, call: DeclareCall | RemoveCall) -> RegistryReply:
    try:
        reply = await tell_registry(api, update, call, RegistryReply)
    except UpdateRefused as refused:
        raise HttpError(409, ApiReason.ENDING, str(refused), outcome=refused.reason) from None
    api.instances.forget()
    return reply


async def _remove(api: Api, call: RemoveCall) -> Response:
    reply = await _registry(api, REMOVE_UPDATE, call)
    if reply.outcome is RegistryOutcome.UNKNOWN:
        raise unknown(call.instance_id)
    return success(reply)


async def _command(api: Api, instance_id: int, update: str, call: ReconfigureCall | HoldCall | None) -> Response:
    """A person's command to a FaultManager. One that is gone is started, and answers the next time."""
    instance = await api.instance(instance_id)
    workflow_id = fault_manager_id(instance_id)
    try:
        reply: CommandReply = await api.gateway.update(workflow_id, update, call, CommandReply)
    except WorkflowUnknown:
        start = api.fault_manager(await api.instances.topology(instance))
        await api.gateway.ensure_running(start)
        raise HttpError(503, ApiReason.NO_WORKER, f"{workflow_id} is being started; try again in a moment") from None
    except UpdateRefused as refused:
        raise HttpError(409, ApiReason.REFUSED, str(refused), outcome=refused.reason) from None
    if not reply.accepted:
        raise HttpError(409, ApiReason.REFUSED, reply.message, outcome=reply.outcome)
    return success(_accepted(reply))


def _accepted(reply: CommandReply) -> dict[str, Any]:
    return {"accepted": True, "outcome": reply.outcome, "message": reply.message}
