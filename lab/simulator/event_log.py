"""The engine's own log: what an outsider judges a recovery by, independent of what anybody else says about it.

``<log-dir>/engine-<rank>-<pid>.jsonl``, one JSON object a line, flushed before the effect is visible to a client.
Every line has `t` (wall clock, s since the epoch, for people), `mono` (``time.monotonic()``, one clock for all
processes of a machine, for durations), `event` and `rank`. The pid is the API server's.

==================  ==================================================================================================
`start`             host, port, size, worker_pid, dialect (null: FT off), detection_sec, recovery_sec, store_timeout_sec,
                    engine_recovery_timeout_sec
`ready`             port; it is open now
`apply`             instruction, params, request_id, http: each one that arrived, refused ones too (null: unreadable)
`refused`           instruction, request_id, error: a command that was accepted, then refused without an attempt
`recovery_start`    instruction, request_id, removed (the set as told), epoch
`recovery_end`      the same, and ok, error; epoch is the new one when ok
`status`            status, ft_state, ft_error: each change of the first two
`identity`          ids: of the entries that the FT status path answered with, each change (null: an entry without one)
`fault_noticed`     missing, step, epoch: the communication timeout of a step is over
`worker_exit`       worker_pid, code (negative: signal)
`misbehave`         knobs: set over HTTP
`exit`              reason, code
==================  ==================================================================================================
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
