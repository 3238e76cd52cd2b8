"""The invariants that a run of the experiment can show, judged as in every drill (acceptance B).

Engines, a Coordinator and clients leave the records that they leave everywhere; the hand's removal of the victim's endpoint
is the commit. What is not in `JUDGED` has no record here: no Controller, no NodeManager and no workflow takes part (I4, I6,
I8, I10, I11, I12, I16), nobody retries or rebuilds (I9, I17), and a client is told the rank but not the pool that answered
it, while pool B's rank of that number serves on (I15: that no view holds the removed rank is I5).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from lab.drills.outcome import Finding
from lab.drills.record import engine_log, view_log
from lab.drills.record.engine_log import EngineLife
from lab.drills.record.traffic import RequestRecord
from lab.drills.record.view_log import ViewLine
from lab.drills.supervisor_table.experiment import RANKS, VICTIM
from lab.oracle.invariants import Invariant, check
from lab.oracle.observations import CommitSeen, Event, Observed, RouteSeen, SourceKind, SourceRead

JUDGED: Final = (Invariant.I1, Invariant.I2, Invariant.I3, Invariant.I5, Invariant.I7, Invariant.I13, Invariant.I14)

_COORDINATOR: Final = "coordinator"


def observed(
    pool: int,
    first_port: int,
    lives: Mapping[int, EngineLife],
    views: Iterable[ViewLine],
    requests: Iterable[RequestRecord],
    removed_at: float | None,
    ended_at: float,
) -> Observed:
    """The record of one pool, by its instance id; its rank r listens at `first_port` + r. Times are `time.monotonic()`."""
    rank_of_port = {first_port + rank: rank for rank in range(RANKS)}
    events: list[Event] = [
        *engine_log.observations({rank: [life] for rank, life in lives.items()}, rank_of_port),
        *view_log.observations(_COORDINATOR, views, pool),
        *(RouteSeen(at=r.started_at, rank=r.rank, answered_by=r.answered_by) for r in requests if r.rank is not None),
        SourceRead(at=ended_at, kind=SourceKind.CLIENT, who="clients"),
    ]
    if removed_at is not None:
        events.append(CommitSeen(at=removed_at, request_id="scale-down-by-hand", ranks=frozenset({VICTIM})))
    return Observed(instance_id=pool, original=frozenset(range(RANKS)), events=tuple(events), ended_at=ended_at)


def invariant_checks(run: Observed) -> tuple[Finding, ...]:
    """One check an invariant of `JUDGED`, over one run."""
    judgements = [check(run, invariant) for invariant in JUDGED]
    return tuple(
        Finding.of(f"{one.invariant} {one.text}", one.observations, [violation.what for violation in one.violations], "holds")
        for one in judgements
    )
