"""`python -m workers.replay PATH …`: do these histories still give the commands that they hold (I12)?

A worker may take over a workflow at any task, so the code must decide on every prefix of a history what it decided when
it was recorded. Each file is a history as `temporal workflow show -o json` prints it; a directory stands for all its
`*.json`. The last line on stdout is one JSON object; exit code 0 when every history replays, 1 when one does not, 2 when
there was nothing to replay. Use it on a production history before a changed workflow is rolled out.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from domain.model import Strict
from service.leave import leave
from service.payloads import data_converter
from workers.controller_worker import WORKFLOWS
from workers.workflow_runner import workflow_runner

NOTHING: Final = 2


class Replayed(Strict):
    """One history's verdict; `failure` is what the replayer objects to, None where it agrees. `tasks`: those compared."""

    file: str
    workflow: str
    tasks: int
    failure: str | None = None


class ReplayReport(Strict):
    """The last line. `tasks` counts workflow tasks whose commands were compared."""

    histories: int
    tasks: int
    failures: tuple[Replayed, ...]

    @property
    def exit_code(self) -> int:
        if not self.tasks:
            return NOTHING
        return 1 if self.failures else 0


def replayer(workflows: Sequence[type] = WORKFLOWS) -> Replayer:
    """What replays in the same sandbox and with the same converter as our workers."""
    return Replayer(workflows=list(workflows), workflow_runner=workflow_runner(), data_converter=data_converter())


async def replay(files: Iterable[Path], workflows: Sequence[type] = WORKFLOWS) -> ReplayReport:
    """Replay these files, one after the other."""
    results = [await replay_file(file, workflows) for file in files]
    return ReplayReport(
        histories=len(results),
        tasks=sum(result.tasks for result in results),
        failures=tuple(result for result in results if result.failure is not None),
    )


async def replay_file(file: Path, workflows: Sequence[type] = WORKFLOWS) -> Replayed:
    """Replay one history. One that cannot be read is a failure."""
    try:
        history = _read(file)
    except Exception as error:  # whatever the parser raises: the file is no history
        return Replayed(file=file.name, workflow="", tasks=0, failure=f"cannot be read: {error}")
    name = history.events[0].workflow_execution_started_event_attributes.workflow_type.name if history.events else ""
    tasks = sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in history.events)
    if not tasks:
        return Replayed(file=file.name, workflow=name, tasks=0)
    result = await replayer(workflows).replay_workflow(history, raise_on_replay_failure=False)
    failure = None if result.replay_failure is None else f"{type(result.replay_failure).__name__}: {result.replay_failure}"
    return Replayed(file=file.name, workflow=name, tasks=tasks, failure=failure)


def _read(file: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(file.stem, file.read_text(encoding="utf-8"))


def histories_in(paths: Iterable[Path]) -> list[Path]:
    """The files, and every `*.json` of the directories, by name."""
    return [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without a replayed workflow's own log lines, and the replayer's stack traces; what was there comes back."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what the command line names; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m workers.replay", description="Replay histories against this code.")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="history files, or directories of them")
    given = parser.parse_args(arguments)
    with _silence():
        report = asyncio.run(replay(histories_in(given.paths)))
    for failed in report.failures:
        print(f"{failed.file} ({failed.workflow}): {failed.failure}", file=sys.stderr)
    print(json.dumps(report.model_dump(mode="json")))
    return report.exit_code


if __name__ == "__main__":
    leave(main())
