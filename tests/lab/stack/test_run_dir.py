"""One supervisor a directory; what an earlier one left is known for what it is."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from domain.errors import ConfigError
from lab.stack.client import Stack
from lab.stack.environment import base_environment
from lab.stack.errors import NoStack, RecordLost, StartFailed, StopFailed
from lab.stack.launch import prepare, spawn_supervisor, until_ready
from lab.stack.lost import stop_lost
from lab.stack.processes import RUN_ID_VARIABLE
from lab.stack.record import StackRecord, StackState
from lab.stack.run_dir import LaunchOrder, RunDir, RunDirInUse, default_run_dir
from lab.stack.spec import StackSpec
from service.process_identity import ProcessIdentity, identity_of, own_identity

ORDER = LaunchOrder(run_id="0123456789abcdef", spec=StackSpec())
FORMER_LIFE = replace(own_identity(), start_ticks=1)
"""Of a process whose pid is this one's now."""


def record(run_dir: RunDir, supervisor: ProcessIdentity, state: StackState = StackState.READY) -> StackRecord:
    return StackRecord(
        name="local",
        run_id=ORDER.run_id,
        state=state,
        run_dir=str(run_dir),
        started_at="",
        supervisor_pid=supervisor.pid,
        supervisor_incarnation=str(supervisor),
        instance_id=7,
    )


def test_default_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert default_run_dir("one") == Path("/elsewhere/autotomy/one")


def test_a_directory_has_one_supervisor(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    held = run_dir.lock()
    assert run_dir.is_locked()
    with pytest.raises(RunDirInUse, match="autotomy down"):
        prepare(run_dir, ORDER)
    os.close(held)
    assert not run_dir.is_locked()


def test_whoever_prepares_a_directory_holds_it(tmp_path: Path) -> None:
    held = prepare(RunDir(tmp_path), ORDER)
    with pytest.raises(RunDirInUse):
        prepare(RunDir(tmp_path), ORDER)
    os.close(held)
    os.close(prepare(RunDir(tmp_path), ORDER))


def test_files_of_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="files of something else"):
        prepare(RunDir(tmp_path), ORDER)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--run-dir"):
        prepare(RunDir(tmp_path / "file" / "below"), ORDER)


@pytest.mark.parametrize("part", ["", "below"])
def test_a_file_is_no_run_directory(tmp_path: Path, part: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    run_dir = RunDir(file / part)
    for act in (lambda: Stack.attach(run_dir.path), lambda: prepare(run_dir, ORDER), run_dir.is_locked):
        with pytest.raises(ConfigError) as refused:
            act()
        assert refused.value.message == f"run directory {run_dir}: Not a directory; choose another with --run-dir"


def test_attach_says_that_nothing_was_ever_there(tmp_path: Path) -> None:
    with pytest.raises(NoStack, match="autotomy up"):
        Stack.attach(tmp_path)


def test_attach_says_that_the_stack_was_stopped(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_record(record(run_dir, FORMER_LIFE, StackState.STOPPED))
    with pytest.raises(NoStack, match="is stopped; nothing of it is left"):
        Stack.attach(tmp_path)


def test_attach_says_that_a_crash_left_something(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_record(record(run_dir, FORMER_LIFE))
    left = subprocess.Popen(["sleep", "100"], env={**os.environ, RUN_ID_VARIABLE: ORDER.run_id})
    try:
        with pytest.raises(NoStack, match="gone without having been stopped; 1 processes of it are left"):
            Stack.attach(tmp_path)
    finally:
        left.kill()
        left.wait()


def test_a_new_start_in_a_crashed_directory_stops_what_was_left_there(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.create()
    run_dir.write_record(record(run_dir, FORMER_LIFE))
    (run_dir.state / "journal.sqlite").write_text("old")
    left = subprocess.Popen(["sleep", "100"], env={**os.environ, RUN_ID_VARIABLE: ORDER.run_id})
    os.close(prepare(run_dir, ORDER))
    assert left.wait(5) != 0
    assert list(run_dir.state.iterdir()) == []
    assert run_dir.read_order() == ORDER


def test_a_foreign_record_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"tabby": 1}')
    with pytest.raises(ConfigError, match=r"stack\.json cannot be read"):
        RunDir(tmp_path).read_record()


def test_the_record_of_a_running_supervisor_is_attached_to(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        identity = identity_of(running.pid)
        assert identity is not None
        run_dir.write_order(ORDER)
        run_dir.write_record(record(run_dir, identity))
        assert Stack.attach(tmp_path).run_id == ORDER.run_id
    finally:
        running.communicate(b"\n")


@contextlib.contextmanager
def left_running(run_dir: RunDir, name: str = "engine-0", run_id: str = ORDER.run_id) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the stack in `run_dir`, found by its environment alone."""
    left = subprocess.Popen(["sleep", "100"], env=base_environment(run_id, name, run_dir=run_dir.path))
    try:
        yield left
    finally:
        left.kill()
        left.wait()


@pytest.mark.parametrize("record_text", [None, "", "{", '{"tabby": 1}'])
def test_attach_says_that_a_stack_runs_whose_record_is_lost(tmp_path: Path, record_text: str | None) -> None:
    run_dir = RunDir(tmp_path)
    held = run_dir.lock()
    if record_text is not None:
        run_dir.record_file.write_text(record_text)
    try:
        with pytest.raises(RecordLost, match=r"a stack runs in .*stack\.json.*`autotomy down --run-dir .*` stops it"):
            Stack.attach(tmp_path)
    finally:
        os.close(held)


async def test_a_stack_without_files_is_stopped_by_what_its_processes_carry(tmp_path: Path) -> None:
    run_dir, other = RunDir(tmp_path / "one"), RunDir(tmp_path / "other")
    with left_running(run_dir) as left, left_running(other, run_id="fedcba9876543210") as spared:
        with pytest.raises(RecordLost):
            Stack.attach(run_dir.path)
        report = await stop_lost(run_dir)
        assert report is not None
        assert [orphan.split(" ")[0] for orphan in report.orphans] == ["engine-0"]
        assert left.wait(5) != 0
        assert spared.poll() is None
    assert await stop_lost(run_dir) is None


async def test_a_stack_that_cannot_be_found_is_not_said_to_be_stopped(tmp_path: Path) -> None:
    held = RunDir(tmp_path).lock()  # by this process, which belongs to no stack and has no control socket
    try:
        with pytest.raises(StopFailed, match=f"pid {os.getpid()}"):
            await stop_lost(RunDir(tmp_path), within_sec=0.2)
    finally:
        os.close(held)


def test_a_running_stack_whose_directory_was_removed_is_not_started_over(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "removed")
    with left_running(run_dir, "supervisor") as supervisor:
        with pytest.raises(RunDirInUse, match="autotomy down"):
            prepare(run_dir, ORDER)
        assert supervisor.poll() is None


def test_a_garbled_record_beside_our_order_does_not_stand_in_the_way_of_a_start(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    os.close(prepare(run_dir, ORDER))
    run_dir.record_file.write_text("{")
    os.close(prepare(run_dir, ORDER))
    assert run_dir.read_record() is None


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Files of this process, and of those that it starts, cannot grow: as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_supervisor_that_can_write_nothing_says_why_all_the_same(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    lock = prepare(run_dir, ORDER)
    with no_room():
        supervisor = spawn_supervisor(run_dir, ORDER.run_id, None, lock)
    os.close(lock)
    stack = Stack(run_dir, ORDER, popen=supervisor)
    try:
        with pytest.raises(StartFailed, match=f"{tmp_path}.*File too large"):
            await until_ready(supervisor, run_dir, ORDER, None)
    finally:
        await stack.down()


def test_an_order_that_cannot_be_written_is_refused_and_leaves_no_scraps(tmp_path: Path) -> None:
    with no_room(), pytest.raises(ConfigError, match=r"File too large.*--run-dir"):
        prepare(RunDir(tmp_path), ORDER)
    os.close(prepare(RunDir(tmp_path), ORDER))
