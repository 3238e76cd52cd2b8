"""Engines that fail a round after it has touched them: one abort, no second apply, the fallback (acceptance A, engine-failure).

Each kind in turn, on one installation: the rebuild after one of them is the beginning of the next.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from domain.messages.strategy import RoundReason
from lab.drills.drill import Drill, local_spec, rebuilt
from lab.drills.judge.endings import failed_rounds_aborted, rounds_ended
from lab.drills.script.injections import misbehave, silent_engine
from lab.drills.script.scene import Scene
from lab.stack.spec import EngineSpec

VICTIM: Final = 1
SURVIVOR: Final = 2
"""The survivor that fails."""

DEADLINE_SEC: Final = 6.0
"""execution_deadline_sec: how long a round waits for engines that say nothing of use."""

RECOVERY_SEC: Final = 3.0
"""How long the engines shrink: time enough for something to happen meanwhile."""

BUDGET_WINDOW_SEC: Final = 10.0
"""Short, so that one kind's rebuild does not hold back the next one's."""


async def _told(scene: Scene, knobs: str) -> None:
    """The survivor misbehaves from the start."""
    await misbehave(scene, knobs, SURVIVOR)
    scene.kill_workers(VICTIM)


async def refused(scene: Scene, lives: int) -> None:
    await _told(scene, "apply-400")
    await scene.until_rebuilt(lives)


async def not_202(scene: Scene, lives: int) -> None:
    await _told(scene, "apply-200")
    await scene.until_rebuilt(lives)


async def failed(scene: Scene, lives: int) -> None:
    await _told(scene, "recovery-fails=out of memory")
    await scene.until_rebuilt(lives)


async def dead(scene: Scene, lives: int) -> None:
    """The survivor dies when all have been told, before they have recovered."""
    before = scene.commands()
    scene.kill_workers(VICTIM)
    await scene.until_applied(before + len(scene.stack.spec.ranks) - 1)
    scene.kill_workers(SURVIVOR, begins_episode=False)
    await scene.until_rebuilt(lives)


async def unreadable(scene: Scene, lives: int) -> None:
    """Nobody can read the survivor's status until the deadline."""
    before = scene.commands()
    scene.kill_workers(VICTIM)
    await scene.until_applied(before + len(scene.stack.spec.ranks) - 1)
    async with silent_engine(scene, SURVIVOR):
        await scene.until_rebuilt(lives)


async def timeout(scene: Scene, lives: int) -> None:
    """The survivor answers all the time, and never says that it has recovered."""
    before = scene.commands()
    scene.kill_workers(VICTIM)
    await scene.until_applied(before + len(scene.stack.spec.ranks) - 1)
    await misbehave(scene, "status=resharding", SURVIVOR)
    await scene.until_rebuilt(lives)


Kind = Callable[[Scene, int], Awaitable[None]]

KINDS: Final[tuple[tuple[Kind, RoundReason], ...]] = (
    (refused, RoundReason.APPLY_REFUSED),
    (not_202, RoundReason.APPLY_REFUSED),
    (failed, RoundReason.ENGINE_FAILED),
    (dead, RoundReason.SURVIVOR_DIED),
    (unreadable, RoundReason.NOT_RECOVERED_IN_TIME),
    (timeout, RoundReason.NOT_RECOVERED_IN_TIME),
)


async def each_in_turn(scene: Scene) -> None:
    for number, (kind, _) in enumerate(KINDS, start=1):
        scene.step(f"engine failure {number} of {len(KINDS)}: {kind.__name__}")
        await kind(scene, number + 1)
        await scene.until_settled()


DRILLS: Final = (
    Drill(
        name="engine-failure",
        summary="A survivor refuses, fails, dies, falls silent or never recovers, in turn: one abort, no second apply, rebuilt.",
        spec=local_spec(
            "engine-failure",
            EngineSpec(detection_sec=2.0, recovery_sec=RECOVERY_SEC),
            dp_scale_down_config={"execution_deadline_sec": DEADLINE_SEC},
            reconfiguration_budget=10,
            reconfiguration_window_sec=BUDGET_WINDOW_SEC,
        ),
        act=each_in_turn,
        end=rebuilt(),
        checks=(rounds_ended(*(reason for _, reason in KINDS)), failed_rounds_aborted()),
    ),
)
