"""An instance for tests with a Temporal server, and how its strategies end."""

from typing import Any

from domain.config import FaultToleranceConfig
from domain.engine import FtCapability, RankEntry
from domain.messages.strategy import (
    ReconfigurationOrder,
    ReconfigurationReason,
    ReconfigurationReport,
    RoundOrder,
    RoundOutcome,
    RoundReason,
    RoundReport,
    StrategyEnd,
    StrategyKind,
)
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Topology


def topology(instance_id: int, ranks: int = 4, per_pod: int = 2, net: str = "127.0.0") -> Topology:
    """`ranks` ranks, `per_pod` behind each NodeManager <net>.2:1026, <net>.3:1026, …"""
    ips = [f"{net}.{2 + rank // per_pod}" for rank in range(ranks)]
    return Topology(
        instance_id=instance_id,
        job_name="job",
        model_name="model",
        parallel_config=ParallelConfig(dp_size=ranks),
        dp_master_port=29500,
        node_managers=tuple(
            NodeManagerPlace(pod_ip=ip, port=1026, node_name=f"node-{index}") for index, ip in enumerate(dict.fromkeys(ips))
        ),
        endpoints=tuple(
            Endpoint(id=rank, pod_ip=ip, ip=ip, business_port=10000 + rank, device_ids=(str(rank % per_pod),))
            for rank, ip in enumerate(ips)
        ),
        ft_capability=FtCapability(
            enabled=True,
            scale_down_supported=True,
            retry_supported=True,
            external_lb=True,
            eplb_enabled=True,
            num_redundant_experts=4,
        ),
    )


def config(**changes: Any) -> FaultToleranceConfig:
    return FaultToleranceConfig(**{"enable_dp_scale_down": True, **changes})


def committed_by(order: RoundOrder) -> tuple[int, ...]:
    return tuple(sorted({*order.dead_committed, *order.pending_ranks}))


def round_end(
    order: RoundOrder, outcome: RoundOutcome = RoundOutcome.SUCCEEDED, sequence: int = 10_000, **changes: Any
) -> StrategyEnd:
    """The end signal of a round, successful unless said otherwise; its last look had this `sequence`."""
    succeeded = outcome is RoundOutcome.SUCCEEDED
    survivors = tuple(rank for rank in order.topology.ranks if rank not in committed_by(order))
    fields: dict[str, Any] = {
        "kind": StrategyKind.SCALE_DOWN,
        "instance_id": order.instance_id,
        "generation": order.generation,
        "request_id": order.request_id,
        "outcome": outcome,
        "reason": RoundReason.COMMITTED if succeeded else RoundReason.ENGINE_FAILED,
        "committed": succeeded,
        "dead_committed": committed_by(order) if succeeded else order.dead_committed,
        "removed_dp_ranks": committed_by(order),
        "survivors": survivors,
        "serving_published": succeeded,
        "view_revision": order.view_revision + 2 if succeeded else order.view_revision,
        "last_entries": {rank: RankEntry(id=rank, status="healthy", sequence=sequence) for rank in survivors}
        if succeeded
        else {},
        "stage_times": {"guard": 0.1},
    }
    report = RoundReport(**{**fields, **changes})
    return StrategyEnd(workflow_id=report.kind.workflow_id(order.instance_id, order.generation), report=report)


def rebuild_end(order: ReconfigurationOrder, succeeded: bool = True) -> StrategyEnd:
    """The end signal of a rebuild."""
    report = ReconfigurationReport(
        kind=StrategyKind.INSTANCE_RECONFIGURATION,
        instance_id=order.instance_id,
        generation=order.generation,
        succeeded=succeeded,
        reason=ReconfigurationReason.REBUILT if succeeded else ReconfigurationReason.NOT_READY_IN_TIME,
        serving_published=succeeded,
        view_revision=order.view_revision + 2,
        engine_incarnations={rank: f"new-{rank}" for rank in order.topology.ranks} if succeeded else {},
    )
    return StrategyEnd(workflow_id=report.kind.workflow_id(order.instance_id, order.generation), report=report)
