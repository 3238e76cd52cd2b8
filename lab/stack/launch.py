"""The start of an installation, as its starter sees it: a directory, a supervisor in it, and its word that all is ready."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from domain.errors import ConfigError
from lab.stack.environment import base_environment
from lab.stack.errors import StartFailed
from lab.stack.processes import ENGINE_PREFIX, carriers, run_ids_in, sweep
from lab.stack.record import EventKind, StackEvent, StackState
from lab.stack.run_dir import LaunchOrder, RunDir
from service.process_identity import ProcessIdentity

OnEvent = Callable[[StackEvent], None]

_LOOK_PAUSE_SEC: Final = 0.05
_SUPERVISOR_SPEAKS_SEC: Final = 15.0
_EXIT_LIMIT_SEC: Final = 2.0
_LONGEST_WORDS_BYTES: Final = 1 << 16
_OURS: Final = frozenset(
    {"lock", "logs", "state", "config", "spec.json", "spec.new", "stack.new", "events.jsonl", "control.sock", "kept"}
)
"""What a start that got no further than this may have left."""


def prepare(files: RunDir, order: LaunchOrder) -> int:
    """A fresh run directory, and the lock on it for its supervisor; what an earlier stack left there is stopped first.

    Raises RunDirInUse, ConfigError.
    """
    _refuse_foreign(files)
    files.create()
    lock = files.lock()
    try:
        earlier = _earlier_run(files)
        _refuse_living_supervisor(files)
        for run_id in earlier | run_ids_in(files.path):
            sweep(run_id)
        files.clear()
        files.write_order(order)
    except BaseException:
        os.close(lock)
        raise
    return lock


def resumable(files: RunDir) -> LaunchOrder | None:
    """What was started in this directory and ended without being told to, or was stopped with `down --keep`.

    None: nothing of the kind, or nothing that could go on. Raises RunDirInUse, ConfigError.
    """
    try:
        record, order = files.read_record(), files.read_order()
    except ConfigError:
        return None
    if files.is_locked():
        raise files.in_use()
    if record is None or record.run_id != order.run_id or order.ports is None:
        return None
    return order if record.was_not_told_to_end or files.kept_file.exists() else None


def prepare_to_resume(files: RunDir, order: LaunchOrder) -> int:
    """The lock on a directory whose installation goes on: its engines are left alone, what else of it still runs is ended.

    Raises RunDirInUse, ConfigError.
    """
    lock = files.lock()
    try:
        _refuse_living_supervisor(files)
        sweep(order.run_id, spared=lambda carrier: carrier.process.startswith(ENGINE_PREFIX))
        files.create()
        files.events_file.unlink(missing_ok=True)
        files.kept_file.unlink(missing_ok=True)
        files.write_order(order.model_copy(update={"resumed": True}))
    except BaseException:
        os.close(lock)
        raise
    return lock


def _earlier_run(files: RunDir) -> frozenset[str]:
    """Who ran here by the record. Raises ConfigError for a file that is not ours; beside our order it is but garbled."""
    try:
        earlier = files.read_record()
    except ConfigError as unreadable:
        try:
            files.read_order()
        except ConfigError:
            raise unreadable from None
        return frozenset()
    return frozenset() if earlier is None else frozenset({earlier.run_id})


def _refuse_living_supervisor(files: RunDir) -> None:
    """One that lives though the lock was free lost its directory to `rm -r`, unless it is at its very last step."""
    deadline = time.monotonic() + _EXIT_LIMIT_SEC
    while any(carrier.process == "supervisor" for run_id in run_ids_in(files.path) for carrier in carriers(run_id)):
        if time.monotonic() >= deadline:
            raise files.in_use()
        time.sleep(_LOOK_PAUSE_SEC)


def _refuse_foreign(files: RunDir) -> None:
    try:
        if not files.path.is_dir() or files.record_file.exists():
            return
        foreign = any(path.name not in _OURS and not path.is_socket() for path in files.path.iterdir())
    except OSError as error:
        raise files.unusable(error) from None
    if foreign:
        raise ConfigError(f"run directory {files} holds files of something else; choose an empty one with --run-dir")


def spawn_supervisor(files: RunDir, run_id: str, owner: ProcessIdentity | None, lock: int) -> subprocess.Popen[bytes]:
    """Start the supervisor of a prepared directory, in a session of its own; it inherits the lock.

    Its log is on a disk that may be full. So its last words come through a pipe beside it, which `until_ready` reads.
    """
    command = [sys.executable, "-m", "lab.stack", "--run-dir", str(files), "--lock", str(lock), "--last-words"]
    if owner is not None:
        command += ["--owner", str(owner)]
    with files.log_file("supervisor").open("ab") as log:
        return subprocess.Popen(
            command,
            env=base_environment(run_id, "supervisor", run_dir=files.path),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.PIPE,
            pass_fds=(lock,),
            start_new_session=True,
        )


async def until_ready(popen: subprocess.Popen[bytes], files: RunDir, order: LaunchOrder, on_event: OnEvent | None) -> None:
    """Pass events on until the installation is ready. The supervisor has the deadline; ours is for a mute one.

    Raises StartFailed.
    """
    try:
        await _until_ready(popen, files, order, on_event)
    finally:
        if popen.stderr is not None:
            popen.stderr.close()


async def _until_ready(popen: subprocess.Popen[bytes], files: RunDir, order: LaunchOrder, on_event: OnEvent | None) -> None:
    told = 0
    deadline = time.monotonic() + order.spec.start_deadline_sec + _SUPERVISOR_SPEAKS_SEC
    while time.monotonic() < deadline:
        ended = popen.poll()
        events = read_events(files.events_file)
        for event in events[told:]:
            if on_event is not None:
                on_event(event)
            if event.event is EventKind.READY:
                return
        told = len(events)
        if ended is not None:
            raise StartFailed(_why_it_ended(ended, popen, files, order))
        await asyncio.sleep(_LOOK_PAUSE_SEC)
    raise StartFailed(f"the supervisor said nothing in time; its log is {files.log_file('supervisor')}")


def _why_it_ended(code: int, popen: subprocess.Popen[bytes], files: RunDir, order: LaunchOrder) -> str:
    record = files.read_record()
    if record is not None and record.run_id == order.run_id and record.failure is not None:
        return record.failure
    if record is not None and record.run_id == order.run_id and record.state is StackState.STOPPED:
        return "it was told to stop before it was ready"
    log = files.log_file("supervisor")
    logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = (_last_words(popen) or logged).strip().splitlines()
    return f"the supervisor ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}"


def _last_words(popen: subprocess.Popen[bytes]) -> str:
    """What came through the pipe; read without waiting, whoever may hold its other end."""
    if popen.stderr is None:
        return ""
    os.set_blocking(popen.stderr.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        return os.read(popen.stderr.fileno(), _LONGEST_WORDS_BYTES).decode(errors="replace").strip()
    return ""


def read_events(path: Path) -> list[StackEvent]:
    """The whole lines of an `events.jsonl`."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [StackEvent.model_validate_json(line) for line in lines if line.endswith(b"\n")]
