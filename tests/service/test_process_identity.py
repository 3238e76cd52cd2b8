"""A process is known by boot, pid and start time: no other one is ever taken for it. One module knows how."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from lab.stack.processes import stop_processes
from service.process_identity import (
    ProcessIdentity,
    command_line,
    cpu_sec,
    has_ended,
    identity_of,
    is_running,
    own_identity,
    pidfd_of,
    signal_process,
)

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "100"])
    yield process
    process.kill()
    process.wait()


def strangers(identity: ProcessIdentity) -> tuple[ProcessIdentity, ...]:
    """Whoever had its pid earlier, or has it after a reboot."""
    return replace(identity, start_ticks=identity.start_ticks - 1), replace(identity, boot="another-boot")


def test_an_identity_is_of_one_life_only(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert is_running(identity)
    for stranger in strangers(identity):
        assert not is_running(stranger)
        assert not signal_process(stranger, signal.SIGKILL)
        stop_processes([stranger], grace_sec=0.1)
        with pidfd_of(stranger) as pidfd:
            assert pidfd is None
    assert sleeper.poll() is None


def test_whoever_has_ended_takes_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    with pidfd_of(identity) as pidfd:
        assert pidfd is not None
        assert not has_ended(pidfd, within_sec=0.01)
        assert signal_process(identity, signal.SIGKILL)
        assert has_ended(pidfd, within_sec=5.0)
    assert not is_running(identity)
    assert identity_of(sleeper.pid) == identity  # a zombie: nobody has asked for its exit code yet
    sleeper.wait()
    assert not signal_process(identity, signal.SIGKILL)


def test_nobody_has_a_pid_that_was_given_back(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert identity_of(sleeper.pid) is None
    assert command_line(sleeper.pid) == ""
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(sleeper.pid)
    with pytest.raises(ProcessLookupError):
        cpu_sec(sleeper.pid)


def test_identity_is_its_text() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert own == own_identity()
    assert ProcessIdentity.parse(str(own)) == own
    with pytest.raises(ValueError, match="not enough values"):
        ProcessIdentity.parse("nonsense")


def test_the_kernels_stat_line_is_read_in_one_place() -> None:
    reads = re.compile(r"""/stat["']|["']stat["']""")
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]
    files = [file for room in (*rooms, "tests") for file in (ROOT / room).rglob("*.py") if file != Path(__file__)]
    readers = [file.relative_to(ROOT).as_posix() for file in files if reads.search(file.read_text(encoding="utf-8"))]
    assert readers == ["service/process_identity.py"]


def test_the_watcher_needs_nothing_but_the_standard_library() -> None:
    """It must start where nothing else can any more."""
    loaded = "import sys, lab.stack.watcher; print(*{name.partition('.')[0] for name in sys.modules})"
    told = subprocess.run([sys.executable, "-S", "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name in told.stdout.split() if name not in sys.stdlib_module_names} <= {"lab", "service", "__main__"}
