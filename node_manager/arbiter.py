"""Suicide arbitration: a Pod that stays broken, and that nobody comes for, ends itself so that the cluster restarts it.

Broken means: the process of an engine that is not retired has ended. The first rounds after that belong to the Controller,
which may shrink the group or rebuild it: that is the grace period. After it the Pod must be found broken in several
rounds in a row. **A guard freezes this, and only a guard**: while a round owns the Pod nothing is counted, and what was
counted before is void, so a Pod gets the whole grace period again once the verdict is there.
"""

import logging

log = logging.getLogger(__name__)


class Arbiter:
    """Pure but for its memory. `grace_sec` seconds of being broken, then `rounds` abnormal rounds in a row."""

    def __init__(self, *, grace_sec: float, rounds: int) -> None:
        self._grace_sec = grace_sec
        self._rounds = rounds
        self._broken_since: float | None = None
        self._abnormal = 0

    def judge(self, *, abnormal: bool, frozen: bool, now: float) -> bool:
        """One round at `now` (monotonic seconds). True: the Pod should exit."""
        if frozen or not abnormal:
            self._broken_since, self._abnormal = None, 0
            return False
        if self._broken_since is None:
            self._broken_since = now
        if now - self._broken_since < self._grace_sec:
            return False
        self._abnormal += 1
        log.warning("this Pod is broken and nobody comes for it", extra={"round": self._abnormal, "of": self._rounds})
        return self._abnormal >= self._rounds
