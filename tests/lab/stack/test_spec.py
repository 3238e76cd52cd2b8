"""A spec that contradicts itself is refused; what differs from production is listed."""

import pytest
from pydantic import ValidationError

from domain.errors import ConfigError
from lab.stack.environment import base_environment
from lab.stack.spec import EngineSpec, StackSpec


def test_default_is_four_ranks_in_two_pods() -> None:
    spec = StackSpec()
    assert (spec.dp_size, spec.pods) == (4, ((0, 1), (2, 3)))
    assert [spec.pod_ip(pod) for pod in range(2)] == ["127.0.0.2", "127.0.0.3"]
    assert [spec.pod_of(rank) for rank in spec.ranks] == [0, 0, 1, 1]
    assert spec.effective_config().enable_dp_scale_down


def test_shaped_spreads_ranks_evenly() -> None:
    assert StackSpec.shaped(6, 3).pods == ((0, 1), (2, 3), (4, 5))
    with pytest.raises(ConfigError, match="5 ranks cannot be spread evenly over 2"):
        StackSpec.shaped(5, 2)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"pods": ((0, 1), (1, 2))}, "ranks 0..3 once"),
        ({"pods": ((0,), ())}, "at least one rank"),
        ({"pod_ips": ("127.0.0.2",)}, "1 addresses for 2 Pods"),
        ({"workers": 0}, "worker"),
        ({"registers": True}, "are instance 1"),
        ({"registers": True, "instance_id": 1, "pods": ((0,), (1, 2))}, "equally many ranks each"),
        ({"fault_tolerance_config": {"software_collection_timeout_secs": 3}}, "software_collection_timeout_secs"),
        ({"fault_tolerance_config": {"heartbeat_timeout_sec": 0.5}}, "must exceed"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        StackSpec.model_validate(fields)


def test_every_shortened_timer_is_listed_and_nothing_else() -> None:
    plain = StackSpec(engine=EngineSpec(detection_sec=30, recovery_sec=1))
    assert plain.non_default_timers() == {}
    short = StackSpec(
        engine=EngineSpec(detection_sec=30, recovery_sec=0.25),
        fault_tolerance_config={"dp_scale_down_config": {"poll_interval_sec": 0.25}, "reconfiguration_budget": 9},
    )
    assert short.non_default_timers() == {"dp_scale_down_config.poll_interval_sec": 0.25, "engine.recovery_sec": 0.25}


def test_a_spec_survives_being_written_down() -> None:
    spec = StackSpec(engine=EngineSpec(rank_arguments={1: ("--misbehave", "apply-400")}), failpoints={"worker": {"a.b": "/x"}})
    assert StackSpec.model_validate_json(spec.model_dump_json()) == spec


def test_legacy_engines_do_not_claim_to_scale_down() -> None:
    assert not StackSpec.model_validate({"engine": {"dialect": "legacy"}}).engine.capability().scale_down_supported


@pytest.mark.parametrize(
    ("name", "value", "passed_on"),
    [
        ("AUTOTOMY_LOG_FORMAT", "json", False),
        ("AUTOTOMY_LOG_LEVEL", "ERROR", False),
        ("AUTOTOMY_LOG_LEVEL", "DEBUG", True),
        ("AUTOTOMY_TASK_QUEUE", "production", False),
        ("TEMPORAL_ADDRESS", "production:7233", False),
        ("HTTPS_PROXY", "http://proxy:1", False),
        ("LANG", "C.UTF-8", True),
    ],
)
def test_an_installation_hears_of_its_callers_environment_what_is_meant_for_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, passed_on: bool
) -> None:
    """Drills read its logs: as text, and from INFO on."""
    monkeypatch.setenv(name, value)
    assert (base_environment("run", "api").get(name) == value) is passed_on
