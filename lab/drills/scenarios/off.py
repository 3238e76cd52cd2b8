"""The feature is switched off: a fault is answered as if it had never been built (acceptance A, feature-off)."""

from typing import Final

from lab.drills.drill import Drill, local_spec, rebuilt
from lab.drills.judge.commands import no_apply
from lab.drills.script.scene import Scene

WITHIN_SEC: Final = 150.0


async def feature_off(scene: Scene) -> None:
    """Rank 1 dies under traffic; wait until every rank serves again with a new engine."""
    scene.kill_workers(1)
    ranks = scene.stack.spec.ranks
    scene.step("waiting until all ranks serve with new engines")

    def renewed() -> bool:
        own = scene.engine_lives()
        return all(len(own.get(rank, [])) >= 2 and own[rank][-1].ready_at is not None for rank in ranks)

    await scene.until("every rank ready in a new life", renewed, WITHIN_SEC)
    await scene.observer.until(f"ranks {list(ranks)} published", lambda seen: seen.publishes(ranks), WITHIN_SEC)


DRILLS: Final = (
    Drill(
        name="feature-off",
        summary="Scale-down is off and rank 1 dies: no fault-tolerance routes, no round, no command; engines are started anew.",
        spec=local_spec("feature-off", enable_dp_scale_down=False),
        act=feature_off,
        end=rebuilt(),
        checks=(no_apply(),),
    ),
)
