"""What a strategy tells the FaultManager, and what the FaultManager asks Temporal about a silent strategy.

A report starts the FaultManager where it was terminated, with the topology and configuration of the strategy's own order,
so that no end of a round is ever told to nobody (design §1).
"""

import logging
from typing import Final

from pydantic import BaseModel
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.attempt import attempt
from activities.temporal_calls import signal_with_start, update_with_start
from domain.errors import Transient
from domain.messages.fault_manager import (
    COMMIT_UPDATE,
    END_SIGNAL,
    PROGRESS_SIGNAL,
    CommitReport,
    EndReport,
    FaultManagerStart,
    LookUpCall,
    LookUpResult,
    OwnedTopology,
    OwnedTopologyCall,
    ProgressReport,
    Reported,
    StrategyState,
    fault_manager_id,
)
from domain.messages.strategy import AnyReport, StrategyEnd
from domain.receivers import fault_manager
from service.fault_manager_input import fault_manager_input

log = logging.getLogger(__name__)

_RPC_TIMEOUT_SEC: Final = 5.0
_ENDED: Final = frozenset({WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.CANCELED})


class FaultManagerActivities:
    """`search_attributes`: those that the worker found usable when it started."""

    def __init__(self, client: Client, task_queue: str, search_attributes: frozenset[str] = frozenset()) -> None:
        self._client = client
        self._task_queue = task_queue
        self._reported = Reported(search_attributes=tuple(sorted(search_attributes)))

    @activity.defn
    async def usable_search_attributes(self) -> Reported:
        """The search attributes that may be set; another one would fail the workflow task for ever."""
        return self._reported

    @activity.defn
    async def report_progress(self, report: ProgressReport) -> Reported:
        """Signals a step of a strategy. Its result tells the strategy which search attributes it may set."""
        async with attempt("progress"):
            await self._signal(report.start, PROGRESS_SIGNAL, report.progress)
            return self._reported

    @activity.defn
    async def report_commit(self, report: CommitReport) -> bool:
        """Tells the FaultManager what is committed and waits for its acknowledgement; False if none came in time."""
        async with attempt("record_commit") as run:
            began_at = run.now()
            try:
                await run.until_answered(
                    lambda timeout_sec: self._record_commit(report, timeout_sec),
                    began_at + report.within_sec,
                    report.within_sec,
                )
            except Transient as error:
                log.warning(
                    "the FaultManager did not acknowledge the commit; the journals will tell it",
                    extra={"instance": report.record.instance_id, "why": error.message},
                )
                return False
            return True

    async def _record_commit(self, report: CommitReport, timeout_sec: float) -> None:
        await update_with_start(
            self._client,
            self._task_queue,
            fault_manager(report.start),
            COMMIT_UPDATE,
            report.record,
            object,
            timeout_sec=timeout_sec,
            update_id=f"commit-{report.record.request_id}",
        )

    @activity.defn
    async def report_end(self, report: EndReport) -> None:
        """Signals a strategy's end. Raises Transient while Temporal does not take it: this must not get lost."""
        async with attempt("end"):
            await self._signal(report.start, END_SIGNAL, report.end)

    async def _signal(self, start: FaultManagerStart, signal: str, argument: BaseModel) -> None:
        receiver = fault_manager(start)
        await signal_with_start(self._client, self._task_queue, receiver, signal, argument, timeout_sec=_RPC_TIMEOUT_SEC)

    @activity.defn
    async def owned_topology(self, call: OwnedTopologyCall) -> OwnedTopology:
        """For which topology the FaultManager that runs under this id was started. Raises Transient: nobody can say now."""
        async with attempt("owned_topology"):
            workflow_id = fault_manager_id(call.instance_id)
            try:
                found = await self._client.get_workflow_handle(workflow_id).describe()
                runs = found.status is WorkflowExecutionStatus.RUNNING
                start = await fault_manager_input(self._client, workflow_id, found.run_id) if runs else None
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return OwnedTopology(digest=None)
                raise Transient(f"Temporal does not give the history of its FaultManager: {error.message}") from None
            return OwnedTopology(digest=None if start is None else start.topology.digest)

    @activity.defn
    async def look_up_strategy(self, call: LookUpCall) -> LookUpResult:
        """What became of a strategy from which nothing is heard. Raises Transient while Temporal does not answer."""
        async with attempt("look_up"):
            handle = self._client.get_workflow_handle(call.workflow_id)
            try:
                status = (await handle.describe()).status
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return LookUpResult(state=StrategyState.ABSENT)
                raise Transient(f"Temporal cannot describe {call.workflow_id}: {error.message}") from None
            if status is WorkflowExecutionStatus.RUNNING:
                return LookUpResult(state=StrategyState.RUNNING)
            end = await _end(handle, call) if status in _ENDED else None
            return LookUpResult(state=StrategyState.LOST if end is None else StrategyState.ENDED, end=end)


async def _end(handle: WorkflowHandle[object, object], call: LookUpCall) -> StrategyEnd | None:
    """A closed strategy's end: its report is its result, or the first detail of its failure. None: it left none."""
    try:
        found = await handle.result()
    except WorkflowFailureError as error:
        cause = error.cause
        found = cause.details[0] if isinstance(cause, ApplicationError) and cause.details else None
    except RPCError as error:
        raise Transient(f"Temporal does not give the result of {handle.id}: {error.message}") from None
    if not isinstance(found, dict):
        return None
    return StrategyEnd(workflow_id=call.workflow_id, report=AnyReport.validate_python(found))
