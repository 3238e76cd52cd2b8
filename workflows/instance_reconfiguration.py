"""`InstanceReconfiguration`: the whole instance anew, with every rank of its topology, as a durable workflow (design §3).

The logic is `domain.rebuild.run_reconfiguration`, with activities as its ports. A failed rebuild is Failed in the Web UI, a
finished one Completed; the FaultManager hears of either by signal first.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.rebuild_page import ReconfigurationStatus, page
from workflows.rebuild_ports import RebuildActivityPorts
from workflows.strategy_shell import StrategyShell

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import ReconfigurationOrder, ReconfigurationReport, StrategyEnd, StrategyKind
    from domain.rebuild import run_reconfiguration
    from domain.runtime import FtPhase


@workflow.defn(name="InstanceReconfiguration")
class InstanceReconfiguration:
    """Runs a `ReconfigurationOrder` to its `ReconfigurationReport`."""

    @workflow.init
    def __init__(self, order: ReconfigurationOrder) -> None:
        self._shell = StrategyShell(StrategyKind.INSTANCE_RECONFIGURATION, order, ReconfigurationStatus(order=order), page)
        self._shell.reporter.attribute(InstanceId=order.instance_id, FtPhase=FtPhase.RECONFIGURING.value, ServingPublished=False)

    @workflow.run
    async def run(self, order: ReconfigurationOrder) -> ReconfigurationReport:
        report = await self._shell.run(run_reconfiguration(order, RebuildActivityPorts(self._shell)))
        outcome = "succeeded" if report.succeeded else "failed"
        self._shell.reporter.attribute(Outcome=outcome, ServingPublished=report.serving_published)
        end = StrategyEnd(
            kind=StrategyKind.INSTANCE_RECONFIGURATION,
            instance_id=report.instance_id,
            generation=report.generation,
            workflow_id=workflow.info().workflow_id,
            reconfiguration=report,
        )
        await self._shell.tell_end(end, f"{outcome}, {report.reason.value}")
        if not report.succeeded:
            message = f"{report.detail or report.reason.value}. Instance {report.instance_id} stays withdrawn."
            raise ApplicationError(message, report, type=report.reason.value, non_retryable=True)
        return report

    @workflow.query
    def status(self) -> ReconfigurationStatus:
        """How far the rebuild is, and its report once it has ended."""
        return self._shell.status

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """`stop`, with or without an input; any other signal is kept for people and changes nothing."""
        self._shell.take(name, args)
