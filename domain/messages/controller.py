"""What the Controller API serves to NodeManagers, Coordinators, monitors and operators (contracts §3).

NodeManagers' reports in our form are `node_manager.PodReport`; the models here are the rest.
"""

from enum import IntEnum
from typing import Annotated

from pydantic import Field, StrictBool

from domain.address import Host, PeerUrl
from domain.engine import EngineStatus, FtCapability, Mask
from domain.messages.node_manager import FtPacing
from domain.model import MAX_EPOCH_SEC, Generation, Incarnation, InstanceId, Name, Port, Rank, Said, Strict, Tolerant, Word
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Role, Topology


class MotorStatus(IntEnum):
    """`engine_status` in Motor's reports."""

    HEALTHY = 0
    DEAD = 1
    UNHEALTHY = 2

    @property
    def status(self) -> EngineStatus:
        return {MotorStatus.HEALTHY: EngineStatus.HEALTHY, MotorStatus.DEAD: EngineStatus.DEAD}.get(self, EngineStatus.UNHEALTHY)


class InstanceDeclaration(Strict):
    """PUT /controller/instances/<id>: an instance, declared as a whole."""

    job_name: Name
    model_name: Name
    role: Role = Role.UNION
    parallel_config: ParallelConfig
    dp_master_port: Port
    node_managers: tuple[NodeManagerPlace, ...] = Field(min_length=1)
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)
    ft_capability: FtCapability | None = None
    ft_capability_consistent: StrictBool = True

    def topology(self, instance_id: int) -> Topology:
        """The declared topology. Raises a pydantic `ValidationError` where the declaration contradicts itself."""
        return Topology.model_validate({"instance_id": instance_id, **self.model_dump()})


class AdditionalInfo(Strict):
    ft_state: Said | None = None
    ft_error: Said | None = None
    mask: Mask | None = None
    last_ft_request_id: Said | None = None


class SoftwareFaultReport(Strict):
    """POST /controller/report_software_fault, Motor's single form."""

    instance_id: InstanceId
    pod_ip: Host
    node_manager_port: Port | None = None
    engine_id: Rank
    engine_status: Annotated[int, Field(strict=True, ge=0, le=2)]
    exception_type: Said | None = None
    exception_message: Said | None = None
    additional_info: AdditionalInfo | None = None


class ReportReply(Tolerant):
    accepted: StrictBool
    reason: Said


class HeartbeatRequest(Strict):
    """POST /controller/heartbeat: one Pod's ranks, "normal" or another word."""

    job_name: Word
    instance_id: InstanceId
    pod_ip: Host
    nm_port: Port
    endpoints: dict[Word, Word]


class HeartbeatReply(Tolerant):
    """The NodeManager retires `dead_committed` if `generation` is not below its own."""

    generation: Generation
    dead_committed: tuple[Rank, ...]
    fault_tolerance_config: FtPacing | None = None


class CoordinatorAnnouncement(Strict):
    """POST /controller/coordinators: a Coordinator says where it is, which life this is, and whether it has a view.

    `last_push_sec_ago`: since it last took a push, in seconds. One that is reached every few seconds need not be remembered
    again; without this figure each announcement is an entry in a history.
    """

    url: PeerUrl
    incarnation: Incarnation
    has_view: StrictBool
    last_push_sec_ago: Annotated[float, Field(strict=True, ge=0, le=MAX_EPOCH_SEC)] | None = None


class TerminateRequest(Strict):
    """POST /controller/terminate_instance."""

    instance_id: InstanceId
    reason: Said = ""
