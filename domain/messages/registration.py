"""POST /controller/register: a Pod says who it is and asks where it belongs (contracts §3).

`known_generation` is the highest generation that the NodeManager's journal has seen; 0 in a Pod without a past. The reply's
`dead_committed` is what it has to learn when it was away while a round committed.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, model_validator

from domain.address import Host
from domain.engine import FtCapability
from domain.messages.node_manager import FtPacing
from domain.model import MAX_RANKS, Count, Generation, Incarnation, InstanceId, Name, Port, Rank, Strict, Tolerant, Word
from domain.topology import Endpoint, NodeManagerAddress, ParallelConfig, Role

DEFAULT_DP_MASTER_PORT = 29500


class PodRegistration(Strict):
    """What a Pod says of itself; the same as long as its NodeManager's configuration is the same.

    `business_ports`: one for each rank that begins in this Pod, in rank order; `device_ids`: as many lists, or none.
    `dp_master_port` (ours): that of `node_rank` 0 counts for the instance.
    """

    job_name: Name
    model_name: Name
    role: Role = Role.UNION
    pod_ip: Host
    nm_port: Port
    node_name: Word = ""
    node_rank: Annotated[StrictInt, Field(ge=0, le=4095)]
    nnodes: Annotated[StrictInt, Field(ge=1, le=4096)]
    business_ports: Annotated[tuple[Port, ...], Field(min_length=1, max_length=MAX_RANKS)]
    device_ids: tuple[tuple[Word, ...], ...] = ()
    parallel_config: ParallelConfig
    dp_master_port: Port = DEFAULT_DP_MASTER_PORT
    ft_capability: FtCapability | None = None

    @property
    def address(self) -> NodeManagerAddress:
        return NodeManagerAddress(ip=self.pod_ip, port=self.nm_port)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of this Pod by its `node_rank` alone. With more Pods than ranks: the one rank that it is a part of."""
        size = self.parallel_config.dp_size
        if self.nnodes > size:
            return (self.node_rank // (self.nnodes // size),)
        local = size // self.nnodes
        return tuple(range(self.node_rank * local, (self.node_rank + 1) * local))

    @property
    def headless(self) -> bool:
        """Whether it serves no HTTP: a rank that is spread over several Pods is reached in the first of them."""
        size = self.parallel_config.dp_size
        return self.nnodes > size and self.node_rank % (self.nnodes // size) != 0

    @model_validator(mode="after")
    def _consistent(self) -> "PodRegistration":
        size = self.parallel_config.dp_size
        if self.node_rank >= self.nnodes:
            raise ValueError(f"node_rank={self.node_rank} must be below nnodes={self.nnodes}")
        if size % self.nnodes and self.nnodes % size:
            raise ValueError(f"dp_size={size} ranks cannot be spread evenly over nnodes={self.nnodes} Pods")
        if len(self.business_ports) != len(self.ranks):
            raise ValueError(
                f"business_ports has {len(self.business_ports)} ports; with dp_size={size} and nnodes={self.nnodes} "
                f"this Pod has {len(self.ranks)} ranks"
            )
        if self.device_ids and len(self.device_ids) != len(self.ranks):
            raise ValueError(f"device_ids has {len(self.device_ids)} lists, this Pod has {len(self.ranks)} ranks")
        return self


class RegisterRequest(PodRegistration):
    """POST /controller/register. `incarnation`: this life of the NodeManager.

    `known_instance_id` (ours): what the journal says it belongs to, so that a Controller that lost its memory gives an
    instance the number that it had.
    """

    incarnation: Incarnation
    known_generation: Generation = 0
    known_instance_id: InstanceId | None = None

    @property
    def pod(self) -> PodRegistration:
        """Without what belongs to this one life."""
        return PodRegistration.model_validate(self.model_dump(include=set(PodRegistration.model_fields)))


class Admission(StrEnum):
    """What became of a registration. The first two changed something."""

    SEATED = "SEATED"
    REPLACED = "REPLACED"  # the seat's former Pod is gone: this one has another address
    UNCHANGED = "UNCHANGED"
    CONTRADICTS = "CONTRADICTS"  # another model, role, size or shape than the Pods before it
    SEAT_TAKEN = "SEAT_TAKEN"  # a newer Pod has this node_rank
    ADDRESS_TAKEN = "ADDRESS_TAKEN"  # the same Pod has another node_rank already
    OTHER_INSTANCE = "OTHER_INSTANCE"  # another instance owns this NodeManager's address
    FOREIGN_POD = "FOREIGN_POD"  # the assembled topology has no such Pod, or not with these ranks

    @property
    def changed(self) -> bool:
        return self in (Admission.SEATED, Admission.REPLACED)

    @property
    def refused(self) -> bool:
        return not self.changed and self is not Admission.UNCHANGED


class HoldReason(StrEnum):
    """Why a Pod must not start engines of its own accord."""

    COMMITTED = "COMMITTED"  # every rank of it was removed
    ROUND_RUNS = "ROUND_RUNS"  # a strategy is under way
    GROUP_LIVES = "GROUP_LIVES"  # a fresh engine cannot join a living group


class RegisterReply(Tolerant):
    """`endpoints`: all of the instance once it is assembled, before that this Pod's own; `master_dp_ip` None until it is known.

    `hold` = start no engines, whatever the file says; the start command comes when the instance is assembled or rebuilt.
    `waiting_for` (ours): the node_ranks that have not registered yet.
    """

    instance_id: InstanceId
    generation: Generation
    dead_committed: tuple[Rank, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    master_dp_ip: Host | None = None
    dp_master_port: Port
    hold: StrictBool
    hold_reason: HoldReason | None = None
    waiting_for: tuple[Count, ...] = ()
    fault_tolerance_config: FtPacing | None = None
