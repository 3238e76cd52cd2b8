"""What a person reads about a round or a fast recovery in the Web UI: its details, as markdown."""

from temporalio import workflow

from workflows.parts.strategy_page import StrategyStatus, headline, not_final, ranks, stages, steps, waiting

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import FastRecoveryOrder, FastRecoveryReport, RoundOrder, RoundOutcome, RoundReport

_AFTER_ROUND = {
    RoundOutcome.SUCCEEDED: "Nothing: the survivors serve.",
    RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration). This round calls no engine again.",
    RoundOutcome.ABANDONED: "The evidence was false, nothing was withdrawn; the FaultManager decides again with what was seen.",
    RoundOutcome.CANCELLED: "Whoever stopped it decides; the FaultManager goes on with that.",
}

_AFTER_FAST_RECOVERY = {
    RoundOutcome.SUCCEEDED: "Nothing: the same ranks serve again.",
    RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration); no rank is removed after a failed retry.",
    RoundOutcome.ABANDONED: "The evidence had changed, nothing was withdrawn; the FaultManager decides again with what was seen.",
    RoundOutcome.CANCELLED: "Whoever stopped it decides; the FaultManager goes on with that.",
}


class RoundStatus(StrategyStatus):
    """Query `status` of a round. `report` is there when it has ended."""

    order: RoundOrder
    report: RoundReport | None = None


class FastRecoveryStatus(StrategyStatus):
    """Query `status` of a fast recovery. `report` is there when it has ended."""

    order: FastRecoveryOrder
    report: FastRecoveryReport | None = None


def page(status: RoundStatus | FastRecoveryStatus) -> str:
    """The round or fast recovery as markdown."""
    order, report = status.order, status.report
    parts = [_title(order), waiting(status) if report is None else _ended(report), steps(status)]
    if report is not None and report.stage_times:
        parts.append(stages(report.stage_times))
    parts.append(f"request id `{order.request_id}`, generation {order.generation}")
    return "\n\n".join(parts)


def _title(order: RoundOrder | FastRecoveryOrder) -> str:
    if isinstance(order, RoundOrder):
        return f"## Instance {order.instance_id}: remove ranks {ranks(order.pending_ranks)}"
    active = [rank for rank in order.topology.ranks if rank not in order.dead_committed]
    return f"## Instance {order.instance_id}: ranks {ranks(active)} retry in place"


def _ended(report: RoundReport | FastRecoveryReport) -> str:
    lines = [headline(report.outcome.value, report.reason.value, report.detail)]
    if report.outcome is RoundOutcome.SUCCEEDED:
        lines.append(_achieved(report))
        lines += not_final(report.serving_published, report.pending_finalize)
    else:
        called = sorted(rank for rank, http in report.applied.items() if http is not None)
        lines.append(f"Engines that were called: {ranks(called)}. Withdrawn from serving: {'yes' if report.withdrawn else 'no'}.")
    follows = _AFTER_ROUND if isinstance(report, RoundReport) else _AFTER_FAST_RECOVERY
    lines.append(f"Next: {follows[report.outcome]}")
    return "\n\n".join(lines)


def _achieved(report: RoundReport | FastRecoveryReport) -> str:
    if isinstance(report, RoundReport):
        return f"Removed: {ranks(report.dead_committed)}. Serving: {ranks(report.survivors)}."
    return f"Serving again: {ranks(report.recovered)}."
