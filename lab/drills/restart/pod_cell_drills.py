"""Carries out cells of `pod_cells`: four ranks in four Pods that register themselves, one cell an installation."""

import re
import signal
import time
from pathlib import Path
from typing import Final

from lab.drills.check import Check
from lab.drills.drill import Drill, End, in_place, local_spec, rebuilt
from lab.drills.judge.endings import first_round_ended
from lab.drills.judge.processes import kept_pods, killed, pods
from lab.drills.record.view_log import read_view_log
from lab.drills.restart.cell_drills import BACK_AFTER_SEC
from lab.drills.restart.cells import SURVIVORS_NODE_MANAGER, Point
from lab.drills.restart.pod_cells import PodCell, PodEnd
from lab.drills.script.scene import Scene
from lab.stack.spec import FIRST_REGISTERED_ID, EngineSpec, StackSpec
from service.process_identity import signal_process

_LOST: Final = 1
_SURVIVOR: Final = 3
_STANDING: Final = f"node-manager-{_SURVIVOR}"
"""The NodeManager that stands in its apply, where a point is in a NodeManager."""

_HIT_WITHIN_SEC: Final = 60.0
_SHRUNK_WITHIN_SEC: Final = 120.0
_REGISTERED: Final = re.compile(r" registered( instance=|;| and held)")
_HELD_FOR_SEC: Final = 3.0
"""After its registration: what should not be started has its chance to be."""


def pod_restart_drill(cell: PodCell, name: str = "restart") -> Drill:
    """The drill of one cell."""
    rank = _SURVIVOR if cell.victim.survivors else _LOST
    manager = f"node-manager-{rank}"
    place = cell.place
    process = _STANDING if place.process == SURVIVORS_NODE_MANAGER else place.process

    async def act(scene: Scene) -> None:
        scene.failpoints.hold(place.failpoint)
        scene.kill_workers(_LOST)
        await scene.failpoints.wait_for(place.failpoint, _HIT_WITHIN_SEC)
        await _restart_in_the_round(scene, cell, rank)
        await _as_expected(scene, cell)
        if cell.end is not PodEnd.REBUILT:
            await _until_registered(scene, manager)
            await scene.linger(_HELD_FOR_SEC)

    return Drill(
        name=name,
        summary=f"{cell}: {place.meaning}; expected: {cell.expected}.",
        spec=_spec(),
        act=act,
        end=_end(cell),
        checks=(killed(1), *_checks(cell, manager)),
        failpoints={process: (place.failpoint,)},
    )


def _spec() -> StackSpec:
    spec = local_spec("pod-restart", EngineSpec(detection_sec=2.0, recovery_sec=1.0))
    pods = ((0,), (1,), (2,), (3,))
    return spec.model_copy(update={"pods": pods, "registers": True, "instance_id": FIRST_REGISTERED_ID})


def _end(cell: PodCell) -> End:
    match cell.end:
        case PodEnd.UNTOUCHED:
            return in_place((_LOST,))
        case PodEnd.ABSORBED:
            return in_place((_LOST, _SURVIVOR))
        case PodEnd.ANOTHER_ROUND:
            return in_place((_LOST,), (_SURVIVOR,))
        case PodEnd.REBUILT:
            return rebuilt()


def _checks(cell: PodCell, manager: str) -> tuple[Check, ...]:
    """In place every other Pod lives on; a rebuild has its reason, whatever the engines have been told before it."""
    if cell.end is PodEnd.REBUILT:
        return (first_round_ended(cell.reason),)
    others = (name for name in pods(_spec()) if name != manager)
    return (kept_pods(*others),)


async def _as_expected(scene: Scene, cell: PodCell) -> None:
    """Waits for the end that the cell must have."""
    match cell.end:
        case PodEnd.UNTOUCHED:
            await scene.until_shrunk([_LOST], within_sec=_SHRUNK_WITHIN_SEC)
        case PodEnd.ABSORBED:
            await scene.until_shrunk([_LOST, _SURVIVOR], within_sec=_SHRUNK_WITHIN_SEC)
        case PodEnd.ANOTHER_ROUND:
            await _second_episode(scene)
            await scene.until_shrunk([_LOST, _SURVIVOR], within_sec=_SHRUNK_WITHIN_SEC)
        case PodEnd.REBUILT:
            await scene.until_rebuilt(within_sec=_SHRUNK_WITHIN_SEC)
    await scene.until_settled()


async def _restart_in_the_round(scene: Scene, cell: PodCell, rank: int) -> None:
    """The Pod goes as a whole while the round stands still, and is due back when the round goes on."""
    manager = f"node-manager-{rank}"
    if cell.at == Point.MID_APPLY:  # whoever else has been asked has its engine's answer on disk
        await scene.until_others_accepted(_STANDING)
    scene.step(f"the round stands at {cell.place.failpoint}: {cell.place.meaning}; {cell}")
    await scene.kill_process(manager, restart_after_sec=BACK_AFTER_SEC)
    await _kill_engine(scene, rank)
    if cell.victim.loses_its_disk:
        _empty_the_disk(scene, rank)
    scene.failpoints.release(cell.place.failpoint)


async def _kill_engine(scene: Scene, rank: int) -> None:
    """SIGKILL of all processes of a rank's engine; returns when none is left."""
    at = time.monotonic()
    found = scene.stack.engine_processes(rank)
    for carrier in found:
        signal_process(carrier.identity, signal.SIGKILL)
    pids = " ".join(str(carrier.pid) for carrier in found)
    what = f"SIGKILL of rank {rank}'s engine with it: the whole Pod is gone"
    scene.record_injection(at, what, f"kill -KILL {pids}", (rank,), begins_episode=False)
    await scene.until(f"engine {rank} is gone", lambda: not scene.stack.engine_processes(rank), within_sec=5.0)


def _empty_the_disk(scene: Scene, rank: int) -> None:
    """The Pod that comes back has never been there."""
    journal = Path(scene.stack.node_manager_of(rank).journal_file)
    for file in journal.parent.glob(f"{journal.name}*"):
        file.unlink()
    scene.observer.new_disk(scene.stack.node_manager_of(rank).name)
    scene.step(f"{journal.name} is gone: a new Pod comes back")


async def _second_episode(scene: Scene) -> None:
    """The first round's view is served; what happens to requests from there on is the second death's."""
    logs = [Path(place.view_log) for place in scene.stack.addresses.coordinators]
    survivors = tuple(rank for rank in scene.stack.spec.ranks if rank != _LOST)

    def served_at() -> list[float]:
        lines = [[line.mono for line in read_view_log(log) if line.applied and line.ranks == survivors] for log in logs]
        return [own[0] for own in lines if own]

    await scene.until(f"ranks {list(survivors)} served", lambda: len(served_at()) == len(logs), _SHRUNK_WITHIN_SEC)
    scene.episodes.append(max(served_at()) + 1e-6)


async def _until_registered(scene: Scene, manager: str, within_sec: float = 30.0) -> None:
    """The Pod that came back has been told where it belongs, by its own log: once in each life."""
    log = Path(next(place.log_file for place in scene.stack.addresses.node_managers if place.name == manager))

    def registrations() -> int:
        return len(_REGISTERED.findall(log.read_text(encoding="utf-8", errors="replace")))

    await scene.until_running(manager)
    await scene.until(f"{manager} has registered in its new life", lambda: registrations() >= 2, within_sec)
