"""The command line as a newcomer meets it: help at once, errors that say what to do."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cli.single import words_after
from lab.stack.ports import PortLease

AUTOTOMY = Path(sys.executable).parent / "autotomy"


def autotomy(*arguments: str, within_sec: float = 60.0, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOTOMY_", "TEMPORAL_"))}
    return subprocess.run(
        [AUTOTOMY, *arguments], capture_output=True, text=True, timeout=within_sec, env={**env, **environment}, check=False
    )


def test_help_names_every_command_and_comes_at_once() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    shown = autotomy("--help")
    took_sec = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert shown.returncode == 0
    for command in (
        "demo",
        "up",
        "status",
        "down",
        "drill",
        "doctor",
        "api",
        "worker",
        "node-manager",
        "coordinator",
        "plan",
        "explain",
    ):
        assert f"  {command} " in shown.stdout
    assert took_sec < 0.6, "of the processor's time: imports at the top of the command"


def test_the_version_tells_what_a_report_of_a_bug_needs() -> None:
    shown = autotomy("--version")
    assert shown.returncode == 0
    assert re.fullmatch(r"autotomy \d+\.\d+\.\d+, temporalio \d+\.\d+\.\d+, Python 3\.\d+\.\d+\n", shown.stdout)


@pytest.mark.parametrize("command", ["api", "worker", "node-manager", "dp-supervisor", "coordinator", "drill"])
def test_help_of_a_single_process_is_its_own(command: str) -> None:
    shown = autotomy(command, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("usage:")


@pytest.mark.parametrize("command", ["demo", "up", "status", "down", "doctor", "plan", "explain"])
def test_every_command_explains_itself(command: str) -> None:
    shown = autotomy(command, "--help")
    assert shown.returncode == 0
    assert "--json" in shown.stdout


def test_a_single_process_gets_its_command_line_as_it_was_typed() -> None:
    shown = autotomy("dp-supervisor", "-dp", "2", "-dpl", "2", "--", "vllm", "serve", "MODEL", "--api-server-count", "2")
    assert shown.returncode == 2
    assert shown.stderr == "dp-supervisor: --api-server-count 2: one API server a rank, leave it out\n"


@pytest.mark.parametrize(
    ("typed", "handed_on"),
    [
        ("autotomy dp-supervisor -dp 2 -- vllm serve", "-dp 2 -- vllm serve"),
        ("autotomy dp-supervisor -- run -- dp-supervisor", "-- run -- dp-supervisor"),
        ("autotomy dp-supervisor", ""),
    ],
)
def test_what_is_handed_on_is_all_behind_the_commands_name(typed: str, handed_on: str) -> None:
    assert words_after("dp-supervisor", typed.split()) == handed_on.split()


def test_every_option_of_a_node_manager_is_explained() -> None:
    shown = autotomy("node-manager", "--help").stdout
    assert re.search(r"--controller-url URL\s+the Controller API", shown)


def test_the_list_of_commands_names_every_benchmark() -> None:
    assert "(rounds, idle, heartbeats)" in autotomy("--help").stdout


def test_status_without_a_stack_says_what_to_do(tmp_path: Path) -> None:
    shown = autotomy("status", "--run-dir", str(tmp_path / "none"))
    assert shown.returncode == 2
    assert "no stack runs in" in shown.stderr
    assert "autotomy up" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_question_that_nobody_answers_says_where_it_was_asked() -> None:
    shown = autotomy("explain", "7", "--controller-url", "http://127.0.0.1:9")
    assert shown.returncode == 2
    assert "http://127.0.0.1:9 does not answer" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_down_without_a_stack_is_no_error(tmp_path: Path) -> None:
    shown = autotomy("down", "--run-dir", str(tmp_path / "none"))
    assert shown.returncode == 0
    assert "nothing runs in" in shown.stdout


def test_the_run_directory_may_come_from_the_environment(tmp_path: Path) -> None:
    assert str(tmp_path) in autotomy("down", AUTOTOMY_RUN_DIR=str(tmp_path)).stdout


@pytest.mark.parametrize("command", [("status",), ("down",), ("up",), ("explain", "7")])
def test_a_file_as_run_directory_is_refused_by_name(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    shown = autotomy(*command, AUTOTOMY_RUN_DIR=str(file))
    assert (shown.returncode, shown.stderr) == (
        2,
        f"autotomy: run directory {file}: Not a directory; choose another with --run-dir\n",
    )


def test_doctor_names_a_file_as_run_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    shown = autotomy("doctor", "--json", "--run-dir", str(file))
    assert shown.returncode == 1
    assert f"run directory {file}: Not a directory" in shown.stdout


def test_a_misspelt_variable_is_refused_by_every_command(tmp_path: Path) -> None:
    shown = autotomy("down", AUTOTOMY_RUNDIR=str(tmp_path))
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == (
        "autotomy: environment variable AUTOTOMY_RUNDIR: there is no such setting (did you mean AUTOTOMY_RUN_DIR?)\n"
    )


def test_an_uneven_shape_is_refused(tmp_path: Path) -> None:
    shown = autotomy("up", "--dp-size", "5", "--run-dir", str(tmp_path))
    assert shown.returncode == 2
    assert "5 ranks cannot be spread evenly over 2 NodeManagers" in shown.stderr


def test_an_unknown_dialect_is_refused_by_name(tmp_path: Path) -> None:
    shown = autotomy("up", "--dialect", "klingon", "--run-dir", str(tmp_path))
    assert shown.returncode == 2
    assert "engine.dialect = 'klingon'" in shown.stderr


def test_a_misspelt_setting_is_refused_with_its_file(tmp_path: Path) -> None:
    config = tmp_path / "autotomy.yaml"
    config.write_text("fault_tolerance_config: {enable_dp_scaledown: true}\n")
    shown = autotomy("up", "--config", str(config), "--run-dir", str(tmp_path / "run"))
    assert shown.returncode == 2
    assert "enable_dp_scaledown" in shown.stderr
    assert str(config) in shown.stderr


def test_a_port_in_use_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with PortLease() as lease:
        port = lease.take()
        shown = autotomy("up", "--ui-port", str(port), "--run-dir", str(tmp_path))
    assert shown.returncode == 2
    assert f"port {port} for the Web UI is in use" in shown.stderr
    assert autotomy("down", "--run-dir", str(tmp_path)).stdout.startswith("nothing runs")


def test_doctor_reports_a_contradicting_configuration(tmp_path: Path) -> None:
    config = tmp_path / "autotomy.yaml"
    config.write_text("fault_tolerance_config: {heartbeat_timeout_sec: 0.5}\n")
    shown = autotomy("doctor", "--config", str(config), "--json", "--run-dir", str(tmp_path))
    assert shown.returncode == 1
    findings = {finding["check"]: finding for finding in json.loads(shown.stdout)["findings"]}
    assert findings["configuration"]["verdict"] == "bad"
    assert "heartbeat_timeout_sec" in findings["configuration"]["detail"]
    assert findings["temporal program"]["verdict"] == "ok"


def test_doctor_says_which_temporal_address_it_tried(tmp_path: Path) -> None:
    with PortLease() as lease:
        address = f"127.0.0.1:{lease.take()}"
        shown = autotomy("doctor", "--json", "--run-dir", str(tmp_path), TEMPORAL_ADDRESS=address)
    findings = {finding["check"]: finding for finding in json.loads(shown.stdout)["findings"]}
    assert findings["Temporal server"]["verdict"] == "note"
    assert address in findings["Temporal server"]["detail"]


@pytest.mark.parametrize("asked", [("explain", "7"), ("plan", "7", "--dead", "1"), ("instance", "list")])
def test_a_question_without_a_stack_says_that_none_runs(asked: tuple[str, ...], tmp_path: Path) -> None:
    with PortLease() as lease:
        config = tmp_path / "autotomy.yaml"
        config.write_text(f"controller_url: http://127.0.0.1:{lease.take()}\n")
        shown = autotomy(*asked, AUTOTOMY_CONFIG=str(config), AUTOTOMY_RUN_DIR=str(tmp_path / "none"))
    assert shown.returncode == 2
    assert shown.stderr.startswith(f"autotomy: no stack runs in {tmp_path / 'none'}; start one with `autotomy up`")
    assert "Errno" not in shown.stderr


def test_a_process_names_itself_as_it_was_called() -> None:
    assert autotomy("node-manager", "--help").stdout.startswith("usage: autotomy node-manager ")


@pytest.mark.parametrize(
    "command", ["hold", "release", "reconfigure", "republish", "list", "show", "declare", "declaration", "remove", "terminate"]
)
def test_commands_to_an_instance_have_json_for_programs(command: str) -> None:
    assert "--json" in autotomy("instance", command, "--help").stdout
