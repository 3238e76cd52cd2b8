"""The static gate: may this instance shrink in place at all (RFC §5, step 2)?

It judges what was configured and declared, never what engines say at the moment. All codes that apply are listed, in
the RFC's order, so that an operator mends everything at once. Fused MC2 is no gate, and the number of redundant experts
is no budget of removable ranks: whether the slots suffice for this loss, the engine decides after apply.
"""

from collections.abc import Sequence
from enum import StrEnum

from domain.config import FaultToleranceConfig
from domain.engine import FtCapability
from domain.runtime import GateRecord


class GateCode(StrEnum):
    FEATURE_DISABLED = "FEATURE_DISABLED"
    ENGINE_FT_REQUIRED = "ENGINE_FT_REQUIRED"
    EXTERNAL_LB_REQUIRED = "EXTERNAL_LB_REQUIRED"
    AUTO_RECOVERY_CONFLICT = "AUTO_RECOVERY_CONFLICT"
    ENGINE_SCALE_DOWN_UNSUPPORTED = "ENGINE_SCALE_DOWN_UNSUPPORTED"
    EPLB_REQUIRED = "EPLB_REQUIRED"
    EXPERT_REDUNDANCY_REQUIRED = "EXPERT_REDUNDANCY_REQUIRED"
    NO_SURVIVOR = "NO_SURVIVOR"
    FT_CAPABILITY_MISSING = "FT_CAPABILITY_MISSING"  # ours: nobody said what the engines can do
    FT_CAPABILITY_INCONSISTENT = "FT_CAPABILITY_INCONSISTENT"  # ours: the instance's Pods disagree


class RetryGateCode(StrEnum):
    """Fast recovery ▲ has a gate of its own: it needs less than a scale-down, since no expert changes its place."""

    FEATURE_DISABLED = "FEATURE_DISABLED"
    FAST_RECOVERY_DISABLED = "FAST_RECOVERY_DISABLED"
    ENGINE_FT_REQUIRED = "ENGINE_FT_REQUIRED"
    EXTERNAL_LB_REQUIRED = "EXTERNAL_LB_REQUIRED"
    AUTO_RECOVERY_CONFLICT = "AUTO_RECOVERY_CONFLICT"
    ENGINE_RETRY_UNSUPPORTED = "ENGINE_RETRY_UNSUPPORTED"
    FT_CAPABILITY_MISSING = "FT_CAPABILITY_MISSING"
    FT_CAPABILITY_INCONSISTENT = "FT_CAPABILITY_INCONSISTENT"


def gate(
    config: FaultToleranceConfig,
    capability: FtCapability | None,
    survivors: int,
    *,
    capability_consistent: bool = True,
) -> GateRecord:
    """Every reason why a group must not shrink in place; none means that it may.

    `survivors` is how many active ranks would be left. `capability_consistent` is False where the Pods of the instance
    registered with different capabilities.
    """
    checks = [
        (GateCode.FEATURE_DISABLED, not config.enable_dp_scale_down_proxy),
        (GateCode.ENGINE_FT_REQUIRED, capability is not None and not capability.enabled),
        (GateCode.EXTERNAL_LB_REQUIRED, capability is not None and not capability.external_lb),
        (GateCode.AUTO_RECOVERY_CONFLICT, capability is not None and capability.auto_recovery),
        (GateCode.ENGINE_SCALE_DOWN_UNSUPPORTED, capability is not None and not capability.scale_down_supported),
        (GateCode.EPLB_REQUIRED, capability is not None and not capability.eplb_enabled),
        (GateCode.EXPERT_REDUNDANCY_REQUIRED, capability is not None and capability.num_redundant_experts <= 0),
        (GateCode.NO_SURVIVOR, survivors < config.min_alive_ranks),
        (GateCode.FT_CAPABILITY_MISSING, capability is None),
        (GateCode.FT_CAPABILITY_INCONSISTENT, not capability_consistent),
    ]
    return _record(checks)


def retry_gate(
    config: FaultToleranceConfig, capability: FtCapability | None, *, capability_consistent: bool = True
) -> GateRecord:
    """Every reason why the engines must not be told to `retry` in place; none means that FastRecovery may run."""
    checks = [
        (RetryGateCode.FEATURE_DISABLED, not config.enable_dp_scale_down_proxy),
        (RetryGateCode.FAST_RECOVERY_DISABLED, not config.enable_fast_recovery),
        (RetryGateCode.ENGINE_FT_REQUIRED, capability is not None and not capability.enabled),
        (RetryGateCode.EXTERNAL_LB_REQUIRED, capability is not None and not capability.external_lb),
        (RetryGateCode.AUTO_RECOVERY_CONFLICT, capability is not None and capability.auto_recovery),
        (RetryGateCode.ENGINE_RETRY_UNSUPPORTED, capability is not None and not capability.retry_supported),
        (RetryGateCode.FT_CAPABILITY_MISSING, capability is None),
        (RetryGateCode.FT_CAPABILITY_INCONSISTENT, not capability_consistent),
    ]
    return _record(checks)


def _record(checks: Sequence[tuple[StrEnum, bool]]) -> GateRecord:
    codes = tuple(code.value for code, applies in checks if applies)
    return GateRecord(allowed=not codes, reason_codes=codes)
