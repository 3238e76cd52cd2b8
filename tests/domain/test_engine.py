"""What an engine's words mean: the status body, and one entry at each of the two waits."""

from typing import Any

import pytest

from domain.engine import ApplyReadiness, EngineEntry, Recovery, apply_readiness, parse_status, recovery, scale_down_params
from domain.errors import ProtocolError

OURS, OTHERS = "scale-down-1", "scale-down-2"


def body(**fields: Any) -> dict[str, Any]:
    return {"schema_version": 1, "total_engines": 1, "engines": [{"id": 2, "status": "healthy"}], **fields}


def test_a_status_body_gives_its_one_entry() -> None:
    entry = parse_status(
        body(engines=[{"id": 2, "status": "unhealthy", "mask": [0, 1, 0, 0], "ft_state": None, "ft_error": "no", "new": 1}]), 2
    )
    assert (entry.id, entry.status, entry.mask, entry.ft_state, entry.ft_error) == (2, "unhealthy", (0, 1, 0, 0), None, "no")


def test_an_unknown_status_word_is_no_error() -> None:
    assert parse_status(body(engines=[{"id": 2, "status": "degraded"}]), 2).status == "degraded"


@pytest.mark.parametrize(
    "garbled",
    [
        "text",
        None,
        {},
        body(schema_version=2),
        body(engines=[]),
        body(engines=[{"id": 1, "status": "healthy"}]),
        body(engines=[{"id": 2, "status": "healthy"}, {"id": 2, "status": "healthy"}]),
        body(engines=[{"id": 2, "status": "healthy"}, {"id": 3, "status": "healthy"}]),
        body(engines=[{"id": "2", "status": "healthy"}]),
        body(engines=[{"id": True, "status": "healthy"}]),
        body(engines=[{"id": 2.0, "status": "healthy"}]),
        body(engines=[{"id": 2}]),
        body(engines=[{"id": 2, "status": 1}]),
        body(engines=[{"status": "healthy"}]),
        body(total_engines=4),
    ],
)
def test_a_body_that_breaks_the_contract_is_a_protocol_error_never_a_death(garbled: object) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_status(garbled, 2)
    assert "engine 2" in caught.value.message


@pytest.mark.parametrize(
    ("status", "ft_state", "means"),
    [
        ("unhealthy", None, ApplyReadiness.READY),
        ("unhealthy", "recovering", ApplyReadiness.WAIT),
        ("unhealthy", "failed", ApplyReadiness.REFUSED),
        ("unhealthy", "something new", ApplyReadiness.WAIT),
        ("healthy", None, ApplyReadiness.WAIT),
        ("healthy", "recovering", ApplyReadiness.WAIT),
        ("healthy", "failed", ApplyReadiness.REFUSED),
        ("unknown", None, ApplyReadiness.WAIT),
        ("degraded", None, ApplyReadiness.WAIT),
        ("dead", None, ApplyReadiness.DEAD),
        ("dead", "failed", ApplyReadiness.DEAD),
        ("retired", None, ApplyReadiness.REFUSED),
    ],
)
def test_readiness_for_apply(status: str, ft_state: str | None, means: ApplyReadiness) -> None:
    assert apply_readiness(EngineEntry(id=0, status=status, ft_state=ft_state)) is means


@pytest.mark.parametrize(
    ("fields", "means"),
    [
        ({"status": "healthy"}, Recovery.DONE),
        ({"status": "healthy", "ft_error": "late duplicate", "last_ft_request_id": OURS}, Recovery.DONE),
        ({"status": "healthy", "ft_state": "recovering"}, Recovery.WAIT),
        ({"status": "healthy", "ft_state": "failed"}, Recovery.FAILED),
        ({"status": "unhealthy"}, Recovery.WAIT),
        ({"status": "unhealthy", "ft_state": "recovering"}, Recovery.WAIT),
        ({"status": "unhealthy", "ft_state": "recovering", "ft_error": "old", "last_ft_request_id": OURS}, Recovery.WAIT),
        ({"status": "unhealthy", "ft_state": "failed"}, Recovery.FAILED),
        ({"status": "unhealthy", "ft_error": "no", "last_ft_request_id": OURS}, Recovery.FAILED),
        ({"status": "unhealthy", "ft_error": "no"}, Recovery.FAILED),
        ({"status": "unhealthy", "ft_error": "no", "last_ft_request_id": OTHERS}, Recovery.WAIT),
        ({"status": "unhealthy", "ft_error": "", "last_ft_request_id": OURS}, Recovery.WAIT),
        ({"status": "unknown"}, Recovery.WAIT),
        ({"status": "degraded"}, Recovery.WAIT),
        ({"status": "dead"}, Recovery.FAILED),
        ({"status": "retired"}, Recovery.FAILED),
    ],
)
def test_recovery_after_apply(fields: dict[str, Any], means: Recovery) -> None:
    assert recovery(EngineEntry(id=0, **fields), OURS) is means


def test_params_are_the_engines_own() -> None:
    assert scale_down_params([1, 3], "10.0.0.1", 29502) == {
        "removed_dp_ranks": [1, 3],
        "dp_master_ip": "10.0.0.1",
        "dp_store_port": 29502,
    }
