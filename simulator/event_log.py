"""The engine's own log: what an outsider judges a recovery by, independent of what anybody else says about it.

``<log-dir>/engine-<rank>-<pid>.jsonl``, one JSON object a line, flushed before the effect is visible to a client.
Every line has `t` (wall clock, s since the epoch, for people), `mono` (``time.monotonic()``, one clock for all
processes of a machine, for durations), `event` and `rank`. The pid is the API server's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


class EventLog:
    """Appends to one file; also echoes a short line to stderr, as an engine would."""

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"engine-{rank}-{os.getpid()}.jsonl"
        self._rank = rank
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: object) -> None:
        """Append one line and flush it."""
        line = {"t": time.time(), "mono": time.monotonic(), "event": event, "rank": self._rank, **fields}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        said = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        print(f"(SimulatedEngine_DP{self._rank} pid={os.getpid()}) {event} {said}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """No line can follow."""
        self._file.close()
