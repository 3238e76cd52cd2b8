"""The rules of a scale_down, as tables (behaviours 1, 2, 8 and 10)."""

from __future__ import annotations

import pytest

from lab.simulator.ft_rules import Facts, FtState, ScaleDown, Status, read_scale_down, refuse_by_state


def facts(
    rank: int = 2, size: int = 4, dead: tuple[int, ...] = (), store_rank: int = 0, experts: int = 64, redundant: int = 192
) -> Facts:
    return Facts(rank, size, frozenset(dead), store_rank, experts, redundant)


@pytest.mark.parametrize(
    ("status", "ft_state", "why"),
    [
        (Status.UNHEALTHY, None, None),
        (Status.HEALTHY, None, "[FT] Rejecting retry on engine 2: status is HEALTHY"),
        (Status.DEAD, None, "[FT] Rejecting retry on engine 2: status is DEAD"),
        (
            Status.UNHEALTHY,
            FtState.FAILED,
            "[FT] Rejecting retry on engine 2: an earlier scale_down failed, which is terminal",
        ),
    ],
)
def test_commands_are_taken_only_while_unhealthy(status: Status, ft_state: FtState | None, why: str | None) -> None:
    assert refuse_by_state("retry", 2, status, ft_state) == why


@pytest.mark.parametrize(
    "removed",
    [[], None, "1", 1, {"1": 1}, [True], ["1"], [1.0], [-1], [4], [2], [1, 2], [0, 1, 2, 3]],
    ids=lambda removed: f"removed={removed}",
)
def test_set_must_be_non_empty_in_range_and_without_the_receiver(removed: object) -> None:
    why = f"Invalid removed_dp_ranks {removed} for engine 2 (dp_rank=2, dead_dp_ranks=[])"
    assert read_scale_down({"removed_dp_ranks": removed}, facts()) == why


def test_set_must_have_a_rank_that_is_new() -> None:
    why = "Invalid removed_dp_ranks [1] for engine 2 (dp_rank=2, dead_dp_ranks=[1])"
    assert read_scale_down({"removed_dp_ranks": [1]}, facts(dead=(1,))) == why
    order = read_scale_down({"removed_dp_ranks": [1, 3]}, facts(dead=(1,)))
    assert order == ScaleDown(frozenset({1, 3}), survivors=(0, 2), store_rank=0, new_store=None)


def test_address_is_ignored_while_the_store_host_stays() -> None:
    params = {"removed_dp_ranks": [1], "dp_master_ip": 7, "dp_store_port": "x"}
    assert read_scale_down(params, facts()) == ScaleDown(frozenset({1}), (0, 2, 3), store_rank=0, new_store=None)


@pytest.mark.parametrize(
    "address",
    [
        {},
        {"dp_master_ip": "127.0.0.2"},
        {"dp_store_port": 29501},
        {"dp_master_ip": "", "dp_store_port": 29501},
        {"dp_master_ip": "127.0.0.2", "dp_store_port": 0},
        {"dp_master_ip": "127.0.0.2", "dp_store_port": 65536},
        {"dp_master_ip": "127.0.0.2", "dp_store_port": True},
        {"dp_master_ip": "127.0.0.2", "dp_store_port": "29501"},
    ],
    ids=str,
)
def test_address_is_required_when_the_store_host_is_removed(address: dict[str, object]) -> None:
    why = "dp_store_port and dp_master_ip required when rank 0 is removed"
    assert read_scale_down({"removed_dp_ranks": [0], **address}, facts()) == why


def test_lowest_survivor_becomes_the_store_host_also_the_second_time() -> None:
    params = {"removed_dp_ranks": [0, 1], "dp_master_ip": "127.0.0.3", "dp_store_port": 29502}
    order = read_scale_down(params, facts(dead=(0,), store_rank=1))
    assert order == ScaleDown(frozenset({0, 1}), (2, 3), store_rank=2, new_store=("127.0.0.3", 29502))


@pytest.mark.parametrize(
    ("size", "dead", "redundant", "enough"),
    [
        # R >= L*d/(N-d), with L = 64
        (4, 1, 21, False),
        (4, 1, 22, True),
        (4, 2, 63, False),
        (4, 2, 64, True),
        (4, 3, 191, False),
        (4, 3, 192, True),
        (2, 1, 0, False),
    ],
)
def test_expert_redundancy_must_cover_the_loss(size: int, dead: int, redundant: int, enough: bool) -> None:
    removed = list(range(1, 1 + dead))
    order = read_scale_down({"removed_dp_ranks": removed}, facts(rank=0, size=size, redundant=redundant))
    assert isinstance(order, ScaleDown) is enough
    if not enough:
        slots = (64 + redundant) * (size - dead) // size
        assert order == (f"scale_down would leave {slots} expert slot(s) for 64 logical experts. EPLB redundancy insufficient.")
