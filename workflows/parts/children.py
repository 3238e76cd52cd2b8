"""How a workflow starts another one that lives on by itself.

Such a child is abandoned: it outlives the run that started it, tells its news by signal, and its handle is awaited by nobody.
So two things are done here for all of them. An id that is taken is an answer and not an error: somebody was quicker, or this
very command was repeated. And how the child closes is fetched, for Python complains of a failure that nobody fetches.
"""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from domain.receivers import TASK_TIMEOUT

Child = workflow.ChildWorkflowHandle[Any, Any]

_LONGEST_SUMMARY = 200


async def start_abandoned(
    workflow_type: str,
    order: BaseModel,
    *,
    workflow_id: str,
    id_reuse_policy: WorkflowIDReusePolicy,
    summary: str,
    details: str | None = None,
    execution_timeout: timedelta | None = None,
    search_attributes: TypedSearchAttributes | None = None,
) -> Child | None:
    """The child, once it has begun; None where its id is taken. `summary`, `details`: what the Web UI shows of it."""
    try:
        child = await workflow.start_child_workflow(
            workflow_type,
            order,
            id=workflow_id,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            id_reuse_policy=id_reuse_policy,
            execution_timeout=execution_timeout,
            task_timeout=TASK_TIMEOUT,
            static_summary=summary[:_LONGEST_SUMMARY],
            static_details=details,
            search_attributes=search_attributes,
        )
    except WorkflowAlreadyStartedError:
        return None
    child.add_done_callback(_fetch_end)
    return child


def _fetch_end(child: Child) -> None:
    """Whoever wants to know how it ended is told by the child itself, or looks it up."""
    if not child.cancelled():
        child.exception()
