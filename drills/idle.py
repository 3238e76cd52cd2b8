"""A rank dies while nothing runs: its peers cannot notice, so nobody may guess (acceptance A, soft-idle)."""

from typing import Final

from drills.drill import Drill, Expectation, Outcome, local_spec
from drills.scene import Scene

COLLECTION_SEC: Final = 6.0


async def soft_idle(scene: Scene) -> None:
    scene.kill_workers(1)
    await scene.until_rebuilt()


DRILLS: Final = (
    Drill(
        name="soft-idle",
        summary="Rank 1 dies without traffic, so nobody notices: no round, no command; after the collection time a rebuild.",
        spec=local_spec("soft-idle", software_collection_timeout_sec=COLLECTION_SEC),
        act=soft_idle,
        expected=Expectation(outcome=Outcome.REBUILT, no_round=True, rebuild_not_before_sec=COLLECTION_SEC),
        traffic=False,
    ),
)
