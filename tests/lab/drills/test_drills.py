"""The drills themselves: the scenarios of acceptance A and C, run as a user runs them and judged from outside.

Each test starts an installation of real processes. `make test` runs ten of them once, `make verify` the others but the
slow ones; `make soak` runs each ten times in a row, and writes the table of where soft-rank's time goes.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from lab.drills.drill import Drill, local_spec
from lab.drills.outcome import DrillReport
from lab.drills.record.figures import median
from lab.drills.registry import all_drills, find
from lab.drills.report.repetition import shares, where_the_time_goes
from lab.drills.restart.cell_drills import restart_drill
from lab.drills.restart.cells import find_cell
from lab.drills.run import DrillOptions, run_drill
from lab.drills.script.scene import Scene
from lab.stack.spec import EngineSpec
from tests.eventually import eventually

CONTROL_PLANE_LIMIT_SEC = 0.5
IN_A_ROW = 10
BUNDLE = {"report.json", "report.md", "timeline.svg", "timeline.jsonl", "applies.jsonl", "views.jsonl", "requests.jsonl"}
DIRECTORIES = {"histories", "logs"}


REPRESENTATIVE = {
    "soft-rank",
    "soft-rank0",
    "soft-idle",
    "consecutive",
    "pod-empty",
    "rebuilt-after-shrink",
    "all-unhealthy-fast",
    "multi-rank",
    "hw-first-seen",
    "controller-restart",
}
"""One of each kind: in place, with another master, without requests, twice, a whole Pod, rebuilt, retried, several at once,
by hardware, with a killed worker."""

SLOW = {
    "hw-first-unseen",
    "hw-already-removed",
    "hw-unmappable",
    "all-unhealthy-wait",
    "pod-empty-scaleup",
    "pod-empty-scaleup-fails",
    "gate",
    "engine-failure",
    "mute-forgotten",
}
"""Their rules have tests of their own; the drills run with the long suites."""

MINUTES = {"gate", "engine-failure"}
"""Several faults in turn: one run is ten of another drill's."""


def by_pace(name: str) -> object:
    late = [pytest.mark.soak] if name in SLOW else [pytest.mark.verify] if name not in REPRESENTATIVE else []
    return pytest.param(name, marks=late)


def test_every_drill_has_its_pace() -> None:
    assert set(all_drills()) >= REPRESENTATIVE | SLOW
    assert (len(REPRESENTATIVE), REPRESENTATIVE & SLOW) == (10, set())


async def run(drill: Drill, out: Path) -> DrillReport:
    return await run_drill(drill, DrillOptions(out=out))


def complaint(report: DrillReport) -> str:
    """What a person needs to find the cause."""
    wrong = [f"{check.name}: {check.detail}" for check in report.checks if not check.ok]
    return "\n".join([f"drill {report.drill} did not pass; {report.bundle}", str(report.failure), *wrong])


@pytest.mark.parametrize("name", list(map(by_pace, all_drills())))
async def test_drill_passes(name: str, tmp_path: Path) -> None:
    report = await run(find(name), tmp_path / name)
    assert report.passed, complaint(report)
    assert report.figures.orphans == 0
    assert {path.name for path in (tmp_path / name).iterdir()} == BUNDLE | DIRECTORIES


@pytest.mark.verify
async def test_killed_worker_between_commit_point_and_finalize_changes_nothing(tmp_path: Path) -> None:
    report = await run(restart_drill(find_cell("worker", "commit-point")), tmp_path / "restart")
    assert report.passed, complaint(report)
    assert report.figures.applies_per_engine == {"0": 1, "2": 1, "3": 1}
    assert report.figures.dead_committed == (1,)


@pytest.mark.verify
async def test_command_line_prints_the_result_as_its_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.drills", "soft-rank", "--json", "--out", str(tmp_path / "out")]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await asyncio.wait_for(process.communicate(), timeout=120)
    told = json.loads(out.decode().splitlines()[-1])
    assert process.returncode == 0, err.decode()
    assert told["passed"] is True
    assert told["figures"]["applies_per_engine"] == {"0": 1, "2": 1, "3": 1}
    assert told["figures"]["non_default_timers"]


@pytest.mark.verify
async def test_drill_that_does_not_get_what_it_expects_is_red_and_says_why(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.kill_workers(1)
        await scene.until_rebuilt()

    engine = EngineSpec(detection_sec=2.0, rank_arguments={2: ("--misbehave", "apply-400")})
    planted = dataclasses.replace(find("soft-rank"), spec=local_spec("planted", engine), act=act)
    report = await run(planted, tmp_path / "out")
    assert (report.passed, report.could_run, report.exit_code, report.failure) == (False, True, 1, None)
    red = {check.name for check in report.checks if not check.ok}
    assert {"one apply per engine", "committed ranks", "published ranks", "engines kept"} <= red
    assert not any(name.startswith("I") for name in red), "the fallback itself was in order"
    assert (tmp_path / "out" / "report.md").read_text(encoding="utf-8").startswith("# Drill soft-rank: FAILED")


@pytest.mark.verify
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
async def test_ended_drill_leaves_nothing_running(number: signal.Signals, code: int, tmp_path: Path) -> None:
    name, value = "DRILL_TEST_MARK", secrets.token_hex(8)
    command = [sys.executable, "-m", "lab.drills", "soft-rank", "--out", str(tmp_path / "out")]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env={**os.environ, name: value}
    )
    assert process.stdout is not None
    async with asyncio.timeout(90):
        while b"INJECTED" not in (line := await process.stdout.readline()):
            assert line, "the drill ended before it injected anything"
    assert len(carrying(f"{name}={value}")) > 10
    process.send_signal(number)
    await process.stdout.read()
    assert await asyncio.wait_for(process.wait(), timeout=30) == code
    await eventually(lambda: not carrying(f"{name}={value}"), "nothing is left running", within_sec=10)


def carrying(mark: str) -> list[int]:
    """Pids of all processes with this variable in their environment: the drill's descendants, wherever they live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in all_drills() if name not in MINUTES])
async def test_drill_passes_ten_times_in_a_row(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = [await run(find(name), tmp_path / f"{name}-{number}") for number in range(IN_A_ROW)]
    failed = [complaint(report) for report in reports if not report.passed]
    assert not failed, "\n".join(failed)
    if name == "soft-rank":
        with capsys.disabled():
            print(f"\n{where_the_time_goes(reports)}")
        assert len(shares(reports)) == IN_A_ROW
        assert median(shares(reports)) <= CONTROL_PLANE_LIMIT_SEC


@pytest.mark.soak
async def test_restart_at_the_commit_point_passes_ten_times_in_a_row(tmp_path: Path) -> None:
    drill = restart_drill(find_cell("worker", "commit-point"))
    reports = [await run(drill, tmp_path / f"restart-{number}") for number in range(IN_A_ROW)]
    failed = [complaint(report) for report in reports if not report.passed]
    assert not failed, "\n".join(failed)
