"""When a Pod's rank servers stay, and when all of them are stopped. Pure: what was seen in, what follows out.

A **sweep** is one look at every rank server at once. What it showed is folded into the `Standing`, which says three
things: whether the Pod is ready for requests, which ranks have left for good, and why everything must stop, if it must.

Two sets of rules (vLLM's multi-port DP supervisor, contracts §7):

| | stock | fault-tolerant |
|---|---|---|
| looked at | `/health` | the FT status |
| a server exited | stop at once | removed by the engines, whatever its exit code; not looked at again |
| an answer that is wrong | stop at once | a failed look, never a removal |
| no answer | stop after `threshold` sweeps in a row | a failed look, never a removal |
| everything stops | for any one of these | after `threshold` sweeps in a row in which no rank was healthy or recovering |
| ready | from the first readiness until the stop | while at least one rank is healthy |

Both begin when the group was ready once. Before that a server that exits ends the attempt, and nothing else does.
"""

from collections.abc import Mapping
from enum import StrEnum

from domain.model import Rank, Strict


class Rules(StrEnum):
    """Which set applies."""

    STOCK = "stock"  # as vLLM's supervisor without fault tolerance
    FAULT_TOLERANT = "fault-tolerant"


class ServerState(StrEnum):
    """What one sweep showed of one rank server."""

    HEALTHY = "healthy"  # stock: /health is 200; fault-tolerant: the rank says so
    RECOVERING = "recovering"  # the rank says `unhealthy`: it waits for the engines to recover in place
    DEAD = "dead"  # the rank says so; its server still answers
    WRONG = "wrong"  # it answered, but not what it should have
    SILENT = "silent"  # nobody answered in time
    EXITED = "exited"  # its process is gone: overrules whatever it said


class StopReason(StrEnum):
    """Why everything is stopped."""

    SERVER_EXITED = "SERVER_EXITED"
    NOT_HEALTHY = "NOT_HEALTHY"
    NO_ANSWER = "NO_ANSWER"
    NO_RANK_SERVES = "NO_RANK_SERVES"
    EXITED_BEFORE_READY = "EXITED_BEFORE_READY"
    NOT_READY_IN_TIME = "NOT_READY_IN_TIME"


class Stop(Strict):
    """The verdict that ends the Pod. `ranks`: whom it is about, ascending."""

    reason: StopReason
    ranks: tuple[Rank, ...]


class Standing(Strict):
    """What all sweeps since the first readiness amount to.

    `removed` only grows. `silent_sweeps`: per rank how many sweeps in a row got no answer (stock). `idle_sweeps`: how
    many in a row found no rank healthy or recovering (fault-tolerant).
    """

    ready: bool = True
    removed: tuple[Rank, ...] = ()
    silent_sweeps: Mapping[Rank, int] = {}
    idle_sweeps: int = 0
    stop: Stop | None = None


def after_sweep(rules: Rules, before: Standing, looks: Mapping[int, ServerState], threshold: int) -> Standing:
    """The standing after one sweep.

    Args:
        looks: what was seen, for every rank that was ever started; an exit must be shown again in every later sweep.
        threshold: sweeps in a row, ≥ 1 (`--dp-supervisor-probe-failure-threshold`).

    Once there is a stop, nothing changes it.
    """
    if before.stop is not None:
        return before
    fold = _stock if rules is Rules.STOCK else _fault_tolerant
    return fold(before, looks, threshold)


def before_ready(looks: Mapping[int, ServerState]) -> Stop | None:
    """While the group comes up: a server that exits ends the attempt, under both sets of rules."""
    exited = _those(looks, ServerState.EXITED)
    return Stop(reason=StopReason.EXITED_BEFORE_READY, ranks=exited) if exited else None


def _stock(before: Standing, looks: Mapping[int, ServerState], threshold: int) -> Standing:
    silent_sweeps = {rank: before.silent_sweeps.get(rank, 0) + 1 for rank in _those(looks, ServerState.SILENT)}
    mute = tuple(rank for rank, sweeps in silent_sweeps.items() if sweeps >= threshold)
    wrong = tuple(sorted(set(looks) - set(_those(looks, ServerState.HEALTHY, ServerState.SILENT, ServerState.EXITED))))
    found = (
        (StopReason.SERVER_EXITED, _those(looks, ServerState.EXITED)),
        (StopReason.NOT_HEALTHY, wrong),
        (StopReason.NO_ANSWER, mute),
    )
    stop = next((Stop(reason=reason, ranks=ranks) for reason, ranks in found if ranks), None)
    return Standing(ready=stop is None, silent_sweeps=silent_sweeps, stop=stop)


def _fault_tolerant(before: Standing, looks: Mapping[int, ServerState], threshold: int) -> Standing:
    exited = _those(looks, ServerState.EXITED)
    alive = set(looks) - set(exited)
    idle_sweeps = 0 if _those(looks, ServerState.HEALTHY, ServerState.RECOVERING) else before.idle_sweeps + 1
    stop = Stop(reason=StopReason.NO_RANK_SERVES, ranks=tuple(sorted(looks))) if idle_sweeps >= threshold else None
    return Standing(
        ready=stop is None and ServerState.HEALTHY in looks.values(),
        removed=exited if alive else before.removed,
        idle_sweeps=idle_sweeps,
        stop=stop,
    )


def _those(looks: Mapping[int, ServerState], *wanted: ServerState) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, look in looks.items() if look in wanted))
