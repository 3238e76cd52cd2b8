"""Pods that ask to join an assembled instance and are refused: remembered for a while, so that `explain` can name them.

A Pod that was rescheduled comes back at another address, and only its own log says that it is refused, again and again.
Whoever wonders why the instance does not come back asks the Controller. The memory is this API's alone, and short: a Pod
that still asks is noted anew every few seconds.
"""

import time
from collections.abc import Callable
from typing import Final

from domain.topology import NodeManagerAddress

FRESH_SEC: Final = 60.0
_KEPT: Final = 64
"""In all: whoever makes up addresses fills no memory."""


class Strangers:
    """`now` is a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._noted: dict[tuple[int, NodeManagerAddress], tuple[float, str]] = {}

    def note(self, instance_id: int, address: NodeManagerAddress, why: str) -> None:
        """This Pod was refused now."""
        key = (instance_id, address)
        self._noted.pop(key, None)
        self._noted[key] = (self._now(), why)
        for oldest in list(self._noted)[:-_KEPT]:
            del self._noted[oldest]

    def of(self, instance_id: int) -> tuple[str, ...]:
        """Why Pods were refused by this instance lately, the latest last."""
        since = self._now() - FRESH_SEC
        return tuple(why for (known, _), (at, why) in self._noted.items() if known == instance_id and at >= since)
