"""The static gate: each missing prerequisite refuses with its own code; all that apply are listed (contracts §5)."""

from typing import Any

import pytest

from domain.engine import FtCapability
from domain.round.gate import GateCode, RetryGateCode, gate, retry_gate
from tests.domain.instance_factories import config

CAPABLE = FtCapability(enabled=True, scale_down_supported=True, external_lb=True, eplb_enabled=True, num_redundant_experts=1)


def test_an_instance_that_has_everything_may_shrink() -> None:
    assert gate(config(), CAPABLE, 3).allowed
    assert gate(config(), CAPABLE, 3).reason_codes == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"enabled": False}, GateCode.ENGINE_FT_REQUIRED),
        ({"external_lb": False}, GateCode.EXTERNAL_LB_REQUIRED),
        ({"auto_recovery": True}, GateCode.AUTO_RECOVERY_CONFLICT),
        ({"scale_down_supported": False}, GateCode.ENGINE_SCALE_DOWN_UNSUPPORTED),
        ({"eplb_enabled": False}, GateCode.EPLB_REQUIRED),
        ({"num_redundant_experts": 0}, GateCode.EXPERT_REDUNDANCY_REQUIRED),
    ],
    ids=lambda value: value.value if isinstance(value, GateCode) else "",
)
def test_each_missing_capability_has_its_code(changes: dict[str, Any], code: GateCode) -> None:
    record = gate(config(), CAPABLE.model_copy(update=changes), 3)
    assert (record.allowed, record.reason_codes) == (False, (code.value,))


@pytest.mark.parametrize("off", [{"enable_dp_scale_down": False}, {"enable_fault_tolerance": False}], ids=["scale-down", "all"])
def test_the_feature_must_be_on(off: dict[str, Any]) -> None:
    assert gate(config(**off), CAPABLE, 3).reason_codes == (GateCode.FEATURE_DISABLED.value,)


def test_somebody_must_survive() -> None:
    assert gate(config(), CAPABLE, 0).reason_codes == (GateCode.NO_SURVIVOR.value,)
    assert gate(config(min_alive_ranks=3), CAPABLE, 2).reason_codes == (GateCode.NO_SURVIVOR.value,)
    assert gate(config(min_alive_ranks=3), CAPABLE, 3).allowed


def test_what_nobody_told_or_told_differently_fails_closed() -> None:
    assert gate(config(), None, 3).reason_codes == (GateCode.FT_CAPABILITY_MISSING.value,)
    refused = gate(config(), CAPABLE, 3, capability_consistent=False)
    assert refused.reason_codes == (GateCode.FT_CAPABILITY_INCONSISTENT.value,)


def test_all_codes_that_apply_are_listed_in_the_contracts_order() -> None:
    nothing = FtCapability(enabled=False, scale_down_supported=False, external_lb=False, auto_recovery=True, eplb_enabled=False)
    record = gate(config(enable_dp_scale_down=False), nothing, 0, capability_consistent=False)
    everything = [code.value for code in GateCode if code is not GateCode.FT_CAPABILITY_MISSING]
    assert list(record.reason_codes) == everything


RETRYING = FtCapability(enabled=True, scale_down_supported=False, retry_supported=True, external_lb=True, eplb_enabled=False)
"""Released vLLM: it can retry in place, and nothing else."""


def test_engines_that_can_only_retry_may_recover_fast() -> None:
    assert retry_gate(config(enable_fast_recovery=True), RETRYING).allowed
    assert not gate(config(enable_fast_recovery=True), RETRYING, 3).allowed


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"enabled": False}, RetryGateCode.ENGINE_FT_REQUIRED),
        ({"external_lb": False}, RetryGateCode.EXTERNAL_LB_REQUIRED),
        ({"auto_recovery": True}, RetryGateCode.AUTO_RECOVERY_CONFLICT),
        ({"retry_supported": False}, RetryGateCode.ENGINE_RETRY_UNSUPPORTED),
    ],
    ids=lambda value: value.value if isinstance(value, RetryGateCode) else "",
)
def test_fast_recovery_names_each_missing_capability(changes: dict[str, Any], code: RetryGateCode) -> None:
    record = retry_gate(config(enable_fast_recovery=True), RETRYING.model_copy(update=changes))
    assert (record.allowed, record.reason_codes) == (False, (code.value,))


def test_fast_recovery_is_off_by_default_and_all_its_codes_are_listed_in_order() -> None:
    assert retry_gate(config(), RETRYING).reason_codes == (RetryGateCode.FAST_RECOVERY_DISABLED.value,)
    assert retry_gate(config(enable_fast_recovery=True), None).reason_codes == (RetryGateCode.FT_CAPABILITY_MISSING.value,)
    nothing = FtCapability(enabled=False, scale_down_supported=False, external_lb=False, auto_recovery=True, eplb_enabled=False)
    record = retry_gate(config(enable_dp_scale_down=False), nothing, capability_consistent=False)
    everything = [code.value for code in RetryGateCode if code is not RetryGateCode.FT_CAPABILITY_MISSING]
    assert list(record.reason_codes) == everything
