"""Who is where: an instance's authoritative topology. It never changes while the instance lives.

An instance is `dp_size` ranks, each behind one endpoint in one Pod; each Pod has a NodeManager, known by ip **and**
port (two may share an ip). Headless endpoints belong to a rank's Pod but serve no HTTP: they are only guarded and
finalized. What is *served* is a projection of this (`serving.py`); the topology itself is never edited.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, model_validator

from domain.address import Host, host_port, http_url
from domain.engine import FtCapability
from domain.model import MAX_RANKS, InstanceId, Name, Port, Rank, Strict, Word


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    UNION = "union"


class NodeManagerAddress(Strict):
    """A NodeManager's identity: ip and port. Its text form "ip:port" ("[ip]:port" for IPv6) is the key in replies and records."""

    ip: Host
    port: Port

    def __str__(self) -> str:
        return host_port(self.ip, self.port)

    @property
    def url(self) -> str:
        return http_url(self.ip, self.port)


class NodeManagerPlace(Strict):
    """A Pod's NodeManager and the node that it runs on."""

    pod_ip: Host
    port: Port
    node_name: Word = ""

    @property
    def address(self) -> NodeManagerAddress:
        return NodeManagerAddress(ip=self.pod_ip, port=self.port)


class Endpoint(Strict):
    """One rank's address. `id` is the original DP rank; `ip` is where its engine listens (normally the Pod's).

    `node_manager_port` names the NodeManager where two share `pod_ip`; otherwise it is found by `pod_ip`.
    """

    id: Rank
    pod_ip: Host
    ip: Host
    business_port: Port
    headless: StrictBool = False
    device_ids: tuple[Word, ...] = ()
    node_manager_port: Port | None = None

    @property
    def url(self) -> str:
        return http_url(self.ip, self.business_port)


class ParallelConfig(Strict):
    dp_size: Annotated[StrictInt, Field(ge=1, le=MAX_RANKS)]
    tp_size: Annotated[StrictInt, Field(ge=1, le=65_536)] = 1
    pp_size: Annotated[StrictInt, Field(ge=1, le=65_536)] = 1


class Topology(Strict):
    """An instance as declared or assembled. Raises `ValueError` (a pydantic validation error) where it contradicts itself."""

    instance_id: InstanceId
    job_name: Name
    model_name: Name
    role: Role = Role.UNION
    parallel_config: ParallelConfig
    dp_master_port: Port
    node_managers: tuple[NodeManagerPlace, ...] = Field(min_length=1)
    endpoints: tuple[Endpoint, ...] = Field(min_length=1)
    ft_capability: FtCapability | None = None
    ft_capability_consistent: bool = True
    """False: the Pods registered different capabilities, so nobody knows what the group can do; the gate refuses."""

    @model_validator(mode="after")
    def _consistent(self) -> "Topology":
        routable = sorted(endpoint.id for endpoint in self.endpoints if not endpoint.headless)
        wanted = list(range(self.parallel_config.dp_size))
        if routable != wanted:
            twice = sorted(rank for rank, count in Counter(routable).items() if count > 1)
            raise ValueError(
                f"routable endpoint ids must be exactly 0..{self.parallel_config.dp_size - 1}, got {routable}"
                + (f" (duplicate: {twice})" if twice else "")
            )
        addresses = Counter(str(place.address) for place in self.node_managers)
        if repeated := sorted(address for address, count in addresses.items() if count > 1):
            raise ValueError(f"node_managers holds an address twice: {', '.join(repeated)}")
        for endpoint in self.endpoints:
            self.manager_of(endpoint)
        return self

    @cached_property
    def _routable(self) -> dict[int, Endpoint]:
        return {endpoint.id: endpoint for endpoint in self.endpoints if not endpoint.headless}

    @cached_property
    def _managers_at(self) -> dict[str, tuple[NodeManagerAddress, ...]]:
        """By Pod ip: an installation has tens of thousands of endpoints, so nothing here walks through all of them."""
        found: dict[str, tuple[NodeManagerAddress, ...]] = {}
        for place in self.node_managers:
            found[place.pod_ip] = (*found.get(place.pod_ip, ()), place.address)
        return found

    @cached_property
    def _ranks_by_manager(self) -> dict[NodeManagerAddress, tuple[int, ...]]:
        found: dict[NodeManagerAddress, list[int]] = {}
        for rank, endpoint in sorted(self._routable.items()):
            found.setdefault(self.manager_of(endpoint), []).append(rank)
        return {manager: tuple(ranks) for manager, ranks in found.items()}

    @cached_property
    def digest(self) -> str:
        """What tells this topology from every other one. What has its default does not count: a field that a later version
        adds changes no digest."""
        return hashlib.sha256(self.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:32]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The original DP ranks, ascending: 0..dp_size-1."""
        return tuple(range(self.parallel_config.dp_size))

    def manager_of(self, endpoint: Endpoint) -> NodeManagerAddress:
        """The NodeManager that owns an endpoint. Raises `ValueError` if none or more than one could."""
        here = self._managers_at.get(endpoint.pod_ip, ())
        found = [manager for manager in here if endpoint.node_manager_port in (None, manager.port)]
        if len(found) != 1:
            raise ValueError(
                f"endpoint {endpoint.id} in Pod {endpoint.pod_ip} matches {len(found)} NodeManagers; "
                "set node_manager_port where several share a Pod ip"
            )
        return found[0]

    def endpoint(self, rank: int) -> Endpoint:
        """The routable endpoint of a rank. Raises `KeyError` for a rank that the instance does not have."""
        return self._routable[rank]

    def manager_of_rank(self, rank: int) -> NodeManagerAddress:
        return self.manager_of(self.endpoint(rank))

    @property
    def managers(self) -> tuple[NodeManagerAddress, ...]:
        return tuple(place.address for place in self.node_managers)

    def has_manager(self, address: NodeManagerAddress) -> bool:
        return address in self._managers_at.get(address.ip, ())

    def ranks_of(self, manager: NodeManagerAddress) -> tuple[int, ...]:
        """The routable ranks behind one NodeManager, ascending."""
        return self._ranks_by_manager.get(manager, ())

    def by_manager(self, ranks: Iterable[int]) -> dict[NodeManagerAddress, tuple[int, ...]]:
        """Groups ranks by NodeManager, in the topology's order; managers without any of them are left out."""
        wanted = set(ranks)
        groups = {manager: tuple(r for r in self.ranks_of(manager) if r in wanted) for manager in self.managers}
        return {manager: group for manager, group in groups.items() if group}
