"""The serving view: what Coordinators may route to. A projection of the topology; the topology itself is never edited.

Served is original − dead_committed, or nothing; ranks keep their original numbers and Pods without a served rank are
dropped. ADD, RESUME and SET all use `project`, so that no full refresh can bring a removed rank back (RFC §3.2,
design §5).
"""

from collections.abc import Collection

from domain.messages.coordinator import RefreshEndpoint, RefreshInstance
from domain.messages.event_pusher import KnownView, ViewRecord
from domain.topology import Topology


def serving_ranks(topology: Topology, dead_committed: Collection[int]) -> tuple[int, ...]:
    """The ranks of a published view: original − dead_committed, ascending."""
    return tuple(rank for rank in topology.ranks if rank not in dead_committed)


def project(topology: Topology, ranks: Collection[int], revision: int) -> RefreshInstance:
    """One instance as Coordinators are told it under `revision`: these ranks, or withdrawn where there are none.

    Headless endpoints serve no HTTP and are left out. Raises `KeyError` for a rank that the instance does not have.
    """
    endpoints: dict[str, dict[str, RefreshEndpoint]] = {}
    for rank in sorted(set(ranks)):
        endpoint = topology.endpoint(rank)
        endpoints.setdefault(endpoint.pod_ip, {})[str(rank)] = RefreshEndpoint(
            id=rank, ip=endpoint.ip, business_port=endpoint.business_port
        )
    return RefreshInstance(
        id=topology.instance_id,
        job_name=topology.job_name,
        model_name=topology.model_name,
        role=topology.role,
        revision=revision,
        endpoints=endpoints,
    )


def known_view(record: ViewRecord) -> KnownView:
    """An instance's view as EventPusher keeps it. Raises `KeyError` for a rank that the instance does not have."""
    entry = project(record.topology, record.ranks, record.revision)
    served = [(pod_ip, endpoint) for pod_ip, in_pod in entry.endpoints.items() for endpoint in in_pod.values()]
    return KnownView(
        id=entry.id,
        job_name=entry.job_name,
        model_name=entry.model_name,
        role=entry.role,
        revision=record.revision,
        ports={pod_ip: {e.id: e.business_port for e in in_pod.values()} for pod_ip, in_pod in entry.endpoints.items()},
        elsewhere={endpoint.id: endpoint.ip for pod_ip, endpoint in served if endpoint.ip != pod_ip},
    )
