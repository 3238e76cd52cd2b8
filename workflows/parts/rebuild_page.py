"""What a person reads about a rebuild or a relaunch in the Web UI: its details, as markdown."""

from temporalio import workflow

from workflows.parts.strategy_page import StrategyStatus, headline, ranks, stages, steps, waiting

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import ReconfigurationOrder, ReconfigurationReport, RelaunchOrder, RelaunchReport


class ReconfigurationStatus(StrategyStatus):
    """Query `status` of a rebuild. `report` is there when it has ended."""

    order: ReconfigurationOrder
    report: ReconfigurationReport | None = None


class RelaunchStatus(StrategyStatus):
    """Query `status` of a relaunch. `report` is there when it has ended."""

    order: RelaunchOrder
    report: RelaunchReport | None = None


def page(status: ReconfigurationStatus | RelaunchStatus) -> str:
    """The rebuild or relaunch as markdown."""
    order = status.order
    if isinstance(order, RelaunchOrder):
        wanted = [rank for rank in order.topology.ranks if rank not in order.dead_committed]
        title = f"## Instance {order.instance_id}: new engines for ranks {ranks(wanted)}"
    else:
        title = f"## Rebuild instance {order.instance_id}"
    report = status.report
    parts = [title, f"Why: {order.why}"]
    if report is None:
        parts += [waiting(status, "at the next wait; the instance stays withdrawn"), steps(status)]
    else:
        outcome = "succeeded" if report.succeeded else "failed"
        parts += [headline(outcome, report.reason.value, report.detail), steps(status), stages(report.stage_times)]
    parts.append(f"generation {order.generation}")
    return "\n\n".join(parts)
