"""The ports of a rebuild, a relaunch or a wait for self-healing: each call is one activity that can be read in the Web UI.

The logic is in `domain.rebuild`. A wish to stop ends the waits, and an ended wait gives an empty result.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from temporalio import workflow

from workflows.parts.strategy_run import call_activity, now, start_activity
from workflows.parts.strategy_shell import StrategyShell

with workflow.unsafe.imports_passed_through():
    from activities.coordinator import CoordinatorActivities
    from activities.node_manager import NodeManagerActivities
    from activities.rebuild import RebuildActivities
    from domain.messages.rebuild import (
        EnginesReadyCall,
        EnginesReadyResult,
        StartNodeManagersCall,
        StartNodeManagersResult,
        StopNodeManagersCall,
        StopNodeManagersResult,
    )
    from domain.messages.round import VerifyCall, VerifyResult, ViewCall, ViewResult
    from domain.messages.strategy import StepReport

R = TypeVar("R")


class RebuildActivityPorts:
    """`RebuildPorts` and `ReinferencePorts` of one strategy, whose status shows each call and each step."""

    def __init__(self, shell: StrategyShell[Any]) -> None:
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
        summary = f"look until ranks {_listed(rank for question in call.questions for rank in question.ranks)} are healthy"
        self._shell.called(summary)
        handle = start_activity(RebuildActivities.await_engines_ready, call, deadline_at=call.deadline_at, summary=summary)
        return await self._wait(handle, EnginesReadyResult())

    async def verify(self, call: VerifyCall) -> VerifyResult:
        summary = f"one completion on each of ranks {_listed(rank for group in call.groups for rank in group.ranks)}"
        self._shell.called(summary)
        return await call_activity(NodeManagerActivities.verify, call, deadline_at=call.deadline_at, summary=summary)

    async def _wait(self, handle: "workflow.ActivityHandle[R]", otherwise: R) -> R:
        return await self._shell.stop.interruptible(handle, otherwise)


def _listed(items: Iterable[object]) -> str:
    return ",".join(str(item) for item in items)
