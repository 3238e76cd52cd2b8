"""Small factories for the tests of evidence, decisions and the instance's state."""

from collections.abc import Iterable, Mapping
from typing import Any

from domain.config import FaultToleranceConfig
from domain.engine import EngineStatus, EntrySource, FtCapability, RankEntry
from domain.instance.evidence import Evidence, Report
from domain.instance.state import InstanceState, Life, ServingView
from domain.runtime import FtPhase
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Topology

T0 = 1_000_000.0
H, U, D = EngineStatus.HEALTHY, EngineStatus.UNHEALTHY, EngineStatus.DEAD


def topology(ranks: int = 4, per_pod: int = 2) -> Topology:
    """Instance 7; ranks 0, 1 behind 10.0.0.1:1026, ranks 2, 3 behind 10.0.0.2:1026, …"""
    ips = [f"10.0.0.{1 + rank // per_pod}" for rank in range(ranks)]
    return Topology(
        instance_id=7,
        job_name="job",
        model_name="model",
        parallel_config=ParallelConfig(dp_size=ranks),
        dp_master_port=29500,
        node_managers=tuple(NodeManagerPlace(pod_ip=ip, port=1026) for ip in dict.fromkeys(ips)),
        endpoints=tuple(Endpoint(id=rank, pod_ip=ip, ip=ip, business_port=10000 + rank) for rank, ip in enumerate(ips)),
        ft_capability=FtCapability(
            enabled=True, scale_down_supported=True, external_lb=True, eplb_enabled=True, num_redundant_experts=2
        ),
    )


def on_nodes(ranks: int = 4, per_pod: int = 2, **changes: Any) -> Topology:
    """The same, each Pod on a node of its own (node-0, node-1, …), each rank with one device: its index in the Pod."""
    plain = topology(ranks, per_pod)
    return plain.model_copy(
        update={
            "node_managers": tuple(
                place.model_copy(update={"node_name": f"node-{index}"}) for index, place in enumerate(plain.node_managers)
            ),
            "endpoints": tuple(e.model_copy(update={"device_ids": (str(e.id % per_pod),)}) for e in plain.endpoints),
            **changes,
        }
    )


def config(**changes: Any) -> FaultToleranceConfig:
    return FaultToleranceConfig(**{"enable_dp_scale_down": True, **changes})


def report(rank: int, status: EngineStatus, at: float = T0, **changes: Any) -> Report:
    """One rank's news, without sequence and engine unless given."""
    source = changes.get("source", EntrySource.ENGINE)
    entry = RankEntry(id=rank, status=status, source=source, incarnation=changes.get("engine"))
    return Report(**{"rank": rank, "status": status, "source": source, "received_at": at, "entry": entry, **changes})


def told(*reports: Report, dead_committed: Iterable[int] = (), **changes: Any) -> Evidence:
    """Evidence of these reports, in this order."""
    return Evidence(**changes).merge_all(reports, dead_committed)


def ready(ranks: Iterable[int] = range(4), at: float = T0 - 1000) -> Evidence:
    """Every rank was healthy long ago."""
    return told(*(report(rank, H, at) for rank in ranks))


def with_statuses(statuses: Mapping[int, EngineStatus], at: float = T0, ranks: Iterable[int] = range(4)) -> Evidence:
    """An ACTIVE instance in which these ranks have reported these statuses at `at`."""
    return ready(ranks).merge_all([report(rank, status, at) for rank, status in statuses.items()], ())


def serving_state(dead_committed: tuple[int, ...] = (), **changes: Any) -> InstanceState:
    """An instance that serves: NORMAL, or shrunk by `dead_committed`; generation 1, view revision 1."""
    alive = tuple(rank for rank in range(4) if rank not in dead_committed)
    fields: dict[str, Any] = {
        "instance_id": 7,
        "topology": topology(),
        "config": config(),
        "life": Life.RUNNING,
        "phase": FtPhase.SCALED_DOWN_RUNNING if dead_committed else FtPhase.NORMAL,
        "generation": 1,
        "view_revision": 1,
        "view": ServingView(revision=1, ranks=alive, confirmed=True),
        "dead_committed": dead_committed,
        "evidence": ready(alive),
        "node_managers_started": True,
        "pace_told": 1.0,
    }
    return InstanceState(**{**fields, **changes})
