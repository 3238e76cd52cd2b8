"""`autotomy up` and `autotomy down`."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import ValidationError
from rich.console import Console
from rich.status import Status
from rich.table import Table

from cli.screen import print_json, remarks, results, run
from domain.errors import ConfigError
from lab.stack.client import Stack
from lab.stack.launch import resumable
from lab.stack.lost import DownReport, stop_lost
from lab.stack.processes import carriers, sweep
from lab.stack.record import EventKind, StackEvent, StackState
from lab.stack.run_dir import RunDir, default_run_dir
from lab.stack.spec import StackSpec
from service.process_identity import ProcessIdentity, own_identity

_WORDS: Final = {
    EventKind.STARTED: "started",
    EventKind.ANSWERS: "answers",
    EventKind.EXITED: "ended",
    EventKind.RESTARTED: "is back",
    EventKind.POD_RESTARTED: "restarted",
    EventKind.SIGNALLED: "was sent",
    EventKind.DECLARED: "declared:",
    EventKind.PUBLISHED: "published:",
    EventKind.REPLANNED: "planning again:",
    EventKind.HELD: "is held",
    EventKind.RELEASED: "released",
    EventKind.FAILED: "failed:",
}


@dataclass(frozen=True)
class StackWish:
    """The options of `up` (`StackSpec` has their meaning)."""

    dp_size: int
    node_managers: int
    workers: int
    coordinators: int
    dialect: str
    detection_sec: float
    config: Path | None
    web_ui_port: int | None
    temporal_port: int | None
    controller_port: int | None
    coordinator_port: int | None

    def spec(self) -> StackSpec:
        """Raises ConfigError, which names option and value."""
        ports = {
            "web_ui": self.web_ui_port,
            "temporal": self.temporal_port,
            "controller": self.controller_port,
            "coordinator": self.coordinator_port,
        }
        try:
            return StackSpec.shaped(
                self.dp_size,
                self.node_managers,
                workers=self.workers,
                coordinators=self.coordinators,
                engine={"dialect": self.dialect, "detection_sec": self.detection_sec},
                fault_tolerance_config=_overrides(self.config),
                ports=ports,
            )
        except ValidationError as error:
            raise ConfigError("; ".join(_explained(error))) from None


def _overrides(config: Path | None) -> object:
    if config is None:
        return {}
    from service.settings import load_settings, read_yaml_mapping

    load_settings(config)  # the whole file has to make sense, not only the part that is taken from it
    return read_yaml_mapping(config).get("fault_tolerance_config") or {}


def _explained(error: ValidationError) -> list[str]:
    lines = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        why = detail["msg"].removeprefix("Value error, ")
        lines.append(f"{where} = {detail['input']!r}: {why}" if where else why)
    return lines


def run_up(run_dir: Path | None, wish: StackWish, *, foreground: bool, as_json: bool) -> int:
    """Start, say where everything is, and either return or stay. Returns the exit code."""
    spec, directory = wish.spec(), run_dir or default_run_dir()
    return run(_stay(spec, directory, as_json) if foreground else _start(spec, directory, as_json))


async def _launch(spec: StackSpec, directory: Path, progress: "StartProgress", owner: ProcessIdentity | None = None) -> Stack:
    """What can be resumed here goes on; otherwise a new installation. Raises ConfigError where the options
    ask for another one than that."""
    earlier = resumable(RunDir(directory))
    if earlier is None:
        return await Stack.launch(spec, directory, owner=owner, on_event=progress)
    if earlier.spec != spec:
        raise ConfigError(
            f"the installation in {directory} can be resumed, and was started with other options; "
            f"give the same to go on with it, or end it first with `autotomy down{_option(directory)}`"
        )
    remarks().print(f"resuming the installation in {directory} (instance {spec.instance_id})")
    return await Stack.resume(earlier, directory, owner=owner, on_event=progress)


async def _start(spec: StackSpec, directory: Path, as_json: bool) -> int:
    console = remarks()
    try:
        with StartProgress(console) as progress:
            stack = await _launch(spec, directory, progress)
    except asyncio.CancelledError:
        console.print("interrupted; everything was stopped")
        raise
    show_stack(stack, as_json)
    if not as_json:
        results().print(f"\nIt runs until you say [bold]autotomy down{_option(directory)}[/bold].")
    return 0


async def _stay(spec: StackSpec, directory: Path, as_json: bool) -> int:
    console = remarks()
    try:
        with StartProgress(console) as progress:
            stack = await _launch(spec, directory, progress, owner=own_identity())
        try:
            show_stack(stack, as_json)
            console.print("\nCtrl-C stops everything.")
            await _follow(stack, console)
        finally:
            await stack.down()
    except asyncio.CancelledError:
        console.print("stopped; nothing is left running")
        return 0
    console.print("the stack was stopped from outside")
    return 0


async def _follow(stack: Stack, console: Console) -> None:
    """Say what happens until the stack has ended."""
    told = len(stack.events())
    while True:
        events = stack.events()
        for event in events[told:]:
            console.print(said(event))
            if event.event is EventKind.STOPPED:
                return
        told = len(events)
        await asyncio.sleep(0.2)


def run_down(run_dir: Path | None, *, keep: bool, as_json: bool) -> int:
    """Stop the stack of `run_dir`, also one that a crash left half dead or whose files are lost. Returns the exit code.

    `keep`: the next `up` resumes it. Raises StopFailed when something still runs.
    """
    directory = run_dir or default_run_dir()
    report = run(_down(directory, remarks(), keep=keep))
    if as_json:
        print_json(report.model_dump() if report is not None else {"orphans": [], "clean": True, "took_sec": 0.0})
    elif report is None:
        results().print(f"nothing runs in {directory}")
    else:
        what = f"; {len(report.orphans)} processes had been left behind and were stopped" if report.orphans else ""
        results().print(f"stopped in {report.took_sec:.1f} s{what}")
        for orphan in report.orphans:
            results().print(f"  {orphan}")
    return 0


async def _down(directory: Path, console: Console, *, keep: bool) -> DownReport | None:
    """By the record as far as there is one, then by what the kernel knows: only that tells whether all of it is gone."""
    files = RunDir(directory)
    by_record = await _down_by_record(files, console, keep=keep)
    beyond = await stop_lost(files)
    return beyond if by_record is None else by_record


async def _down_by_record(files: RunDir, console: Console, *, keep: bool) -> DownReport | None:
    directory = files.path
    try:
        record, locked = files.read_record(), files.is_locked()
        if record is not None and locked:
            order = files.read_order()
    except ConfigError:
        record = None
    if record is None:
        return None
    if locked:
        console.print(f"stopping the stack in {directory} …")
        return await Stack(files, order).down(keep=keep)
    if keep:
        files.kept_file.touch()
    elif record.was_not_told_to_end:
        files.write_record(record.model_copy(update={"state": StackState.STOPPED}))  # now it was
    if not carriers(record.run_id):
        return None
    console.print(f"the supervisor of the stack in {directory} is gone; stopping what is left of it …")
    began_at = time.monotonic()
    found = await asyncio.to_thread(sweep, record.run_id)
    return DownReport(orphans=tuple(map(str, found)), clean=False, took_sec=round(time.monotonic() - began_at, 3))


def _option(directory: Path) -> str:
    return "" if directory == default_run_dir() else f" --run-dir {directory}"


class StartProgress:
    """Shows a start as it goes on: a line that changes on a terminal, a line an event elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_at = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting …")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, event: StackEvent) -> None:
        if event.event not in _WORDS:
            return
        if self._status is not None:
            self._status.update(f"starting: {said(event)}")
        else:
            self._console.print(f"{time.monotonic() - self._began_at:5.1f} s  {said(event)}")


def said(event: StackEvent) -> str:
    """One event in words."""
    words = _WORDS.get(event.event, event.event.replace("_", " "))
    return " ".join(part for part in (event.name, words, event.detail) if part)


def show_stack(stack: Stack, as_json: bool) -> None:
    """Where everything is."""
    record = stack.record
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    addresses = stack.addresses
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("OpenAI requests", f"{addresses.coordinator_url}/v1", f"model {stack.spec.model_name}")
    table.add_row("Controller API", addresses.controller_url, f"{addresses.controller_url}/docs")
    table.add_row("Temporal Web UI", addresses.web_ui_url or "off", f"server {addresses.temporal_address}")
    for manager in addresses.node_managers:
        table.add_row(manager.name, manager.url, f"ranks {', '.join(map(str, manager.ranks))}")
    table.add_row("logs", str(stack.logs), f"instance {record.instance_id}")
    console = results()
    console.print(table)
    timers = ", ".join(f"{name}={value:g}" for name, value in record.non_default_timers.items())
    console.print(f"[dim]timers that differ from production defaults: {timers or 'none'}[/dim]")
