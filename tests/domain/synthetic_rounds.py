"""Clean recoveries made up from nothing: what a faultless run looks like to the invariants.

`clean_run(dp_size, losses)` writes the records of one instance with two ranks a Pod, two Coordinators, and one in-place
round per loss. Tests plant a violation in it by changing or adding records.
"""

from collections.abc import Iterable, Mapping

from domain.config import DpScaleDownConfig
from domain.engine import EngineStatus, Instruction
from lab.oracle.observations import (
    ApplySeen,
    CommitSeen,
    EngineIdSeen,
    Event,
    GenerationSeen,
    GuardGone,
    GuardSeen,
    Observed,
    PhaseSeen,
    RecoveredSeen,
    RoundSeen,
    RouteSeen,
    SourceKind,
    SourceRead,
    StatusSeen,
    VerdictSeen,
    ViewChange,
    ViewSeen,
)

COORDINATORS = ("coordinator-a", "coordinator-b")
ROUND_SEC = 100.0
LEASE_SEC = 85.0


def request_id(number: int) -> str:
    return f"scale-down-{number:032x}"


def managers(dp_size: int) -> Mapping[str, tuple[int, ...]]:
    """Two ranks a Pod."""
    return {f"127.0.0.{2 + first // 2}:1026": tuple(range(first, min(first + 2, dp_size))) for first in range(0, dp_size, 2)}


def endpoints(ranks: Iterable[int]) -> dict[int, str]:
    return {rank: f"127.0.0.{2 + rank // 2}:{10000 + rank}" for rank in sorted(ranks)}


def clean_run(dp_size: int, losses: tuple[frozenset[int], ...]) -> Observed:
    """An instance that loses `losses` one after the other, in place. The losses are disjoint and leave a survivor."""
    original = frozenset(range(dp_size))
    events: list[Event] = [*_sources(dp_size), *_first_view(original)]
    events += [EngineIdSeen(at=0.5, rank=rank, answered=rank) for rank in sorted(original)]
    gone: frozenset[int] = frozenset()
    for number, lost in enumerate(losses, start=1):
        events += _round(number, original, gone, lost, dp_size)
        gone |= lost
    ended_at = ROUND_SEC * (len(losses) + 1)
    return Observed(instance_id=7, original=original, events=tuple(events), ended_at=ended_at)


def _sources(dp_size: int) -> list[Event]:
    read: list[Event] = [SourceRead(at=0, kind=SourceKind.ENGINE_LOG, who=f"engine/{rank}") for rank in range(dp_size)]
    read += [SourceRead(at=0, kind=SourceKind.JOURNAL, who=manager) for manager in managers(dp_size)]
    read += [SourceRead(at=0, kind=SourceKind.VIEW_LOG, who=coordinator) for coordinator in COORDINATORS]
    return read


def _first_view(original: frozenset[int]) -> list[Event]:
    return [_view(1.0, coordinator, ViewChange.SET, 1, original) for coordinator in COORDINATORS]


def _view(at: float, coordinator: str, change: ViewChange, revision: int, ranks: frozenset[int]) -> ViewSeen:
    return ViewSeen(at=at, coordinator=coordinator, change=change, revision=revision, endpoints=endpoints(ranks))


def _phase(at: float, phase: str, committed: frozenset[int], *, serves: bool) -> PhaseSeen:
    return PhaseSeen(at=at, asked_at=at - 0.01, phase=phase, can_serve=serves, serving_published=serves, dead_committed=committed)


def _round(number: int, original: frozenset[int], gone: frozenset[int], lost: frozenset[int], dp_size: int) -> list[Event]:
    """The records of one in-place round, in the order in which it happens (design §4)."""
    t = ROUND_SEC * number
    name = request_id(number)
    survivors = sorted(original - gone - lost)
    removed = gone | lost
    pods = list(managers(dp_size))
    before = "NORMAL" if not gone else "SCALED_DOWN_RUNNING"
    happened: list[Event] = [_phase(t - 1, before, gone, serves=True)]
    happened += [RouteSeen(at=t - 2, rank=rank, answered_by=rank) for rank in sorted(original - gone)]
    happened += [StatusSeen(at=t, rank=rank, status=EngineStatus.DEAD) for rank in sorted(lost)]
    happened += [StatusSeen(at=t + 1, rank=rank, status=EngineStatus.UNHEALTHY) for rank in survivors]
    happened += [GenerationSeen(at=t + 2, receiver=pod, generation=number) for pod in pods]
    happened += [GuardSeen(at=t + 2, manager=pod, request_id=name, expires_at=t + 2 + LEASE_SEC) for pod in pods]
    happened += [_view(t + 3, coordinator, ViewChange.DEL, 2 * number, frozenset()) for coordinator in COORDINATORS]
    happened += [_phase(t + 3.5, "SCALING_DOWN", gone, serves=False)]
    happened += [
        ApplySeen(at=t + 4, engine=rank, request_id=name, instruction=Instruction.SCALE_DOWN, removed=removed)
        for rank in survivors
    ]
    happened += [RecoveredSeen(at=t + 5, engine=rank, request_id=name) for rank in survivors]
    happened += [StatusSeen(at=t + 5, rank=rank, status=EngineStatus.HEALTHY) for rank in survivors]
    happened += [CommitSeen(at=t + 6, request_id=name, ranks=removed), _phase(t + 6, "POST_SCALE_CLEANUP", removed, serves=False)]
    happened += [VerdictSeen(at=t + 6, manager=pod, request_id=name, committed=True) for pod in pods]
    happened += [GuardGone(at=t + 6, manager=pod, request_id=name) for pod in pods]
    happened += [_view(t + 7, coordinator, ViewChange.ADD, 2 * number + 1, frozenset(survivors)) for coordinator in COORDINATORS]
    happened += [RouteSeen(at=t + 8, rank=rank, answered_by=rank) for rank in survivors]
    happened += [_phase(t + 8, "SCALED_DOWN_RUNNING", removed, serves=True)]
    bound_sec = DpScaleDownConfig().round_bound_sec
    return [*happened, RoundSeen(at=t + 2, request_id=name, ended_at=t + 7, bound_sec=bound_sec)]
