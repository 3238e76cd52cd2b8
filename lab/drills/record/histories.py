"""The workflows of a run: their histories for the bundle, and the reports that rounds ended with.

A history is exported as `temporal workflow show -o json` prints it, so it can be read, and replayed against later code.
Replayed at once, it is what invariant I12 is judged on: `python -m workers.replay` runs the workflows over it again.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from domain.messages.strategy import RoundReport
from domain.model import Tolerant
from lab.stack.environment import base_environment
from service.temporal import TemporalUnavailable, connect_within

ROUND_PREFIX: Final = "scale-down-"
_LIMIT_SEC: Final = 20.0
_REPLAY_LIMIT_SEC: Final = 90.0
_ENDED: Final = frozenset({WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED})


class Histories:
    """What was found: `files` as written, `reports` of the rounds that have ended."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.reports: list[RoundReport] = []
        self.missing: list[str] = []


async def export_histories(address: str, namespace: str, directory: Path) -> Histories:
    """Write every workflow run's history into the existing `directory`; what cannot be read is named in `missing`."""
    found = Histories()
    try:
        async with asyncio.timeout(_LIMIT_SEC):
            client = await connect_within(_LIMIT_SEC, {"target_host": address, "namespace": namespace})
            async for execution in client.list_workflows():
                await _export(client, execution, directory, found)
    except (RPCError, TemporalUnavailable, RuntimeError, TimeoutError) as error:
        found.missing.append(f"{type(error).__name__}: {error}")
    found.reports.sort(key=lambda report: report.generation)
    return found


class Replay(Tolerant):
    """What the replayer said: workflow tasks compared, and what it objects to."""

    tasks: int = 0
    faults: tuple[str, ...] = ()


class _Failure(Tolerant):
    file: str
    workflow: str
    failure: str


class _LastLine(Tolerant):
    tasks: int
    failures: tuple[_Failure, ...]


async def replay_histories(directory: Path) -> Replay:
    """Run the workflows over the exported histories again, in a process of its own."""
    command = (sys.executable, "-m", "workers.replay", str(directory))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=base_environment("replay", "replay")
    )
    try:
        async with asyncio.timeout(_REPLAY_LIMIT_SEC):
            out, err = await process.communicate()
    except TimeoutError:
        return Replay(faults=(f"the replay did not end within {_REPLAY_LIMIT_SEC:g} s",))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        told = _LastLine.model_validate_json(out.splitlines()[-1])
    except (IndexError, ValidationError):
        return Replay(faults=(f"the replay ended with code {process.returncode}: {err.decode(errors='replace')[-500:]}",))
    return Replay(tasks=told.tasks, faults=tuple(f"{f.file} ({f.workflow}): {f.failure}" for f in told.failures))


async def _export(client: Client, execution: WorkflowExecution, directory: Path, found: Histories) -> None:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    history = await handle.fetch_history()
    name = f"{_file_name(execution.id)}.{execution.run_id[:8]}.json"
    (directory / name).write_text(history.to_json(), encoding="utf-8")
    found.files.append(name)
    if execution.id.startswith(ROUND_PREFIX) and execution.status in _ENDED:
        try:
            found.reports.append(await _report(client, execution))
        except (WorkflowFailureError, ValidationError, RuntimeError) as error:
            found.missing.append(f"report of {execution.id}: {error}")


async def _report(client: Client, execution: WorkflowExecution) -> RoundReport:
    """A round that succeeded returns its report; one that did not fails with it, so that the Web UI shows it as failed."""
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id, result_type=RoundReport)
    try:
        report: RoundReport = await handle.result()
    except WorkflowFailureError as failure:
        if not isinstance(failure.cause, ApplicationError) or not failure.cause.details:
            raise
        return RoundReport.model_validate_json(json.dumps(failure.cause.details[0]))
    return report


def _file_name(workflow_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", workflow_id)
