"""InstanceRegistry: which instances there are (first form: those that somebody declared).

Declaring an instance and starting its FaultManager are two steps, and a process may die between them. So both belong to
this workflow: the declaration is in its history before anybody is answered, and whatever is in `to_start` is started, as
an abandoned child, until it is. The same for the end: a removed instance's FaultManager is told to end until it has taken
the word. The API only declares, removes and asks.

A topology never changes while the instance lives: another declaration of the same id is a conflict, not a change.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, FailureError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from domain.config import FaultToleranceConfig
    from domain.instance import REJECTED_SIGNALS_KEPT, iso
    from domain.messages.strategy import (
        CONFIG_SIGNAL,
        FAULT_MANAGER_WORKFLOW,
        INSTANCE_REGISTRY_WORKFLOW,
        TERMINATE_SIGNAL,
        DeclareCall,
        FaultManagerStart,
        RegisteredInstance,
        RegistryOutcome,
        RegistryReply,
        RegistryStart,
        RegistryView,
        Removal,
        RemoveCall,
        fault_manager_id,
    )
    from domain.runtime import RejectedSignal

CONTINUE_AS_NEW_AT_EVENTS: Final = 8_000
RETRY_SEC: Final = 5.0
START_LIMIT_SEC: Final = 300.0
"""How long a FaultManager is tried to be started: the one of a removed instance of that id may still be taking it down."""

V = TypeVar("V")

TASK_TIMEOUT: Final = timedelta(seconds=2)


@workflow.defn(name=INSTANCE_REGISTRY_WORKFLOW)
class InstanceRegistry:
    """See the module's docstring."""

    @workflow.init
    def __init__(self, start: RegistryStart) -> None:
        self._state = start
        self._changed = True

    @workflow.run
    async def run(self, start: RegistryStart) -> None:
        while True:
            self._changed = False
            await self._start_missing()
            await self._end_removed()
            self._show()
            if self._continue_wanted() and workflow.all_handlers_finished():
                workflow.continue_as_new(self._state)
            await self._until_changed()

    @workflow.update
    def declare(self, call: DeclareCall) -> RegistryReply:
        """Declare an instance; again with the same declaration is no change, with another one a conflict."""
        instance_id = call.topology.instance_id
        known = self._find(instance_id)
        if known is not None and known.topology != call.topology:
            why = f"instance {instance_id} is declared otherwise; a topology never changes while it lives: DELETE it first"
            return self._reply(RegistryOutcome.CONFLICT, why)
        if known is not None:
            return self._reply(RegistryOutcome.UNCHANGED, f"instance {instance_id} is declared already")
        version = self._state.version + 1
        self._become(
            instances=(*self._state.instances, RegisteredInstance(topology=call.topology, version=version)),
            version=version,
            configs={**self._state.configs, instance_id: call.config},
            to_start={**self._state.to_start, instance_id: _now() + START_LIMIT_SEC},
        )
        return self._reply(RegistryOutcome.DECLARED, f"instance {instance_id} is declared; its FaultManager assembles it")

    @declare.validator
    def _may_declare(self, call: DeclareCall) -> None:
        if call.topology.instance_id in self._state.to_end:
            raise ApplicationError(
                f"instance {call.topology.instance_id} is still being taken down; try again in a moment", type="ENDING"
            )

    @workflow.update
    def remove(self, call: RemoveCall) -> RegistryReply:
        """Forget an instance, and have its FaultManager take it down."""
        if self._find(call.instance_id) is None:
            return self._reply(RegistryOutcome.UNKNOWN, f"there is no instance {call.instance_id}")
        self._become(
            instances=tuple(one for one in self._state.instances if one.topology.instance_id != call.instance_id),
            version=self._state.version + 1,
            configs=_without(self._state.configs, call.instance_id),
            to_start=_without(self._state.to_start, call.instance_id),
            to_end={
                **self._state.to_end,
                call.instance_id: Removal(reason=call.reason, stop_engines=call.stop_engines),
            },
        )
        return self._reply(RegistryOutcome.REMOVED, f"instance {call.instance_id} is being taken down")

    @workflow.query
    def instances(self) -> RegistryView:
        """All declared instances."""
        return RegistryView(instances=self._state.instances)

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """A new configuration for the instances to come; anything else is recorded as refused."""
        try:
            if name != CONFIG_SIGNAL:
                raise ValueError(f"unknown signal; known: {CONFIG_SIGNAL}")
            if len(values) != 1:
                raise ValueError(f"takes exactly one input, got {len(values)}")
            converter = workflow.payload_converter()
            config = converter.from_payload(values[0].payload, FaultToleranceConfig)
            self._become(configs=dict.fromkeys(self._state.configs, config))
        except Exception as error:
            refused = RejectedSignal(at=iso(_now()), name=name, reason=str(error)[:300], payload="")
            self._become(rejected_signals=(*self._state.rejected_signals, refused)[-REJECTED_SIGNALS_KEPT:])

    def _find(self, instance_id: int) -> RegisteredInstance | None:
        return next((one for one in self._state.instances if one.topology.instance_id == instance_id), None)

    def _reply(self, outcome: RegistryOutcome, message: str) -> RegistryReply:
        return RegistryReply(outcome=outcome, message=message, version=self._state.version)

    def _become(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        self._changed = True

    async def _start_missing(self) -> None:
        for instance_id, give_up_at in list(self._state.to_start.items()):
            known = self._find(instance_id)
            started = known is None or await self._start_fault_manager(known)
            if started or _now() >= give_up_at:
                self._become(to_start=_without(self._state.to_start, instance_id))

    async def _start_fault_manager(self, instance: RegisteredInstance) -> bool:
        """False: one runs under that id already, started by a report, or not yet done with an instance before this one."""
        instance_id = instance.topology.instance_id
        start = FaultManagerStart(instance_id=instance_id, topology=instance.topology, config=self._state.configs[instance_id])
        try:
            await workflow.start_child_workflow(
                FAULT_MANAGER_WORKFLOW,
                start,
                id=fault_manager_id(instance_id),
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                task_timeout=TASK_TIMEOUT,
                static_summary=f"instance {instance_id}: {instance.topology.job_name}"[:200],
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def _end_removed(self) -> None:
        """A FaultManager that is gone has nothing to take down any more."""
        for instance_id, removal in list(self._state.to_end.items()):
            handle = workflow.get_external_workflow_handle(fault_manager_id(instance_id))
            try:
                await handle.signal(TERMINATE_SIGNAL, removal)
            except FailureError as error:
                workflow.logger.info("no FaultManager to end", extra={"instance": instance_id, "why": str(error)})
            self._become(to_end=_without(self._state.to_end, instance_id))

    def _show(self) -> None:
        lines = [f"## {len(self._state.instances)} instances", "", "| instance | job | model | ranks |", "|---|---|---|---|"]
        for one in self._state.instances:
            topology = one.topology
            ranks = topology.parallel_config.dp_size
            lines.append(f"| {topology.instance_id} | {topology.job_name} | {topology.model_name} | {ranks} |")
        refused = [f"- {one.at} `{one.name}`: {one.reason}" for one in self._state.rejected_signals[-5:]]
        workflow.set_current_details("\n".join([*lines, "", *refused]))

    def _continue_wanted(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > CONTINUE_AS_NEW_AT_EVENTS

    async def _until_changed(self) -> None:
        open_work = bool(self._state.to_start or self._state.to_end)
        timeout = timedelta(seconds=RETRY_SEC) if open_work else None
        try:
            await workflow.wait_condition(lambda: self._changed, timeout=timeout)
        except TimeoutError:
            pass


def _now() -> float:
    return workflow.now().timestamp()


def _without(mapping: Mapping[int, V], key: int) -> dict[int, V]:
    return {known: value for known, value in mapping.items() if known != key}
