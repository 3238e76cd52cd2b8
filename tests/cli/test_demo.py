"""The demo: what it shows while it runs, and that it is over in a minute without a trace."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from cli.demo import show_report
from cli.demo_view import LiveView, PlainView
from lab.drills.outcome import DrillReport, Finding
from lab.drills.record.events import DrillEvent, DrillEventKind, in_words
from lab.stack.record import StackAddresses

AUTOTOMY = Path(sys.executable).parent / "autotomy"
STORY = (
    DrillEvent(kind=DrillEventKind.READY, mono=0, text="http://127.0.0.1:1"),
    DrillEvent(kind=DrillEventKind.VIEW, mono=0, ranks=(0, 1, 2, 3)),
    DrillEvent(kind=DrillEventKind.REQUESTS, mono=1, ok=9),
    DrillEvent(kind=DrillEventKind.INJECTED, mono=2, t=0, text="SIGKILL of the worker process of rank 1", ranks=(1,)),
    DrillEvent(kind=DrillEventKind.RANK, mono=2, t=0.1, text="dead", ranks=(1,)),
    DrillEvent(kind=DrillEventKind.PHASE, mono=4, t=2.1, text="SCALING_DOWN"),
    DrillEvent(kind=DrillEventKind.VIEW, mono=4, t=2.2),
    DrillEvent(kind=DrillEventKind.REQUESTS, mono=5, t=3, ok=1, failed=8),
    DrillEvent(kind=DrillEventKind.VIEW, mono=6, t=4, ranks=(0, 2, 3)),
)


def test_every_kind_of_event_has_words() -> None:
    for kind in DrillEventKind:
        assert in_words(DrillEvent(kind=kind, mono=0, text="something", ranks=(1,), ok=1))


def test_without_a_terminal_each_event_is_a_line() -> None:
    screen = io.StringIO()
    with PlainView(Console(file=screen, width=120)) as view:
        for event in STORY:
            view(event)
    lines = [line.split(" s  ", 1)[1] for line in screen.getvalue().splitlines()]
    assert lines == [
        "the instance serves; Web UI http://127.0.0.1:1",
        "serving: ranks 0, 1, 2, 3",
        "requests: 9 ok, 0 failed in 1 s",
        "INJECTED: SIGKILL of the worker process of rank 1",
        "rank 1 is dead",
        "phase SCALING_DOWN",
        "serving: nobody, the view is withdrawn",
        "requests: 1 ok, 8 failed in 1 s",
        "serving: ranks 0, 2, 3",
    ]


def test_on_a_terminal_the_picture_shows_ranks_phase_and_requests() -> None:
    screen = io.StringIO()
    with LiveView(Console(file=screen, width=120, height=40, force_terminal=True), (0, 1, 2, 3)) as view:
        for event in STORY:
            view(event)
    shown = screen.getvalue()
    for expected in ("rank 3", "dead", "SCALING_DOWN", "http://127.0.0.1:1", "10 in all", "8 in all", "no requests"):
        assert expected in shown


def test_the_demo_is_over_in_a_minute_and_leaves_nothing(tmp_path: Path) -> None:
    began_at = time.monotonic()
    shown = subprocess.run(
        [AUTOTOMY, "demo", "--json", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert time.monotonic() - began_at < 60
    assert "INJECTED: SIGKILL of the worker process of rank 1" in shown.stderr
    assert "phase SCALED_DOWN_RUNNING" in shown.stderr
    document = json.loads(shown.stdout)
    assert document["passed"] is True
    assert document["figures"]["orphans"] == 0
    assert document["figures"]["requests"]["after"]["failed"] == 0
    report = DrillReport.model_validate_json((tmp_path / "out" / "report.json").read_text())
    tables = shown_at_the_end(report)
    for expected in ("where the time went", "rank 0, rank 2, rank 3", "/workflows/scale-down-7-", "PASSED", "demo --keep"):
        assert expected in tables


def shown_at_the_end(report: DrillReport) -> str:
    addresses = StackAddresses(
        temporal_address="127.0.0.1:1",
        web_ui_url="http://127.0.0.1:2",
        controller_url="http://127.0.0.1:3",
        coordinators=(),
        node_managers=(),
        engines=(),
    )
    screen = io.StringIO()
    show_report(Console(file=screen, width=160), report, addresses, kept=False)
    return screen.getvalue()


def test_a_failed_demo_says_what_was_not_ok() -> None:
    report = DrillReport(
        drill="soft-rank",
        summary="",
        passed=False,
        failure="not seen within 60 s: something",
        checks=(Finding(name="published ranks", ok=False, observations=1, detail="[0, 1] at 1 Coordinators"),),
    )
    tables = shown_at_the_end(report)
    for expected in ("FAILED", "published ranks", "[0, 1] at 1 Coordinators", "not seen within 60 s", "no round ran", "nobody"):
        assert expected in tables
