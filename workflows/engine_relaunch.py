"""`EngineRelaunch`: new engines for the ranks that were not removed, as a durable workflow (design §3, original strategies).

The logic is `domain.rebuild.new_engines.run_relaunch`: like a rebuild, but the NodeManagers stay, and what was removed
stays removed. A failed relaunch is Failed in the Web UI: the instance is about to be rebuilt. The FaultManager hears of
either end by signal first.
"""

from temporalio import workflow

from workflows.parts.rebuild_page import RelaunchStatus, page
from workflows.parts.rebuild_ports import RebuildActivityPorts
from workflows.parts.strategy_shell import StrategyShell, StrategyWorkflow, failed

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import RelaunchOrder, RelaunchReport, StrategyKind
    from domain.rebuild.new_engines import run_relaunch
    from domain.runtime import FtPhase


@workflow.defn(name="EngineRelaunch")
class EngineRelaunch(StrategyWorkflow[RelaunchStatus]):
    """Runs a `RelaunchOrder` to its `RelaunchReport`."""

    @workflow.init
    def __init__(self, order: RelaunchOrder) -> None:
        super().__init__(StrategyShell(StrategyKind.ENGINE_RELAUNCH, order, RelaunchStatus(order=order), page))
        self._shell.reporter.attribute(InstanceId=order.instance_id, FtPhase=FtPhase.RECONFIGURING.value, ServingPublished=False)

    @workflow.run
    async def run(self, order: RelaunchOrder) -> RelaunchReport:
        report = await self._shell.run(run_relaunch(order, RebuildActivityPorts(self._shell)))
        outcome = "succeeded" if report.succeeded else "failed"
        self._shell.reporter.attribute(Outcome=outcome, ServingPublished=report.serving_published)
        await self._shell.tell_end(report, outcome)
        if not report.succeeded:
            raise failed(report, f"Next: reconfiguration of instance {report.instance_id}.")
        return report
