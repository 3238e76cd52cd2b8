"""A rank that says nothing is not dead for that (acceptance D, 19): what decides is whether its group stands still.

A rank's API server that hangs while its engine works on leaves its peers HEALTHY: its silence is evidence that nobody
else completes, and it is forgotten as soon as it answers. A rank that hangs as a whole halts its group: the peers notice,
and once it has been silent for `dead_confirm_sec` it is removed like any dead one. What it says later counts no more.

Both are shortened: in production a hang of 40 s stays below the collection timeout of 60 s just the same.
"""

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from lab.drills.drill import PODS, Drill, in_place, local_spec
from lab.drills.judge.commands import no_apply, no_round
from lab.drills.judge.processes import kept_pods
from lab.drills.judge.serving import nothing_starts
from lab.drills.script.injections import silent_engine
from lab.drills.script.scene import Scene

MUTE: Final = 1
"""The rank that falls silent."""

MUTE_SEC: Final = 4.0
COLLECTION_SEC: Final = 20.0
ENGINE_TIMEOUT_SEC: Final = 1.0
"""engine_request_timeout_sec: how long a NodeManager waits for an engine's word before it counts as silent."""

DEAD_CONFIRM_SEC: Final = 3.0
LIFE_AFTER_SEC: Final = 3.0


async def mute_forgotten(scene: Scene) -> None:
    """Rank 1's API server hangs, its worker works on; then it answers again."""
    async with silent_engine(scene, MUTE):
        await scene.until(
            "its silence is held as evidence", lambda: scene.observer.record is not None and bool(_waits_for(scene)), 20.0
        )
        scene.step(f"held: {_waits_for(scene)}")
        await scene.linger(MUTE_SEC)
    scene.step("it answers again")
    await scene.until("nothing is held any more", lambda: not _waits_for(scene), 20.0)
    await scene.until_settled()
    await scene.linger(LIFE_AFTER_SEC)


async def mute_removed(scene: Scene) -> None:
    """Rank 1 hangs as a whole, and goes on when the others have long shrunk."""
    async with _halted(scene, MUTE):
        await scene.until_shrunk([MUTE])
    await scene.linger(LIFE_AFTER_SEC)


def _waits_for(scene: Scene) -> str:
    record = scene.observer.record
    return record.waiting.reason if record is not None and record.waiting is not None else ""


@contextlib.asynccontextmanager
async def _halted(scene: Scene, rank: int) -> AsyncIterator[None]:
    """All processes of a rank's engine stand still while the context lasts."""
    pids = [scene.stack.engine_api_pid(rank), scene.stack.engine_worker_pid(rank)]
    at = time.monotonic()
    _signal(pids, signal.SIGSTOP)
    what = f"SIGSTOP of rank {rank}'s API server and worker"
    scene.record_injection(at, what, "kill -STOP " + " ".join(map(str, pids)), (rank,), begins_episode=True)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)
        at = time.monotonic()
    scene.record_injection(at, f"SIGCONT of rank {rank}", "kill -CONT " + " ".join(map(str, pids)), (), begins_episode=False)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


DRILLS: Final = (
    Drill(
        name="mute-forgotten",
        summary="Rank 1's API server hangs while its engine works on: no round, its peers serve on, and it is forgotten.",
        spec=local_spec(
            "mute-forgotten",
            software_collection_timeout_sec=COLLECTION_SEC,
            dp_scale_down_config={"engine_request_timeout_sec": ENGINE_TIMEOUT_SEC},
        ),
        act=mute_forgotten,
        end=in_place(),
        checks=(no_apply(), no_round(), kept_pods(*PODS), nothing_starts()),
        undisturbed=(0, 2, 3),
    ),
    Drill(
        name="mute-removed",
        summary="Rank 1 hangs as a whole, its group halts: removed once it was silent long enough, whatever it says later.",
        spec=local_spec(
            "mute-removed",
            dp_scale_down_config={"engine_request_timeout_sec": ENGINE_TIMEOUT_SEC, "dead_confirm_sec": DEAD_CONFIRM_SEC},
        ),
        act=mute_removed,
        end=in_place((MUTE,)),
        checks=(kept_pods(*PODS), nothing_starts()),
    ),
)
