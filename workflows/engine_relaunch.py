"""`EngineRelaunch`: new engines for the ranks that were not removed, as a durable workflow (design §3, original strategies).

The logic is `domain.rebuild.run_relaunch`: like a rebuild, but the NodeManagers stay, and what was removed stays removed.
A failed relaunch is Failed in the Web UI: the instance is about to be rebuilt. The FaultManager hears of either end by
signal first.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.rebuild_page import RelaunchStatus, page
from workflows.rebuild_ports import RebuildActivityPorts
from workflows.strategy_shell import StrategyShell

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import RelaunchOrder, RelaunchReport, StrategyEnd, StrategyKind
    from domain.rebuild import run_relaunch
    from domain.runtime import FtPhase


@workflow.defn(name="EngineRelaunch")
class EngineRelaunch:
    """Runs a `RelaunchOrder` to its `RelaunchReport`."""

    @workflow.init
    def __init__(self, order: RelaunchOrder) -> None:
        self._shell = StrategyShell(StrategyKind.ENGINE_RELAUNCH, order, RelaunchStatus(order=order), page)
        self._shell.reporter.attribute(InstanceId=order.instance_id, FtPhase=FtPhase.RECONFIGURING.value, ServingPublished=False)

    @workflow.run
    async def run(self, order: RelaunchOrder) -> RelaunchReport:
        report = await self._shell.run(run_relaunch(order, RebuildActivityPorts(self._shell)))
        outcome = "succeeded" if report.succeeded else "failed"
        self._shell.reporter.attribute(Outcome=outcome, ServingPublished=report.serving_published)
        end = StrategyEnd(
            kind=StrategyKind.ENGINE_RELAUNCH,
            instance_id=report.instance_id,
            generation=report.generation,
            workflow_id=workflow.info().workflow_id,
            relaunch=report,
        )
        await self._shell.tell_end(end, f"{outcome}, {report.reason.value}")
        if not report.succeeded:
            message = f"{report.detail or report.reason.value}. Next: reconfiguration of instance {report.instance_id}."
            raise ApplicationError(message, report, type=report.reason.value, non_retryable=True)
        return report

    @workflow.query
    def status(self) -> RelaunchStatus:
        """How far the relaunch is, and its report once it has ended."""
        return self._shell.status

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, with or without an input; any other signal is kept for people and changes nothing."""
        self._shell.take(name, args)
