"""InstanceRegistry: which instances there are: those that somebody declared, and those whose Pods registered themselves.

Declaring an instance and starting its FaultManager are two steps, and a process may die between them. So both belong to
this workflow: the declaration is in its history before anybody is answered, and whatever is in `to_start` is started, as
an abandoned child, until it is. The same for the end: a removed instance's FaultManager is told to end until it has taken
the word. The API only declares, registers, removes and asks.

Pods take their seats by the rules of `domain.registration`. The last one makes the seats a topology, and from there on a
registered instance is as good as a declared one: its FaultManager sends the start command to each Pod. An assembly that is
not complete in time is given up, and the Pods that are still there begin it anew: that is how Pods that are gone drop out.

A topology never changes while the instance lives: another declaration of the same id is a conflict, not a change. So is
one that names a NodeManager of another instance: whoever owns a Pod keeps it until it was removed.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, FailureError

from workflows.parts.children import start_abandoned
from workflows.parts.signal_intake import Handlers, take_in, whole_config

with workflow.unsafe.imports_passed_through():
    from domain.config import FaultToleranceConfig
    from domain.messages.fault_manager import (
        CONFIG_SIGNAL,
        FAULT_MANAGER_WORKFLOW,
        TERMINATE_SIGNAL,
        FaultManagerStart,
        Removal,
        fault_manager_id,
    )
    from domain.messages.instance_registry import (
        INSTANCE_REGISTRY_WORKFLOW,
        DeclareCall,
        RegisterCall,
        RegisteredInstance,
        RegisterResult,
        RegistryOutcome,
        RegistryReply,
        RegistryStart,
        RegistryView,
        RemoveCall,
    )
    from domain.registration import (
        Admission,
        Admitted,
        Assembly,
        Owner,
        admit,
        assembled_for,
        founded,
        number_for,
        other_owner,
        place_of,
        topology_of,
    )
    from domain.runtime import with_rejected
    from domain.topology import NodeManagerAddress, Topology

CONTINUE_AS_NEW_AT_EVENTS: Final = 1_500
"""Another worker must be able to replay a run within one workflow task (`domain.messages.receivers.TASK_TIMEOUT`)."""

RETRY_SEC: Final = 5.0
JOB_NAMES_KEPT: Final = 1_000
START_LIMIT_SEC: Final = 300.0
"""How long a FaultManager is tried to be started: the one of a removed instance of that id may still be taking it down."""

V = TypeVar("V")


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
            self._give_up_overdue()
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
        if any(assembly.instance_id == instance_id for assembly in self._state.assemblies):
            return self._reply(RegistryOutcome.CONFLICT, f"instance {instance_id} is being assembled from Pods that registered")
        if (owner := self._other_owner(call.topology.managers, than=instance_id)) is not None:
            return self._reply(RegistryOutcome.CONFLICT, owner.message)
        self._add(call.topology, call.config)
        return self._reply(RegistryOutcome.DECLARED, f"instance {instance_id} is declared; its FaultManager assembles it")

    @declare.validator
    def _may_declare(self, call: DeclareCall) -> None:
        if call.topology.instance_id in self._state.to_end:
            raise ApplicationError(
                f"instance {call.topology.instance_id} is still being taken down; try again in a moment", type="ENDING"
            )

    def _add(self, topology: Topology, config: FaultToleranceConfig) -> None:
        """From here on it is an instance; its FaultManager is started next."""
        version, instance_id = self._state.version + 1, topology.instance_id
        self._become(
            instances=(*self._state.instances, RegisteredInstance(topology=topology, version=version)),
            version=version,
            configs={**self._state.configs, instance_id: config},
            to_start={**self._state.to_start, instance_id: _now() + START_LIMIT_SEC},
        )

    @workflow.update
    def register(self, call: RegisterCall) -> RegisterResult:
        """A Pod takes its seat; the last one completes its instance. Repeated, it changes nothing."""
        request = call.request
        topology = assembled_for((one.topology for one in self._state.instances), request)
        if topology is not None:
            return self._rejoin(topology, call)
        assembly = next((one for one in self._state.assemblies if one.job_name == request.job_name), None)
        number = assembly.instance_id if assembly is not None else None
        if (owner := self._other_owner((request.address,), than=number)) is not None:
            return self._registered(owner.instance_id, Admission.OTHER_INSTANCE, owner.message)
        if assembly is None:
            return self._found(call)
        admitted = admit(assembly, request)
        return self._seat(admitted, call.config)

    @register.validator
    def _may_register(self, call: RegisterCall) -> None:
        remembered = self._state.job_ids.get(call.request.job_name)
        if remembered is not None and remembered in self._state.to_end:
            raise ApplicationError(f"instance {remembered} is still being taken down; try again in a moment", type="ENDING")

    def _found(self, call: RegisterCall) -> RegisterResult:
        request, state = call.request, self._state
        taken = {one.topology.instance_id for one in state.instances} | {one.instance_id for one in state.assemblies}
        taken |= state.to_end.keys()
        instance_id = number_for(request, state.job_ids, taken, next_id=1 + max([0, *taken, *state.job_ids.values()]))
        job_ids = {
            **{job: known for job, known in state.job_ids.items() if job != request.job_name},
            request.job_name: instance_id,
        }
        self._become(job_ids=dict(list(job_ids.items())[-JOB_NAMES_KEPT:]))
        assembly = founded(instance_id, request, until=_now() + call.config.assembly_timeout_sec)
        message = f"1 of {request.nnodes} Pods is there"
        return self._seat(Admitted(assembly=assembly, admission=Admission.SEATED, message=message), call.config)

    def _seat(self, admitted: Admitted, config: FaultToleranceConfig) -> RegisterResult:
        assembly = admitted.assembly
        others = tuple(one for one in self._state.assemblies if one.instance_id != assembly.instance_id)
        if admitted.admission.changed:
            if assembly.complete:
                lives = {str(seat.pod.address): seat.incarnation for seat in assembly.seats.values()}
                self._become(assemblies=others, lives={**self._state.lives, assembly.instance_id: lives})
                self._add(topology_of(assembly), config)
            else:
                self._become(assemblies=(*others, assembly), version=self._state.version + 1)
        return self._registered(assembly.instance_id, admitted.admission, admitted.message)

    def _rejoin(self, topology: Topology, call: RegisterCall) -> RegisterResult:
        """A Pod of an instance that there is already: its new life joins the group where the group is formed anew."""
        request, instance_id = call.request, topology.instance_id
        if (why := place_of(topology, request)) is not None:
            return self._registered(instance_id, Admission.FOREIGN_POD, why)
        lives = self._state.lives.get(instance_id, {})
        if not call.joining or lives.get(str(request.address)) == request.incarnation:
            return self._registered(instance_id, Admission.UNCHANGED, "registered already")
        known = {**self._state.lives, instance_id: {**lives, str(request.address): request.incarnation}}
        self._become(lives=known, version=self._state.version + 1)
        return self._registered(instance_id, Admission.SEATED, "its new life takes part in the rebuild")

    def _registered(self, instance_id: int, admission: Admission, message: str) -> RegisterResult:
        return RegisterResult(instance_id=instance_id, admission=admission, message=message, version=self._state.version)

    @workflow.update
    def remove(self, call: RemoveCall) -> RegistryReply:
        """Forget an instance, and have its FaultManager take it down."""
        if any(assembly.instance_id == call.instance_id for assembly in self._state.assemblies):
            self._forget_assemblies(lambda assembly: assembly.instance_id == call.instance_id)
            return self._reply(RegistryOutcome.REMOVED, f"instance {call.instance_id} is not assembled any more")
        known = self._find(call.instance_id)
        if known is None:
            return self._reply(RegistryOutcome.UNKNOWN, f"there is no instance {call.instance_id}")
        self._become(
            instances=tuple(one for one in self._state.instances if one.topology.instance_id != call.instance_id),
            version=self._state.version + 1,
            configs=_without(self._state.configs, call.instance_id),
            lives=_without(self._state.lives, call.instance_id),
            to_start=_without(self._state.to_start, call.instance_id),
            to_end={
                **self._state.to_end,
                call.instance_id: Removal(reason=call.reason, stop_engines=call.stop_engines),
            },
            ending={**self._state.ending, call.instance_id: known.topology.managers},
        )
        return self._reply(RegistryOutcome.REMOVED, f"instance {call.instance_id} is being taken down")

    @workflow.query
    def instances(self) -> RegistryView:
        """All instances, and those that are being assembled."""
        state = self._state
        return RegistryView(
            instances=state.instances,
            assemblies=state.assemblies,
            lives=state.lives,
            job_ids=state.job_ids,
            version=state.version,
        )

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """A new configuration for the instances to come; anything else is recorded as refused."""
        handlers: Handlers[None] = {CONFIG_SIGNAL: lambda inputs: self._take_config(whole_config(inputs))}
        refused = take_in(name, values, handlers, _now())
        if refused is not None:
            self._become(rejected_signals=with_rejected(self._state.rejected_signals, refused))

    def _take_config(self, config: FaultToleranceConfig) -> None:
        self._become(configs=dict.fromkeys(self._state.configs, config))

    def _find(self, instance_id: int) -> RegisteredInstance | None:
        return next((one for one in self._state.instances if one.topology.instance_id == instance_id), None)

    def _other_owner(self, addresses: Sequence[NodeManagerAddress], than: int | None) -> Owner | None:
        state = self._state
        topologies = (one.topology for one in state.instances)
        return other_owner(addresses, topologies, state.assemblies, state.ending, than=than)

    def _reply(self, outcome: RegistryOutcome, message: str) -> RegistryReply:
        return RegistryReply(outcome=outcome, message=message, version=self._state.version)

    def _become(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)
        self._changed = True

    def _give_up_overdue(self) -> None:
        for assembly in self._state.assemblies:
            if assembly.until <= _now():
                missing = {"instance": assembly.instance_id, "job": assembly.job_name, "missing": list(assembly.missing)}
                workflow.logger.warning("not assembled in time, begins anew", extra=missing)
        self._forget_assemblies(lambda assembly: assembly.until <= _now())

    def _forget_assemblies(self, gone: Callable[[Assembly], bool]) -> None:
        kept = tuple(one for one in self._state.assemblies if not gone(one))
        if kept != self._state.assemblies:
            self._become(assemblies=kept, version=self._state.version + 1)

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
        child = await start_abandoned(
            FAULT_MANAGER_WORKFLOW,
            start,
            workflow_id=fault_manager_id(instance_id),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            summary=f"instance {instance_id}: {instance.topology.job_name}",
        )
        return child is not None

    async def _end_removed(self) -> None:
        """A FaultManager that is gone has nothing to take down any more."""
        for instance_id, removal in list(self._state.to_end.items()):
            handle = workflow.get_external_workflow_handle(fault_manager_id(instance_id))
            try:
                await handle.signal(TERMINATE_SIGNAL, removal)
            except FailureError as error:
                workflow.logger.info("no FaultManager to end", extra={"instance": instance_id, "why": str(error)})
            self._become(to_end=_without(self._state.to_end, instance_id), ending=_without(self._state.ending, instance_id))

    def _show(self) -> None:
        lines = [f"## {len(self._state.instances)} instances", "", "| instance | job | model | ranks |", "|---|---|---|---|"]
        for one in self._state.instances:
            topology = one.topology
            ranks = topology.parallel_config.dp_size
            lines.append(f"| {topology.instance_id} | {topology.job_name} | {topology.model_name} | {ranks} |")
        for assembly in self._state.assemblies:
            first, missing = assembly.first, ", ".join(map(str, assembly.missing))
            lines.append(f"| {assembly.instance_id} | {first.job_name} | {first.model_name} | waits for Pods {missing} |")
        refused = [f"- {one.at} `{one.name}`: {one.reason}" for one in self._state.rejected_signals[-5:]]
        workflow.set_current_details("\n".join([*lines, "", *refused]))

    def _continue_wanted(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > CONTINUE_AS_NEW_AT_EVENTS

    async def _until_changed(self) -> None:
        open_work = bool(self._state.to_start or self._state.to_end)
        ends = [assembly.until - _now() for assembly in self._state.assemblies] + ([RETRY_SEC] if open_work else [])
        timeout = timedelta(seconds=max(0.001, min(ends))) if ends else None
        try:
            await workflow.wait_condition(lambda: self._changed, timeout=timeout)
        except TimeoutError:
            pass


def _now() -> float:
    return workflow.now().timestamp()


def _without(mapping: Mapping[int, V], key: int) -> dict[int, V]:
    return {known: value for known, value in mapping.items() if known != key}
