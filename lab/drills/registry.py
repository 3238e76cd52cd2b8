"""All drills by name: those that the modules of `lab.drills.scenarios` list, and one cell of the restart table."""

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

SCENARIOS: Final = (scale_down, idle, retry, hardware, gate, engine_failure, off, silence, reused_pod)
"""The modules with drills, in the order in which these are listed and run."""


class UnknownDrill(Refused):
    """No drill has that name; the message lists those that there are."""

    default_reason = "UNKNOWN_DRILL"


def all_drills() -> Mapping[str, Drill]:
    """Name → drill."""
    restarted = replace(restart_drill(find_cell(Victim.WORKER, Point.FINALIZE_RECORDED)), name="controller-restart")
    every = (*(drill for module in SCENARIOS for drill in module.DRILLS), restarted)
    return {drill.name: drill for drill in every}


def find(name: str) -> Drill:
    """The drill with this name. Raises UnknownDrill."""
    drills = all_drills()
    if name not in drills:
        every = [*drills, SUPERVISOR_TABLE, "restart", "all"]
        close = difflib.get_close_matches(name, every, n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownDrill(f"no drill is called {name!r}{meant}; there are: {', '.join(every)}")
    return drills[name]
