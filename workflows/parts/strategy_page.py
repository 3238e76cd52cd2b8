"""What a person reads about a strategy in the Web UI: markdown, at every step and for ever after.

In this order: how it ended or what is waited for, what happens next, the steps so far, the stages' seconds. This is what
the pages have in common.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import StepReport
    from domain.model import Strict
    from domain.runtime import RejectedSignal


class CallMade(Strict):
    """One call of a strategy, in words, and when it began (epoch seconds)."""

    what: str
    at: float


class StrategyStatus(Strict):
    """How far a strategy is."""

    steps: tuple[StepReport, ...] = ()
    calls: tuple[CallMade, ...] = ()
    stop_wish: str | None = None
    rejected_signals: tuple[RejectedSignal, ...] = ()


def waiting(status: StrategyStatus, stop_lands: str = "before the commit point or not at all") -> str:
    doing = status.calls[-1].what if status.calls else "the first workflow task"
    wish = f" A stop was asked for ({status.stop_wish}); it lands {stop_lands}." if status.stop_wish else ""
    return f"**Running:** {doing}.{wish}"


def steps(status: StrategyStatus) -> str:
    rows: list[tuple[float, str, str]] = [(step.at, step.phase.value, step.detail) for step in status.steps]
    rows += [(call.at, "", call.what) for call in status.calls]
    lines = ["| UTC | phase | what |", "|---|---|---|"]
    lines += [
        f"| {code(_clock(at))} | {code(phase)} | {_cell(what)} |" for at, phase, what in sorted(rows, key=lambda row: row[0])
    ]
    return "\n".join(lines)


def stages(stage_times: Mapping[str, float]) -> str:
    lines = ["| stage | seconds |", "|---|---|"]
    lines += [f"| {code(name)} | {seconds:.3f} |" for name, seconds in stage_times.items()]
    return "\n".join(lines)


def headline(outcome: str, reason: str, detail: str) -> str:
    return f"**{outcome.upper()}: {reason}**" + (f" — {detail}" if detail else "")


def not_final(serving_published: bool, pending_finalize: Iterable[str]) -> list[str]:
    """What a success still leaves to the FaultManager."""
    pending = ", ".join(pending_finalize)
    lines = (
        []
        if serving_published
        else ["**The view is not confirmed: nothing is served yet**, the FaultManager goes on pushing it."]
    )
    return lines + ([f"Not finalized yet: {pending}; the FaultManager goes on."] if pending else [])


def code(text: str) -> str:
    """A cell that stands off from the next one: the Web UI draws tables without space between columns."""
    return f"`{text}`" if text else ""


def ranks(items: Iterable[int]) -> str:
    return ", ".join(str(rank) for rank in items) or "none"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
