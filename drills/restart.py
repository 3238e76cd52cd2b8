"""A process of ours is killed in the middle of a round; the round goes on (acceptance C).

A failpoint stops a process at a named place of the round; then what is to be killed is SIGKILLed, the place is released,
and the killed process comes back two seconds later, as Kubernetes would bring it. Everything must end as if nothing had
happened: in place, one command to each engine. The exception is what cannot be known: a NodeManager that dies between
writing down its intent and learning the engine's answer. Nobody may ask that engine again, so the instance is rebuilt.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from domain.errors import Refused
from domain.model import Strict
from drills.drill import Drill, Expectation, Outcome, local_spec
from drills.scene import Scene

BACK_AFTER_SEC: Final = 2.0
LOST_RANK: Final = 1
_HIT_WITHIN_SEC: Final = 40.0


class Victim(StrEnum):
    """What is killed."""

    WORKER = "worker"
    ONE_OF_TWO_WORKERS = "one-of-two-workers"
    API = "api"
    TEMPORAL = "temporal"
    SURVIVORS_NODE_MANAGER = "survivors-node-manager"
    DEAD_RANKS_NODE_MANAGER = "dead-ranks-node-manager"
    COORDINATOR = "coordinator"


SURVIVORS_NODE_MANAGER: Final = "node-manager-1"

PROCESS: Final[Mapping[Victim, str]] = {
    Victim.WORKER: "worker-0",
    Victim.ONE_OF_TWO_WORKERS: "the one that stands at the point",
    Victim.API: "api",
    Victim.TEMPORAL: "temporal",
    Victim.SURVIVORS_NODE_MANAGER: SURVIVORS_NODE_MANAGER,
    Victim.DEAD_RANKS_NODE_MANAGER: "node-manager-0",
    Victim.COORDINATOR: "coordinator-0",
}


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
    """A point in words, and the failpoint there with the process that has it."""

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
        meaning="in the middle of the fan-out: a survivors' NodeManager has noted its intent and not called its engines yet",
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


class Cell(Strict):
    """One combination."""

    victim: Victim
    point: Point

    @property
    def outcome_unknown(self) -> bool:
        """Whether nobody can know what the engines were told: one of the three unknowns of design §4."""
        return self.victim is Victim.SURVIVORS_NODE_MANAGER and self.point is Point.MID_APPLY

    @property
    def expected(self) -> str:
        """How it must end."""
        return "rebuilt: outcome of an apply unknown" if self.outcome_unknown else "in place, one apply per engine"

    def __str__(self) -> str:
        return f"--kill {self.victim} --at {self.point}"


class UnknownCell(Refused):
    """That combination does not exist; the message lists the words."""

    default_reason = "UNKNOWN_CELL"


def cells() -> Iterator[Cell]:
    """All combinations, by victim."""
    for victim in Victim:
        for point in Point:
            yield Cell(victim=victim, point=point)


def find_cell(kill: str, at: str) -> Cell:
    """The combination with these words. Raises UnknownCell."""
    if kill not in set(Victim):
        raise UnknownCell(f"--kill {kill!r}: choose one of {', '.join(Victim)}")
    if at not in set(Point):
        raise UnknownCell(f"--at {at!r}: choose one of {', '.join(Point)}")
    return Cell(victim=Victim(kill), point=Point(at))


def restart_drill(cell: Cell) -> Drill:
    """The drill of one cell."""
    place = PLACES[cell.point]

    async def act(scene: Scene) -> None:
        scene.failpoints.hold(place.failpoint)
        scene.kill_workers(LOST_RANK)
        hit = await scene.failpoints.wait_for(place.failpoint, _HIT_WITHIN_SEC)
        name = scene.process_of(hit.pid) if cell.victim is Victim.ONE_OF_TWO_WORKERS else PROCESS[cell.victim]
        scene.step(f"the round stands at {place.failpoint}: {place.meaning}")
        await scene.kill_process(name, restart_after_sec=BACK_AFTER_SEC)
        scene.failpoints.release(place.failpoint)
        if cell.outcome_unknown:
            await scene.until_rebuilt()
        else:
            await scene.until_shrunk([LOST_RANK], within_sec=90)
        await scene.until_running(name)

    spec = local_spec("restart", workers=2 if cell.victim is Victim.ONE_OF_TWO_WORKERS else 1)
    pods = tuple(name for name in ("node-manager-0", "node-manager-1") if name != PROCESS[cell.victim])
    return Drill(
        name="restart",
        summary=f"{cell}: {PROCESS[cell.victim]} is killed at {cell.point} ({place.meaning}); expected: {cell.expected}.",
        spec=spec,
        act=act,
        expected=(
            Expectation(outcome=Outcome.REBUILT, may_apply=True, killed=1)
            if cell.outcome_unknown
            else Expectation(outcome=Outcome.IN_PLACE, losses=((LOST_RANK,),), masters=(0,), kept_pods=pods, killed=1)
        ),
        failpoints={place.process: (place.failpoint,)},
    )
