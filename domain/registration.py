"""Who is who when Pods register themselves: pure rules of assembly (contracts §3).

An instance is its `job_name` and `nnodes` seats. A Pod takes the seat of its `node_rank`: ranks come from there, never
from the order of arrival. When all seats are taken the seats *are* the topology, and from then on it never changes.

| a Pod registers … | while the seats fill | once the instance is assembled |
|---|---|---|
| the first time for its seat | takes it | – |
| again, same address and incarnation | no change | no change |
| again, same address, a new incarnation | no change but for its life | a fresh engine: held, until a rebuild takes it in |
| from another address | replaces a Pod that is gone | refused: the topology names the other one |
| after it was replaced, same life | refused: two Pods claim one seat, the newer has it | – |
| and contradicts the others | refused, with the field | refused, with the field |
| at an address that another instance owns | refused, with the owner | refused, with the owner |

A NodeManager belongs to one instance, whether that was declared or assembled: two would stop each other's engines, for
their generations cannot be compared. An instance owns its addresses until it was removed and its FaultManager knows.

The capability of the instance is what **all** Pods say. One that says nothing makes it unknown, two that differ make it
inconsistent; the instance runs all the same, and the gate refuses to shrink it with that reason.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final

from pydantic import Field

from domain.engine import FtCapability
from domain.messages.fault_manager import FaultManagerStart, InstanceRemoval
from domain.messages.registration import Admission, HoldReason, PodRegistration, RegisterRequest
from domain.model import MAX_INSTANCE_ID, InstanceId, Port, Strict
from domain.runtime import TRANSACTION_PHASES, FtPhase, RejectedSignal
from domain.topology import Endpoint, NodeManagerAddress, NodeManagerPlace, ParallelConfig, Role, Topology

DISPLACED_KEPT = 64


class Job(Strict):
    """What all Pods of an instance say alike."""

    job_name: str
    model_name: str
    role: Role
    nnodes: int
    parallel_config: ParallelConfig


class Seat(Strict):
    """One Pod in its place: what it says of itself alone. `incarnation`: the life that may join the group.

    `capability`: which of its assembly's; None: it said nothing.
    """

    pod_ip: str
    nm_port: Port
    node_name: str
    business_ports: tuple[Port, ...]
    device_ids: tuple[tuple[str, ...], ...]
    dp_master_port: Port
    capability: int | None
    incarnation: str

    @property
    def address(self) -> NodeManagerAddress:
        return NodeManagerAddress(ip=self.pod_ip, port=self.nm_port)


class Assembly(Strict):
    """An instance whose Pods are coming. `until` (epoch seconds): then it is given up, and begins anew.

    What all Pods say alike is kept once: a hundred instances of 40 Pods that register at once are 1 MB this way, and 2.6 MB
    with every Pod's whole registration, which Temporal refuses. `capabilities`: what Pods say of their engines, each once.
    `displaced`: lives that lost their seat to a newer Pod; they never get it back, so two Pods cannot take turns.
    """

    instance_id: InstanceId
    job: Job
    capabilities: tuple[FtCapability, ...] = ()
    seats: dict[int, Seat] = Field(default_factory=dict)
    displaced: tuple[str, ...] = ()
    until: float

    @property
    def job_name(self) -> str:
        return self.job.job_name

    @property
    def missing(self) -> tuple[int, ...]:
        """The node_ranks that nobody has taken yet."""
        return tuple(rank for rank in range(self.job.nnodes) if rank not in self.seats)

    @property
    def complete(self) -> bool:
        return not self.missing

    def pod(self, node_rank: int) -> PodRegistration:
        """What the Pod in this seat says of itself, as it was registered. Raises `KeyError` where nobody sits."""
        seat = self.seats[node_rank]
        job = {name: getattr(self.job, name) for name in Job.model_fields}
        own = {name: getattr(seat, name) for name in _SAID_BY_EACH}
        capability = self.capabilities[seat.capability] if seat.capability is not None else None
        return PodRegistration.model_validate({**job, **own, "node_rank": node_rank, "ft_capability": capability})

    def has(self, request: RegisterRequest) -> bool:
        """Whether this Pod sits here in this life, and said the same."""
        seat = self.seats.get(request.node_rank)
        return seat is not None and seat.incarnation == request.incarnation and self.pod(request.node_rank) == request.pod

    def seating(self, request: RegisterRequest) -> "Assembly":
        """With this Pod in its seat, whoever sat there. Its word counts for all where it is alone."""
        capabilities, said = self.capabilities, request.ft_capability
        if said is not None and said not in capabilities:
            capabilities = (*capabilities, said)
        own = {name: getattr(request, name) for name in _SAID_BY_EACH}
        capability = capabilities.index(said) if said is not None else None
        seat = Seat.model_validate({**own, "capability": capability, "incarnation": request.incarnation})
        alone = not self.seats.keys() - {request.node_rank}
        return self.model_copy(
            update={
                "job": _job_of(request) if alone else self.job,
                "capabilities": capabilities,
                "seats": {**self.seats, request.node_rank: seat},
            }
        )


_SAID_BY_EACH: Final = ("pod_ip", "nm_port", "node_name", "business_ports", "device_ids", "dp_master_port")


def _job_of(pod: PodRegistration) -> Job:
    return Job.model_validate({name: getattr(pod, name) for name in Job.model_fields})


class RegisteredInstance(Strict):
    """An instance that was declared or assembled, as the registry knows it: its number, its seats, and by what its topology
    is recognized. The topology itself is its FaultManager's.

    `lives`: per "ip:port" of those that registered, the NodeManager incarnation that belongs to the group. `version`: the
    registry's when it became an instance.
    """

    instance_id: InstanceId
    job_name: str
    model_name: str
    ranks: int
    node_managers: tuple[NodeManagerPlace, ...]
    lives: dict[str, str] = Field(default_factory=dict)
    digest: str
    version: int

    @classmethod
    def of(cls, topology: Topology, version: int, lives: Mapping[str, str] | None = None) -> "RegisteredInstance":
        return cls(
            instance_id=topology.instance_id,
            job_name=topology.job_name,
            model_name=topology.model_name,
            ranks=topology.parallel_config.dp_size,
            node_managers=topology.node_managers,
            lives=dict(lives or {}),
            digest=topology.digest,
            version=version,
        )

    @cached_property
    def managers(self) -> tuple[NodeManagerAddress, ...]:
        return tuple(place.address for place in self.node_managers)

    @cached_property
    def _addresses(self) -> frozenset[tuple[str, int]]:
        return frozenset((place.pod_ip, place.port) for place in self.node_managers)

    def has_manager(self, address: NodeManagerAddress) -> bool:
        return (address.ip, address.port) in self._addresses


class PendingStart(Strict):
    """A FaultManager that does not run yet. `until` (epoch seconds): how long whoever runs under its id is taken for one that
    is still ending."""

    start: FaultManagerStart
    until: float


class RegistryState(Strict):
    """All that InstanceRegistry knows. It is what it starts with, what it carries over continue-as-new, what it answers, and
    what the next one starts with where a registry was terminated.

    `starts`: instances whose FaultManager does not run yet, the only topologies in here. `to_end`: removed instances whose
    FaultManager has not been told yet to take them down; `ending`: their NodeManagers, which are not free before that.
    `job_ids`: the number that a job_name had last. `version` grows with each change.
    """

    instances: tuple[RegisteredInstance, ...] = ()
    assemblies: tuple[Assembly, ...] = ()
    starts: dict[InstanceId, PendingStart] = Field(default_factory=dict)
    to_end: dict[InstanceId, InstanceRemoval] = Field(default_factory=dict)
    ending: dict[InstanceId, tuple[NodeManagerAddress, ...]] = Field(default_factory=dict)
    job_ids: dict[str, InstanceId] = Field(default_factory=dict)
    rejected_signals: tuple[RejectedSignal, ...] = ()
    version: int = 0

    def instance(self, instance_id: int) -> RegisteredInstance | None:
        return next((one for one in self.instances if one.instance_id == instance_id), None)

    def assembly(self, instance_id: int) -> Assembly | None:
        return next((one for one in self.assemblies if one.instance_id == instance_id), None)


class Admitted(Strict):
    """The assembly after a registration, and why."""

    assembly: Assembly
    admission: Admission
    message: str


class Owner(Strict):
    """The instance that a NodeManager belongs to."""

    instance_id: InstanceId
    address: NodeManagerAddress

    @property
    def message(self) -> str:
        return (
            f"NodeManager {self.address} belongs to instance {self.instance_id}: end that one first "
            f"(POST /controller/terminate_instance stops its engines too), or correct the address"
        )


def other_owner(
    addresses: Iterable[NodeManagerAddress],
    instances: Iterable[RegisteredInstance],
    assemblies: Iterable[Assembly],
    ending: Mapping[int, tuple[NodeManagerAddress, ...]],
    *,
    than: InstanceId | None,
) -> Owner | None:
    """The first instance but `than` that owns one of these addresses: it lives, is being assembled, or is `ending`."""
    wanted = tuple(addresses)
    for one in instances:
        if one.instance_id != than and (held := _first(wanted, one.has_manager)) is not None:
            return Owner(instance_id=one.instance_id, address=held)
    owned = {one.instance_id: tuple(seat.address for seat in one.seats.values()) for one in assemblies}
    for instance_id, theirs in [*owned.items(), *ending.items()]:
        if instance_id != than and (held := _first(wanted, theirs.__contains__)) is not None:
            return Owner(instance_id=instance_id, address=held)
    return None


def _first(addresses: tuple[NodeManagerAddress, ...], is_held: Callable[[NodeManagerAddress], bool]) -> NodeManagerAddress | None:
    return next((address for address in addresses if is_held(address)), None)


def number_for(request: RegisterRequest, remembered: Mapping[str, int], taken: Iterable[int], next_id: int) -> int:
    """The instance id of a new assembly: what its job_name had before, what its Pods remember, or the next free one.

    Pods may remember the highest id that there can be: after it the free ones are looked for from 1.
    """
    in_use = set(taken)
    for wanted in (remembered.get(request.job_name), request.known_instance_id):
        if wanted is not None and wanted not in in_use:
            return wanted
    while next_id in in_use or next_id > MAX_INSTANCE_ID:
        next_id = next_id + 1 if next_id < MAX_INSTANCE_ID else 1
    return next_id


def instances_by_node(instances: Iterable[RegisteredInstance]) -> dict[str, tuple[int, ...]]:
    """Node → the instances that have a Pod on it: where a node's hardware fault has to go."""
    found: dict[str, set[int]] = {}
    for one in instances:
        for place in one.node_managers:
            if place.node_name:
                found.setdefault(place.node_name, set()).add(one.instance_id)
    return {node: tuple(sorted(ids)) for node, ids in sorted(found.items())}


def founded(instance_id: int, request: RegisterRequest, until: float) -> Assembly:
    """A new instance, with its first Pod."""
    return Assembly(instance_id=instance_id, job=_job_of(request), until=until).seating(request)


def admit(assembly: Assembly, request: RegisterRequest) -> Admitted:
    """One registration while the seats fill; a refused one changes nothing. Repeated, it is UNCHANGED."""
    if assembly.has(request):
        return Admitted(assembly=assembly, admission=Admission.UNCHANGED, message="registered already")
    if (why := _contradiction(assembly, request)) is not None:
        return Admitted(assembly=assembly, admission=Admission.CONTRADICTS, message=why)
    if request.incarnation in assembly.displaced:
        why = f"node_rank {request.node_rank} belongs to a newer Pod by now: two Pods have the same node_rank"
        return Admitted(assembly=assembly, admission=Admission.SEAT_TAKEN, message=why)
    for node_rank, other in assembly.seats.items():
        if node_rank != request.node_rank and other.address == request.address:
            why = f"{request.address} is registered with node_rank {node_rank} already, not {request.node_rank}"
            return Admitted(assembly=assembly, admission=Admission.ADDRESS_TAKEN, message=why)
    held = assembly.seats.get(request.node_rank)
    displaced, admission = assembly.displaced, Admission.SEATED
    if held is not None and held.incarnation != request.incarnation:
        displaced = (*displaced, held.incarnation)[-DISPLACED_KEPT:]
    if held is not None and held.address != request.address:
        admission = Admission.REPLACED
    seated = assembly.seating(request).model_copy(update={"displaced": displaced})
    message = f"{len(seated.seats)} of {request.nnodes} Pods are there"
    return Admitted(assembly=seated, admission=admission, message=message)


def _contradiction(assembly: Assembly, request: RegisterRequest) -> str | None:
    """What this Pod says otherwise than the others; a Pod that is alone in the instance may change its mind."""
    others = [seat for node_rank, seat in assembly.seats.items() if node_rank != request.node_rank]
    if not others:
        return None
    for name in ("model_name", "role", "nnodes", "parallel_config"):
        said, expected = getattr(request, name), getattr(assembly.job, name)
        if said != expected:
            return f"{name}={said} contradicts {expected} of {others[0].address}, which is of the same job_name"
    return None


def topology_of(assembly: Assembly) -> Topology:
    """The topology of a complete assembly; ranks by node_rank. Raises `ValueError` where a Pod is missing."""
    if assembly.missing:
        raise ValueError(f"instance {assembly.instance_id} is not complete: Pods {list(assembly.missing)} are missing")
    pods = [assembly.pod(node_rank) for node_rank in range(assembly.job.nnodes)]
    capability, consistent = agreed_capability(pod.ft_capability for pod in pods)
    return Topology(
        instance_id=assembly.instance_id,
        job_name=pods[0].job_name,
        model_name=pods[0].model_name,
        role=pods[0].role,
        parallel_config=pods[0].parallel_config,
        dp_master_port=pods[0].dp_master_port,
        node_managers=tuple(NodeManagerPlace(pod_ip=p.pod_ip, port=p.nm_port, node_name=p.node_name) for p in pods),
        endpoints=tuple(endpoint for pod in pods for endpoint in endpoints_of(pod)),
        ft_capability=capability,
        ft_capability_consistent=consistent,
    )


def endpoints_of(pod: PodRegistration) -> tuple[Endpoint, ...]:
    """One Pod's endpoints."""
    devices = pod.device_ids or ((),) * len(pod.ranks)
    return tuple(
        Endpoint(
            id=rank,
            pod_ip=pod.pod_ip,
            ip=pod.pod_ip,
            business_port=port,
            headless=pod.headless,
            device_ids=chips,
            node_manager_port=pod.nm_port,
        )
        for rank, port, chips in zip(pod.ranks, pod.business_ports, devices, strict=True)
    )


def agreed_capability(said: Iterable[FtCapability | None]) -> tuple[FtCapability | None, bool]:
    """What all Pods say, and whether they agree. One that says nothing makes it unknown; a difference is kept for the gate."""
    known = list(said)
    differing = len({capability for capability in known if capability is not None}) > 1
    if any(capability is None for capability in known):
        return None, not differing
    return known[0], not differing


def assembled_for(instances: Iterable[RegisteredInstance], request: PodRegistration) -> RegisteredInstance | None:
    """The instance that a Pod belongs to by its job_name, its address deciding where several were declared with that name."""
    of_job = [one for one in instances if one.job_name == request.job_name]
    return next((one for one in of_job if one.has_manager(request.address)), of_job[0] if of_job else None)


def place_of(topology: Topology, request: PodRegistration) -> str | None:
    """Why a Pod is not one of an assembled instance's; None: it is, with exactly these ranks."""
    if request.address not in topology.managers:
        return _no_place_for(topology, request)
    mine = {e.id: e for e in topology.endpoints if topology.manager_of(e) == request.address}
    if tuple(sorted(mine)) != request.ranks:
        return f"{request.address} has ranks {sorted(mine)} in instance {topology.instance_id}, not {list(request.ranks)}"
    ports = tuple(mine[rank].business_port for rank in request.ranks)
    if ports != request.business_ports:
        said = list(request.business_ports)
        return f"{request.address} has business_ports {list(ports)} in instance {topology.instance_id}, not {said}"
    return None


def _no_place_for(topology: Topology, request: PodRegistration) -> str:
    """A Pod at an address that the topology does not know: another one of the job, or one that was moved."""
    number, named = topology.instance_id, ", ".join(map(str, topology.managers))
    former = sorted({str(topology.manager_of(e)) for e in topology.endpoints if e.id in request.ranks})
    return (
        f"instance {number} is assembled from {named}; {request.address} is none of them, and a topology never changes while "
        f"its instance lives. If this Pod comes in the place of {' or '.join(former) or 'one of them'}, end the instance "
        f'(POST /controller/terminate_instance {{"instance_id": {number}, "reason": "a Pod moved"}}): its Pods then register '
        "anew, and get the same id"
    )


def joining(phase: FtPhase) -> bool:
    """Whether fresh engines are taken in: the instance is being assembled or rebuilt."""
    return phase is FtPhase.RECONFIGURING


def hold(
    request: RegisterRequest,
    lives: Mapping[str, str],
    phase: FtPhase,
    dead_committed: Iterable[int],
    *,
    strategy_runs: bool = False,
) -> HoldReason | None:
    """Why a Pod of an assembled instance must not start engines; None: the start command decides.

    `lives`: per "ip:port", the incarnation that belongs to the group. An engine of that life may be running and goes on;
    hold never stops anything.
    """
    if joining(phase):
        return None
    if set(request.ranks) <= set(dead_committed):
        return HoldReason.COMMITTED
    if strategy_runs or phase in TRANSACTION_PHASES:
        return HoldReason.ROUND_RUNS
    if lives.get(str(request.address)) != request.incarnation:
        return HoldReason.GROUP_LIVES
    return None
