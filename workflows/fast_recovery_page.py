"""What a person reads about a fast recovery in the Web UI: its details, as markdown, at every step and for ever after."""

from temporalio import workflow

from workflows.strategy_page import StrategyStatus, headline, not_final, ranks, stages, steps, waiting

with workflow.unsafe.imports_passed_through():
    from domain.messages.round import RoundOutcome
    from domain.messages.strategy import FastRecoveryOrder, FastRecoveryReport

_NEXT = {
    RoundOutcome.SUCCEEDED: "Nothing: the same ranks serve again.",
    RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration); no rank is removed after a failed retry.",
    RoundOutcome.ABANDONED: "The evidence had changed, nothing was withdrawn; the FaultManager decides again with what was seen.",
    RoundOutcome.CANCELLED: "Whoever stopped it decides; the FaultManager goes on with that.",
}


class FastRecoveryStatus(StrategyStatus):
    """Query `status`: how far the fast recovery is. `report` is there when it has ended."""

    order: FastRecoveryOrder
    report: FastRecoveryReport | None = None


def page(status: FastRecoveryStatus) -> str:
    """The fast recovery as markdown."""
    order = status.order
    active = [rank for rank in order.topology.ranks if rank not in order.dead_committed]
    parts = [
        f"## Instance {order.instance_id}: ranks {ranks(active)} retry in place",
        _ended(status.report) if status.report is not None else waiting(status),
        steps(status),
    ]
    if status.report is not None and status.report.stage_times:
        parts.append(stages(status.report.stage_times))
    parts.append(f"request id `{order.request_id}`, generation {order.generation}")
    return "\n\n".join(parts)


def _ended(report: FastRecoveryReport) -> str:
    lines = [headline(report.outcome.value, report.reason.value, report.detail)]
    if report.outcome is RoundOutcome.SUCCEEDED:
        lines.append(f"Serving again: {ranks(report.recovered)}.")
        lines += not_final(report.serving_published, report.pending_finalize)
    else:
        called = sorted(rank for rank, http in report.applied.items() if http is not None)
        lines.append(f"Engines that were called: {ranks(called)}. Withdrawn from serving: {'yes' if report.withdrawn else 'no'}.")
    lines.append(f"Next: {_NEXT[report.outcome]}")
    return "\n\n".join(lines)
