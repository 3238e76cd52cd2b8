"""Registrations of small instances."""

from typing import Any

from domain.engine import Dialect, FtCapability
from domain.messages.registration import RegisterRequest

CAPABLE = FtCapability(
    enabled=True,
    scale_down_supported=True,
    retry_supported=True,
    external_lb=True,
    eplb_enabled=True,
    num_redundant_experts=24,
    dialect=Dialect.V1,
)


def registration(node_rank: int = 0, *, nnodes: int = 2, dp_size: int = 4, life: str = "a", **changes: Any) -> RegisterRequest:
    """One Pod of an instance; its ports are 10000 + rank."""
    local = max(1, dp_size // nnodes)
    first = node_rank * local
    fields: dict[str, Any] = {
        "job_name": "job",
        "model_name": "model",
        "pod_ip": f"10.0.0.{node_rank + 1}",
        "nm_port": 1026,
        "node_name": f"node-{node_rank}",
        "node_rank": node_rank,
        "nnodes": nnodes,
        "business_ports": tuple(10000 + first + index for index in range(local)),
        "parallel_config": {"dp_size": dp_size},
        "ft_capability": CAPABLE.model_dump(),
        "incarnation": f"{life}-{node_rank}",
    }
    return RegisterRequest.model_validate({**fields, **changes})
