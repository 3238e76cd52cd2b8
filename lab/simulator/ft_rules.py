"""Which FT commands an engine refuses, and with which words. Pure: facts in, the `ft_error` or None out.

These refusals are asynchronous: the client has its 202 already and finds the words in `ft_error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard


class Status(StrEnum):
    """What the status cache says; `healthy` only means that no fault was pushed."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"


class FtState(StrEnum):
    """v1 only; absent otherwise."""

    RECOVERING = "recovering"
    FAILED = "failed"


@dataclass(frozen=True)
class Facts:
    """What a rank knows of itself and its group when it looks at a command.

    `dead` are the ranks that earlier scale-downs removed; `store_rank` hosts the present store.
    """

    rank: int
    size: int
    dead: frozenset[int]
    store_rank: int
    num_experts: int
    num_redundant_experts: int

    @property
    def active(self) -> frozenset[int]:
        return frozenset(range(self.size)) - self.dead


@dataclass(frozen=True)
class ScaleDown:
    """A valid scale-down, as one rank understands it."""

    removed: frozenset[int]
    survivors: tuple[int, ...]
    store_rank: int
    new_store: tuple[str, int] | None


def refuse_by_state(instruction: str, rank: int, status: Status, ft_state: FtState | None) -> str | None:
    """Commands are taken only while `unhealthy`, and none after a failed scale-down."""
    if status is not Status.UNHEALTHY:
        return f"[FT] Rejecting {instruction} on engine {rank}: status is {status.name}"
    if ft_state is FtState.FAILED:
        return f"[FT] Rejecting {instruction} on engine {rank}: an earlier scale_down failed, which is terminal"
    return None


def read_scale_down(params: dict[str, Any], facts: Facts) -> ScaleDown | str:
    """The scale-down that `params` ask for, or why it cannot be."""
    removed = _removed(params.get("removed_dp_ranks"), facts)
    if removed is None:
        return (
            f"Invalid removed_dp_ranks {params.get('removed_dp_ranks')} for engine {facts.rank} "
            f"(dp_rank={facts.rank}, dead_dp_ranks={sorted(facts.dead)})"
        )
    survivors = tuple(sorted(facts.active - removed))
    if (slots := _slots_left(len(survivors), facts)) < facts.num_experts:
        return (
            f"scale_down would leave {slots} expert slot(s) for {facts.num_experts} logical experts. "
            "EPLB redundancy insufficient."
        )
    if facts.store_rank not in removed:
        return ScaleDown(removed, survivors, facts.store_rank, new_store=None)
    host, port = params.get("dp_master_ip"), params.get("dp_store_port")
    if not isinstance(host, str) or not host or not _is_port(port):
        return f"dp_store_port and dp_master_ip required when rank {facts.store_rank} is removed"
    return ScaleDown(removed, survivors, survivors[0], new_store=(host, port))


def _removed(ranks: Any, facts: Facts) -> frozenset[int] | None:
    """A non-empty set, all in range, not the receiver, one rank left, one rank that is new; None when it is not."""
    if not isinstance(ranks, list) or not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
        return None
    removed = frozenset(ranks)
    in_range = removed <= frozenset(range(facts.size))
    if not in_range or facts.rank in removed or removed <= facts.dead:
        return None  # one rank is left: the receiver
    return removed


def _slots_left(survivors: int, facts: Facts) -> int:
    """Expert slots are spread evenly; the dead ranks' are gone (fewer than L of them: R < L·d/(N−d))."""
    return (facts.num_experts + facts.num_redundant_experts) * survivors // facts.size


def _is_port(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535
