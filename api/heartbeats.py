"""POST /controller/heartbeat: a Pod lives, with these ranks; the reply tells it which ranks were removed (contracts §3).

A missing heartbeat is lifecycle information and never removes a rank. What a Pod should name is its registered ranks
without the committed ones, exactly. While a round or a late finalize is under way the Pod may not have learned yet what this
round or an earlier one committed, or have learned it before this API: then every set from what will be left to all its ranks
passes, and the reply tells it.
"""

from typing import Final

from fastapi import APIRouter, Response

from api.errors import ApiReason
from api.gateway import WorkflowUnknown
from api.pulse_watch import tell
from api.state import Api, unknown
from domain.messages.controller import HeartbeatReply, HeartbeatRequest
from domain.runtime import TRANSACTION_PHASES, FtPhase, RuntimeRecord
from domain.topology import NodeManagerAddress, Topology
from service.http import HttpError, success

_MOST_DIGITS: Final = 9


def heartbeat_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["NodeManagers"])

    @router.post("/controller/heartbeat")
    async def heartbeat(body: HeartbeatRequest) -> Response:
        topology = await api.instances.find(body.instance_id)
        if topology is None:
            api.figures.heartbeats.labels("unknown").inc()
            raise unknown(body.instance_id, status=503)
        manager = NodeManagerAddress(ip=body.pod_ip, port=body.nm_port)
        ranks = _ranks_of(topology, manager)
        api.pulse.heard(topology.instance_id, manager)
        record = await _record(api, topology, fresh=False)
        if not may_name(ranks, _named(body), record):
            record = await _record(api, topology, fresh=True)
        if not may_name(ranks, _named(body), record):
            api.figures.heartbeats.labels("wrong set").inc()
            expected = sorted(ranks - set(record.dead_committed))
            message = f"Pod {body.pod_ip}:{body.nm_port} names ranks {sorted(_named(body))}, it should be {expected}"
            raise HttpError(409, ApiReason.WRONG_SET, message, expected=expected, dead_committed=record.dead_committed)
        await tell(api, topology.instance_id, manager, record, lost=False)
        api.figures.heartbeats.labels("ok").inc()
        return success(
            HeartbeatReply(generation=record.generation, dead_committed=removed_for(record), fault_tolerance_config=api.pacing())
        )

    return router


async def _record(api: Api, topology: Topology, *, fresh: bool) -> RuntimeRecord:
    """The instance's record. A FaultManager that is gone is started again; meanwhile the Pod tries again."""
    try:
        return await api.instances.record(topology.instance_id, fresh=fresh)
    except WorkflowUnknown:
        await api.gateway.ensure_running(api.fault_manager(topology))
        message = f"the FaultManager of instance {topology.instance_id} is being started"
        raise HttpError(503, ApiReason.UNKNOWN_INSTANCE, message) from None


def _ranks_of(topology: Topology, manager: NodeManagerAddress) -> set[int]:
    if manager not in topology.managers:
        message = f"instance {topology.instance_id} has no NodeManager at {manager}"
        raise HttpError(409, ApiReason.FOREIGN_POD, message)
    return set(topology.ranks_of(manager))


def _named(body: HeartbeatRequest) -> set[int]:
    """The ranks that a heartbeat names; a key that is no rank is never expected, so it makes the set a wrong one."""
    return {int(key) if key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS else -1 for key in body.endpoints}


def removed_for(record: RuntimeRecord) -> tuple[int, ...]:
    """The ranks that a Pod is to retire. None while the instance is rebuilt: its start command says who takes part, and
    what the old group had lost must not be taken from the new one."""
    return () if record.phase is FtPhase.RECONFIGURING else record.dead_committed


def may_name(ranks: set[int], named: set[int], record: RuntimeRecord) -> bool:
    """Whether a Pod that owns `ranks` may name just `named`."""
    after = ranks - set(record.dead_committed)
    if named == after:
        return True
    under_way = record.phase in TRANSACTION_PHASES or bool(record.pending_finalize) or record.phase is FtPhase.RECONFIGURING
    return under_way and after - set(record.pending_removed_ranks) <= named <= ranks
