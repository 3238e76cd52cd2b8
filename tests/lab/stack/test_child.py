"""A supervised process comes back, as fast or as late as somebody wants, until it is stopped."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.stack.child import Child, ProcessPlan
from lab.stack.record import EventKind, ProcessKind, ProcessState
from tests.eventually import eventually

Events = list[tuple[EventKind, str]]


@pytest.fixture
def events() -> Events:
    return []


@contextlib.asynccontextmanager
async def kept(tmp_path: Path, events: Events, *command: str) -> AsyncIterator[Child]:
    """A child that runs while the context lasts."""
    plan = ProcessPlan(
        name="thing", kind=ProcessKind.WORKER, command=command, environment=dict(os.environ), log_file=tmp_path / "thing.log"
    )

    async def on_exit(_child: Child, _code: int) -> None:
        return

    child = Child(plan, lambda kind, _child, detail: events.append((kind, detail)), on_exit)
    keeper = asyncio.create_task(child.keep_running())
    try:
        yield child
    finally:
        await child.stop(2.0)
        await keeper


async def test_a_killed_process_comes_back_with_a_new_identity(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path, events, "sleep", "100") as child:
        await eventually(lambda: child.pid is not None)
        first = child.identity
        assert child.signal(signal.SIGKILL)
        await eventually(lambda: child.restarts == 1 and child.pid is not None)
        assert child.identity != first
        assert child.last_exit == -signal.SIGKILL
    assert child.state is ProcessState.STOPPED
    assert [kind for kind, _ in events] == [EventKind.STARTED, EventKind.EXITED, EventKind.RESTARTED, EventKind.EXITED]


async def test_exit_code_zero_is_no_reason_to_stay_away(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path, events, "true") as child:
        await eventually(lambda: child.restarts >= 2)
        assert child.last_exit == 0


async def test_returns_come_later_and_later(tmp_path: Path, events: Events) -> None:
    began_at = time.monotonic()
    async with kept(tmp_path, events, "false") as child:
        await eventually(lambda: child.restarts >= 3)
    assert time.monotonic() - began_at >= 0.2 + 0.4 + 0.8


async def test_a_return_can_be_delayed_once(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path, events, "sleep", "100") as child:
        await eventually(lambda: child.pid is not None)
        child.delay_next(0.7)
        child.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        await eventually(lambda: child.restarts == 1)
        assert time.monotonic() - killed_at >= 0.7
        child.signal(signal.SIGKILL)
        killed_at = time.monotonic()
        await eventually(lambda: child.restarts == 2)
        assert time.monotonic() - killed_at < 0.7


async def test_a_held_process_stays_away_until_released(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path, events, "sleep", "100") as child:
        await eventually(lambda: child.pid is not None)
        child.hold()
        child.signal(signal.SIGKILL)
        await eventually(lambda: child.record().state is ProcessState.HELD)
        assert child.pid is None
        assert not child.signal(signal.SIGTERM)
        child.release()
        await eventually(lambda: child.record().state is ProcessState.RUNNING)


async def test_stop_wakes_a_stopped_process_and_kills_a_stubborn_one(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path, events, "sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 0.05; done') as child:
        await eventually(lambda: child.plan.log_file.exists() and "ready" in child.plan.log_file.read_text())
        child.signal(signal.SIGSTOP)
        await child.stop(0.3)
        await eventually(lambda: child.state is ProcessState.STOPPED)
    assert child.last_exit == -signal.SIGKILL


async def test_output_of_all_lives_is_in_one_log(tmp_path: Path, events: Events) -> None:
    async with kept(tmp_path, events, "sh", "-c", "echo out; echo err >&2") as child:
        await eventually(lambda: child.restarts >= 1)
    said = child.plan.log_file.read_text()
    assert said.count("out") >= 1
    assert said.count("err") >= 1
