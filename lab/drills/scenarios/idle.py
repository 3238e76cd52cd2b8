"""Evidence that stays incomplete: nobody may guess who is dead, or who is not (acceptance A, soft-idle, all-unhealthy-wait)."""

from typing import Final

from lab.drills.drill import PODS, Drill, in_place, local_spec, rebuilt
from lab.drills.judge.commands import no_apply, no_round, not_withdrawn_before
from lab.drills.judge.processes import kept_pods
from lab.drills.script.injections import misbehave
from lab.drills.script.scene import Scene

COLLECTION_SEC: Final = 6.0


async def soft_idle(scene: Scene) -> None:
    scene.kill_workers(1)
    await scene.until_rebuilt()


async def soft_idle_wake(scene: Scene) -> None:
    scene.kill_workers(1)
    await scene.until_shrunk([1])


async def all_unhealthy_wait(scene: Scene) -> None:
    """The engines say that all of them are unhealthy; every process runs."""
    await misbehave(scene, "status=unhealthy", *scene.stack.spec.ranks, begins_episode=True)
    await scene.until_rebuilt()


DRILLS: Final = (
    Drill(
        name="soft-idle",
        summary="Rank 1 dies without traffic, so nobody notices: no round, no command; after the collection time a rebuild.",
        spec=local_spec("soft-idle", software_collection_timeout_sec=COLLECTION_SEC),
        act=soft_idle,
        end=rebuilt(),
        checks=(no_apply(), no_round(), not_withdrawn_before(COLLECTION_SEC)),
        traffic=False,
    ),
    Drill(
        name="soft-idle-wake",
        summary="The same with wake_idle_survivors: one completion to each survivor makes it notice, and the group shrinks.",
        spec=local_spec("soft-idle-wake", wake_idle_survivors=True),
        act=soft_idle_wake,
        end=in_place((1,)),
        checks=(kept_pods(*PODS),),
        traffic=False,
    ),
    Drill(
        name="all-unhealthy-wait",
        summary="All ranks unhealthy, none dead, retry is off: no guess, no command; after the collection time a rebuild.",
        spec=local_spec("all-unhealthy-wait", software_collection_timeout_sec=COLLECTION_SEC),
        act=all_unhealthy_wait,
        end=rebuilt(),
        checks=(no_apply(), no_round(), not_withdrawn_before(COLLECTION_SEC)),
    ),
)
