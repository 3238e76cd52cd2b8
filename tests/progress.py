"""A line of progress for whoever waits for a long run: how long it has run, how far it is, and what runs now.

    pytest --progress            or any make target of this repository that runs tests

      1:20   804 of 1702 tests, now: lab/drills soft-rank, lab/drills chain-02, workflows fault_manager

On a terminal the line is written over; in a log there is one every ten seconds. A test that fails is named at once, in a
line that stays; what it says comes at the end, as always. It works in one process and in several (`pytest -n`).
"""

import re
import shutil
import time
from typing import Any, Final

import pytest

_EVERY_SEC: Final = 0.2
_EVERY_SEC_IN_A_LOG: Final = 10.0


class Progress:
    """What is told of a run while it runs."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._width = shutil.get_terminal_size().columns
        self._pause_sec = _EVERY_SEC if terminal.isatty else _EVERY_SEC_IN_A_LOG
        self._began_at = self._told_at = time.monotonic()
        self._running: dict[str, float] = {}
        self._total = self._ended = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()
        self._tell()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._erase()
            self._terminal.write_line(
                f"{self._clock()}  FAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)", red=True
            )
        if report.when == "teardown":
            self._running.pop(report.nodeid, None)
            self._ended += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """No dot for a test that passed, no letter for one that did not: lines tell of both."""
        if not isinstance(report, pytest.TestReport) or report.skipped or hasattr(report, "wasxfail"):
            return None
        if report.passed:
            return ("passed", "", "PASSED") if report.when == "call" else ("", "", "")
        return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._erase()

    def _tell(self) -> None:
        if time.monotonic() - self._told_at < self._pause_sec:
            return
        self._told_at = time.monotonic()
        longest_first = dict.fromkeys(in_words(nodeid) for nodeid, _ in sorted(self._running.items(), key=lambda item: item[1]))
        line = f"{self._clock()}  {self._ended:4} of {self._total} tests, now: {', '.join(longest_first)}"
        if self._terminal.isatty:
            self._erase()
            self._terminal.write(line[: self._width - 1], flush=True)
        else:
            self._terminal.write_line(line)

    def _erase(self) -> None:
        if self._terminal.isatty:
            self._terminal.write("\r\x1b[K")

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began_at), 60)
        return f"{minutes:3}:{seconds:02}"


def in_words(nodeid: str) -> str:
    """The part of the suite, and the case or the file: `lab/drills soft-rank`, `workflows fault_manager`."""
    file, _, function = nodeid.removeprefix("tests/").partition("::")
    part, _, module = file.rpartition("/")
    case = re.search(r"^test_\w*(?:drill|cells|cell)\w*\[(.+)\]$", function)
    return f"{part} {case[1] if case else module.removeprefix('test_').removesuffix('.py')}"
