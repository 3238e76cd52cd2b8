"""Ranks die under traffic and the survivors notice: the group shrinks in place (acceptance A, soft-* and *-rank)."""

from typing import Final

from domain.engine import EngineStatus
from domain.messages.strategy import RoundReason
from lab.drills.drill import PODS, Drill, in_place, local_spec, rebuilt
from lab.drills.judge.commands import no_apply
from lab.drills.judge.endings import failed_rounds_aborted, rounds_ended
from lab.drills.judge.processes import failed_stop_changes_nothing, kept_pods, killed, pods_stopped_once
from lab.drills.judge.serving import repeated_set
from lab.drills.script.impostor import hanging_pod, until_asked, until_given_up
from lab.drills.script.injections import misbehave
from lab.drills.script.scene import Scene
from lab.stack.record import EventKind

BETWEEN_ROUNDS_SEC: Final = 6.5
"""Longer than set_interval_sec: at least one periodic SET comes between two rounds."""

LIFE_AFTER_SEC: Final = 3.0
"""Several heartbeats of a Pod without ranks."""

AFTER_GUARD: Final = "worker.guard.after"
"""Where a round stands when all NodeManagers are guarded and no engine was looked at yet."""

BEFORE_STOP: Final = "worker.stop_pods.before"
BEFORE_ADD: Final = "worker.publish.before"


async def one_rank(scene: Scene, rank: int) -> None:
    """One rank dies; wait until the others serve without it."""
    scene.kill_workers(rank)
    await scene.until_shrunk([rank])


async def soft_rank(scene: Scene) -> None:
    await one_rank(scene, 1)


async def soft_rank0(scene: Scene) -> None:
    await one_rank(scene, 0)


async def consecutive(scene: Scene) -> None:
    await one_rank(scene, 1)
    scene.step("waiting for the periodic SET")
    await scene.linger_for_sets(BETWEEN_ROUNDS_SEC)
    scene.kill_workers(2)
    await scene.until_shrunk([1, 2])
    await scene.linger_for_sets(BETWEEN_ROUNDS_SEC)


async def pod_partial(scene: Scene) -> None:
    await one_rank(scene, 3)
    await scene.linger(2.0)


async def pod_empty(scene: Scene) -> None:
    """Both ranks of the second Pod die at once; afterwards its NodeManager goes on with nobody to name."""
    scene.kill_workers(2, 3)
    await scene.until_shrunk([2, 3])
    await scene.until_heartbeat_taken("node-manager-1", ranks=0)
    await scene.linger(LIFE_AFTER_SEC)


async def pod_empty_scaleup(scene: Scene) -> None:
    """The emptied Pod is stopped; it comes back as Kubernetes brings it, and is held."""
    scene.kill_workers(2, 3)
    await scene.until_shrunk([2, 3])
    await scene.until(
        "the emptied Pod was stopped",
        lambda: any(event.event is EventKind.EXITED and event.name == "node-manager-1" for event in scene.stack.events()),
        within_sec=30.0,
    )
    await scene.linger(LIFE_AFTER_SEC)


async def pod_empty_scaleup_fails(scene: Scene) -> None:
    """Whoever stops the emptied Pod gets no answer; the view is held back until the stop is under way, and published then."""
    scene.failpoints.hold(BEFORE_STOP)
    scene.failpoints.hold(BEFORE_ADD)
    scene.kill_workers(2, 3)
    for place in (BEFORE_STOP, BEFORE_ADD):
        await scene.failpoints.wait_for(place, within_sec=30)
    await scene.observer.until("the verdict in every journal", lambda seen: seen.committed([2, 3]), within_sec=10)
    async with hanging_pod(scene, "node-manager-1") as pod:
        scene.failpoints.release(BEFORE_STOP)
        await until_asked(scene, pod, within_sec=10)
        scene.failpoints.release(BEFORE_ADD)
        await scene.until_shrunk([2, 3])
        await until_given_up(scene, pod, within_sec=30)
        scene.step("nobody asks again")
        await scene.linger(LIFE_AFTER_SEC)
    await scene.until_heartbeat_taken("node-manager-1", ranks=0)
    await scene.linger(LIFE_AFTER_SEC)


async def rebuilt_after_shrink(scene: Scene) -> None:
    """The first round succeeds; in the second an engine refuses the command."""
    await one_rank(scene, 1)
    await misbehave(scene, "apply-400", 0)
    scene.kill_workers(2)
    await scene.until_rebuilt()
    await scene.linger(LIFE_AFTER_SEC)


async def multi_rank(scene: Scene) -> None:
    """Two die at once; a third dies when the round has begun, after it had noticed the others."""
    scene.failpoints.hold(AFTER_GUARD)
    scene.kill_workers(1, 2)
    await scene.failpoints.wait_for(AFTER_GUARD, within_sec=30)
    scene.kill_workers(3, begins_episode=False)
    await scene.until_status_seen(3, EngineStatus.DEAD)
    scene.failpoints.release(AFTER_GUARD)
    await scene.until_shrunk([1, 2, 3])


async def nobody_left(scene: Scene) -> None:
    """Two die; when the round has begun, the two survivors die as well."""
    scene.failpoints.hold(AFTER_GUARD)
    scene.kill_workers(1, 2)
    await scene.failpoints.wait_for(AFTER_GUARD, within_sec=30)
    scene.kill_workers(0, 3, begins_episode=False)
    for rank in (0, 3):
        await scene.until_status_seen(rank, EngineStatus.DEAD)
    scene.failpoints.release(AFTER_GUARD)
    await scene.until_rebuilt()


DRILLS: Final = (
    Drill(
        name="soft-rank",
        summary="Rank 1 dies under traffic: one command to each survivor, only rank 1 is removed, the others keep serving.",
        spec=local_spec("soft-rank"),
        act=soft_rank,
        end=in_place((1,)),
        checks=(kept_pods(*PODS),),
    ),
    Drill(
        name="soft-rank0",
        summary="Rank 0, which hosts the group's store, dies: the lowest survivor becomes master, the numbers stay.",
        spec=local_spec("soft-rank0"),
        act=soft_rank0,
        end=in_place((0,)),
        checks=(kept_pods(*PODS),),
    ),
    Drill(
        name="consecutive",
        summary="Rank 1 dies, later rank 2: the second command carries both; repeated SETs bring nothing back.",
        spec=local_spec("consecutive"),
        act=consecutive,
        end=in_place((1,), (2,)),
        checks=(kept_pods(*PODS), repeated_set()),
    ),
    Drill(
        name="multi-rank",
        summary="Ranks 1 and 2 die at once, rank 3 when the round looks at the engines: one command, with all three.",
        spec=local_spec("multi-rank"),
        act=multi_rank,
        end=in_place((1, 2, 3)),
        checks=(kept_pods(*PODS),),
        failpoints={"worker": (AFTER_GUARD,)},
    ),
    Drill(
        name="multi-rank-none-left",
        summary="Ranks 1 and 2 die, then the survivors when the round looks at them: no command; the instance is rebuilt.",
        spec=local_spec("none-left"),
        act=nobody_left,
        end=rebuilt(),
        checks=(no_apply(),),
        failpoints={"worker": (AFTER_GUARD,)},
    ),
    Drill(
        name="pod-partial",
        summary="One of the two ranks of a Pod is removed: the Pod is not stopped, its other rank serves on.",
        spec=local_spec("pod-partial"),
        act=pod_partial,
        end=in_place((3,)),
        checks=(kept_pods("node-manager-1"),),
    ),
    Drill(
        name="pod-empty",
        summary="Both ranks of a Pod are removed, scale-up is off: the Pod is not stopped and its empty heartbeats are taken.",
        spec=local_spec("pod-empty"),
        act=pod_empty,
        end=in_place((2, 3)),
        checks=(kept_pods(*PODS),),
    ),
    Drill(
        name="pod-empty-scaleup",
        summary="The same with scale-up on: the emptied Pod is stopped, once, and the survivors serve on.",
        spec=local_spec("pod-empty-scaleup", enable_dp_scale_up=True),
        act=pod_empty_scaleup,
        end=in_place((2, 3), leaving=("node-manager-1",)),
        checks=(kept_pods("node-manager-0"), pods_stopped_once("node-manager-1")),
    ),
    Drill(
        name="pod-empty-scaleup-fails",
        summary="The emptied Pod hangs when it is told to stop: told once, the survivors serve meanwhile, nothing changes.",
        spec=local_spec("scaleup-fails", enable_dp_scale_up=True),
        act=pod_empty_scaleup_fails,
        end=in_place((2, 3)),
        checks=(kept_pods("node-manager-0"), killed(1), failed_stop_changes_nothing("node-manager-1")),
        failpoints={"worker": (BEFORE_STOP, BEFORE_ADD)},
    ),
    Drill(
        name="rebuilt-after-shrink",
        summary="Rank 1 is removed; when rank 2 dies an engine refuses the command: all four ranks serve again, rebuilt.",
        spec=local_spec("rebuilt-after-shrink"),
        act=rebuilt_after_shrink,
        end=rebuilt(),
        checks=(rounds_ended(RoundReason.COMMITTED, RoundReason.APPLY_REFUSED), failed_rounds_aborted()),
    ),
)
