"""In what our workflows run: the SDK's sandbox, made quicker by what ours never need, and without one trap.

**The trap.** A query that finds no worker with the workflow in its cache goes to any, with the whole history. Where events
stand at its end that no workflow task has begun with yet (a timer fired, while the worker whose task that is was killed),
the SDK shows them to the workflow all the same, so that the answer is of now. The workflow moves on, at a time that is not
the task's, and stays in the cache. If an update or a signal comes with the task itself, the cached workflow has seen the
events before it; a replay sees all at once, updates first. The commands then stand in another order than the history, and
the workflow can never be replayed again: whatever waits for it waits for ever (docs/track-record.md).

Or nothing else comes with the task: then the SDK ends it without a word to the workflow, by commands of another time.

So an instance here keeps such events back until it sees the query. That fails, the workflow leaves the cache, the history stays
good; asked again, the server lets the query wait for the task. Only a query that says that the workflow has ended is answered: a
registry that was terminated under such an event is asked by the next one what it knew, and no task will ever come to it.
`service.temporal.connect` gives clients that ask again, and that say so.

`WorkflowInstance` is no public interface, so pyproject.toml names the SDK's minor version. A canary in
tests/workers/test_workflow_runner.py runs into the trap with the SDK's own runner, and turns red when there is none any more.
"""

from typing import Final, NamedTuple

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info

from service.temporal import ASKED_TOO_EARLY, ENDED_HEADER

PASSED_THROUGH: Final = (
    "domain",
    "activities",
    "service",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "httpx",
    "workflows.parts",
)
"""Loaded once a process instead of once a workflow: pure, or used by workflows as definitions only. A first workflow task
takes 10 ms this way and 40 ms without; the modules that define workflows stay inside the sandbox."""

_QUERY: Final = "query_workflow"
_REMOVAL: Final = "remove_from_cache"


def workflow_runner() -> SandboxedWorkflowRunner:
    """The sandbox in which our workflows run, in workers and in replays alike."""
    return _Runner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


class _Runner(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The sandboxed instance behind the one that refuses what it must not see."""
        return _Instance(super().create_instance(det))


def _nothing_done(act: WorkflowActivation) -> WorkflowActivationCompletion:
    done = WorkflowActivationCompletion(run_id=act.run_id)
    done.successful.SetInParent()
    return done


def _failed(act: WorkflowActivation, why: str) -> WorkflowActivationCompletion:
    failed = WorkflowActivationCompletion(run_id=act.run_id)
    failed.failed.failure.message = why
    return failed


class _Task(NamedTuple):
    """What tells one workflow task from the next: events that come with the same belong to a task that has not begun.

    The time alone would not do: a server whose clock was set back begins tasks at what looks like the same time. The history has
    grown at each.
    """

    seconds: int
    nanos: int
    history_size_bytes: int


class _Instance(WorkflowInstance):
    """One cached workflow. It never names a context: our converter does not care which command a payload belongs to.

    The SDK asks for that context several times a payload, with a codec or without, and each time the sandbox is entered: 141
    times in a round of four ranks, for half as long as all its activations take.
    """

    def __init__(self, sandboxed: WorkflowInstance) -> None:
        self._sandboxed = sandboxed
        self._task = _Task(0, 0, 0)
        self._history_length = 0
        self._kept_back: WorkflowActivation | None = None
        self._has_ended = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """The sandbox's commands; nothing for events without a workflow task, and then a failure for what comes next."""
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if _REMOVAL in kinds:
            return self._sandboxed.activate(act)
        if self._kept_back is not None:
            if kinds != {_QUERY} or not all(ENDED_HEADER in job.query_workflow.headers for job in act.jobs):
                return _failed(act, ASKED_TOO_EARLY)
            seen = self._sandboxed.activate(self._kept_back)
            if seen.HasField("failed"):
                return seen
            self._kept_back, self._has_ended = None, True
        if kinds == {_QUERY}:
            return self._sandboxed.activate(act)
        if self._has_ended:
            return _failed(act, "it was said to have ended, and goes on")
        task = _Task(act.timestamp.seconds, act.timestamp.nanos, act.history_size_bytes)
        if task == self._task and act.history_length > self._history_length:
            self._kept_back = act
            return _nothing_done(act)
        self._task, self._history_length = task, act.history_length
        return self._sandboxed.activate(act)

    def get_serialization_context(self, command_info: object) -> None:
        """None, for every command."""
        return

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        """The sandboxed instance's."""
        return self._sandboxed.get_external_store_context(command_info)  # type: ignore[arg-type]

    def get_info(self) -> Info:
        """The sandboxed instance's."""
        return self._sandboxed.get_info()

    def get_thread_id(self) -> int | None:
        """Where it runs now; the SDK asks when it seems stuck."""
        return self._sandboxed.get_thread_id()
