"""When fast recoveries failed: the ends of their exported histories.

Engines' logs show a retry that an engine refused or failed. That all of them took it and the whole failed all the same (a
deadline, a relapse, no completion) only the workflow knows; it fails with its report, and history has the moment. That is
put on the monotonic clock by the difference of the two clocks of this machine.
"""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from domain.model import Tolerant

_FILES: Final = "fast-recovery-*.json"
_FAILED: Final = "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED"


class _HistoryEvent(Tolerant):
    type: str = Field(alias="eventType")
    time: str = Field(alias="eventTime")


class _History(Tolerant):
    events: tuple[_HistoryEvent, ...]


def failed_recoveries(directory: Path) -> list[float]:
    """`time.monotonic()` of each failure in this directory of histories."""
    behind_sec = time.time() - time.monotonic()
    return sorted(datetime.fromisoformat(end).timestamp() - behind_sec for end in _failures(directory))


def _failures(directory: Path) -> Iterator[str]:
    for path in sorted(directory.glob(_FILES)):
        try:
            history = _History.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, ValidationError):
            continue  # the check of the histories names it
        if history.events and history.events[-1].type == _FAILED:
            yield history.events[-1].time
