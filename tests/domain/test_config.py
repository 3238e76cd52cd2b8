"""The configuration's defaults, bounds and contradictions (design §6; RFC §7)."""

import ast
import inspect
import itertools
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from domain.config import (
    MAX_LEASE_SEC,
    DpScaleDownConfig,
    FallbackStrategy,
    FaultToleranceConfig,
    config_warnings,
    refuse_what_is_not_done,
)
from domain.errors import ConfigError


def test_the_defaults_are_the_rfcs() -> None:
    config = FaultToleranceConfig()
    round_ = config.dp_scale_down_config
    assert (config.enable_fault_tolerance, config.enable_dp_scale_down, config.enable_dp_scale_up) == (True, False, False)
    assert (round_.request_timeout_sec, round_.poll_interval_sec, round_.execution_deadline_sec) == (5.0, 1.0, 30.0)
    assert (round_.engine_request_timeout_sec, round_.fault_poll_interval_sec, round_.dead_confirm_sec) == (4.0, 0.25, 10.0)
    assert (config.software_collection_timeout_sec, config.hardware_ft_correlation_window_sec) == (60.0, 5.0)
    assert (config.reconfiguration_budget, config.reconfiguration_window_sec) == (3, 1800.0)
    assert config.fallback_strategy is FallbackStrategy.INSTANCE_RECONFIGURATION


def test_the_lease_is_two_waits_and_the_requests_around_them() -> None:
    assert DpScaleDownConfig().lease_sec == 85.0
    assert DpScaleDownConfig(poll_interval_sec=20.0).lease_sec == 100.0
    assert DpScaleDownConfig().apply_margin_sec == 35.0


@pytest.mark.parametrize(("enabled", "scale_down", "proxy"), [(True, True, True), (True, False, False), (False, True, False)])
def test_the_nodemanagers_switch_is_derived(enabled: bool, scale_down: bool, proxy: bool) -> None:
    config = FaultToleranceConfig(enable_fault_tolerance=enabled, enable_dp_scale_down=scale_down)
    assert config.enable_dp_scale_down_proxy is proxy
    with pytest.raises(ValidationError, match="enable_dp_scale_down_proxy"):
        FaultToleranceConfig.model_validate({"enable_dp_scale_down_proxy": True})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine_request_timeout_sec": 5.0}, "must be below request_timeout_sec"),
        ({"fault_poll_interval_sec": 2.0}, "must not exceed poll_interval_sec"),
        ({"request_timeout_sec": 0}, "request_timeout_sec"),
        ({"request_timeout_sec": 61}, "request_timeout_sec"),
        ({"execution_deadline_sec": 601}, "execution_deadline_sec"),
        ({"execution_deadline_sec": True}, "a boolean is not a number"),
        ({"poll_intervall_sec": 1}, "poll_intervall_sec"),
    ],
    ids=["engine timeout too long", "calmer in a fault", "zero", "too long", "deadline too long", "boolean", "misspelt"],
)
def test_what_contradicts_is_refused_with_its_reason(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DpScaleDownConfig(**changes)


def test_no_lease_that_a_nodemanager_would_not_grant() -> None:
    longest = DpScaleDownConfig(
        execution_deadline_sec=600, request_timeout_sec=60, poll_interval_sec=60, engine_request_timeout_sec=1
    )
    assert longest.lease_sec <= MAX_LEASE_SEC


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heartbeat_timeout_sec": 1.0}, "must exceed"),
        ({"enable_dp_scale_up": True}, "needs enable_dp_scale_down=true"),
        ({"reconfiguration_budget": 0}, "reconfiguration_budget"),
    ],
)
def test_what_contradicts_in_the_whole_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        FaultToleranceConfig(**changes)


@pytest.mark.parametrize("asked", [FallbackStrategy.ENGINE_RELAUNCH, FallbackStrategy.SCALE_P2D])
def test_a_fallback_that_is_not_done_stops_a_process_and_can_still_be_read(asked: FallbackStrategy) -> None:
    config = FaultToleranceConfig(fallback_strategy=asked)
    with pytest.raises(ConfigError, match=f"fallback_strategy = {asked.value}"):
        refuse_what_is_not_done(config)
    assert any(f"fallback_strategy={asked.value}" in warning for warning in config_warnings(config))


def test_the_fallback_that_is_done_is_taken() -> None:
    refuse_what_is_not_done(FaultToleranceConfig())


@pytest.mark.parametrize("model", [FaultToleranceConfig, DpScaleDownConfig])
def test_every_setting_says_below_itself_what_it_does(model: type[BaseModel]) -> None:
    body = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(body, ast.ClassDef)
    told = {
        field.target.id
        for field, below in itertools.pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }
    assert told == set(model.model_fields)


def test_what_is_allowed_but_hardly_meant_is_a_warning() -> None:
    assert config_warnings(FaultToleranceConfig()) == []
    hasty = FaultToleranceConfig(
        software_collection_timeout_sec=10, dp_scale_down_config=DpScaleDownConfig(verify_inference=False)
    )
    warnings = config_warnings(hasty)
    assert len(warnings) == 2
    assert "software_collection_timeout_sec=10" in warnings[0]
