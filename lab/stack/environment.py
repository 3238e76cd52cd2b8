"""The environment that every process of an installation starts from."""

import os
from pathlib import Path
from typing import Final

from lab.stack.processes import POD_VARIABLE, PROCESS_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE

_ROOT: Final = Path(__file__).resolve().parents[2]
_CHATTY: Final = ("AUTOTOMY_LOG_LEVEL", "DEBUG")
"""The one wish about logs that is passed on: drills and the demo read them, as text and from INFO on."""

_OWN_PREFIXES: Final = ("AUTOTOMY_", "TEMPORAL_")


def base_environment(run_id: str, process: str, *, pod: str | None = None, run_dir: Path | None = None) -> dict[str, str]:
    """What every process gets: the caller's environment without settings that were meant for other installations.

    Proxies are left out (everything here is loopback), and the code comes from where this module is, not from whatever
    the current directory holds.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if ((name, value) == _CHATTY or not name.startswith(_OWN_PREFIXES)) and not name.lower().endswith("_proxy")
    }
    own = {RUN_ID_VARIABLE: run_id, PROCESS_VARIABLE: process, "PYTHONPATH": str(_ROOT), "PYTHONSAFEPATH": "1"}
    if run_dir is not None:
        own[RUN_DIR_VARIABLE] = os.path.realpath(run_dir)
    return {**kept, **own, "PYTHONUNBUFFERED": "1", **({POD_VARIABLE: pod} if pod is not None else {})}
