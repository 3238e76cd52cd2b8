"""Small makers of refreshes."""

from typing import Any

from domain.messages.coordinator import RefreshRequest

MODEL = "demo-moe"


def endpoint(rank: int, *, port: int | None = None, ip: str = "10.0.0.1", headless: bool = False) -> dict[str, Any]:
    return {
        "id": rank,
        "ip": ip,
        "business_port": 10_000 + rank if port is None else port,
        "status": "normal",
        "headless": headless,
    }


def entry(
    instance: int, ranks: dict[int, int] | list[int], revision: int | None = None, *, model: str = MODEL, ip: str = "10.0.0.1"
) -> dict[str, Any]:
    """One instance in one Pod; `ranks` as a mapping also gives each rank's port."""
    ports: dict[int, int | None] = dict(ranks) if isinstance(ranks, dict) else dict.fromkeys(ranks)
    in_pod = {str(rank): endpoint(rank, port=port, ip=ip) for rank, port in ports.items()}
    made: dict[str, Any] = {
        "id": instance,
        "job_name": f"job-{instance}",
        "model_name": model,
        "role": "union",
        "endpoints": {ip: in_pod} if in_pod else {},
    }
    if revision is not None:
        made["revision"] = revision
    return made


def body(event: str, *instances: dict[str, Any], incarnation: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"event": event, "instances": list(instances)}
    if incarnation is not None:
        made["coordinator_incarnation"] = incarnation
    return made


def refresh_request(event: str, *instances: dict[str, Any], incarnation: str | None = None) -> RefreshRequest:
    return RefreshRequest.model_validate(body(event, *instances, incarnation=incarnation))
