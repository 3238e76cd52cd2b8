"""The published experiment: its judgement with planted faults, and the real thing with time divided."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.drills.__main__ import main
from lab.drills.outcome import Finding, RequestCount
from lab.drills.record.view_log import ViewLine
from lab.drills.supervisor_table.experiment import COLUMNS, PUBLISHED, Clock, SupervisorRules
from lab.drills.supervisor_table.invariants import JUDGED, invariant_checks, observed
from lab.drills.supervisor_table.judge import judge
from lab.drills.supervisor_table.report import ColumnFigures, TableFigures, TableReport, table_text
from lab.drills.supervisor_table.run import RunReport
from lab.drills.supervisor_table.table import TableOptions, run_table
from tests.lab.drills.recorded import apply_line, request, requests, survivor, victim, view_lines, with_line

SHRUNK = {"0": 1, "2": 1, "3": 1}
BUNDLE = {"report.json", "report.md", "timeline.svg", "timeline.jsonl", "applies.jsonl", "views.jsonl", "requests.jsonl"}


def story(*, told: bool, **changes: Any) -> tuple[Finding, ...]:
    """The invariants over a recorded run: rank 1 died at 100, the others were told at 103, the view was theirs at 104.5."""
    lives = {rank: victim() if rank == 1 else survivor(rank) for rank in range(4)}
    if not told:
        lives = {rank: life.model_copy(update={"lines": life.lines[:4]}) for rank, life in lives.items()}
    recorded = {"lives": lives, "views": views(), "requests": requests(), "removed_at": 104.5 if told else None}
    return invariant_checks(observed(7, 10000, ended_at=110.0, **{**recorded, **changes}))


def views(*more: ViewLine) -> list[ViewLine]:
    """As told without revisions."""
    return [line.model_copy(update={"revision": None, "event": "set"}) for line in (*view_lines()[1:], *more)]


def a_run(column: str, **changes: Any) -> RunReport:
    """One that is as published; `changes` plant a fault."""
    told = not column.endswith("no-scale-down")
    fine = {
        "column": column,
        "number": 1,
        "detected_at": 30.0,
        "victim_exited_at": 121.0,
        "not_ready_at": 122.0 if column.startswith("stock") else 34.0,
        "recovered_at": 36.0 if told else None,
        "applies_per_engine": SHRUNK if told else {},
        "requests_after_120": RequestCount(ok=100),
        "requests_after_recovery": RequestCount(ok=200),
        "invariants": story(told=told),
    }
    if column.startswith("stock"):
        fine |= {"state_at_125": "killed", "stop_reason": "SERVER_EXITED", "exit_code": 1, "stopped_at": 122.0}
    elif told:
        fine |= {"state_at_125": "serving on 3 ranks", "serving_ranks_at_125": (0, 2, 3)}
    return RunReport.model_validate({**fine, **changes})


def red(runs: list[RunReport]) -> list[str]:
    return [check.name for check in judge(COLUMNS, runs) if not check.ok]


def test_runs_as_published_pass() -> None:
    assert red([a_run(column.name) for column in COLUMNS]) == []


@pytest.mark.parametrize(
    ("column", "changes", "name"),
    [
        ("stock-scale-down", {"state_at_125": "serving on 3 ranks"}, "killed when the victim's server exits"),
        ("stock-scale-down", {"recovered_at": None}, "killed when the victim's server exits"),
        ("ours-scale-down", {"serving_ranks_at_125": (0, 2)}, "serves on 3 ranks at +125 s"),
        ("ours-scale-down", {"stop_reason": "NO_RANK_SERVES"}, "serves on 3 ranks at +125 s"),
        ("ours-scale-down", {"requests_after_recovery": RequestCount(ok=9, failed=1)}, "no request fails after the recovery"),
        ("ours-scale-down", {"requests_after_120": RequestCount(ok=9, failed=1)}, "no request fails after +120 s"),
        ("ours-scale-down", {"requests_after_120": RequestCount()}, "no request fails after +120 s"),
        ("ours-scale-down", {"applies_per_engine": {**SHRUNK, "0": 2}}, "commands"),
        ("ours-no-scale-down", {"not_ready_at": 122.0}, "NotReady once the group has halted"),
        ("ours-no-scale-down", {"not_ready_at": None}, "NotReady once the group has halted"),
        ("ours-no-scale-down", {"stopped_at": 50.0}, "NotReady once the group has halted"),
        ("stock-no-scale-down", {"not_ready_at": 34.0}, "NotReady only when the victim's server exits"),
        ("ours-no-scale-down", {"left_behind": ("rank 3",)}, "nothing left behind"),
    ],
)
def test_planted_fault_turns_its_check_red(column: str, changes: dict[str, Any], name: str) -> None:
    runs = [a_run(other.name, **(changes if other.name == column else {})) for other in COLUMNS]
    assert red(runs)
    assert all(found.endswith(name) for found in red(runs)), red(runs)


NOTHING_TO_SEE: dict[str, Any] = {"lives": {}, "views": [], "requests": []}


@pytest.mark.parametrize(
    ("invariant", "changes"),
    [
        ("I1", {"lives": {2: with_line(survivor(2), apply_line(2, 103.5))}}),
        ("I2", {"lives": {1: victim().model_copy(update={"lines": victim().lines[:2]})}}),
        ("I7", {"lives": {1: victim().model_copy(update={"lines": victim().lines[:2]})}}),
        ("I3", {"requests": [request(1, 105.0, 0).model_copy(update={"answered_by": 2})]}),
        ("I5", {"views": views(view_lines()[1].model_copy(update={"mono": 106.0}))}),
        ("I13", {"lives": {2: with_line(survivor(2), apply_line(2, params={"removed_dp_ranks": [2]}))}}),
        ("I14", {"lives": {2: survivor(2).model_copy(update={"lines": survivor(2).lines[3:]})}}),
        *((invariant, NOTHING_TO_SEE) for invariant in JUDGED),
    ],
)
def test_planted_violation_turns_its_invariant_red_in_the_table(invariant: str, changes: dict[str, Any]) -> None:
    lives = {rank: victim() if rank == 1 else survivor(rank) for rank in range(4)}
    planted = changes if "lives" not in changes or not changes["lives"] else {**changes, "lives": lives | changes["lives"]}
    checks = story(told=True, **planted)
    assert not next(check for check in checks if check.name.startswith(f"{invariant} ")).ok
    runs = [a_run(column.name, **({"invariants": checks} if column == COLUMNS[1] else {})) for column in COLUMNS]
    assert {name.split()[0] for name in red(runs)} >= {invariant}


def test_column_without_a_run_that_came_to_its_end_is_red() -> None:
    runs = [a_run(column.name) for column in COLUMNS[1:]]
    runs.append(a_run(COLUMNS[0].name, failure="not ready in time"))
    assert "runs came to their end" in red(runs)
    assert any(name.endswith("killed when the victim's server exits") for name in red(runs))


def test_table_stands_beside_the_published_figures() -> None:
    columns = {c.name: ColumnFigures(published=PUBLISHED[c.name], runs=(a_run(c.name),)) for c in COLUMNS}
    text = table_text(TableFigures(factor=10, columns=columns, orphans=0, non_default_timers={}))
    rows = {cells[0]: cells[1:] for cells in (_cells(line) for line in text.splitlines())}
    assert rows["scale_down at +32 s: pool A at +125 s"] == [
        "killed (found 1 exited DP Servers), 2/2 runs",
        "killed (SERVER_EXITED)",
        "serving on 3 ranks, 3/3 runs",
        "serving on 3 ranks",
    ]
    assert rows["no scale_down: Pod NotReady at"] == ["+132s", "+122 s", "+34s, +38s, +35s", "+34 s"]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_divided_times_are_named_and_multiplied_back(factor: float) -> None:
    clock = Clock(factor=factor)
    assert clock.published(clock.of(125)) == 125
    assert bool(clock.non_default_timers()) == (factor != 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("supervisor-table --factor 0.5", "'0.5' is not a number within 1..60"),
        ("supervisor-table --times 2", "supervisor-table has --runs for --times"),
        ("supervisor-table --full --factor 2", "--full or --factor, not both"),
        ("soft-rank --full", "--factor, --runs and --full belong to supervisor-table"),
        ("soft-rank --kill worker", "--kill: belongs to `autotomy drill restart`"),
        ("all --only soft --side-by-side 2", "--side-by-side, --only: belongs to `autotomy drill restart`"),
        ("--all", "--all: belongs to `autotomy drill restart`; `autotomy drill all` runs every drill"),
        ("--list --kill worker", "--kill: means nothing beside --list"),
        ("restart", "which cell? --kill or --stop with --at, --cell, or --all"),
        ("restart --at recovering", "which cell?"),
        ("restart --kill worker", "--kill needs --at, the place in the round"),
        ("restart --kill worker --stop api --at recovering", "--kill, --stop: only one of them"),
        ("restart --cell lease-taken --at recovering", "--at: --cell lease-taken has a place of its own"),
        ("restart --kill worker --at recovering --resume", "--resume: only with --all"),
        ("restart --all --at recovering --times 2", "--at, --times: not with --all, which runs every cell once"),
        ("restart --all --kill worker", "--kill, --all: only one of them"),
        ("restart --all --resume", "--resume needs --out, the directory of the run to go on with"),
        ("soft-rank --times 0", "'0' is not a whole number above 0"),
    ],
)
def test_command_line_refuses_what_would_be_ignored(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


async def run(options: TableOptions) -> TableReport:
    said: list[str] = []
    tell: Callable[[str], None] = said.append
    report = await run_table(options, tell)
    assert report.passed, "\n".join([*said, *map(complaint, report.checks)])
    return report


def complaint(check: Finding) -> str:
    return "" if check.ok else f"{check.name}: {check.detail}"


@pytest.mark.verify
async def test_stock_rules_kill_the_recovered_pool_and_ours_keep_it(tmp_path: Path) -> None:
    pair = tuple(column for column in COLUMNS if column.scale_down)
    clock = Clock(factor=15, observe_until=126)
    report = await run(TableOptions(clock=clock, runs=1, columns=pair, at_once=2, out=tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == BUNDLE | {"logs", "histories"}
    states = {name: own.runs[0].state_at_125 for name, own in report.figures.columns.items()}
    assert states == {"stock-scale-down": "killed", "ours-scale-down": "serving on 3 ranks"}
    assert report.figures.columns["ours-scale-down"].runs[0].exit_code == 0
    assert {column.rules for column in pair} == set(SupervisorRules)


@pytest.mark.soak
async def test_the_whole_table(tmp_path: Path) -> None:
    await run(TableOptions(out=tmp_path / "out"))
