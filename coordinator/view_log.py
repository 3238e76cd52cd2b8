"""Evidence: what was routed when, written before the sender gets its acknowledgement.

One JSON object a line, appended. `t` is wall clock for people, `mono` the monotonic clock, which all processes of a
machine share, for judging. `ranks` are what the instance routes to after the line; `instance` is null where a line is
about all. Entries that changed nothing are left out, because an unchanged SET comes every few seconds.

    {"t":…,"mono":…,"incarnation":"…","event":"del","instance":7,"revision":4,"ranks":[],"outcome":"applied","has_view":true}
"""

import json
import logging
import time
from pathlib import Path
from typing import IO

from coordinator.view import Conflict, Refreshed, View
from domain.errors import ConfigError
from domain.messages.coordinator import RefreshRequest

log = logging.getLogger(__name__)


class ViewLog:
    """The file of `--view-log`, or nothing. A full disk costs evidence, said loudly, never routing."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError when the file cannot be opened for appending."""
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = path.open("a", encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"--view-log {path}: {error.strerror}") from None

    def start(self, view: View) -> None:
        """Note the beginning of a life."""
        self._write(view, "start", None, None, (), "started")

    def record(self, view: View, request: RefreshRequest, result: Refreshed | Conflict) -> None:
        """Note what a refresh changed, and what of it was refused. `view` is the view after it."""
        if self._file is None:
            return
        if isinstance(result, Conflict):
            for entry in request.instances or (None,):
                instance, revision = (entry.id, entry.revision) if entry else (None, None)
                self._write(view, request.event, instance, revision, None, f"conflict:{result.reason}")
            return
        for instance_id in result.outcome.applied:
            now = view.instances.get(instance_id)
            revision = now.revision if now else None
            self._write(view, request.event, instance_id, revision, now.ranks if now else (), "applied")
        for stale in result.outcome.stale:
            now = view.instances[stale.id]
            self._write(view, request.event, stale.id, stale.revision, now.ranks, "stale")

    def _write(
        self,
        view: View,
        event: str,
        instance: int | None,
        revision: int | None,
        ranks: tuple[int, ...] | None,
        outcome: str,
    ) -> None:
        if self._file is None:
            return
        line = {
            "t": time.time(),
            "mono": time.monotonic(),
            "incarnation": view.incarnation,
            "event": str(event),
            "instance": instance,
            "revision": revision,
            "ranks": None if ranks is None else list(ranks),
            "outcome": outcome,
            "has_view": view.opened,
        }
        try:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            log.error("view log cannot be written", extra={"why": str(error)})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
