"""`autotomy demo`: the drill `soft-rank` with a live view, and what came of it as tables.

The scenario, its measurements and its judgement are the drill's (`lab.drills`); here is only how it is shown. With `--keep`
the installation stays up until Ctrl-C, so that the round can be looked at in Temporal's Web UI.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from cli.demo_view import view_for
from cli.screen import remarks, results, run
from lab.drills.outcome import STAGE_MEANINGS, STAGES, DrillReport
from lab.drills.registry import find
from lab.drills.run import DrillOptions, run_drill
from lab.stack.client import Stack
from lab.stack.record import StackAddresses

_DRILL: Final = "soft-rank"
_ROUND_PREFIX: Final = "scale-down-"


def run_demo(out: Path | None, *, keep: bool, as_json: bool) -> int:
    """Run it and show it; exit codes as a drill's: 0 as it should be, 1 not so, 2 could not run."""
    try:
        return run(_Demo(out, keep=keep, as_json=as_json).play())
    except KeyboardInterrupt:
        remarks().print("interrupted; everything was stopped")
        return 130


class _Demo:
    """One showing."""

    def __init__(self, out: Path | None, *, keep: bool, as_json: bool) -> None:
        self._out = out
        self._keep = keep
        self._as_json = as_json
        self._console = remarks()
        self._addresses: StackAddresses | None = None

    async def play(self) -> int:
        drill = find(_DRILL)
        self._view = view_for(self._console, drill.spec.ranks)
        with self._view:
            options = DrillOptions(out=self._out, on_event=self._view, before_down=self._before_down)
            report = await run_drill(drill, options)
        if self._as_json:
            print(report.last_line(), flush=True)
        else:
            show_report(results(), report, self._addresses, kept=self._keep)
        return report.exit_code

    async def _before_down(self, stack: Stack) -> None:
        self._addresses = stack.addresses
        if self._keep:
            await self._until_told(stack)

    async def _until_told(self, stack: Stack) -> None:
        """Ctrl-C here means "go on", not "give up": the tables come afterwards."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, told.set)
        self._console.print(f"\nkept: {_rounds_page(stack.addresses)}\nCtrl-C stops everything and shows the figures.")
        try:
            await told.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def _rounds_page(addresses: StackAddresses) -> str:
    """The Web UI's list of rounds."""
    return f'{addresses.web_ui_url}/namespaces/{addresses.temporal_namespace}/workflows?query=WorkflowType%3D"ScaleDownRound"'


def show_report(console: Console, report: DrillReport, addresses: StackAddresses | None, *, kept: bool) -> None:
    """What came of it: stages, requests, who serves, commands, checks, and where to read on."""
    console.print()
    console.print(_stages(report))
    console.print(_requests(report))
    console.print(_facts(report))
    console.print(f"\nround in the Web UI  {_round_link(report, addresses)}", soft_wrap=True)
    console.print(f"evidence             {report.bundle}", soft_wrap=True)
    failed = [check for check in report.checks if not check.ok]
    for check in failed:
        console.print(f"[red]not ok[/red]: {check.name}: {check.detail}")
    if report.failure is not None:
        console.print(f"[red]not as expected[/red]: {report.failure}")
    verdict = f"{len(report.checks) - len(failed)} of {len(report.checks)} checks ok"
    colour, word = ("green", "PASSED") if report.passed else ("red", "FAILED")
    console.print(f"\n[bold {colour}]{word}[/bold {colour}]  {verdict}, {report.took_sec:.0f} s, nothing left running")
    if not kept:
        console.print("[dim]the Web UI is stopped by now; `.venv/bin/autotomy demo --keep` leaves it up for the link above[/dim]")


def _stages(report: DrillReport) -> Table:
    table = Table(title="where the time went", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("stage")
    table.add_column("ms", justify="right")
    table.add_column("what it is", style="dim")
    for stage in STAGES:
        if stage in report.figures.stage_sec:
            table.add_row(stage, f"{report.figures.stage_sec[stage] * 1000:.0f}", STAGE_MEANINGS[stage])
    return table


def _requests(report: DrillReport) -> Table:
    table = Table(title="requests", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("", "ok", "failed"):
        table.add_column(heading, justify="left" if not heading else "right")
    counted = report.figures.requests
    for name, count in (("before", counted.before), ("during", counted.during), ("after", counted.after)):
        table.add_row(name, str(count.ok), str(count.failed))
    return table


def _facts(report: DrillReport) -> Table:
    figures = report.figures
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("serving", _ranks(figures.published_ranks))
    table.add_row("removed", _ranks(figures.dead_committed))
    commands = ", ".join(f"engine {rank}: {count}" for rank, count in figures.applies_per_engine.items())
    table.add_row("applies per engine", commands or "none")
    if figures.control_plane_sec is not None:
        table.add_row(
            "our share", f"{figures.control_plane_sec:.3f} s: last evidence to survivors' view, without the engines' work"
        )
    timers = ", ".join(f"{name}={value:g}" for name, value in figures.non_default_timers.items())
    table.add_row("shortened timers", timers or "none")
    return table


def _round_link(report: DrillReport, addresses: StackAddresses | None) -> str:
    rounds = [name.split(".")[0] for name in report.workflows if name.startswith(_ROUND_PREFIX)]
    link = addresses.workflow_url(rounds[-1]) if rounds and addresses is not None else None
    return link or "no round ran"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks) or "nobody"
