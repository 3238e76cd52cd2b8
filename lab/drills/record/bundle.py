"""The evidence bundle: a directory that tells the whole story of one run, without the installation (contracts §8)."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Final

from domain.errors import ConfigError
from domain.model import Strict
from lab.drills.record.engine_log import EngineLine
from lab.drills.record.evidence import Evidence
from lab.drills.record.traffic import RequestRecord
from lab.drills.record.view_log import ViewLine
from lab.stack.run_dir import RunDir, default_run_dir

_PARTS: Final = frozenset(
    {
        "report.json",
        "report.md",
        "timeline.svg",
        "timeline.jsonl",
        "applies.jsonl",
        "views.jsonl",
        "requests.jsonl",
        "histories",
        "logs",
    }
)
_DIGITS: Final = 4


class ApplyLine(Strict):
    """One line of `applies.jsonl`: what reached an engine; `t` in seconds since the injection."""

    t: float
    engine: int
    instruction: str | None
    request_id: str | None
    removed_dp_ranks: tuple[int, ...]
    dp_master_ip: str | None
    dp_store_port: int | None
    http: int | None


class ViewChangeLine(Strict):
    """One line of `views.jsonl`."""

    t: float
    coordinator: str
    event: str
    revision: int | None
    ranks: tuple[int, ...] | None
    outcome: str


class RequestLine(Strict):
    """One line of `requests.jsonl`; `t` and `ended` in seconds since the injection."""

    t: float
    ended: float
    number: int
    kind: str
    streamed: bool
    ok: bool
    why: str | None
    http: int | None
    rank: int | None
    answered_by: int | None
    finish_reason: str | None
    detail: str


def default_bundle(drill: str) -> Path:
    """Where a bundle goes that nobody asked to be elsewhere: a new directory of its own, by drill and time.

    It is made here, so that two runs which begin in the same second cannot share it. Raises ConfigError.
    """
    name = f"{drill}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    parent = default_run_dir("drills")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            candidate = parent / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                candidate.mkdir()
                return candidate
    except OSError as error:
        raise ConfigError(f"no evidence can be kept in {parent}: {error.strerror}; choose a directory with --out") from None
    raise AssertionError("count() ended")


def prepare(directory: Path) -> Path:
    """An empty bundle directory; an earlier bundle in it is replaced. Raises ConfigError where it holds something else."""
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in directory.iterdir() if path.name not in _PARTS)
        if foreign:
            raise ConfigError(f"--out {directory} holds other files ({', '.join(foreign[:3])}); choose an empty directory")
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for part in ("histories", "logs"):
            (directory / part).mkdir()
    except OSError as error:
        raise ConfigError(f"--out {directory} cannot be used: {error.strerror}") from None
    return directory


def write_evidence(directory: Path, evidence: Evidence, zero: float) -> None:
    """The JSON-lines files that come from logs; `zero` is the injection's `time.monotonic()`."""
    _write(directory / "applies.jsonl", (_apply_line(line, zero) for line in evidence.applies))
    entries = ((name, line) for name, lines in evidence.view_lines.items() for line in lines)
    ordered = sorted(entries, key=lambda entry: entry[1].mono)
    _write(directory / "views.jsonl", (_view_entry(name, line, zero) for name, line in ordered))
    requests = sorted(evidence.requests, key=lambda record: record.started_at)
    _write(directory / "requests.jsonl", (_request_line(record, zero) for record in requests))


def copy_logs(source: RunDir, directory: Path) -> None:
    """The log of every process, the engines' own ones included, and the supervisor's account of all processes."""
    if source.logs.exists():
        shutil.copytree(source.logs, directory / "logs", dirs_exist_ok=True)
    if source.events_file.exists():
        shutil.copy(source.events_file, directory / "logs")


def _write(path: Path, lines: Iterable[Strict]) -> None:
    path.write_text("".join(line.model_dump_json() + "\n" for line in lines), encoding="utf-8")


def _apply_line(line: EngineLine, zero: float) -> ApplyLine:
    params = json.loads(json.dumps(line.params or {}))
    ip, port = params.get("dp_master_ip"), params.get("dp_store_port")
    return ApplyLine(
        t=round(line.mono - zero, _DIGITS),
        engine=line.rank,
        instruction=line.instruction,
        request_id=line.request_id,
        removed_dp_ranks=line.told_removed,
        dp_master_ip=ip if isinstance(ip, str) else None,
        dp_store_port=port if isinstance(port, int) else None,
        http=line.http,
    )


def _view_entry(name: str, line: ViewLine, zero: float) -> ViewChangeLine:
    return ViewChangeLine(
        t=round(line.mono - zero, _DIGITS),
        coordinator=name,
        event=line.event,
        revision=line.revision,
        ranks=line.ranks,
        outcome=line.outcome,
    )


def _request_line(record: RequestRecord, zero: float) -> RequestLine:
    return RequestLine(
        t=round(record.started_at - zero, _DIGITS),
        ended=round(record.ended_at - zero, _DIGITS),
        **record.model_dump(exclude={"started_at", "ended_at"}),
    )
