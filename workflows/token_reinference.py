"""`TokenReinference`: the wait for engines that heal by themselves, as a durable workflow (design §3, rule 3).

The logic is `domain.rebuild.reinference.run_reinference`; it touches nothing. A wait in vain is no failure of the workflow: the
FaultManager decides again with what was seen. It is told apart by the search attribute `Outcome`.
"""

from temporalio import workflow

from workflows.parts.rebuild_ports import RebuildActivityPorts
from workflows.parts.strategy_page import StrategyStatus, headline, ranks, steps, waiting
from workflows.parts.strategy_shell import StrategyShell, StrategyWorkflow

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import ReinferenceOrder, ReinferenceReport, StrategyKind
    from domain.rebuild.reinference import run_reinference


class ReinferenceStatus(StrategyStatus):
    """Query `status`. `report` is there when it has ended."""

    order: ReinferenceOrder
    report: ReinferenceReport | None = None


@workflow.defn(name="TokenReinference")
class TokenReinference(StrategyWorkflow[ReinferenceStatus]):
    """Runs a `ReinferenceOrder` to its `ReinferenceReport`."""

    @workflow.init
    def __init__(self, order: ReinferenceOrder) -> None:
        super().__init__(StrategyShell(StrategyKind.TOKEN_REINFERENCE, order, ReinferenceStatus(order=order), _page))
        self._shell.reporter.attribute(InstanceId=order.instance_id)

    @workflow.run
    async def run(self, order: ReinferenceOrder) -> ReinferenceReport:
        report = await self._shell.run(run_reinference(order, RebuildActivityPorts(self._shell)))
        outcome = "succeeded" if report.healed else "failed"
        self._shell.reporter.attribute(Outcome=outcome)
        await self._shell.tell_end(report, outcome)
        return report


def _page(status: ReinferenceStatus) -> str:
    order, report = status.order, status.report
    title = f"## Instance {order.instance_id}: ranks {ranks(order.ranks)} may heal by themselves"
    if report is None:
        ended = waiting(status, "at the next look")
    else:
        ended = headline("healed" if report.healed else "not healed", report.reason.value, report.detail)
    return "\n\n".join([title, f"Why: {order.why}", ended, steps(status), f"generation {order.generation}"])
