"""Golden histories: one for each end of each workflow that the workflow tests bring about, as a real server recorded it.

    make histories        runs the workflow tests and writes tests/histories/*.json anew

A history is what Temporal keeps of a workflow; code that is rolled out while workflows run must decide on it exactly as
the code did that wrote it. The files here are replayed in `make test`. When a replay goes red, the change needs a patch
(docs/changing-workflows.md); the files are written anew only when no history of that age can be running any more.

Of all runs with the same outcome the shortest is kept; one with a payload so large that it was packed counts apart ("-large").
Left out are stand-ins that tests use in place of a workflow, strategies that a test terminated, runs that continued as new
(tests bring that about by a lower limit than production's) and those that still run. Names of machines, process ids and
stack traces are taken out: they play no part in a replay.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHistory

from service.payloads import PACKED, unpacked
from workers.controller_worker import WORKFLOWS

DIRECTORY: Final = Path(__file__).parent
LONGEST_EVENTS: Final = 400
_STAND_INS: Final = "note_order"
_WITHOUT_ACTIVITIES: Final = frozenset({"InstanceRegistry"})
_WITHOUT_END: Final = frozenset({"FaultManager", "EventPusher", "InstanceRegistry"})
"""These run until somebody ends them."""


async def record_all(client: Client, directory: Path = DIRECTORY) -> list[str]:
    """Write the golden files anew; their names."""
    chosen: dict[str, tuple[int, str]] = {}
    async for history, execution in _histories(client):
        name = _name(history, execution)
        text = json.dumps(_anonymous(json.loads(history.to_json())), separators=(",", ":"), sort_keys=True) + "\n"
        known = chosen.get(name)
        if known is None or len(history.events) < known[0]:
            chosen[name] = (len(history.events), text)
    _write(directory, {name: text for name, (_, text) in chosen.items()})
    return sorted(chosen)


def _write(directory: Path, texts: Mapping[str, str]) -> None:
    for old in directory.glob("*.json"):
        old.unlink()
    for name, text in texts.items():
        (directory / f"{name}.json").write_text(text, encoding="utf-8")


async def _histories(client: Client) -> AsyncIterator[tuple[WorkflowHistory, WorkflowExecution]]:
    types = {getattr(workflow, "__temporal_workflow_definition").name for workflow in WORKFLOWS}
    async for execution in client.list_workflows():
        other = execution.status in (WorkflowExecutionStatus.CONTINUED_AS_NEW, WorkflowExecutionStatus.RUNNING)
        if execution.workflow_type not in types or other or execution.history_length > LONGEST_EVENTS:
            continue
        if execution.status is WorkflowExecutionStatus.TERMINATED and execution.workflow_type not in _WITHOUT_END:
            continue
        history = await client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
        activities = set(_activities(history))
        told = activities or execution.workflow_type in _WITHOUT_ACTIVITIES
        if told and _STAND_INS not in activities and _has_decided(history):
            yield history, execution


def _has_decided(history: WorkflowHistory) -> bool:
    return any(event.HasField("workflow_task_completed_event_attributes") for event in history.events)


def _activities(history: WorkflowHistory) -> Iterator[str]:
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            yield event.activity_task_scheduled_event_attributes.activity_type.name


def _children(history: WorkflowHistory) -> Iterator[str]:
    for event in history.events:
        if event.HasField("start_child_workflow_execution_initiated_event_attributes"):
            yield event.start_child_workflow_execution_initiated_event_attributes.workflow_type.name


def _name(history: WorkflowHistory, execution: WorkflowExecution) -> str:
    """Type, how it ended and with which reason; for what does not end, the strategies that it started."""
    status = execution.status.name.lower() if execution.status is not None else "unknown"
    reason = _reason(history)
    strategies = "+".join(dict.fromkeys(_children(history))) if reason is None else None
    large = "large" if has_packed_payloads(history) else None
    return "-".join(part for part in (execution.workflow_type, status, reason, strategies, large) if part)


def has_packed_payloads(history: WorkflowHistory) -> bool:
    return base64.b64encode(PACKED).decode() in history.to_json()


def _reason(history: WorkflowHistory) -> str | None:
    """What a strategy's report says, whether it was returned or came as a failure's detail."""
    last = history.events[-1]
    if last.HasField("workflow_execution_completed_event_attributes"):
        payloads = last.workflow_execution_completed_event_attributes.result.payloads
    elif last.HasField("workflow_execution_failed_event_attributes"):
        failure = last.workflow_execution_failed_event_attributes.failure
        payloads = failure.application_failure_info.details.payloads
    else:
        return None
    for payload in payloads:
        report = json.loads(unpacked(payload).data)
        if isinstance(report, dict) and isinstance(report.get("reason"), str):
            return str(report["reason"])
    return None


def _anonymous(value: Any, key: str = "") -> Any:
    """Sticky queues are named after process and machine, identities too: `pid@machine`."""
    if isinstance(value, dict):
        return {name: _anonymous(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_anonymous(inner) for inner in value]
    if isinstance(value, str):
        return "" if key == "stackTrace" else "worker" if "@" in value else value
    return value
