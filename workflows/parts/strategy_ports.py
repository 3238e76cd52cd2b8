"""The ports of every strategy, with Temporal behind them: each call is one activity, each wait can be read in the Web UI.

The logic is in `domain`; what is here only translates. An activity without a result becomes an `AutotomyError`, which the
logic knows how to judge. A wish to stop ends the waits that have no effects, and an ended wait gives an empty result.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from workflows.parts.strategy_run import HEARTBEAT_TIMEOUT, call_activity, now, start_activity
from workflows.parts.strategy_shell import StrategyShell

with workflow.unsafe.imports_passed_through():
    from activities.coordinator import CoordinatorActivities
    from activities.fault_manager import FaultManagerActivities
    from activities.node_manager import NodeManagerActivities
    from activities.rebuild import RebuildActivities
    from domain.messages.fault_manager import CommitReport
    from domain.messages.rebuild import (
        EnginesReadyCall,
        EnginesReadyResult,
        StartNodeManagersCall,
        StartNodeManagersResult,
        StopNodeManagersCall,
        StopNodeManagersResult,
    )
    from domain.messages.round import (
        ApplyCall,
        ApplyResult,
        CommitRecord,
        FinalizeCall,
        FinalizeResult,
        GuardCall,
        GuardResult,
        StopPodsCall,
        VerifyCall,
        VerifyResult,
        ViewCall,
        ViewResult,
        WatchCall,
        WatchResult,
    )
    from domain.messages.strategy import StepReport
    from domain.runtime import FtPhase
    from domain.watch import Question, RecoveredWatch, RetryReadyWatch, WatchStanding, WatchState

R = TypeVar("R")

COMMIT_ACKNOWLEDGEMENT_SEC = 10.0
"""Without the FaultManager's acknowledgement in this time the round goes on; the journals will tell it (design §4, step 9)."""

_TOLD_OTHERWISE: Final = frozenset({FtPhase.DECIDING, FtPhase.POST_SCALE_CLEANUP, FtPhase.SCALED_DOWN_RUNNING})
"""A round's steps of which the FaultManager knows by the start, the commit and the end; a word more would only cost time."""


class StrategyActivityPorts:
    """`StrategyPorts` of one strategy, whose status shows each call and each step."""

    def __init__(self, shell: StrategyShell[Any, Any]) -> None:
        self._shell = shell

    def now(self) -> float:
        return now()

    def stop_requested(self) -> str | None:
        return self._shell.stop.why

    def progress(self, report: StepReport) -> None:
        self._shell.stepped(report)
        self._shell.reporter.progress(report)

    async def pause(self, seconds: float, why: str) -> None:
        summary = f"wait {seconds:g} s: {why}"
        self._shell.called(summary)
        await self._shell.stop.pause(seconds, summary)

    async def push_view(self, call: ViewCall) -> ViewResult:
        what = f"ADD ranks {_listed(call.ranks)} at" if call.ranks else "DEL from"
        summary = f"{what} every Coordinator (view revision {call.revision})"
        self._shell.called(summary)
        return await call_activity(CoordinatorActivities.push_view, call, deadline_at=call.deadline_at, summary=summary)

    async def verify(self, call: VerifyCall) -> VerifyResult:
        summary = f"one completion on each of ranks {_ranks(call.groups)}"
        self._shell.called(summary)
        return await call_activity(NodeManagerActivities.verify, call, deadline_at=call.deadline_at, summary=summary)

    async def _wait(self, handle: "workflow.ActivityHandle[R]", otherwise: R) -> R:
        return await self._shell.stop.interruptible(handle, otherwise)


class TransactionActivityPorts(StrategyActivityPorts):
    """`TransactionPorts`."""

    async def guard(self, call: GuardCall) -> GuardResult:
        summary = f"guard {len(call.must) + len(call.may_be_absent)} NodeManagers for {call.lease_sec:g} s"
        self._shell.called(summary)
        return await call_activity(NodeManagerActivities.guard, call, deadline_at=call.deadline_at, summary=summary)

    async def look(self, call: WatchCall) -> WatchResult:
        summary = _look_summary(call)
        self._shell.called(summary)
        handle = start_activity(NodeManagerActivities.look, call, deadline_at=call.deadline_at, summary=summary)
        nothing = WatchStanding(verdict=WatchState.WAIT, detail="the look was stopped before it saw anything")
        return await self._wait(handle, WatchResult(watch=call.watch, observation=nothing, sweeps=0))

    async def apply(self, call: ApplyCall) -> ApplyResult:
        engines = _ranks(call.groups)
        what = f"remove ranks {_listed(call.removed_dp_ranks)}" if call.removed_dp_ranks else call.instruction.value
        summary = f"apply: {what} → engines {engines}"
        self._shell.called(summary)
        return await call_activity(NodeManagerActivities.apply, call, deadline_at=call.deadline_at, summary=summary)

    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        summary = f"finalize({'commit' if call.commit else 'abort'}) at {len(call.managers)} NodeManagers"
        self._shell.called(summary)
        return await call_activity(NodeManagerActivities.finalize, call, deadline_at=call.deadline_at, summary=summary)


class RoundActivityPorts(TransactionActivityPorts):
    """`RoundPorts`. The FaultManager hears of the steps that it cannot know otherwise."""

    def __init__(self, shell: StrategyShell[Any, Any]) -> None:
        super().__init__(shell)
        self._beside: set[asyncio.Task[None]] = set()

    def progress(self, report: StepReport) -> None:
        self._shell.stepped(report)
        self._shell.reporter.note(FtPhase=report.phase.value, DeadRanks=[str(rank) for rank in report.pending_ranks])
        if report.phase not in _TOLD_OTHERWISE:
            self._shell.reporter.attribute()
            self._shell.reporter.progress(report)

    def stop_pods(self, call: StopPodsCall) -> None:
        handle = workflow.start_activity_method(
            NodeManagerActivities.stop_pods,
            call,
            start_to_close_timeout=timedelta(seconds=2 * call.request_timeout_sec),
            schedule_to_start_timeout=timedelta(seconds=60),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=f"stop the emptied Pods {_listed(call.managers)}, once",
        )
        self._beside.add(asyncio.create_task(_whatever_comes(handle)))

    async def record_commit(self, record: CommitRecord) -> bool:
        summary = f"commit point: tell the FaultManager that ranks {_listed(record.dead_committed)} are removed"
        self._shell.called(summary)
        return await call_activity(
            FaultManagerActivities.report_commit,
            CommitReport(start=self._shell.reporter.fault_manager_start, record=record, within_sec=COMMIT_ACKNOWLEDGEMENT_SEC),
            deadline_at=now() + COMMIT_ACKNOWLEDGEMENT_SEC,
            summary=summary,
        )


class RebuildActivityPorts(StrategyActivityPorts):
    """`RebuildPorts` and `ReinferencePorts`."""

    async def stop_node_managers(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        summary = f"stop {len(call.managers)} NodeManagers, each until it is back in a new life"
        self._shell.called(summary)
        handle = start_activity(RebuildActivities.stop_node_managers, call, deadline_at=call.deadline_at, summary=summary)
        return await self._wait(handle, StopNodeManagersResult())

    async def stop_engines(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        summary = f"end the engines of {len(call.managers)} NodeManagers"
        self._shell.called(summary)
        handle = start_activity(RebuildActivities.stop_engines, call, deadline_at=call.deadline_at, summary=summary)
        return await self._wait(handle, StopNodeManagersResult())

    async def start(self, call: StartNodeManagersCall) -> StartNodeManagersResult:
        wanted = _listed(rank for rank in call.topology.ranks if rank not in call.dead_committed)
        summary = f"start ranks {wanted} under generation {call.generation}"
        self._shell.called(summary)
        handle = start_activity(RebuildActivities.start_node_managers, call, deadline_at=call.deadline_at, summary=summary)
        return await self._wait(handle, StartNodeManagersResult())

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult:
        summary = f"look until ranks {_ranks(call.questions)} are healthy"
        self._shell.called(summary)
        handle = start_activity(RebuildActivities.await_engines_ready, call, deadline_at=call.deadline_at, summary=summary)
        return await self._wait(handle, EnginesReadyResult())


async def _whatever_comes(handle: "workflow.ActivityHandle[None]") -> None:
    try:
        await handle
    except ActivityError as error:
        workflow.logger.warning("best effort failed: %s", error)


def _look_summary(call: WatchCall) -> str:
    watch = call.watch
    survivors = _listed(watch.survivor_ranks)
    if isinstance(watch, RecoveredWatch):
        return f"look until ranks {survivors} have recovered"
    if isinstance(watch, RetryReadyWatch):
        return f"look {'once: are' if call.once else 'until'} ranks {survivors} {'' if call.once else 'are '}all unhealthy"
    if call.once:
        return f"look once: are ranks {survivors} apply-ready, is {_listed(watch.removed_ranks)} dead"
    return f"look until ranks {survivors} are apply-ready and {_listed(watch.removed_ranks)} is confirmed dead"


def _listed(items: Iterable[object]) -> str:
    return ",".join(str(item) for item in items)


def _ranks(groups: Iterable[Question]) -> str:
    return _listed(rank for group in groups for rank in group.ranks)
