"""The restart table: what is killed or stopped, where in a round, and how that must end (acceptance C).

A failpoint stops a process at a named place of the round; then what is to go is SIGKILLed and comes back two seconds
later, as Kubernetes would bring it, or is SIGSTOPped for ten seconds; the place is released, and the round goes on.
Everything must end as if nothing had happened: in place, one command to each engine. The exceptions are the three things
that nobody can know (design §4), each a named cell with the reason that the round must give:

    outcome-unknown     a NodeManager dies between writing down its intent and learning its engines' answers
    lease-taken         the lease lapsed while nobody renewed it, and another round took the Pod
    engines-time-over   the engines' own patience ended before they were told anything

This module holds the words and the expectations; `lab.drills.restart.cell_drills` carries cells out.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from domain.errors import Refused
from domain.model import Strict

SURVIVORS_NODE_MANAGER: Final = "a survivors' NodeManager"
DEAD_RANKS_NODE_MANAGER: Final = "the dead rank's NodeManager"
STANDING_WORKER: Final = "the worker that has the round in hand"


class Victim(StrEnum):
    """What is killed or stopped; joined by `+`: both in the same moment."""

    WORKER = "worker"
    ONE_OF_TWO_WORKERS = "one-of-two-workers"
    API = "api"
    TEMPORAL = "temporal"
    SURVIVORS_NODE_MANAGER = "survivors-node-manager"
    DEAD_RANKS_NODE_MANAGER = "dead-ranks-node-manager"
    COORDINATOR = "coordinator"
    WORKER_AND_NODE_MANAGER = "worker+node-manager"
    WORKER_AND_TEMPORAL = "worker+temporal"
    API_AND_COORDINATOR = "api+coordinator"


PROCESSES: Final[Mapping[Victim, tuple[str, ...]]] = {
    Victim.WORKER: ("worker-0",),
    Victim.ONE_OF_TWO_WORKERS: (STANDING_WORKER,),
    Victim.API: ("api",),
    Victim.TEMPORAL: ("temporal",),
    Victim.SURVIVORS_NODE_MANAGER: (SURVIVORS_NODE_MANAGER,),
    Victim.DEAD_RANKS_NODE_MANAGER: (DEAD_RANKS_NODE_MANAGER,),
    Victim.COORDINATOR: ("coordinator-0",),
    Victim.WORKER_AND_NODE_MANAGER: ("worker-0", SURVIVORS_NODE_MANAGER),
    Victim.WORKER_AND_TEMPORAL: ("worker-0", "temporal"),
    Victim.API_AND_COORDINATOR: ("api", "coordinator-0"),
}

PAIRS: Final = frozenset(victim for victim, names in PROCESSES.items() if len(names) > 1)


class How(StrEnum):
    """What is done to it."""

    KILL = "kill"  # SIGKILL, back 2 s later
    STOP = "stop"  # SIGSTOP, SIGCONT 10 s later


class Point(StrEnum):
    """Where in the round."""

    BEFORE_GUARD = "before-guard"
    AFTER_GUARD = "after-guard"
    APPLY_READY = "apply-ready"
    AFTER_DEL = "after-del"
    MID_APPLY = "mid-apply"
    AFTER_202 = "after-202"
    RECOVERING = "recovering"
    COMMIT_POINT = "commit-point"
    FINALIZE_RECORDED = "finalize-recorded"
    BEFORE_ADD = "before-add"
    AFTER_ADD = "after-add"


class Place(Strict):
    """A point in words, and the failpoint there with the kind of process that has it."""

    failpoint: str
    meaning: str
    process: str = "worker"


PLACES: Final[Mapping[Point, Place]] = {
    Point.BEFORE_GUARD: Place(failpoint="worker.guard.before", meaning="before the first guard"),
    Point.AFTER_GUARD: Place(failpoint="worker.guard.after", meaning="all guarded, the history does not know it yet"),
    Point.APPLY_READY: Place(failpoint="worker.look_apply_ready.before", meaning="waiting for apply-ready"),
    Point.AFTER_DEL: Place(failpoint="worker.withdraw.after", meaning="withdrawn everywhere, the history does not know it yet"),
    Point.MID_APPLY: Place(
        failpoint="node-manager.before-engine-call",
        meaning="in the middle of the fan-out: a survivors' NodeManager has noted its intent and not called its engines yet, "
        "the others have theirs accepted",
        process=SURVIVORS_NODE_MANAGER,
    ),
    Point.AFTER_202: Place(
        failpoint="worker.apply.after", meaning="every engine has answered 202, the history does not know it yet"
    ),
    Point.RECOVERING: Place(failpoint="worker.look_recovered.before", meaning="the engines recover"),
    Point.COMMIT_POINT: Place(failpoint="worker.finalize.before", meaning="between the commit point and the first finalize"),
    Point.FINALIZE_RECORDED: Place(
        failpoint="worker.finalize.after", meaning="the NodeManagers have committed, the history does not know it yet"
    ),
    Point.BEFORE_ADD: Place(failpoint="worker.publish.before", meaning="finalized, not yet published"),
    Point.AFTER_ADD: Place(failpoint="worker.publish.after", meaning="published, the history does not know it yet"),
}


NEXT_STEP: Final[Mapping[Point, str]] = {
    Point.BEFORE_GUARD: "worker.look_apply_ready.before",
    Point.AFTER_GUARD: "worker.look_apply_ready.before",
    Point.APPLY_READY: "worker.withdraw.before",
    Point.AFTER_DEL: "worker.apply.before",
    Point.MID_APPLY: "worker.look_recovered.before",
    Point.AFTER_202: "worker.look_recovered.before",
    Point.RECOVERING: "worker.verify.before",
    Point.COMMIT_POINT: "worker.publish.before",
    Point.FINALIZE_RECORDED: "worker.publish.before",
    Point.BEFORE_ADD: "worker.end.before",
    Point.AFTER_ADD: "worker.end.before",
}
"""Where the step begins that comes after the one in which the round stands at a point."""


class Unknown(StrEnum):
    """The three unknowns of design §4, as cells of their own."""

    OUTCOME_UNKNOWN = "outcome-unknown"
    LEASE_TAKEN = "lease-taken"
    ENGINES_TIME_OVER = "engines-time-over"


UNKNOWN_MEANINGS: Final[Mapping[Unknown, str]] = {
    Unknown.OUTCOME_UNKNOWN: "rebuilt, reason APPLY_UNKNOWN: a NodeManager died between its intent and the engines' answers",
    Unknown.LEASE_TAKEN: "rebuilt, reason GUARD_REFUSED or GUARD_LOST: the lease lapsed and another round took the Pod",
    Unknown.ENGINES_TIME_OVER: "rebuilt, reason ENGINES_TIME_OVER: the engines' own time was over before they were told",
}


class Cell(Strict):
    """One combination."""

    victim: Victim
    point: Point
    how: How = How.KILL

    @property
    def outcome_unknown(self) -> bool:
        """Whether nobody can know what the engines were told. A stopped NodeManager forgets nothing."""
        return self.how is How.KILL and self.point is Point.MID_APPLY and SURVIVORS_NODE_MANAGER in PROCESSES[self.victim]

    @property
    def hits_the_dead_ranks_manager(self) -> bool:
        return DEAD_RANKS_NODE_MANAGER in PROCESSES[self.victim]

    @property
    def workers(self) -> int:
        """How many workers its installation has."""
        return 2 if self.victim is Victim.ONE_OF_TWO_WORKERS else 1

    @property
    def expected(self) -> str:
        """How it must end."""
        return UNKNOWN_MEANINGS[Unknown.OUTCOME_UNKNOWN] if self.outcome_unknown else "in place, one apply per engine"

    def __str__(self) -> str:
        return f"--{self.how} {self.victim} --at {self.point}"


class UnknownCell(Refused):
    """That combination does not exist; the message lists the words."""

    default_reason = "UNKNOWN_CELL"


def cells() -> Iterator[Cell]:
    """All combinations: kills, pairs, then stops; neighbours differ in what is hit."""
    for how in How:
        for paired in (False, True):
            for point in Point:
                for victim in Victim:
                    if (victim in PAIRS) is paired and not (paired and how is How.STOP):
                        yield Cell(victim=victim, point=point, how=how)


CHOSEN: Final = (
    Cell(victim=Victim.WORKER, point=Point.AFTER_GUARD),
    Cell(victim=Victim.SURVIVORS_NODE_MANAGER, point=Point.APPLY_READY),
    Cell(victim=Victim.DEAD_RANKS_NODE_MANAGER, point=Point.AFTER_DEL),
    Cell(victim=Victim.TEMPORAL, point=Point.MID_APPLY),
    Cell(victim=Victim.WORKER, point=Point.AFTER_202),
    Cell(victim=Victim.API, point=Point.RECOVERING),
    Cell(victim=Victim.WORKER_AND_NODE_MANAGER, point=Point.COMMIT_POINT),
    Cell(victim=Victim.COORDINATOR, point=Point.FINALIZE_RECORDED),
    Cell(victim=Victim.API_AND_COORDINATOR, point=Point.BEFORE_ADD),
    Cell(victim=Victim.WORKER_AND_TEMPORAL, point=Point.AFTER_ADD),
    Cell(victim=Victim.ONE_OF_TWO_WORKERS, point=Point.APPLY_READY),
    Cell(victim=Victim.ONE_OF_TWO_WORKERS, point=Point.AFTER_202),
    Cell(victim=Victim.ONE_OF_TWO_WORKERS, point=Point.FINALIZE_RECORDED),
    Cell(victim=Victim.WORKER, point=Point.RECOVERING, how=How.STOP),
    Cell(victim=Victim.COORDINATOR, point=Point.AFTER_DEL, how=How.STOP),
    Cell(victim=Victim.SURVIVORS_NODE_MANAGER, point=Point.MID_APPLY),
)
"""Every victim and nearly every point, for each run of the tests; `--all` has the rest."""


def find_cell(victim: str, at: str, how: How = How.KILL) -> Cell:
    """The combination with these words. Raises UnknownCell."""
    if victim not in set(Victim):
        raise UnknownCell(f"--{how} {victim!r}: choose one of {', '.join(Victim)}")
    if at not in set(Point):
        raise UnknownCell(f"--at {at!r}: choose one of {', '.join(Point)}")
    cell = Cell(victim=Victim(victim), point=Point(at), how=how)
    if cell not in set(cells()):
        raise UnknownCell(f"{cell}: pairs are only killed; `restart --list` shows the cells")
    return cell


def find_unknown(name: str) -> Unknown:
    """The named cell. Raises UnknownCell."""
    if name not in set(Unknown):
        raise UnknownCell(f"--cell {name!r}: choose one of {', '.join(Unknown)}")
    return Unknown(name)


def cell_table() -> str:
    """What `restart --list` prints."""
    lines = ["WHAT (--kill, --stop):", *(f"  {victim:<26}{' and '.join(PROCESSES[victim])}" for victim in Victim)]
    lines += ["POINT (--at):", *(f"  {point:<26}{PLACES[point].meaning}" for point in Point)]
    lines += ["", "named cells (--cell) and what is expected:", *(f"  {name:<26}{UNKNOWN_MEANINGS[name]}" for name in Unknown)]
    listed = list(cells())
    lines += ["", f"{len(listed)} cells and what is expected:"]
    lines += [f"  --{cell.how} {cell.victim:<26}--at {cell.point:<20}{cell.expected}" for cell in listed]
    return "\n".join(lines)
