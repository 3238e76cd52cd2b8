"""What a person reads about a strategy in the Web UI: markdown, at every step and for ever after.

In this order: what it does, how it ended or what is waited for, what happens next, the steps so far, the stages' seconds.
`page` is the same for all; what only one strategy can say of itself are its `Words`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic import SerializeAsAny

    from domain.messages.strategy import StepReport, StrategyOrder, StrategyReport, TransactionOrder
    from domain.model import Strict
    from domain.runtime import RejectedSignal

OrderT = TypeVar("OrderT", bound=StrategyOrder)
ReportT = TypeVar("ReportT", bound=StrategyReport)


class CallMade(Strict):
    """One call of a strategy, in words, and when it began (epoch seconds)."""

    what: str
    at: float


class StrategyStatus(Strict):
    """Query `status`: how far a strategy is. `report` is there when it has ended."""

    order: SerializeAsAny[StrategyOrder]
    report: StrategyReport | None = None
    steps: tuple[StepReport, ...] = ()
    calls: tuple[CallMade, ...] = ()
    stop_wish: str | None = None
    rejected_signals: tuple[RejectedSignal, ...] = ()


@dataclass(frozen=True)
class Words(Generic[OrderT, ReportT]):
    """What a strategy says of itself. `opening`, `ended`: paragraphs of its page, before and after it has ended.

    `stop_lands`: when a wish to stop is heeded, said while it runs.
    """

    opening: Callable[[OrderT], list[str]]
    ended: Callable[[ReportT], list[str]]
    stop_lands: str


def page(words: Words[OrderT, ReportT], status: StrategyStatus, order: OrderT, report: ReportT | None) -> str:
    """The strategy as markdown: its status, with the order and report of its kind."""
    parts = words.opening(order)
    parts += [_waiting(status, words.stop_lands)] if report is None else words.ended(report)
    parts.append(steps(status))
    if report is not None and report.stage_times:
        parts.append(stages(report.stage_times))
    request = f"request id `{order.request_id}`, " if isinstance(order, TransactionOrder) else ""
    parts.append(f"{request}generation {order.generation}")
    return "\n\n".join(parts)


def _waiting(status: StrategyStatus, stop_lands: str) -> str:
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
