"""What a Pod registers of its engines: read off their real flags, and never more than they have."""

import pytest

from domain.engine import Dialect, FtCapability
from node_manager.capability import derived_capability

SERVE = ["vllm", "serve", "model", "--data-parallel-rank", "{rank}", "--enable-fault-tolerance", "--enable-eplb"]


def derived(command: list[str], dialect: Dialect = Dialect.V1) -> FtCapability:
    return derived_capability(command, dialect=dialect, auto_recovery=False, engine_recovery_timeout_sec=120.0)


def test_a_full_command_line_can_scale_down_in_v1_and_only_retry_in_what_is_released() -> None:
    command = [*SERVE, "--eplb-config", '{"num_redundant_experts": 24}']
    assert derived(command) == FtCapability(
        enabled=True,
        scale_down_supported=True,
        retry_supported=True,
        external_lb=True,
        eplb_enabled=True,
        num_redundant_experts=24,
        dialect=Dialect.V1,
    )
    legacy = derived(command, Dialect.LEGACY)
    assert (legacy.scale_down_supported, legacy.retry_supported) == (False, True)


def test_without_the_flag_there_is_no_fault_tolerance_at_all() -> None:
    plain = derived(["vllm", "serve", "model"])
    switches = (plain.enabled, plain.scale_down_supported, plain.retry_supported, plain.external_lb, plain.eplb_enabled)
    assert switches == (False,) * 5


@pytest.mark.parametrize(
    ("more", "count"),
    [
        (['--eplb-config={"num_redundant_experts": 32}'], 32),
        (["--eplb-config.num_redundant_experts", "16"], 16),
        (["--num-redundant-experts=8"], 8),
        (["--eplb-config", "{nonsense"], 0),
        (["--eplb-config", '{"num_redundant_experts": true}'], 0),
        (["--eplb-config", "[1]"], 0),
        ([], 0),
    ],
)
def test_redundant_experts_in_every_form_that_vllm_takes(more: list[str], count: int) -> None:
    assert derived([*SERVE, *more]).num_redundant_experts == count


@pytest.mark.parametrize(
    ("flags", "external"),
    [
        (["--data-parallel-rank", "1"], True),
        (["-dpn", "1"], True),
        (["--data_parallel_rank=1"], True),
        (["--data-parallel-external-lb"], True),
        (["--data-parallel-multi-port-external-lb"], True),
        (["--data-parallel-rank", "1", "--data-parallel-hybrid-lb"], False),
        (["--data-parallel-size", "4"], False),
    ],
)
def test_external_load_balancing_by_its_flags(flags: list[str], external: bool) -> None:
    assert derived(["vllm", "serve", *flags]).external_lb is external


def test_the_last_form_of_a_switch_counts() -> None:
    assert not derived([*SERVE, "--no-enable-fault-tolerance"]).enabled
    assert derived([*SERVE, "--no-enable-eplb", "--enable-eplb"]).eplb_enabled
