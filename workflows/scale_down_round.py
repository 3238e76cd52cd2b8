"""`ScaleDownRound`: one scale-down transaction as a durable workflow (design §4).

The logic is `domain.round.scale_down.run_round`; here it runs in a task of its own, with activities as its ports, so that worker,
API, server, NodeManagers and Coordinators may be killed at any moment and it goes on. Two ways to stop it, the workflow's
cancellation and the signal `stop`, make a wish known and end a running look, nothing else: a stop comes before the commit
point, and aborts, or not at all.

What the Web UI shows: a round that ended by a decision to fail is **Failed** (red), with reason and report in the failure,
because an operator looks for red: an instance is about to be rebuilt. Succeeded, abandoned (the evidence was false) and
cancelled rounds are Completed, told apart by the search attribute `Outcome`. The FaultManager depends on none of this: it
hears of every end by signal first.
"""

from temporalio import workflow

from workflows.parts.round_ports import ActivityPorts
from workflows.parts.strategy_shell import StrategyShell, StrategyWorkflow, failed
from workflows.parts.transaction_page import RoundStatus, page

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import RoundOrder, RoundOutcome, RoundReport, StrategyKind
    from domain.round.scale_down import run_round


@workflow.defn(name="ScaleDownRound")
class ScaleDownRound(StrategyWorkflow[RoundStatus]):
    """Runs a `RoundOrder` to its `RoundReport`."""

    @workflow.init
    def __init__(self, order: RoundOrder) -> None:
        super().__init__(StrategyShell(StrategyKind.SCALE_DOWN, order, RoundStatus(order=order), page))
        self._shell.reporter.attribute(
            InstanceId=order.instance_id,
            RequestId=order.request_id,
            DeadRanks=[str(rank) for rank in order.pending_ranks],
            ServingPublished=bool(order.published_ranks),
        )

    @workflow.run
    async def run(self, order: RoundOrder) -> RoundReport:
        report = await self._shell.run(run_round(order, ActivityPorts(self._shell)))
        self._shell.reporter.attribute(
            Outcome=report.outcome.value,
            ServingPublished=report.serving_published,
            DeadRanks=[str(rank) for rank in report.removed_dp_ranks],
        )
        await self._shell.tell_end(report, report.outcome.value)
        if report.outcome is RoundOutcome.FAILED:
            raise failed(report, f"Next: reconfiguration of instance {report.instance_id}.")
        return report
