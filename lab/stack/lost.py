"""A stack whose files are lost: what the kernel still knows about it, and how it is stopped by that alone.

`stack.json` and `spec.json` can be removed or garbled while everything runs; even the whole directory can be. Three
things remain: the lock that the supervisor holds, its control socket, and the run directory in the environment of every
process. Whoever finds a stack so does not trust the files at all: a copied directory would name another stack's run.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Final

from domain.model import Strict
from lab.stack import control
from lab.stack.errors import RecordLost, StopFailed
from lab.stack.processes import Carrier, carriers, run_ids_in, sweep
from lab.stack.run_dir import RunDir

_STOP_LIMIT_SEC: Final = 25.0
_EXIT_LIMIT_SEC: Final = 2.0
_LOOK_PAUSE_SEC: Final = 0.05
_PROC: Final = Path("/proc")


class DownReport(Strict):
    """What `down` found. `orphans`: processes that carried the run's id when everything was said to be stopped.

    They were stopped all the same; an empty tuple is the normal case. `clean` is False when the supervisor had to be
    killed, or was gone already.
    """

    orphans: tuple[str, ...] = ()
    clean: bool = True
    took_sec: float = 0.0


def refuse_if_lost(files: RunDir) -> None:
    """Raises RecordLost if something runs in a directory whose files do not tell what."""
    if files.is_locked() or _members(files):
        raise RecordLost(
            f"a stack runs in {files}, but its record is lost ({files.record_file.name} or {files.spec_file.name} is missing "
            f"or cannot be read); `autotomy down --run-dir {files}` stops it, `autotomy up` then starts a new one. "
            "A stack that is being started this moment has its record soon: ask again"
        )


async def stop_lost(files: RunDir, *, within_sec: float = _STOP_LIMIT_SEC) -> DownReport | None:
    """Stop whatever runs in that directory, without its files; None if nothing did.

    `within_sec` is what the supervisor gets to go down in order; then its processes are ended one by one. Raises
    StopFailed when something still runs, or the lock is still held, after that.
    """
    began_at = time.monotonic()
    locked = files.is_locked()
    if not locked and not _members(files):
        return None
    clean = locked and await _goes_down(files, within_sec)
    orphans: list[Carrier] = []
    for run_id in sorted(run_ids_in(files.path)):
        orphans += await asyncio.to_thread(sweep, run_id)
    _refuse_what_stays(files)
    took_sec = round(time.monotonic() - began_at, 3)
    return DownReport(orphans=tuple(map(str, orphans)), clean=clean, took_sec=took_sec)


async def _goes_down(files: RunDir, within_sec: float) -> bool:
    """Ask the supervisor, then wait until it let go of the lock and is gone; False when it does not listen or obey."""
    try:
        await control.ask(files.path, control.Down())
    except (control.SupervisorUnreachable, control.ControlRefused):
        return False
    deadline = time.monotonic() + within_sec
    while files.is_locked():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_LOOK_PAUSE_SEC)
    deadline = time.monotonic() + _EXIT_LIMIT_SEC
    while time.monotonic() < deadline:
        if not _members(files):
            break
        await asyncio.sleep(_LOOK_PAUSE_SEC)
    return True


def _refuse_what_stays(files: RunDir) -> None:
    if left := _members(files):
        raise StopFailed(f"{len(left)} processes of the stack in {files} did not end, first {left[0]}; end them by hand")
    if files.is_locked():
        raise StopFailed(
            f"the lock in {files} is held by {_holders(files)}, which belongs to no stack that can be found from here and "
            "does not answer on control.sock; end it by hand, as its user and in its container"
        )


def _members(files: RunDir) -> list[Carrier]:
    return [carrier for run_id in sorted(run_ids_in(files.path)) for carrier in carriers(run_id)]


def _holders(files: RunDir) -> str:
    """The processes that have the lock file open, as far as this user may see that."""
    with contextlib.suppress(OSError):
        lock = files.lock_file.stat()
        pids = sorted({int(link.parts[2]) for link in _PROC.glob("[0-9]*/fd/*") if _is_file(link, lock)})
        if pids:
            return ", ".join(f"pid {pid}" for pid in pids)
    return "a process that cannot be seen"


def _is_file(link: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(link.stat(), wanted)
    except OSError:  # closed or gone meanwhile, or another user's
        return False
