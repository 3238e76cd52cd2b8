"""Hardware faults correlate with what the engines say; alone they remove nobody (acceptance A, hw-*)."""

from typing import Final

from lab.drills.drill import PODS, Drill, in_place, local_spec, rebuilt
from lab.drills.judge.commands import no_apply, no_round, not_withdrawn_before
from lab.drills.judge.processes import kept_pods
from lab.drills.judge.serving import nothing_starts
from lab.drills.script.injections import report_hardware
from lab.drills.script.scene import Scene

WINDOW_SEC: Final = 5.0
"""hardware_ft_correlation_window_sec, as in production."""

LONG_WINDOW_SEC: Final = 120.0
"""Where a rebuild comes before this, nothing was waited for."""

CARD_OF_RANK_1: Final = "Ascend910-1"
"""On node-0: the stack gives each rank of a Pod the device of its index."""


async def first_seen(scene: Scene) -> None:
    """One card breaks; its rank dies, and another one with it."""
    await report_hardware(scene, "node-0", CARD_OF_RANK_1, "L5")
    scene.kill_workers(1, 3, begins_episode=False)
    await scene.until_shrunk([1, 3])


async def first_unseen(scene: Scene) -> None:
    """One card breaks; no engine notices anything."""
    await report_hardware(scene, "node-0", CARD_OF_RANK_1, "L5")
    await scene.until_rebuilt()
    await scene.linger(WINDOW_SEC + 1.0)


async def already_removed(scene: Scene) -> None:
    """A rank is removed; afterwards its card, too, is reported as broken."""
    scene.kill_workers(1)
    await scene.until_shrunk([1])
    await report_hardware(scene, "node-0", CARD_OF_RANK_1, "L6", begins_episode=False)
    await scene.linger(WINDOW_SEC + 1.5)


async def unmappable(scene: Scene) -> None:
    """A card that nobody can find among several faults: no correlation is waited for."""
    await report_hardware(scene, "node-0", CARD_OF_RANK_1, "L5")
    await scene.linger(1.0)
    await report_hardware(scene, "node-1", "Davinci-0", "L5", begins_episode=False)
    await scene.until_rebuilt(within_sec=60.0)


DRILLS: Final = (
    Drill(
        name="hw-first-seen",
        summary="A card breaks, within the window its rank dies, and another: both are removed, by the engines' word alone.",
        spec=local_spec("hw-first-seen"),
        act=first_seen,
        end=in_place((1, 3)),
        checks=(kept_pods(*PODS),),
    ),
    Drill(
        name="hw-first-unseen",
        summary="A card breaks and no engine notices within the window: no round, the instance is rebuilt, once.",
        spec=local_spec("hw-first-unseen"),
        act=first_unseen,
        end=rebuilt(),
        checks=(no_apply(), no_round(), not_withdrawn_before(WINDOW_SEC)),
    ),
    Drill(
        name="hw-already-removed",
        summary="The card of a rank that was removed is reported as broken: nothing starts, the survivors serve on.",
        spec=local_spec("hw-already-removed"),
        act=already_removed,
        end=in_place((1,)),
        checks=(kept_pods(*PODS), nothing_starts()),
    ),
    Drill(
        name="hw-unmappable",
        summary="One of two hardware faults names a card that nobody can find: rebuilt at once, no round, no window.",
        spec=local_spec("hw-unmappable", hardware_ft_correlation_window_sec=LONG_WINDOW_SEC),
        act=unmappable,
        end=rebuilt(),
        checks=(no_apply(), no_round()),
    ),
)
