"""Carries out cells of the restart table: alone, or several in turn on one installation.

    small   four ranks in two Pods; one cell
    apart   four ranks in three Pods, the lost one alone in its own; one cell that hits the dead rank's NodeManager
    large   eight ranks in four Pods; up to five cells, each with a rank and a round of its own

In a chain nothing is shared but the installation: before the next rank dies, the last round's view is served, its
verdicts are given, what was killed runs again, and requests succeed. What a cell broke stays broken, and turns the
chain red. Cells that end in a rebuild always run alone.

The dead rank's NodeManager must be one that has no survivor, or it would be a survivors' one as well. In a chain the
second loss leaves its Pod without any, so that is the place of a cell which hits it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from domain.messages.strategy import RoundReason
from domain.model import Strict
from domain.runtime import FtPhase
from lab.drills.check import Check
from lab.drills.drill import PODS, Drill, in_place, local_spec, rebuilt
from lab.drills.judge.commands import no_apply
from lab.drills.judge.endings import first_round_ended
from lab.drills.judge.processes import kept_pods, killed, pods, stopped, went_on
from lab.drills.restart.cells import (
    DEAD_RANKS_NODE_MANAGER,
    NEXT_STEP,
    PLACES,
    PROCESSES,
    STANDING_WORKER,
    SURVIVORS_NODE_MANAGER,
    Cell,
    How,
    Point,
    Unknown,
    Victim,
)
from lab.drills.script.failpoints import Hit
from lab.drills.script.scene import Scene
from lab.stack.spec import EngineSpec, StackSpec

BACK_AFTER_SEC: Final = 2.0
STOPPED_FOR_SEC: Final = 10.0
LATE_SEC: Final = 5.0
"""With two workers a round is no later than this when one of them goes (acceptance C), on a machine that has time for it."""

_BUSY_SEC: Final = 10.0
"""What a busy machine may add, before a drill calls it wrong: four installations on two cores made 8.1 s of 4."""

_HIT_WITHIN_SEC: Final = 60.0
_SHRUNK_WITHIN_SEC: Final = 120.0
_OTHER_ROUND: Final = "scale-down-" + "0" * 32
_APPLYING: Final = "worker.apply.before"
"""Passed by the worker whose apply then stands at a NodeManager's failpoint."""


class Shape(Strict):
    """An installation: `lost` are the ranks that die in turn; the first and the last Pod always keep a survivor."""

    pods: tuple[tuple[int, ...], ...]
    lost: tuple[int, ...]
    detection_sec: float

    @property
    def survivors_manager(self) -> str:
        return f"node-manager-{len(self.pods) - 1}"

    def manager_of(self, rank: int) -> str:
        return next(f"node-manager-{index}" for index, pod in enumerate(self.pods) if rank in pod)

    def spec(self, workers: int) -> StackSpec:
        engine = EngineSpec(detection_sec=self.detection_sec, recovery_sec=1.0)
        return local_spec("restart", engine, workers=workers).model_copy(update={"pods": self.pods})


SMALL: Final = Shape(pods=((0, 1), (2, 3)), lost=(1,), detection_sec=2.0)
APART: Final = Shape(pods=((0,), (1,), (2, 3)), lost=(1,), detection_sec=2.0)
LARGE: Final = Shape(pods=((0, 1), (2, 3), (4, 5), (6, 7)), lost=(3, 2, 5, 4, 1), detection_sec=1.0)


def restart_drill(*chosen: Cell, name: str = "restart") -> Drill:
    """The drill of one cell, or of a chain of them (`chains` says which may share an installation)."""
    shape = shape_of(chosen)
    assert len(chosen) <= len(shape.lost), "a chain loses a rank a cell"
    if len(chosen) == 1 and chosen[0].outcome_unknown:
        return _unknown_outcome(chosen[0], name)
    lost = shape.lost[: len(chosen)]

    async def act(scene: Scene) -> None:
        for number, (cell, rank) in enumerate(zip(chosen, lost, strict=True), start=1):
            await _in_place(scene, shape, cell, rank, lost[:number])

    hit = {_process(shape, word, rank) for cell, rank in zip(chosen, lost, strict=True) for word in PROCESSES[cell.victim]}
    spec = shape.spec(max(cell.workers for cell in chosen))
    return Drill(
        name=name,
        summary="; ".join(f"{cell}: {PLACES[cell.point].meaning}; expected: {cell.expected}" for cell in chosen) + ".",
        spec=spec,
        act=act,
        end=in_place(*((rank,) for rank in lost)),
        checks=(kept_pods(*(name for name in pods(spec) if name not in hit)), *_of_victims(chosen)),
        failpoints=_failpoints(shape, chosen),
    )


def _of_victims(chosen: Sequence[Cell]) -> Iterator[Check]:
    """What must become of those that were killed or stopped, and of a round that lost one of two workers."""
    counted = Counter(cell.how for cell in chosen for _ in PROCESSES[cell.victim])
    if counted[How.KILL]:
        yield killed(counted[How.KILL])
    if counted[How.STOP]:
        yield stopped(counted[How.STOP], for_sec=STOPPED_FOR_SEC)
    if within_sec := {str(cell): _goes_on_within_sec(cell) for cell in chosen if cell.workers > 1}:
        yield went_on(within_sec)


def shape_of(chosen: Sequence[Cell]) -> Shape:
    """The installation of one cell, or of a chain."""
    if len(chosen) > 1:
        return LARGE
    return APART if chosen[0].hits_the_dead_ranks_manager else SMALL


def chains(chosen: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """These cells in groups that may run on one installation, in turn."""
    for alone in (cell for cell in chosen if cell.outcome_unknown):
        yield (alone,)
    for how in How:
        for workers in (1, 2):
            yield from _chained([c for c in chosen if c.workers == workers and c.how is how and not c.outcome_unknown])


def _chained(alike: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """In each chain one cell at most hits the dead rank's NodeManager, and comes second; alone it has a shape of its own."""
    there = [cell for cell in alike if cell.hits_the_dead_ranks_manager]
    others = [cell for cell in alike if not cell.hits_the_dead_ranks_manager]
    while others:
        second, there = there[:1], there[1:]
        size = len(LARGE.lost) - len(second)
        yield (*others[:1], *second, *others[1:size])
        others = others[size:]
    yield from ((cell,) for cell in there)


def _failpoints(shape: Shape, chosen: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """By process: what is armed there. The worker that applies is known by passing `_APPLYING`."""
    armed: dict[str, set[str]] = {"worker": {_APPLYING}}
    for cell in chosen:
        place = PLACES[cell.point]
        process = shape.survivors_manager if place.process == SURVIVORS_NODE_MANAGER else place.process
        armed.setdefault(process, set()).add(place.failpoint)
        if cell.workers > 1:
            armed["worker"].add(NEXT_STEP[cell.point])
    return {process: tuple(sorted(names)) for process, names in armed.items()}


def _goes_on_within_sec(cell: Cell) -> float:
    """The bound that turns a cell red. Whether LATE_SEC is kept is told by the figure `late_sec`, which decides nothing.

    A worker that stands still has its polls open: the server may hand it one try after the other until it is back.
    """
    return LATE_SEC + _BUSY_SEC + (STOPPED_FOR_SEC if cell.how is How.STOP else 0.0)


def _process(shape: Shape, word: str, rank: int) -> str:
    """The process that a word of the table means; the standing worker is known only once it stands."""
    return {SURVIVORS_NODE_MANAGER: shape.survivors_manager, DEAD_RANKS_NODE_MANAGER: shape.manager_of(rank)}.get(word, word)


async def _in_place(scene: Scene, shape: Shape, cell: Cell, rank: int, removed: Sequence[int]) -> None:
    """One round with its restart, until everything is as it was."""
    victims = await _hit(scene, shape, cell, rank)
    gone_at = scene.injected[-1][0]
    await scene.until_shrunk(sorted(removed), within_sec=_SHRUNK_WITHIN_SEC)
    for name in victims:
        await scene.until_running(name)
    await scene.until_settled()
    if cell.workers > 1:
        went_on_at = scene.failpoints.first_hit_after(NEXT_STEP[cell.point], gone_at)
        scene.late_sec[str(cell)] = None if went_on_at is None else went_on_at - gone_at


async def _hit(scene: Scene, shape: Shape, cell: Cell, rank: int) -> list[str]:
    """The rank dies, the round comes to the point, the victims go. Their names."""
    place = PLACES[cell.point]
    scene.failpoints.hold(place.failpoint)
    scene.kill_workers(rank)
    hit = await scene.failpoints.wait_for(place.failpoint, _HIT_WITHIN_SEC)
    if cell.point is Point.MID_APPLY:  # whoever else is killed here has its answers on disk: that much is certain
        await scene.until_others_accepted(shape.survivors_manager)
    scene.step(f"the round stands at {place.failpoint}: {place.meaning}; {cell}")
    victims = [
        _standing(scene, hit) if word == STANDING_WORKER else _process(shape, word, rank) for word in PROCESSES[cell.victim]
    ]
    if cell.how is How.KILL:
        for name in victims:
            await scene.kill_process(name, restart_after_sec=BACK_AFTER_SEC)
        scene.failpoints.release(place.failpoint)
    else:
        async with contextlib.AsyncExitStack() as stopped:
            for name in victims:
                await stopped.enter_async_context(scene.stopped_process(name))
            scene.failpoints.release(place.failpoint)
            await asyncio.sleep(STOPPED_FOR_SEC)
    return victims


def _standing(scene: Scene, hit: Hit) -> str:
    """The worker that has the round in hand: it stands there, or waits for the NodeManager that does."""
    if hit.name == PLACES[Point.MID_APPLY].failpoint:
        return scene.process_of(scene.failpoints.last_hit(_APPLYING).pid)
    return scene.process_of(hit.pid)


# --- the three unknowns --------------------------------------------------------------------------------------------------


def unknown_drill(unknown: Unknown) -> Drill:
    """The drill of a named cell."""
    match unknown:
        case Unknown.OUTCOME_UNKNOWN:
            return _unknown_outcome(Cell(victim=Victim.SURVIVORS_NODE_MANAGER, point=Point.MID_APPLY), unknown.value)
        case Unknown.LEASE_TAKEN:
            return _lease_taken()
        case Unknown.ENGINES_TIME_OVER:
            return _engines_time_over()


def _unknown_outcome(cell: Cell, name: str) -> Drill:
    async def act(scene: Scene) -> None:
        victims = await _hit(scene, SMALL, cell, SMALL.lost[0])
        await scene.until_rebuilt()
        for victim in victims:
            await scene.until_running(victim)

    return Drill(
        name=name,
        summary=f"{cell}: {PLACES[cell.point].meaning}; expected: {cell.expected}.",
        spec=SMALL.spec(cell.workers),
        act=act,
        end=rebuilt(),
        checks=(killed(len(PROCESSES[cell.victim])), first_round_ended(RoundReason.APPLY_UNKNOWN)),
        failpoints=_failpoints(SMALL, (cell,)),
    )


def _lease_taken() -> Drill:
    """The worker stands still for longer than the lease, and another round guards a survivors' Pod meanwhile."""
    place = PLACES[Point.AFTER_GUARD]
    timers = {"execution_deadline_sec": 5.0, "request_timeout_sec": 1.0, "engine_request_timeout_sec": 0.8}
    spec = local_spec("restart", dp_scale_down_config=dict(timers))

    async def act(scene: Scene) -> None:
        scene.failpoints.hold(place.failpoint)
        scene.kill_workers(1)
        await scene.failpoints.wait_for(place.failpoint, _HIT_WITHIN_SEC)
        async with scene.stopped_process("worker-0"):
            scene.failpoints.release(place.failpoint)
            scene.step("nobody renews the lease; another round takes the Pod when it has lapsed")
            lease_sec = spec.effective_config().dp_scale_down_config.lease_sec
            await scene.take_pod(SMALL.survivors_manager, _OTHER_ROUND, within_sec=lease_sec + 20.0)
        await scene.until_rebuilt()
        await scene.give_pod_back(SMALL.survivors_manager, _OTHER_ROUND)

    return Drill(
        name=Unknown.LEASE_TAKEN.value,
        summary=f"worker-0 is stopped while {place.meaning}, until the lease has lapsed and another round took the Pod; rebuilt.",
        spec=spec,
        act=act,
        end=rebuilt(),
        checks=(no_apply(), stopped(1), first_round_ended(RoundReason.GUARD_REFUSED, RoundReason.GUARD_LOST)),
        failpoints={"worker": (place.failpoint,)},
    )


def _engines_time_over() -> Drill:
    """A survivors' NodeManager says nothing while the round waits for apply-ready, until the engines' patience is over."""
    place = PLACES[Point.APPLY_READY]
    engine = EngineSpec(detection_sec=1.0, recovery_sec=1.0, engine_recovery_timeout_sec=15.0)
    spec = local_spec("restart", engine, dp_scale_down_config={"execution_deadline_sec": 10.0})

    async def act(scene: Scene) -> None:
        scene.failpoints.hold(place.failpoint)
        scene.kill_workers(1)
        await scene.failpoints.wait_for(place.failpoint, _HIT_WITHIN_SEC)
        async with scene.stopped_process(SMALL.survivors_manager):
            scene.failpoints.release(place.failpoint)
            scene.step("nobody can ask two of the engines anything, and their time runs out")
            await scene.until_phase(FtPhase.RECONFIGURING, within_sec=60.0)
        await scene.until_rebuilt()

    return Drill(
        name=Unknown.ENGINES_TIME_OVER.value,
        summary=f"{SMALL.survivors_manager} is stopped while {place.meaning}, until the engines' own time is over; rebuilt.",
        spec=spec,
        act=act,
        end=rebuilt(),
        checks=(no_apply(), stopped(1, may_leave=PODS), first_round_ended(RoundReason.ENGINES_TIME_OVER)),
        failpoints={"worker": (place.failpoint,)},
    )
