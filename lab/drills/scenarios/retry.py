"""All ranks are UNHEALTHY and none is DEAD: nobody has to leave, the engines retry in place (acceptance A).

A worker process that stands still longer than the communication timeout does it: its peers give the step up, and when it
goes on, it finds its own step too late. The engines that succeed speak the legacy dialect, as released vLLM does: they know
`retry` alone, and make their own request ids.
"""

import os
import signal
import time
from typing import Final

from domain.engine import Dialect, EngineStatus
from lab.drills.drill import PODS, Drill, in_place, local_spec, rebuilt
from lab.drills.judge.commands import published_after_recovery, retried_once, withdrawn_before_apply
from lab.drills.judge.processes import kept_pods
from lab.drills.record.engine_log import all_lines
from lab.drills.script.scene import Scene
from lab.stack.spec import EngineSpec

STALLED: Final = 1
"""The rank whose worker stands still."""

STABILITY_SEC: Final = 2.0
STORE_TIMEOUT_SEC: Final = 5.0


async def stall(scene: Scene) -> None:
    """One worker stands still until its peers have given up; then every rank is UNHEALTHY."""
    pid = scene.stack.engine_worker_pid(STALLED)
    at = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        what = f"SIGSTOP of the worker process of rank {STALLED}, until its peers have given up"
        scene.record_injection(at, what, f"kill -STOP {pid}", (STALLED,), begins_episode=True)
        peers = [rank for rank in scene.stack.spec.ranks if rank != STALLED]
        await scene.until_status(peers, EngineStatus.UNHEALTHY)
    finally:
        os.kill(pid, signal.SIGCONT)
    scene.step(f"rank {STALLED} goes on")


async def retried(scene: Scene) -> None:
    """Every engine recovers, and the same ranks are served again."""
    await stall(scene)
    ranks = scene.stack.spec.ranks

    def recovered() -> bool:
        lines = all_lines(scene.engine_lives())
        return {line.rank for line in lines if line.event == "recovery_end" and line.ok} == set(ranks)

    await scene.until("every engine has recovered", recovered, within_sec=60.0)
    await scene.observer.until(f"ranks {list(ranks)} served again", lambda seen: seen.publishes(ranks), within_sec=30.0)


async def failing(scene: Scene) -> None:
    """One engine's recovery fails, the others wait for it in vain; the instance is rebuilt."""
    await stall(scene)
    await scene.until_applied(len(scene.stack.spec.ranks))
    await scene.until_rebuilt()


DRILLS: Final = (
    Drill(
        name="all-unhealthy-fast",
        summary="Engines as released; a worker stands still: all ranks UNHEALTHY, none DEAD. They retry and serve again.",
        spec=local_spec(
            "unhealthy-fast",
            EngineSpec(dialect=Dialect.LEGACY, detection_sec=2.0, recovery_sec=1.0),
            enable_fast_recovery=True,
            fast_recovery_stability_sec=STABILITY_SEC,
        ),
        act=retried,
        end=in_place(),
        checks=(retried_once(), withdrawn_before_apply(), published_after_recovery(), kept_pods(*PODS)),
    ),
    Drill(
        name="all-unhealthy-fast-fails",
        summary="The same, but the retry of rank 2 fails: one retry, no scale-down, the instance is rebuilt.",
        spec=local_spec(
            "unhealthy-fails",
            EngineSpec(
                detection_sec=2.0,
                recovery_sec=1.0,
                store_timeout_sec=STORE_TIMEOUT_SEC,
                rank_arguments={2: ("--misbehave", "recovery-fails")},
            ),
            enable_fast_recovery=True,
            fast_recovery_stability_sec=STABILITY_SEC,
        ),
        act=failing,
        end=rebuilt(),
        checks=(retried_once(), withdrawn_before_apply()),
    ),
)
