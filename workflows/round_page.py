"""What a person reads about a round in the Web UI: its details, as markdown, at every step and for ever after."""

from temporalio import workflow

from workflows.strategy_page import StrategyStatus, headline, not_final, ranks, stages, steps, waiting

with workflow.unsafe.imports_passed_through():
    from domain.messages.round import RoundOrder, RoundOutcome, RoundReport

_NEXT = {
    RoundOutcome.SUCCEEDED: "Nothing: the survivors serve.",
    RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration). This round calls no engine again.",
    RoundOutcome.ABANDONED: "The evidence was false, nothing was withdrawn; the FaultManager decides again with what was seen.",
    RoundOutcome.CANCELLED: "Whoever stopped it decides; the FaultManager goes on with that.",
}


class RoundStatus(StrategyStatus):
    """Query `status`: how far the round is. `report` is there when it has ended."""

    order: RoundOrder
    report: RoundReport | None = None


def page(status: RoundStatus) -> str:
    """The round as markdown."""
    order = status.order
    parts = [
        f"## Instance {order.instance_id}: remove ranks {ranks(order.pending_ranks)}",
        _ended(status.report) if status.report is not None else waiting(status),
        steps(status),
    ]
    if status.report is not None and status.report.stage_times:
        parts.append(stages(status.report.stage_times))
    parts.append(f"request id `{order.request_id}`, generation {order.generation}")
    return "\n\n".join(parts)


def _ended(report: RoundReport) -> str:
    lines = [headline(report.outcome.value, report.reason.value, report.detail)]
    if report.outcome is RoundOutcome.SUCCEEDED:
        lines.append(f"Removed: {ranks(report.dead_committed)}. Serving: {ranks(report.survivors)}.")
        lines += not_final(report.serving_published, report.pending_finalize)
    else:
        called = sorted(rank for rank, http in report.applied.items() if http is not None)
        lines.append(f"Engines that were called: {ranks(called)}. Withdrawn from serving: {'yes' if report.withdrawn else 'no'}.")
    lines.append(f"Next: {_NEXT[report.outcome]}")
    return "\n\n".join(lines)
