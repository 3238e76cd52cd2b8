"""`up`, `status` and `down` as a person and as a script use them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.stack.client import Stack
from lab.stack.processes import carriers
from lab.stack.run_dir import RunDir
from lab.stack.spec import StackSpec

AUTOTOMY = Path(sys.executable).parent / "autotomy"
SMALL = ("--dp-size", "2", "--node-managers", "1")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AUTOTOMY_", "TEMPORAL_"))}


def autotomy(*arguments: str, within_sec: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AUTOTOMY, *arguments], capture_output=True, text=True, timeout=within_sec, env=environment(), check=False
    )


def until(holds: Callable[[], bool], within_sec: float = 60.0) -> None:
    deadline = time.monotonic() + within_sec
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def run_id_of(run_dir: Path) -> str:
    return RunDir(run_dir).read_order().run_id


def an_operator_asks_and_commands(url: str) -> None:
    """plan, explain, hold and release, and what they say where they cannot."""
    to = ("--controller-url", url)
    shown = autotomy("plan", "7", "--dead", "1", *to)
    assert shown.returncode == 0, shown.stderr
    for word in ("scale_down", "COMPLETE", "removed_dp_ranks", "fault-tolerance/apply", "dp_master_ip"):
        assert word in shown.stdout, shown.stdout
    plan = json.loads(autotomy("plan", "7", "--dead", "1", "--json", *to).stdout)
    assert (plan["round"]["survivors"], plan["round"]["gate"]["allowed"]) == ([0], True)
    for arguments, said in ((("7", "--dead", "9"), "0..1"), (("8", "--dead", "1"), "no instance 8")):
        refused = autotomy("plan", *arguments, *to)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
    assert autotomy("instance", "hold", "7", "--why", "maintenance", *to).returncode == 0
    assert "maintenance" in autotomy("explain", "7", *to).stdout
    assert autotomy("instance", "release", "7", *to).returncode == 0
    twice = autotomy("instance", "release", "7", *to)
    assert (twice.returncode, "not held" in twice.stderr) == (1, True), twice.stderr
    assert json.loads(autotomy("explain", "7", "--json", *to).stdout)["held"] is None


def test_up_runs_in_the_background_until_down(tmp_path: Path) -> None:
    started = autotomy("up", *SMALL, "--run-dir", str(tmp_path))
    try:
        assert started.returncode == 0, started.stderr
        assert "http://127.0.0.1:" in started.stdout
        assert f"autotomy down --run-dir {tmp_path}" in started.stdout
        again = autotomy("up", *SMALL, "--run-dir", str(tmp_path))
        assert again.returncode == 2
        assert "already runs" in again.stderr
        shown = autotomy("status", "--run-dir", str(tmp_path))
        assert shown.returncode == 0
        assert "NORMAL" in shown.stdout
        document = json.loads(autotomy("status", "--json", "--run-dir", str(tmp_path)).stdout)
        (instance,) = document["instances"]
        assert (instance["instance_id"], instance["alive_dp_ranks"], instance["can_serve"]) == (7, [0, 1], True)
        an_operator_asks_and_commands(Stack.attach(tmp_path).addresses.controller_url)
        assert {"temporal", "api", "worker-0", "coordinator-0", "node-manager-0"} == {p["name"] for p in document["processes"]}
    finally:
        stopped = autotomy("down", "--json", "--run-dir", str(tmp_path))
    report = json.loads(stopped.stdout)
    assert (report["orphans"], report["clean"]) == ([], True)
    assert carriers(run_id_of(tmp_path)) == []
    assert autotomy("status", "--run-dir", str(tmp_path)).returncode == 2


@pytest.mark.verify
def test_up_in_the_foreground_stops_everything_on_ctrl_c(tmp_path: Path) -> None:
    command = [str(AUTOTOMY), "up", *SMALL, "--foreground", "--json", "--run-dir", str(tmp_path)]
    staying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert staying.stdout is not None
        assert staying.stderr is not None
        first = staying.stdout.readline()  # it is said where everything is
        staying.send_signal(signal.SIGINT)
        out, err = first + staying.stdout.read(), staying.stderr.read()
        staying.wait(30)
    finally:
        staying.kill()
        staying.communicate()
    assert staying.returncode == 0
    assert json.loads(out)["state"] == "ready"
    assert err.strip().splitlines()[-1] == "stopped; nothing is left running"
    assert carriers(run_id_of(tmp_path)) == []


@pytest.mark.verify
def test_ctrl_c_during_the_start_says_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    command = [str(AUTOTOMY), "up", *SMALL, "--run-dir", str(tmp_path)]
    starting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        until(lambda: RunDir(tmp_path).record_file.exists())
        starting.send_signal(signal.SIGINT)
        out, err = starting.communicate(timeout=30)
    finally:
        starting.kill()
    assert starting.returncode == 130
    assert err.strip().splitlines()[-1] == "interrupted; everything was stopped"
    assert "Traceback" not in out + err
    assert carriers(run_id_of(tmp_path)) == []


@pytest.mark.verify
async def test_down_finds_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    stack = await Stack.launch(StackSpec.shaped(1, 1, declare=False, web_ui=False), tmp_path)
    for carrier in carriers(stack.run_id):
        if carrier.process in ("supervisor", "watcher"):  # both at once: nobody is left to clean up
            os.kill(carrier.pid, signal.SIGKILL)
    stopped = await asyncio.to_thread(autotomy, "down", "--run-dir", str(tmp_path))
    assert stopped.returncode == 0
    assert "had been left behind and were stopped" in stopped.stdout
    assert carriers(stack.run_id) == []
    assert not (await stack.down()).clean


@pytest.mark.verify
@pytest.mark.parametrize("garbage", [None, "{"])
async def test_a_running_stack_whose_record_is_lost_is_seen_and_stopped(tmp_path: Path, garbage: str | None) -> None:
    stack = await Stack.launch(StackSpec.shaped(1, 1, declare=False, web_ui=False), tmp_path)
    for file in (stack.run_dir.record_file, stack.run_dir.spec_file):
        file.unlink() if garbage is None else file.write_text(garbage)
    try:
        seen = await asyncio.to_thread(autotomy, "status", "--run-dir", str(tmp_path))
        assert (seen.returncode, "a stack runs in" in seen.stderr) == (2, True), seen.stderr
        assert f"autotomy down --run-dir {tmp_path}" in seen.stderr
        again = await asyncio.to_thread(autotomy, "up", *SMALL, "--run-dir", str(tmp_path))
        assert (again.returncode, "already runs" in again.stderr) == (2, True), again.stderr
        stopped = await asyncio.to_thread(autotomy, "down", "--run-dir", str(tmp_path))
        assert (stopped.returncode, "stopped in" in stopped.stdout) == (0, True), stopped.stdout + stopped.stderr
        assert carriers(stack.run_id) == []
    finally:
        await stack.down()
