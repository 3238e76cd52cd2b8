"""Everything that carries a run id is found and stopped, wherever it hides; nothing else is touched."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from lab.stack.processes import (
    RUN_ID_VARIABLE,
    Carrier,
    carriers,
    sweep,
)
from service.process_identity import identity_of

Spawn = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_id() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def spawn(run_id: str) -> Iterator[Spawn]:
    """Start something that carries the run id, in a session of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
        carried = {**os.environ, RUN_ID_VARIABLE: run_id, **environment}
        process = subprocess.Popen(command, env=carried, start_new_session=True, stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until_carried(run_id: str, count: int) -> list[Carrier]:
    deadline = time.monotonic() + 5.0
    while len(found := carriers(run_id)) != count:
        assert time.monotonic() < deadline, f"{len(found)} carriers, expected {count}: {found}"
        time.sleep(0.01)
    return found


def test_carriers_are_named_by_their_environment(spawn: Spawn, run_id: str) -> None:
    process = spawn("sleep", "100", AUTOTOMY_PROCESS="engine-3", AUTOTOMY_POD="pod-1")
    spawn("sleep", "100", **{RUN_ID_VARIABLE: run_id + "0"})
    (found,) = until_carried(run_id, 1)
    assert (found.pid, found.process, found.pod) == (process.pid, "engine-3", "pod-1")
    assert found.command == ("sleep", "100")


def test_sweep_stops_grandchildren_and_what_ignores_sigterm(spawn: Spawn, run_id: str) -> None:
    spawn("sh", "-c", 'trap "" TERM; sleep 100 & sleep 100 & wait')
    until_carried(run_id, 3)
    found = sweep(run_id, grace_sec=0.2)
    assert len(found) == 3
    assert carriers(run_id) == []


def test_sweep_stops_a_stopped_process(spawn: Spawn, run_id: str) -> None:
    process = spawn("sleep", "100")
    process.send_signal(signal.SIGSTOP)
    assert [carrier.pid for carrier in sweep(run_id, grace_sec=2.0)] == [process.pid]
    assert process.wait(5) == -signal.SIGTERM


def test_sweep_catches_up_with_a_process_that_keeps_forking(spawn: Spawn, run_id: str) -> None:
    spawn("sh", "-c", 'trap "sleep 100 & sleep 100" TERM; while :; do sleep 0.02; done')
    until_carried(run_id, 2)
    sweep(run_id, grace_sec=0.3)
    assert carriers(run_id) == []


def test_sweep_spares_whom_it_is_told_to_spare(spawn: Spawn, run_id: str) -> None:
    spared, other = spawn("sleep", "100"), spawn("sleep", "100", AUTOTOMY_POD="pod-0")
    until_carried(run_id, 2)
    assert [c.pid for c in sweep(run_id, pod="pod-1")] == []
    assert [c.pid for c in sweep(run_id, spare=frozenset({spared.pid}))] == [other.pid]
    assert [c.pid for c in carriers(run_id)] == [spared.pid]


def test_the_watcher_sweeps_when_its_supervisor_is_killed(spawn: Spawn, run_id: str) -> None:
    supervisor = subprocess.Popen(["sleep", "100"])
    try:
        identity = identity_of(supervisor.pid)
        engine = spawn("sleep", "100")
        watcher = spawn(sys.executable, "-m", "lab.stack.watcher", str(identity), run_id)
        until_carried(run_id, 2)
        assert engine.poll() is None
    finally:
        supervisor.kill()
        supervisor.wait()
    assert watcher.wait(10) == 0
    assert engine.wait(5) == -signal.SIGTERM
