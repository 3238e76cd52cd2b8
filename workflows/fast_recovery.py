"""`FastRecovery`: every active rank retries in place, as a durable workflow (design §3, rule 6).

The logic is `domain.round.fast_recovery.run_fast_recovery`; here it runs in a task of its own, with activities as its ports, as
a round does in `ScaleDownRound`, and it is stopped in the same two ways: before its commit point, and aborts, or not at
all. In the Web UI a fast recovery that failed is **Failed** (red): the instance is about to be rebuilt. Succeeded,
abandoned and cancelled ones are Completed. The FaultManager hears of every end by signal first.
"""

from temporalio import workflow

from workflows.parts.round_ports import ActivityPorts
from workflows.parts.strategy_shell import StrategyShell, StrategyWorkflow, failed
from workflows.parts.transaction_page import FastRecoveryStatus, page

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import FastRecoveryOrder, FastRecoveryReport, RoundOutcome, StepReport, StrategyKind
    from domain.round.fast_recovery import run_fast_recovery


class _TalkingPorts(ActivityPorts):
    """A fast recovery stays in one phase: the FaultManager hears of each step, so that people see how far it is."""

    def progress(self, report: StepReport) -> None:
        self._on_step(report)
        self._reporter.progress(report)


@workflow.defn(name="FastRecovery")
class FastRecovery(StrategyWorkflow[FastRecoveryStatus]):
    """Runs a `FastRecoveryOrder` to its `FastRecoveryReport`."""

    @workflow.init
    def __init__(self, order: FastRecoveryOrder) -> None:
        super().__init__(StrategyShell(StrategyKind.FAST_RECOVERY, order, FastRecoveryStatus(order=order), page))
        self._shell.reporter.attribute(
            InstanceId=order.instance_id,
            RequestId=order.request_id,
            ServingPublished=bool(order.published_ranks),
        )

    @workflow.run
    async def run(self, order: FastRecoveryOrder) -> FastRecoveryReport:
        report = await self._shell.run(run_fast_recovery(order, _TalkingPorts(self._shell)))
        self._shell.reporter.attribute(Outcome=report.outcome.value, ServingPublished=report.serving_published)
        await self._shell.tell_end(report, report.outcome.value)
        if report.outcome is RoundOutcome.FAILED:
            raise failed(report, f"Next: reconfiguration of instance {report.instance_id}.")
        return report
