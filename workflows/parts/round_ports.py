"""The ports of a transaction, with Temporal behind them: each call is one activity, each wait can be read in the Web UI.

The logic is `domain.round`'s `run_round` and `run_fast_recovery`; what is here only translates. An activity
without a result becomes an `AutotomyError`, which they know how to judge.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from workflows.parts.strategy_run import HEARTBEAT_TIMEOUT, call_activity, now, start_activity
from workflows.parts.strategy_shell import StrategyShell

with workflow.unsafe.imports_passed_through():
    from activities.coordinator import CoordinatorActivities
    from activities.fault_manager import FaultManagerActivities
    from activities.node_manager import NodeManagerActivities
    from domain.messages.fault_manager import CommitReport
    from domain.messages.round import (
        ApplyCall,
        ApplyResult,
        CommitRecord,
        FinalizeCall,
        FinalizeResult,
        GuardCall,
        GuardResult,
        LookCall,
        LookResult,
        StopPodsCall,
        VerifyCall,
        VerifyResult,
        ViewCall,
        ViewResult,
    )
    from domain.messages.strategy import StepReport
    from domain.runtime import FtPhase
    from domain.watch import LookVerdict, Observation, RecoveredWatch, RetryReadyWatch

COMMIT_ACKNOWLEDGEMENT_SEC = 10.0
"""Without the FaultManager's acknowledgement in this time the round goes on; the journals will tell it (design §4, step 9)."""

_TOLD_OTHERWISE: Final = frozenset({FtPhase.DECIDING, FtPhase.POST_SCALE_CLEANUP, FtPhase.SCALED_DOWN_RUNNING})
"""Steps of which the FaultManager knows by the start, the commit and the end; a word more would only cost time."""


class ActivityPorts:
    """`RoundPorts` and `FastRecoveryPorts` of one transaction, whose status shows each call and each step."""

    def __init__(self, shell: StrategyShell[Any]) -> None:
        self._stop = shell.stop
        self._reporter = shell.reporter
        self._on_call = shell.called
        self._on_step = shell.stepped
        self._beside: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        return now()

    def stop_requested(self) -> bool:
        return self._stop.made

    def progress(self, report: StepReport) -> None:
        self._on_step(report)
        self._reporter.note(FtPhase=report.phase.value, DeadRanks=[str(rank) for rank in report.pending_ranks])
        if report.phase not in _TOLD_OTHERWISE:
            self._reporter.attribute()
            self._reporter.progress(report)

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

    async def pause(self, seconds: float, why: str) -> None:
        summary = f"wait {seconds:g} s: {why}"
        self._on_call(summary)
        await self._stop.pause(seconds, summary)

    async def guard(self, call: GuardCall) -> GuardResult:
        summary = f"guard {len(call.must) + len(call.may_be_absent)} NodeManagers for {call.lease_sec:g} s"
        self._on_call(summary)
        return await call_activity(NodeManagerActivities.guard, call, deadline_at=call.deadline_at, summary=summary)

    async def look(self, call: LookCall) -> LookResult:
        summary = _look_summary(call)
        self._on_call(summary)
        handle = start_activity(NodeManagerActivities.look, call, deadline_at=call.deadline_at, summary=summary)
        nothing = Observation(verdict=LookVerdict.WAIT, detail="the look was stopped before it saw anything")
        return await self._stop.interruptible(handle, LookResult(watch=call.watch, observation=nothing, sweeps=0))

    async def withdraw(self, call: ViewCall) -> ViewResult:
        return await self._push(call, f"DEL from every Coordinator (view revision {call.revision})")

    async def publish(self, call: ViewCall) -> ViewResult:
        return await self._push(call, f"ADD ranks {_listed(call.ranks)} at every Coordinator (view revision {call.revision})")

    async def _push(self, call: ViewCall, summary: str) -> ViewResult:
        self._on_call(summary)
        return await call_activity(CoordinatorActivities.push_view, call, deadline_at=call.deadline_at, summary=summary)

    async def apply(self, call: ApplyCall) -> ApplyResult:
        engines = _listed(rank for group in call.groups for rank in group.ranks)
        what = f"remove ranks {_listed(call.removed_dp_ranks)}" if call.removed_dp_ranks else call.instruction.value
        summary = f"apply: {what} → engines {engines}"
        self._on_call(summary)
        return await call_activity(NodeManagerActivities.apply, call, deadline_at=call.deadline_at, summary=summary)

    async def verify(self, call: VerifyCall) -> VerifyResult:
        summary = f"one completion on each of ranks {_listed(rank for group in call.groups for rank in group.ranks)}"
        self._on_call(summary)
        return await call_activity(NodeManagerActivities.verify, call, deadline_at=call.deadline_at, summary=summary)

    async def record_commit(self, record: CommitRecord) -> bool:
        summary = f"commit point: tell the FaultManager that ranks {_listed(record.dead_committed)} are removed"
        self._on_call(summary)
        return await call_activity(
            FaultManagerActivities.report_commit,
            CommitReport(start=self._reporter.fault_manager_start, record=record, within_sec=COMMIT_ACKNOWLEDGEMENT_SEC),
            deadline_at=now() + COMMIT_ACKNOWLEDGEMENT_SEC,
            summary=summary,
        )

    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        summary = f"finalize({'commit' if call.commit else 'abort'}) at {len(call.managers)} NodeManagers"
        self._on_call(summary)
        return await call_activity(NodeManagerActivities.finalize, call, deadline_at=call.deadline_at, summary=summary)


async def _whatever_comes(handle: "workflow.ActivityHandle[None]") -> None:
    try:
        await handle
    except ActivityError as error:
        workflow.logger.warning("best effort failed: %s", error)


def _look_summary(call: LookCall) -> str:
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
