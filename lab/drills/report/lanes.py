"""From evidence to the picture's lanes: who was in which state when."""

from collections.abc import Iterable, Sequence

from domain.model import Strict
from lab.drills.record.engine_log import EngineLife
from lab.drills.record.evidence import Evidence
from lab.drills.record.figures import stage_seconds
from lab.drills.record.timeline import Timeline
from lab.drills.report.picture import Lane, Picture, Span, Tick

_BEFORE_SEC = 2.0
_AFTER_SEC = 1.5


class Change(Strict):
    """From `at` on a process is in state `label`."""

    at: float
    label: str
    detail: str = ""


def picture_of(name: str, verdict: str, evidence: Evidence, timeline: Timeline, zero: float) -> Picture:
    """The picture of a run; it shows from just before the injection until it serves again."""
    again = evidence.serving_again_at
    last = max([evidence.injections[-1] if evidence.injections else zero, again or evidence.ended_at])
    end = min(evidence.ended_at, last + _AFTER_SEC) - zero
    lanes = [
        *_client(evidence, zero),
        _controller(timeline, zero, end),
        *(_coordinator(coordinator, evidence, zero, end) for coordinator in evidence.view_lines),
        *(_manager(manager, timeline, zero) for manager in evidence.journals),
        *(_engine(rank, own, zero, end) for rank, own in evidence.lives.items()),
    ]
    shrunk = next((episode for episode in evidence.episodes if episode.published_at is not None), None)
    return Picture(
        title=f"autotomy drill {name}: {verdict}",
        subtitle=f"served at the end: {list(evidence.published)}; removed for good: {list(evidence.dead_committed)}",
        begin=-_BEFORE_SEC,
        end=end,
        lanes=tuple(lanes),
        injections=tuple(Tick(at=m.at - zero, label=m.value) for m in timeline if m.who == "drill" and m.what == "inject"),
        stages=stage_seconds(shrunk) if shrunk is not None else {},
    )


def spans(changes: Iterable[Change], end: float) -> tuple[Span, ...]:
    """Each state until the next one, the last until `end`."""
    ordered = sorted(changes, key=lambda change: change.at)
    if not ordered:
        return ()
    ends = [*(change.at for change in ordered[1:]), max(end, ordered[-1].at)]
    return tuple(
        Span(begin=change.at, end=until, label=change.label, detail=change.detail)
        for change, until in zip(ordered, ends, strict=True)
        if until > change.at
    )


def _client(evidence: Evidence, zero: float) -> list[Lane]:
    """One bar a quarter second: all fine, or how many failed."""
    if not evidence.requests:
        return []
    width = 0.25
    buckets: dict[int, list[bool]] = {}
    for record in evidence.requests:
        buckets.setdefault(int((record.ended_at - zero) // width), []).append(record.ok)
    bars = [
        Span(
            begin=number * width,
            end=(number + 1) * width,
            label="ok" if all(oks) else "failed requests",
            detail=f"{sum(oks)} ok, {len(oks) - sum(oks)} failed",
        )
        for number, oks in sorted(buckets.items())
    ]
    return [Lane(name="client", spans=tuple(bars))]


def _controller(timeline: Timeline, zero: float, end: float) -> Lane:
    changes = [Change(at=m.at - zero, label=m.value) for m in timeline if m.who == "controller" and m.what == "phase"]
    return Lane(name="controller", spans=spans(changes, end))


def _coordinator(name: str, evidence: Evidence, zero: float, end: float) -> Lane:
    lines = [line for line in evidence.view_lines[name] if line.applied or line.event == "start"]
    changes = [
        Change(at=line.mono - zero, label="published" if line.ranks else "withdrawn", detail=f"ranks {list(line.ranks or ())}")
        for line in lines
    ]
    ticks = tuple(
        Tick(at=line.mono - zero, label=f"{line.event} revision {line.revision} ranks {list(line.ranks or ())}") for line in lines
    )
    return Lane(name=name, spans=spans(changes, end), ticks=ticks)


def _manager(name: str, timeline: Timeline, zero: float) -> Lane:
    told = [mark for mark in timeline if mark.who == name and mark.what != "renewed"]
    return Lane(name=name, ticks=tuple(Tick(at=m.at - zero, label=f"{m.what} {m.value}".strip()) for m in told))


def _engine(rank: int, lives: Sequence[EngineLife], zero: float, end: float) -> Lane:
    changes: list[Change] = []
    ticks: list[Tick] = []
    for life in lives:
        for line in life.lines:
            t = line.mono - zero
            match line.event:
                case "ready":
                    changes.append(Change(at=t, label="healthy"))
                case "status":
                    changes.append(Change(at=t, label=line.ft_state or line.status or "unknown", detail=line.ft_error or ""))
                case "worker_exit" | "exit":
                    changes.append(Change(at=t, label="dead", detail=line.event))
                case "apply":
                    ticks.append(Tick(at=t, label=f"apply {line.instruction} remove {list(line.told_removed)}", tall=True))
                case "recovery_end":
                    ticks.append(Tick(at=t, label="recovered" if line.ok else f"recovery failed: {line.error}"))
    return Lane(name=f"engine {rank}", spans=spans(changes, end), ticks=tuple(ticks))
