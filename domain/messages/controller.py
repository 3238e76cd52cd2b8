"""What the Controller API serves to NodeManagers, Coordinators, monitors and operators (contracts §3).

NodeManagers' reports in our form are `node_manager.PodReport`; the models here are the rest.
"""

from enum import IntEnum
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, StrictInt

from domain.engine import EngineStatus, FtCapability
from domain.messages.node_manager import FtPacing
from domain.model import Generation, InstanceId, Port, Rank, Strict, Tolerant
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Role, Topology

_LONGEST_LABEL: Final = 63
"""Of a host's name, between its dots (RFC 1035)."""


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

    job_name: str = Field(min_length=1)
    model_name: str = Field(min_length=1)
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
    ft_state: str | None = None
    ft_error: str | None = None
    mask: tuple[StrictInt, ...] | None = None
    last_ft_request_id: str | None = None


class SoftwareFaultReport(Strict):
    """POST /controller/report_software_fault, Motor's single form."""

    instance_id: InstanceId
    pod_ip: str = Field(min_length=1)
    node_manager_port: Port | None = None
    engine_id: Rank
    engine_status: Annotated[int, Field(strict=True, ge=0, le=2)]
    exception_type: str | None = None
    exception_message: str | None = None
    additional_info: AdditionalInfo | None = None


class ReportReply(Tolerant):
    accepted: StrictBool
    reason: str


class HeartbeatRequest(Strict):
    """POST /controller/heartbeat: one Pod's ranks, "normal" or another word."""

    job_name: str
    instance_id: InstanceId
    pod_ip: str = Field(min_length=1)
    nm_port: Port
    endpoints: dict[str, str]


class HeartbeatReply(Tolerant):
    """The NodeManager retires `dead_committed` if `generation` is not below its own."""

    generation: Generation
    dead_committed: tuple[Rank, ...]
    fault_tolerance_config: FtPacing | None = None


def peer_url(url: str) -> str:
    """The URL, if a connection to it can be tried at all; one that is remembered wrongly fails each push. Raises ValueError."""
    parts = urlsplit(url)  # ValueError: an address in brackets that is none, a port that is no number, or no port
    host = parts.hostname or ""
    labels = host.removesuffix(".").split(".")
    named = ":" in host or all(0 < len(label) <= _LONGEST_LABEL and label.isascii() for label in labels)
    if parts.scheme not in ("http", "https") or not named or any(c.isspace() for c in url) or parts.port == 0:
        raise ValueError("write http://host:port or https://host:port, the host as DNS has it")
    return url


class CoordinatorAnnouncement(Strict):
    """POST /controller/coordinators: a Coordinator says where it is, which life this is, and whether it has a view.

    `last_push_sec_ago`: since it last took a push, in seconds. One that is reached every few seconds need not be remembered
    again; without this figure each announcement is an entry in a history.
    """

    url: Annotated[str, AfterValidator(peer_url)]
    incarnation: str = Field(min_length=1)
    has_view: StrictBool
    last_push_sec_ago: float | None = Field(default=None, strict=True, ge=0)


class TerminateRequest(Strict):
    """POST /controller/terminate_instance."""

    instance_id: InstanceId
    reason: str = ""
