"""Every strategy as a durable workflow.

A strategy's logic is a coroutine of `domain` over ports; here it runs in a task of its own, with activities as its ports,
so that worker, API, server, NodeManagers and Coordinators may be killed at any moment and it goes on. Two ways to stop it,
the workflow's cancellation and the signal `stop`, make a wish known and end a running wait, nothing else: what is stopped
when is decided by the logic (a transaction: before its commit point, and aborts, or not at all).

What the Web UI shows: a strategy that ended by a decision to fail is **Failed** (red), with reason and report in the
failure, because an operator looks for red: an instance is about to be rebuilt, or stays withdrawn. All others are
Completed, told apart by the search attribute `Outcome`; so is a token reinference in vain, after which the FaultManager
decides again with what was seen. The FaultManager depends on none of this: it hears of every end by signal first.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from temporalio import workflow

from workflows.parts.strategy_page import Words, headline, not_final, ranks
from workflows.parts.strategy_ports import RebuildActivityPorts, RoundActivityPorts, TransactionActivityPorts
from workflows.parts.strategy_shell import StrategyWorkflow

with workflow.unsafe.imports_passed_through():
    from domain.messages.strategy import (
        FastRecoveryOrder,
        FastRecoveryReport,
        RebuildReport,
        ReconfigurationOrder,
        ReconfigurationReport,
        ReinferenceOrder,
        ReinferenceReport,
        RelaunchOrder,
        RelaunchReport,
        RoundOrder,
        RoundOutcome,
        RoundReport,
        StrategyKind,
    )
    from domain.rebuild.new_engines import run_reconfiguration, run_relaunch
    from domain.rebuild.reinference import run_reinference
    from domain.round.fast_recovery import run_fast_recovery
    from domain.round.scale_down import run_round
    from domain.runtime import FtPhase

T = TypeVar("T", RoundReport, FastRecoveryReport)

_WHOEVER_STOPPED_IT: Final = "Whoever stopped it decides; the FaultManager goes on with that."
_BEFORE_THE_COMMIT: Final = "before the commit point or not at all"
_AT_THE_NEXT_WAIT: Final = "at the next wait; the instance stays withdrawn"


def _transaction_ended(achieved: Callable[[T], str], follows: Mapping[RoundOutcome, str]) -> Callable[[T], list[str]]:
    """How a transaction ended, what it has achieved or has touched, and what comes next."""

    def ended(report: T) -> list[str]:
        lines: list[str] = [headline(report.outcome.value, report.reason.value, report.detail)]
        if report.outcome is RoundOutcome.SUCCEEDED:
            lines += [achieved(report), *not_final(report.serving_published, report.pending_finalize)]
        else:
            called = sorted(rank for rank, http in report.applied.items() if http is not None)
            withdrawn = "yes" if report.withdrawn else "no"
            lines.append(f"Engines that were called: {ranks(called)}. Withdrawn from serving: {withdrawn}.")
        return [*lines, f"Next: {follows[report.outcome]}"]

    return ended


def _rebuild_ended(report: RebuildReport) -> list[str]:
    return [headline(report.outcome.value, report.reason.value, report.detail)]


_ROUND: Final = Words[RoundOrder, RoundReport](
    opening=lambda order: [f"## Instance {order.instance_id}: remove ranks {ranks(order.pending_ranks)}"],
    ended=_transaction_ended(
        lambda report: f"Removed: {ranks(report.dead_committed)}. Serving: {ranks(report.survivors)}.",
        {
            RoundOutcome.SUCCEEDED: "Nothing: the survivors serve.",
            RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration). This round calls no engine again.",
            RoundOutcome.ABANDONED: "The evidence was false, nothing was withdrawn; "
            "the FaultManager decides again with what was seen.",
            RoundOutcome.CANCELLED: _WHOEVER_STOPPED_IT,
        },
    ),
    stop_lands=_BEFORE_THE_COMMIT,
)


@workflow.defn(name="ScaleDownRound")
class ScaleDownRound(StrategyWorkflow[RoundOrder, RoundReport]):
    """The dead leave the group, the survivors go on (design §4)."""

    @workflow.init
    def __init__(self, order: RoundOrder) -> None:
        super().__init__(
            StrategyKind.SCALE_DOWN,
            order,
            _ROUND,
            RequestId=order.request_id,
            DeadRanks=[str(rank) for rank in order.pending_ranks],
            ServingPublished=bool(order.published_ranks),
        )

    @workflow.run
    async def run(self, order: RoundOrder) -> RoundReport:
        report = await self._shell.run(run_round(order, RoundActivityPorts(self._shell)))
        return await self._shell.end(
            report,
            f"Next: reconfiguration of instance {order.instance_id}.",
            ServingPublished=report.serving_published,
            DeadRanks=[str(rank) for rank in report.removed_dp_ranks],
        )


def _retrying(order: FastRecoveryOrder) -> list[str]:
    active = [rank for rank in order.topology.ranks if rank not in order.dead_committed]
    return [f"## Instance {order.instance_id}: ranks {ranks(active)} retry in place"]


_FAST_RECOVERY: Final = Words[FastRecoveryOrder, FastRecoveryReport](
    opening=_retrying,
    ended=_transaction_ended(
        lambda report: f"Serving again: {ranks(report.recovered)}.",
        {
            RoundOutcome.SUCCEEDED: "Nothing: the same ranks serve again.",
            RoundOutcome.FAILED: "The FaultManager rebuilds the instance (reconfiguration); "
            "no rank is removed after a failed retry.",
            RoundOutcome.ABANDONED: "The evidence had changed, nothing was withdrawn; "
            "the FaultManager decides again with what was seen.",
            RoundOutcome.CANCELLED: _WHOEVER_STOPPED_IT,
        },
    ),
    stop_lands=_BEFORE_THE_COMMIT,
)


@workflow.defn(name="FastRecovery")
class FastRecovery(StrategyWorkflow[FastRecoveryOrder, FastRecoveryReport]):
    """Every active rank retries in place (design §3, rule 6)."""

    @workflow.init
    def __init__(self, order: FastRecoveryOrder) -> None:
        super().__init__(
            StrategyKind.FAST_RECOVERY,
            order,
            _FAST_RECOVERY,
            RequestId=order.request_id,
            ServingPublished=bool(order.published_ranks),
        )

    @workflow.run
    async def run(self, order: FastRecoveryOrder) -> FastRecoveryReport:
        report = await self._shell.run(run_fast_recovery(order, TransactionActivityPorts(self._shell)))
        follows = f"Next: reconfiguration of instance {order.instance_id}."
        return await self._shell.end(report, follows, ServingPublished=report.serving_published)


_RECONFIGURATION: Final = Words[ReconfigurationOrder, ReconfigurationReport](
    opening=lambda order: [f"## Rebuild instance {order.instance_id}", f"Why: {order.why}"],
    ended=_rebuild_ended,
    stop_lands=_AT_THE_NEXT_WAIT,
)


@workflow.defn(name="InstanceReconfiguration")
class InstanceReconfiguration(StrategyWorkflow[ReconfigurationOrder, ReconfigurationReport]):
    """The whole instance anew, with every rank of its topology (design §3)."""

    @workflow.init
    def __init__(self, order: ReconfigurationOrder) -> None:
        super().__init__(
            StrategyKind.INSTANCE_RECONFIGURATION,
            order,
            _RECONFIGURATION,
            FtPhase=FtPhase.RECONFIGURING.value,
            ServingPublished=False,
        )

    @workflow.run
    async def run(self, order: ReconfigurationOrder) -> ReconfigurationReport:
        report = await self._shell.run(run_reconfiguration(order, RebuildActivityPorts(self._shell)))
        follows = f"Instance {order.instance_id} stays withdrawn."
        return await self._shell.end(report, follows, ServingPublished=report.serving_published)


def _relaunching(order: RelaunchOrder) -> list[str]:
    wanted = [rank for rank in order.topology.ranks if rank not in order.dead_committed]
    return [f"## Instance {order.instance_id}: new engines for ranks {ranks(wanted)}", f"Why: {order.why}"]


_RELAUNCH: Final = Words[RelaunchOrder, RelaunchReport](opening=_relaunching, ended=_rebuild_ended, stop_lands=_AT_THE_NEXT_WAIT)


@workflow.defn(name="EngineRelaunch")
class EngineRelaunch(StrategyWorkflow[RelaunchOrder, RelaunchReport]):
    """New engines for the ranks that were not removed; what was removed stays removed (design §3, original strategies)."""

    @workflow.init
    def __init__(self, order: RelaunchOrder) -> None:
        super().__init__(
            StrategyKind.ENGINE_RELAUNCH,
            order,
            _RELAUNCH,
            FtPhase=FtPhase.RECONFIGURING.value,
            ServingPublished=False,
        )

    @workflow.run
    async def run(self, order: RelaunchOrder) -> RelaunchReport:
        report = await self._shell.run(run_relaunch(order, RebuildActivityPorts(self._shell)))
        follows = f"Next: reconfiguration of instance {order.instance_id}."
        return await self._shell.end(report, follows, ServingPublished=report.serving_published)


_REINFERENCE: Final = Words[ReinferenceOrder, ReinferenceReport](
    opening=lambda order: [
        f"## Instance {order.instance_id}: ranks {ranks(order.ranks)} may heal by themselves",
        f"Why: {order.why}",
    ],
    ended=lambda report: [headline("healed" if report.healed else "not healed", report.reason.value, report.detail)],
    stop_lands="at the next look",
)


@workflow.defn(name="TokenReinference")
class TokenReinference(StrategyWorkflow[ReinferenceOrder, ReinferenceReport]):
    """The wait for engines that heal by themselves; it touches nothing (design §3, rule 3)."""

    @workflow.init
    def __init__(self, order: ReinferenceOrder) -> None:
        super().__init__(StrategyKind.TOKEN_REINFERENCE, order, _REINFERENCE)

    @workflow.run
    async def run(self, order: ReinferenceOrder) -> ReinferenceReport:
        report = await self._shell.run(run_reinference(order, RebuildActivityPorts(self._shell)))
        return await self._shell.end(report, None)


STRATEGY_WORKFLOWS: Final[tuple[type, ...]] = (
    ScaleDownRound,
    FastRecovery,
    InstanceReconfiguration,
    EngineRelaunch,
    TokenReinference,
)
"""What a worker registers; the FaultManager starts them by the names in `domain.instance.strategies`."""
