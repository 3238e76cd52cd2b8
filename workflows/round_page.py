"""What a person reads about a round in the Web UI: its details, as markdown, at every step and for ever after.

In this order: how it ended or what is waited for, what happens next, the steps so far, the stages' seconds.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from domain.messages.round import RoundOrder, RoundOutcome, RoundReport, StepReport
    from domain.model import Strict

_NEXT = {
    RoundOutcome.SUCCEEDED: "Nothing: the survivors serve.",
    RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration). This round calls no engine again.",
    RoundOutcome.ABANDONED: "The evidence was false, nothing was withdrawn; the FaultManager decides again with what was seen.",
    RoundOutcome.CANCELLED: "Whoever stopped it decides; the FaultManager goes on with that.",
}


class CallMade(Strict):
    """One call of the round, in words, and when it began (epoch seconds)."""

    what: str
    at: float


class RoundStatus(Strict):
    """Query `status`: how far the round is. `report` is there when it has ended."""

    order: RoundOrder
    steps: tuple[StepReport, ...] = ()
    calls: tuple[CallMade, ...] = ()
    stop_wish: str | None = None
    ignored_signals: tuple[str, ...] = ()
    report: RoundReport | None = None


def page(status: RoundStatus) -> str:
    """The round as markdown."""
    order = status.order
    parts = [
        f"## Instance {order.instance_id}: remove ranks {_ranks(order.pending_ranks)}",
        _ended(status.report) if status.report is not None else _waiting(status),
        _steps(status),
    ]
    if status.report is not None and status.report.stage_times:
        parts.append(_stages(status.report.stage_times))
    parts.append(f"request id `{order.request_id}`, generation {order.generation}")
    return "\n\n".join(parts)


def _ended(report: RoundReport) -> str:
    lines = [f"**{report.outcome.value.upper()}: {report.reason.value}**" + (f" — {report.detail}" if report.detail else "")]
    if report.outcome is RoundOutcome.SUCCEEDED:
        lines.append(f"Removed: {_ranks(report.dead_committed)}. Serving: {_ranks(report.survivors)}.")
        if not report.serving_published:
            lines.append("**The view is not confirmed: nothing is served yet**, the FaultManager goes on pushing it.")
        if report.pending_finalize:
            lines.append(f"Not finalized yet: {', '.join(report.pending_finalize)}; the FaultManager goes on.")
    else:
        called = sorted(rank for rank, http in report.applied.items() if http is not None)
        lines.append(
            f"Engines that were called: {_ranks(called)}. Withdrawn from serving: {'yes' if report.withdrawn else 'no'}."
        )
    lines.append(f"Next: {_NEXT[report.outcome]}")
    return "\n\n".join(lines)


def _waiting(status: RoundStatus) -> str:
    doing = status.calls[-1].what if status.calls else "the first workflow task"
    wish = (
        f" A stop was asked for ({status.stop_wish}); it lands before the commit point or not at all." if status.stop_wish else ""
    )
    return f"**Running:** {doing}.{wish}"


def _steps(status: RoundStatus) -> str:
    rows: list[tuple[float, str, str]] = [(step.at, step.phase.value, step.detail) for step in status.steps]
    rows += [(call.at, "", call.what) for call in status.calls]
    lines = ["| UTC | phase | what |", "|---|---|---|"]
    lines += [f"| {_clock(at)} | {phase} | {_cell(what)} |" for at, phase, what in sorted(rows, key=lambda row: row[0])]
    return "\n".join(lines)


def _stages(stage_times: dict[str, float]) -> str:
    lines = ["| stage | seconds |", "|---|---|"]
    lines += [f"| {name} | {seconds:.3f} |" for name, seconds in stage_times.items()]
    return "\n".join(lines)


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks) or "none"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
