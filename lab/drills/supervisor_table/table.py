"""The whole drill: every column some times, judged together, one bundle."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from domain.model import Strict
from lab.drills.record.bundle import default_bundle, prepare
from lab.drills.record.timeline import Timeline
from lab.drills.supervisor_table.experiment import COLUMNS, PUBLISHED, Clock, Column
from lab.drills.supervisor_table.judge import judge
from lab.drills.supervisor_table.report import NAME, SUMMARY, ColumnFigures, TableFigures, TableReport, table_text, write_bundle
from lab.drills.supervisor_table.run import Raw, RunReport, run_column

DEFAULT_RUNS: Final = 2


class TableOptions(Strict):
    """How the drill is run. `at_once`: runs side by side; more than one is for many cores, or a look at one pair."""

    clock: Clock = Clock()
    runs: int = DEFAULT_RUNS
    columns: tuple[Column, ...] = COLUMNS
    at_once: int = 1
    out: Path | None = None


async def run_table(options: TableOptions, say: Callable[[str], None]) -> TableReport:
    """Run it and write its bundle. Raises ConfigError only, for an unusable `out`."""
    began_at = time.monotonic()
    directory = prepare(options.out or default_bundle(NAME))
    clock = options.clock
    say(f"drill {NAME}: {SUMMARY}")
    timers = ", ".join(f"{name}={value:g}" for name, value in clock.non_default_timers().items())
    say(f"times are divided by {clock.factor:g}; that differs from production: {timers or 'nothing'}")
    plan = [(column, number) for number in range(1, options.runs + 1) for column in options.columns]
    each_sec = clock.of(clock.kill_at + clock.observe_until)
    say(f"{len(plan)} runs of {each_sec:.0f} s and some seconds to start and stop, {options.at_once} at a time")
    slots = asyncio.Semaphore(options.at_once)

    async def one(column: Column, number: int) -> tuple[RunReport, Raw, Timeline]:
        async with slots:
            logs = directory / "logs" / f"{column.name}-{number}"
            await asyncio.to_thread(logs.mkdir)
            done = await run_column(column, number, clock, logs)
            say(f"  {time.monotonic() - began_at:6.1f} s  {_told(column, done[0])}")
            return done

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(column, number)) for column, number in plan]
    done = [task.result() for task in tasks]
    report = _report(options, [run for run, _, _ in done], str(directory), round(time.monotonic() - began_at, 1))
    await asyncio.to_thread(write_bundle, directory, report, clock, done)
    for check in report.checks:
        say(f"  {'ok    ' if check.ok else 'NOT OK'}  {check.name} ({check.observations}): {check.detail}")
    say(table_text(report.figures))
    verdict = "PASSED" if report.passed else "FAILED" if report.could_run else "COULD NOT RUN"
    say(f"drill {NAME}: {verdict} in {report.took_sec:.1f} s; evidence: {report.bundle}")
    return report


def _report(options: TableOptions, runs: Sequence[RunReport], bundle: str, took_sec: float) -> TableReport:
    checks = judge(options.columns, runs)
    columns = {
        column.name: ColumnFigures(published=PUBLISHED[column.name], runs=tuple(run for run in runs if run.column == column.name))
        for column in options.columns
    }
    return TableReport(
        passed=all(check.ok for check in checks),
        could_run=any(run.failure is None for run in runs),
        checks=checks,
        figures=TableFigures(
            factor=options.clock.factor,
            columns=columns,
            orphans=sum(len(run.left_behind) for run in runs),
            non_default_timers=options.clock.non_default_timers(),
        ),
        took_sec=took_sec,
        bundle=bundle,
    )


def _told(column: Column, run: RunReport) -> str:
    if run.failure is not None:
        return f"{column}, run {run.number}: {run.failure}"
    failed, asked = run.requests.failed, run.requests.failed + run.requests.ok
    not_ready = "never" if run.not_ready_at is None else f"at +{run.not_ready_at:.0f} s"
    return f"{column}, run {run.number}: {run.state_at_125}; NotReady {not_ready}; {failed} of {asked} requests failed"
