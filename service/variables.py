"""The environment variables that are ours; one that looks so and is none is a misspelt one.

Pods, shells and parents hand on everything, so a process also sees what is meant for others of ours. So the variables of
all of them are known here, and what none of them knows is refused with the name that was probably meant, instead of being
a default that nobody wanted. Standard library only: the command line asks here before it imports anything.
"""

import difflib
import os
import re
from typing import Final

from domain.errors import ConfigError

ENV_PREFIX: Final = "AUTOTOMY_"
NESTED: Final = "__"

SETTINGS: Final = ("AUTOTOMY_CONTROLLER_URL", "AUTOTOMY_FAULT_TOLERANCE_CONFIG", "AUTOTOMY_TASK_QUEUE")
"""The fields of `service.settings.Settings`; what is nested in one follows behind `__`."""

_FOR_PEOPLE: Final = (
    *SETTINGS,
    "AUTOTOMY_CONFIG",
    "AUTOTOMY_FAILPOINTS",
    "AUTOTOMY_LOG_FORMAT",
    "AUTOTOMY_LOG_LEVEL",
    "AUTOTOMY_RUN_DIR",
)
_BETWEEN_PROCESSES: Final = (
    "AUTOTOMY_ENGINE_OF",
    "AUTOTOMY_POD",
    "AUTOTOMY_PROCESS",
    "AUTOTOMY_RECORD_HISTORIES",
    "AUTOTOMY_RUN_ID",
)
_OF_KUBERNETES: Final = re.compile(
    r"AUTOTOMY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What a Pod is told of a Service that is called `autotomy` or `autotomy-…`."""


def refuse_unknown_variables() -> None:
    """Raises ConfigError for a variable with our prefix that no process of ours knows."""
    for variable in sorted(os.environ):
        if variable.startswith(ENV_PREFIX) and not _known(variable):
            raise ConfigError(f"environment variable {variable}: there is no such setting ({_meant(variable)})")


def _known(variable: str) -> bool:
    head, nested, _ = variable.partition(NESTED)
    if head.upper() in SETTINGS:  # settings may be written in either case
        return True
    return not nested and (variable in (*_FOR_PEOPLE, *_BETWEEN_PROCESSES) or bool(_OF_KUBERNETES.fullmatch(variable)))


def _meant(variable: str) -> str:
    head, nested, rest = variable.partition(NESTED)
    close = difflib.get_close_matches(head, SETTINGS if nested else _FOR_PEOPLE, n=1, cutoff=0.75)
    return f"did you mean {close[0]}{nested}{rest}?" if close else f"known: {', '.join(sorted(_FOR_PEOPLE))}"
