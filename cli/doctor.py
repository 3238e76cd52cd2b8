"""`autotomy doctor`: what is needed here, whether the configuration makes sense, and who answers.

A check ends `ok`, `note` (nothing wrong, good to know) or `bad`. Only `bad` makes the exit code 1. Where nobody has named a
Temporal server or a Controller API, and a stack lives in the run directory, its own are asked.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import httpx
from rich.markup import escape
from rich.table import Table
from temporalio.envconfig import ClientConnectConfig

from cli.controller import in_words
from cli.screen import print_json, results, run
from domain.config import config_warnings
from domain.errors import AutotomyError
from lab.stack.client import Stack
from lab.stack.errors import NoStack
from lab.stack.ports import ephemeral_start
from lab.stack.record import StackAddresses
from lab.stack.run_dir import default_run_dir
from service.settings import Settings, load_settings
from service.temporal import DEFAULT_ADDRESS, connect_within, connection_settings, temporal_binary

_CONNECT_SEC = 3.0


class Grade(StrEnum):
    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """What one check found, and, where it is not ok, what to do."""

    check: str
    verdict: Grade
    detail: str


def run_doctor(config: Path | None, run_dir: Path | None, *, as_json: bool) -> int:
    """Run all checks; exit code 1 when one is bad."""
    findings = list(_findings(config, run_dir or default_run_dir()))
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        colours = {Grade.OK: "green", Grade.NOTE: "yellow", Grade.BAD: "red"}
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for finding in findings:
            colour = colours[finding.verdict]
            table.add_row(f"[{colour}]{finding.verdict}[/{colour}]", finding.check, escape(finding.detail))
        results().print(table)
    return 1 if any(finding.verdict is Grade.BAD for finding in findings) else 0


def _findings(config: Path | None, run_dir: Path) -> Iterator[Finding]:
    yield _checked("Python", _python)
    yield _checked("kernel", _kernel)
    yield _checked("temporal program", _temporal_program)
    settings = None
    try:
        settings = load_settings(config)
    except AutotomyError as error:
        yield Finding("configuration", Grade.BAD, error.message)
    else:
        yield from _configuration(settings, config)
    local, stack = _stack(run_dir)
    yield _checked("Temporal server", lambda: _temporal_server(local), otherwise=Grade.NOTE)
    if settings is not None:
        yield _controller(controller_address(settings, local))
    yield stack


def _checked(name: str, check: Callable[[], str], *, otherwise: Grade = Grade.BAD) -> Finding:
    try:
        return Finding(name, Grade.OK, check())
    except (AutotomyError, OSError, subprocess.SubprocessError) as error:
        return Finding(name, otherwise, in_words(error))


def _python() -> str:
    return f"{sys.version.split()[0]} at {sys.executable}"


def _kernel() -> str:
    if not hasattr(os, "pidfd_open"):
        raise AutotomyError("no pidfd: process supervision needs Linux 5.3 or newer")
    os.close(os.pidfd_open(os.getpid()))
    return f"{os.uname().sysname} {os.uname().release}, pidfd works; stacks take ports below {ephemeral_start()}"


def _temporal_program() -> str:
    program = temporal_binary()
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True)
    return f"{said.stdout.strip()} at {program}"


def _configuration(settings: Settings, path: Path | None) -> Iterator[Finding]:
    file = path or os.environ.get("AUTOTOMY_CONFIG")
    scale_down = "on" if settings.fault_tolerance_config.enable_dp_scale_down else "off"
    yield Finding("configuration", Grade.OK, f"{file or 'no file, defaults'}; DP scale-down is {scale_down}")
    for warning in config_warnings(settings.fault_tolerance_config):
        yield Finding("configuration", Grade.NOTE, warning)


def temporal_address(local: StackAddresses | None) -> ClientConnectConfig:
    """What `TEMPORAL_*` says, else the local stack's, else the default. Raises ConfigError."""
    named = connection_settings()
    if local is None or "TEMPORAL_ADDRESS" in os.environ or named.get("target_host") != DEFAULT_ADDRESS:
        return named
    return ClientConnectConfig(target_host=local.temporal_address, namespace=local.temporal_namespace)


def controller_address(settings: Settings, local: StackAddresses | None) -> str:
    """What the configuration says, else the local stack's, else the default."""
    named = settings.controller_url.rstrip("/")
    unnamed = "AUTOTOMY_CONTROLLER_URL" not in os.environ and named == Settings.model_fields["controller_url"].default
    return local.controller_url if local is not None and unnamed else named


def _temporal_server(local: StackAddresses | None) -> str:
    where = temporal_address(local)
    run(connect_within(_CONNECT_SEC, where))
    return f"answers at {where.get('target_host')}, namespace {where.get('namespace')}"


def _controller(url: str) -> Finding:
    try:
        reply = httpx.get(f"{url}/readiness", timeout=_CONNECT_SEC, trust_env=False)
    except httpx.HTTPError as error:
        return Finding("Controller API", Grade.NOTE, f"nobody answers at {url} ({in_words(error)})")
    if reply.status_code != 200:
        return Finding("Controller API", Grade.NOTE, f"{url} is not ready: {reply.text[:200]}")
    return Finding("Controller API", Grade.OK, f"ready at {url}")


def _stack(run_dir: Path) -> tuple[StackAddresses | None, Finding]:
    """Where the parts of a living one listen, and what there is to say of it."""
    try:
        record = Stack.attach(run_dir).record
    except NoStack as error:
        return None, Finding("local stack", Grade.NOTE, error.message)
    except AutotomyError as error:
        return None, Finding("local stack", Grade.BAD, error.message)
    return record.addresses, Finding("local stack", Grade.OK, f"{record.state} in {run_dir}")
