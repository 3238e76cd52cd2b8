"""All drills by name: acceptance A in its order, then cases from the field (acceptance D)."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from domain.errors import Refused
from lab.drills.drill import Drill
from lab.drills.restart.cell_drills import restart_drill
from lab.drills.restart.cells import Point, Victim, find_cell
from lab.drills.scenarios import engine_failure, gate, hardware, idle, off, retry, reused_pod, scale_down, silence
from lab.drills.supervisor_table.report import NAME as SUPERVISOR_TABLE

_ORDER: Final = (
    "soft-rank",
    "soft-idle",
    "soft-idle-wake",
    "soft-rank0",
    "consecutive",
    "pod-partial",
    "rebuilt-after-shrink",
    "pod-empty",
    "pod-empty-scaleup",
    "pod-empty-scaleup-fails",
    "all-unhealthy-wait",
    "all-unhealthy-fast",
    "all-unhealthy-fast-fails",
    "multi-rank",
    "multi-rank-none-left",
    "hw-first-seen",
    "hw-first-unseen",
    "hw-already-removed",
    "hw-unmappable",
    "gate",
    "engine-failure",
    "controller-restart",
    "feature-off",
    "mute-forgotten",
    "mute-removed",
    "pod-reused",
)


class UnknownDrill(Refused):
    """No drill has that name; the message lists those that there are."""

    default_reason = "UNKNOWN_DRILL"


def all_drills() -> Mapping[str, Drill]:
    """Name → drill."""
    restarted = replace(restart_drill(find_cell(Victim.WORKER, Point.FINALIZE_RECORDED)), name="controller-restart")
    modules = (scale_down, idle, silence, hardware, gate, engine_failure, retry, reused_pod, off)
    every = (*(drill for module in modules for drill in module.DRILLS), restarted)
    known = {drill.name: drill for drill in every}
    return {name: known[name] for name in _ORDER}


def find(name: str) -> Drill:
    """The drill with this name. Raises UnknownDrill."""
    drills = all_drills()
    if name not in drills:
        every = [*drills, SUPERVISOR_TABLE, "restart", "all"]
        close = difflib.get_close_matches(name, every, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownDrill(f"no drill is called {name!r}{meant}; there are: {', '.join(every)}")
    return drills[name]
