"""`InstanceReconfiguration`: the whole instance anew, with every rank of its topology, as a durable workflow (design §3).

The logic is `domain.rebuild.new_engines.run_reconfiguration`, with activities as its ports. A failed rebuild is Failed in
the Web UI, a finished one Completed; the FaultManager hears of either by signal first.
"""

from temporalio import workflow

from workflows.parts.rebuild_page import ReconfigurationStatus, page
from workflows.parts.rebuild_ports import RebuildActivityPorts
from workflows.parts.strategy_shell import StrategyShell, StrategyWorkflow, failed

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import ReconfigurationOrder, ReconfigurationReport, StrategyKind
    from domain.rebuild.new_engines import run_reconfiguration
    from domain.runtime import FtPhase


@workflow.defn(name="InstanceReconfiguration")
class InstanceReconfiguration(StrategyWorkflow[ReconfigurationStatus]):
    """Runs a `ReconfigurationOrder` to its `ReconfigurationReport`."""

    @workflow.init
    def __init__(self, order: ReconfigurationOrder) -> None:
        super().__init__(StrategyShell(StrategyKind.INSTANCE_RECONFIGURATION, order, ReconfigurationStatus(order=order), page))
        self._shell.reporter.attribute(InstanceId=order.instance_id, FtPhase=FtPhase.RECONFIGURING.value, ServingPublished=False)

    @workflow.run
    async def run(self, order: ReconfigurationOrder) -> ReconfigurationReport:
        report = await self._shell.run(run_reconfiguration(order, RebuildActivityPorts(self._shell)))
        outcome = "succeeded" if report.succeeded else "failed"
        self._shell.reporter.attribute(Outcome=outcome, ServingPublished=report.serving_published)
        await self._shell.tell_end(report, outcome)
        if not report.succeeded:
            raise failed(report, f"Instance {report.instance_id} stays withdrawn.")
        return report
