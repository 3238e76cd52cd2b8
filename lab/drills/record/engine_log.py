"""The engines' own logs: which commands reached them, when they noticed, recovered, and ended.

An engine writes `engine-<rank>-<pid>.jsonl`, a file a life, one JSON object a line, before the effect can be seen by
anybody (the simulated one's format; `mono` is `time.monotonic()`, the machine's one clock). This is the only place where
"one apply per engine" can be judged: whatever the NodeManager believes it sent, this is what arrived.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from domain.engine import ACCEPTED_HTTP, EngineStatus, Instruction
from domain.model import Strict, Tolerant
from lab.drills.record.timeline import Mark
from lab.oracle.observations import (
    ApplySeen,
    EngineIdSeen,
    Event,
    FastRecoveryFailed,
    RebuildSeen,
    RecoveredSeen,
    SourceKind,
    SourceRead,
    StatusSeen,
)


class EngineLine(Tolerant):
    """One line. Which fields are set depends on `event`: start, ready, identity, status, fault_noticed, apply, refused,
    recovery_start, recovery_end, worker_exit, exit."""

    mono: float
    event: str
    rank: int
    instruction: str | None = None
    params: Mapping[str, JsonValue] | None = None
    request_id: str | None = None
    http: int | None = None
    ok: bool | None = None
    error: str | None = None
    removed: tuple[int, ...] = ()
    status: str | None = None
    ft_state: str | None = None
    ft_error: str | None = None
    missing: tuple[int, ...] = ()
    ids: tuple[int | None, ...] = ()
    port: int | None = None
    worker_pid: int | None = None
    reason: str | None = None
    code: int | None = None

    @property
    def told_removed(self) -> tuple[int, ...]:
        """The removed_dp_ranks of an apply's body; empty where it has none that can be read."""
        value = (self.params or {}).get("removed_dp_ranks")
        return tuple(sorted(rank for rank in value if isinstance(rank, int))) if isinstance(value, list) else ()


class EngineLife(Strict):
    """One process life of a rank's engine, from its log file; `ready_at` and `ended_at` None where it did not come to that."""

    rank: int
    file: str
    lines: tuple[EngineLine, ...]

    @property
    def started_at(self) -> float:
        return self.lines[0].mono

    @property
    def ready_at(self) -> float | None:
        return next((line.mono for line in self.lines if line.event == "ready"), None)

    @property
    def ended_at(self) -> float | None:
        return next((line.mono for line in self.lines if line.event == "exit"), None)

    @property
    def port(self) -> int | None:
        return next((line.port for line in self.lines if line.port is not None), None)


def parse_line(text: str) -> EngineLine | None:
    """One line; None where it cannot be read (the last one of an engine that was killed while writing it)."""
    try:
        return EngineLine.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None


def read_life(path: Path) -> EngineLife | None:
    """One log file; None where nothing in it can be read."""
    parsed = (parse_line(text) for text in path.read_text(encoding="utf-8", errors="replace").splitlines())
    lines = tuple(line for line in parsed if line is not None)
    return EngineLife(rank=lines[0].rank, file=path.name, lines=lines) if lines else None


def read_lives(directory: Path) -> dict[int, list[EngineLife]]:
    """All lives by rank, each rank's in the order in which they began."""
    lives: dict[int, list[EngineLife]] = {}
    for path in sorted(directory.rglob("engine-*.jsonl")):
        life = read_life(path)
        if life is not None:
            lives.setdefault(life.rank, []).append(life)
    return {rank: sorted(own, key=lambda life: life.started_at) for rank, own in sorted(lives.items())}


def all_lines(lives: Mapping[int, Sequence[EngineLife]]) -> list[EngineLine]:
    """Every line of every life, by time."""
    return sorted((line for own in lives.values() for life in own for line in life.lines), key=lambda line: line.mono)


def applies(lives: Mapping[int, Sequence[EngineLife]]) -> list[EngineLine]:
    """Every command that reached an engine, refused ones included."""
    return [line for line in all_lines(lives) if line.event == "apply"]


def observations(lives: Mapping[int, Sequence[EngineLife]], rank_of_port: Mapping[int, int]) -> list[Event]:
    """What the engines' logs show, for the invariants. `rank_of_port`: which endpoint listens at a port, by topology."""
    seen: list[Event] = []
    for own in lives.values():
        for life in own:
            endpoint = life.rank if life.port is None else rank_of_port.get(life.port, life.rank)
            seen += (event for line in life.lines for event in _of_line(line, endpoint))
            seen.append(SourceRead(at=life.lines[-1].mono, kind=SourceKind.ENGINE_LOG, who=life.file))
    return [*seen, *rebuilds(lives)]


def _of_line(line: EngineLine, endpoint: int) -> Iterator[Event]:
    """`endpoint`: the rank that the engine is for everybody outside, whatever it says of itself."""
    match line.event:
        case "identity":
            yield EngineIdSeen(at=line.mono, rank=endpoint, answered=line.ids[0] if len(line.ids) == 1 else None)
        case "refused":
            if line.instruction == Instruction.RETRY:
                yield FastRecoveryFailed(at=line.mono)
        case "apply":
            if line.request_id and line.instruction in set(Instruction):
                yield ApplySeen(
                    at=line.mono,
                    engine=endpoint,
                    request_id=line.request_id,
                    instruction=Instruction(line.instruction),
                    removed=frozenset(line.told_removed),
                )
            if line.instruction == Instruction.RETRY and line.http != ACCEPTED_HTTP:
                yield FastRecoveryFailed(at=line.mono)
        case "recovery_end":
            if line.ok and line.request_id:
                yield RecoveredSeen(at=line.mono, engine=endpoint, request_id=line.request_id)
            elif not line.ok and line.instruction == Instruction.RETRY:
                yield FastRecoveryFailed(at=line.mono)
        case "status":
            if line.status in set(EngineStatus):
                yield StatusSeen(at=line.mono, rank=endpoint, status=EngineStatus(line.status))
        case "worker_exit" | "exit":
            yield StatusSeen(at=line.mono, rank=endpoint, status=EngineStatus.DEAD, final=True)
        case "ready":
            yield StatusSeen(at=line.mono, rank=endpoint, status=EngineStatus.HEALTHY)


def rebuilds(lives: Mapping[int, Sequence[EngineLife]]) -> list[RebuildSeen]:
    """Every time the ranks began a new life: from the first old engine's end to the last new one's readiness."""
    most = max((len(own) for own in lives.values()), default=0)
    found = []
    for number in range(1, most):
        fresh = [own[number] for own in lives.values() if len(own) > number]
        former = [own[number - 1] for own in lives.values() if len(own) > number]
        stopped = [life.ended_at for life in former if life.ended_at is not None and _was_stopped(life)]
        ready = [life.ready_at for life in fresh if life.ready_at is not None]
        found.append(
            RebuildSeen(
                at=min([*stopped, *(life.started_at for life in fresh)]),
                completed_at=max(ready) if len(ready) == len(fresh) else None,
                readmitted=frozenset(life.rank for life in fresh),
            )
        )
    return found


def _was_stopped(life: EngineLife) -> bool:
    return any(line.event == "exit" and (line.reason or "").startswith("SIG") for line in life.lines)


def marks(lines: Iterable[EngineLine]) -> Iterator[Mark]:
    """The lines as marks of the timeline."""
    for line in lines:
        who = f"engine/{line.rank}"
        match line.event:
            case "status":
                words = [line.status or "?", line.ft_state or "", line.ft_error or ""]
                yield Mark(at=line.mono, who=who, what="status", value=" ".join(filter(None, words)))
            case "apply":
                told = f"{line.instruction} removed={list(line.told_removed)} http={line.http} {line.request_id}"
                yield Mark(at=line.mono, who=who, what="apply", value=told)
            case "recovery_start" | "recovery_end":
                told = "" if line.event == "recovery_start" else "ok" if line.ok else f"failed: {line.error}"
                yield Mark(at=line.mono, who=who, what=line.event, value=told)
            case "identity":
                yield Mark(at=line.mono, who=who, what=line.event, value=f"ids={list(line.ids)}")
            case "fault_noticed":
                yield Mark(at=line.mono, who=who, what=line.event, value=f"missing={list(line.missing)}")
            case "worker_exit" | "exit":
                yield Mark(at=line.mono, who=who, what=line.event, value=f"code={line.code} {line.reason or ''}".strip())
            case _:
                yield Mark(at=line.mono, who=who, what=line.event)
