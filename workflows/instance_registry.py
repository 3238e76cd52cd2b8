"""InstanceRegistry: which instances there are: those that somebody declared, and those whose Pods registered themselves.

Declaring an instance and starting its FaultManager are two steps, and a process may die between them. So both belong to
this workflow: the declaration is in its history before anybody is answered, and whatever is in `to_start` is started, as
an abandoned child, until it is. The same for the end: a removed instance's FaultManager is told to end until it has taken
the word. The API only declares, registers, removes and asks.

Pods take their seats by the rules of `domain.registration`. The last one makes the seats a topology, and from there on a
registered instance is as good as a declared one: its FaultManager sends the start command to each Pod. An assembly that is
not complete in time is given up, and the Pods that are still there begin it anew: that is how Pods that are gone drop out.

It knows numbers, seats and nodes (`domain.registration.RegistryState`). An instance's topology belongs to its FaultManager,
which is started with it; only until then is it kept here. A FaultManager that was terminated is started again by whoever has
news for it, with the topology that it had (docs/registration.md).

A topology never changes while the instance lives: another declaration of the same id is a conflict, not a change. So is
one that names a NodeManager of another instance: whoever owns a Pod keeps it until it was removed.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from workflows.parts.children import start_abandoned
from workflows.parts.signal_intake import Handlers, take_in, whole_config
from workflows.parts.strategy_run import HEARTBEAT_TIMEOUT, RETRY

with workflow.unsafe.imports_passed_through():
    from activities.fault_manager import FaultManagerActivities
    from domain.config import FaultToleranceConfig
    from domain.messages.fault_manager import (
        CONFIG_SIGNAL,
        FAULT_MANAGER_WORKFLOW,
        TERMINATE_SIGNAL,
        FaultManagerStart,
        InstanceRemoval,
        OwnedTopologyCall,
        fault_manager_id,
    )
    from domain.messages.instance_registry import (
        INSTANCE_REGISTRY_WORKFLOW,
        DeclareCall,
        RegisterCall,
        RegisterResult,
        RegistryOutcome,
        RegistryReply,
        RemoveCall,
    )
    from domain.messages.registration import Admission
    from domain.registration import (
        Admitted,
        Assembly,
        Owner,
        PendingStart,
        RegisteredInstance,
        RegistryState,
        admit,
        assembled_for,
        founded,
        number_for,
        other_owner,
        topology_of,
    )
    from domain.runtime import with_rejected
    from domain.topology import NodeManagerAddress, Topology

CONTINUE_AS_NEW_AT_EVENTS: Final = 1_500
"""Another worker must be able to replay a run within one workflow task (`domain.receivers.TASK_TIMEOUT`)."""

CONTINUE_AS_NEW_WITH_STARTS_AT_EVENTS: Final = 3_000
"""A topology that waits for its FaultManager is not carried over before this: many could be too large for one payload."""

RETRY_SEC: Final = 5.0
JOB_NAMES_KEPT: Final = 1_000
START_LIMIT_SEC: Final = 300.0
"""How long whoever runs under a FaultManager's id is taken for that of a removed instance, which is still taking it down.
Then it is asked for: one that was started for the same topology is the wanted one (a report had started it)."""

ASK_LIMIT: Final = timedelta(seconds=30)


V = TypeVar("V")


@workflow.defn(name=INSTANCE_REGISTRY_WORKFLOW)
class InstanceRegistry:
    """See the module's docstring."""

    @workflow.init
    def __init__(self, start: RegistryState) -> None:
        self._state = start
        self._changed = True

    @workflow.run
    async def run(self, start: RegistryState) -> None:
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
        known = self._state.instance(instance_id)
        if known is not None and known.digest != call.topology.digest:
            why = f"instance {instance_id} is declared otherwise; a topology never changes while it lives: DELETE it first"
            return self._reply(RegistryOutcome.CONFLICT, why)
        if known is not None:
            return self._reply(RegistryOutcome.UNCHANGED, f"instance {instance_id} is declared already")
        if self._state.assembly(instance_id) is not None:
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

    def _add(self, topology: Topology, config: FaultToleranceConfig, lives: Mapping[str, str] | None = None) -> None:
        """From here on it is an instance; its FaultManager is started next, and has the topology from then on."""
        version, instance_id = self._state.version + 1, topology.instance_id
        start = FaultManagerStart(instance_id=instance_id, topology=topology, config=config)
        self._become(
            instances=(*self._state.instances, RegisteredInstance.of(topology, version, lives)),
            version=version,
            starts={**self._state.starts, instance_id: PendingStart(start=start, until=_now() + START_LIMIT_SEC)},
        )

    @workflow.update
    def register(self, call: RegisterCall) -> RegisterResult:
        """A Pod takes its seat; the last one completes its instance. Repeated, it changes nothing."""
        request = call.request
        instance = assembled_for(self._state.instances, request)
        if instance is not None:
            return self._rejoin(instance, call)
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
        taken = {one.instance_id for one in state.instances} | {one.instance_id for one in state.assemblies}
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
                lives = {str(seat.address): seat.incarnation for seat in assembly.seats.values()}
                self._become(assemblies=others)
                self._add(topology_of(assembly), config, lives)
            else:
                self._become(assemblies=(*others, assembly), version=self._state.version + 1)
        return self._registered(assembly.instance_id, admitted.admission, admitted.message)

    def _rejoin(self, instance: RegisteredInstance, call: RegisterCall) -> RegisterResult:
        """A Pod of an instance that there is already: its new life joins the group where the group is formed anew.

        Whether it is the Pod that it was, with its ranks and ports, is seen by the topology, before this is asked.
        """
        request, instance_id = call.request, instance.instance_id
        if not instance.has_manager(request.address):
            why = f"instance {instance_id} is assembled already, without {request.address}"
            return self._registered(instance_id, Admission.FOREIGN_POD, why)
        if not call.joining or instance.lives.get(str(request.address)) == request.incarnation:
            return self._registered(instance_id, Admission.UNCHANGED, "registered already")
        joined = instance.model_copy(update={"lives": {**instance.lives, str(request.address): request.incarnation}})
        instances = tuple(joined if one.instance_id == instance_id else one for one in self._state.instances)
        self._become(instances=instances, version=self._state.version + 1)
        return self._registered(instance_id, Admission.SEATED, "its new life takes part in the rebuild")

    def _registered(self, instance_id: int, admission: Admission, message: str) -> RegisterResult:
        return RegisterResult(instance_id=instance_id, admission=admission, message=message, version=self._state.version)

    @workflow.update
    def remove(self, call: RemoveCall) -> RegistryReply:
        """Forget an instance, and have its FaultManager take it down."""
        if self._state.assembly(call.instance_id) is not None:
            self._forget_assemblies(lambda assembly: assembly.instance_id == call.instance_id)
            return self._reply(RegistryOutcome.REMOVED, f"instance {call.instance_id} is not assembled any more")
        known = self._state.instance(call.instance_id)
        if known is None:
            return self._reply(RegistryOutcome.UNKNOWN, f"there is no instance {call.instance_id}")
        self._become(
            instances=tuple(one for one in self._state.instances if one.instance_id != call.instance_id),
            version=self._state.version + 1,
            starts=_without(self._state.starts, call.instance_id),
            to_end={
                **self._state.to_end,
                call.instance_id: InstanceRemoval(reason=call.reason, stop_engines=call.stop_engines),
            },
            ending={**self._state.ending, call.instance_id: known.managers},
        )
        return self._reply(RegistryOutcome.REMOVED, f"instance {call.instance_id} is being taken down")

    @workflow.query
    def instances(self) -> RegistryState:
        """All instances, and those that are being assembled."""
        return self._state

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """A new configuration for FaultManagers that do not run yet; anything else is recorded as refused."""
        handlers: Handlers[None] = {CONFIG_SIGNAL: lambda inputs: self._take_config(whole_config(inputs))}
        refused = take_in(name, values, handlers, _now())
        if refused is not None:
            self._become(rejected_signals=with_rejected(self._state.rejected_signals, refused))

    def _take_config(self, config: FaultToleranceConfig) -> None:
        self._become(starts={number: _with(pending, config) for number, pending in self._state.starts.items()})

    def _other_owner(self, addresses: Sequence[NodeManagerAddress], than: int | None) -> Owner | None:
        state = self._state
        return other_owner(addresses, state.instances, state.assemblies, state.ending, than=than)

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
        for instance_id in list(self._state.starts):
            pending = self._state.starts.get(instance_id)
            if pending is None:
                continue  # removed meanwhile
            over = await self._start_fault_manager(pending.start)
            if not over and pending.until <= _now():
                over = await self._is_the_wanted_one(pending.start)
            now_pending = self._state.starts.get(instance_id)
            if over and now_pending is not None and now_pending.until == pending.until:
                self._become(starts=_without(self._state.starts, instance_id))

    async def _is_the_wanted_one(self, start: FaultManagerStart) -> bool:
        """Whether who runs under that id was started for this topology. If not, it is tried on: nobody else has the topology."""
        try:
            owned = await workflow.execute_activity_method(
                FaultManagerActivities.owned_topology,
                OwnedTopologyCall(instance_id=start.instance_id),
                schedule_to_close_timeout=ASK_LIMIT,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=RETRY,
                summary=f"which topology the FaultManager of instance {start.instance_id} has",
            )
        except ActivityError as error:
            why = str(error.cause or error)
            workflow.logger.warning(
                "it is not known for whom a FaultManager runs", extra={"instance": start.instance_id, "why": why}
            )
            return False
        return owned.digest == start.topology.digest

    async def _start_fault_manager(self, start: FaultManagerStart) -> bool:
        """False: one runs under that id already, started by a report, or not yet done with an instance before this one."""
        child = await start_abandoned(
            FAULT_MANAGER_WORKFLOW,
            start,
            workflow_id=fault_manager_id(start.instance_id),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            summary=f"instance {start.instance_id}: {start.topology.job_name}",
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
            lines.append(f"| {one.instance_id} | {one.job_name} | {one.model_name} | {one.ranks} |")
        for assembly in self._state.assemblies:
            job, missing = assembly.job, ", ".join(map(str, assembly.missing))
            lines.append(f"| {assembly.instance_id} | {job.job_name} | {job.model_name} | waits for Pods {missing} |")
        refused = [f"- {one.at} `{one.name}`: {one.reason}" for one in self._state.rejected_signals[-5:]]
        workflow.set_current_details("\n".join([*lines, "", *refused]))

    def _continue_wanted(self) -> bool:
        info = workflow.info()
        length = info.get_current_history_length()
        if self._state.starts and length <= CONTINUE_AS_NEW_WITH_STARTS_AT_EVENTS:
            return False
        return info.is_continue_as_new_suggested() or length > CONTINUE_AS_NEW_AT_EVENTS

    async def _until_changed(self) -> None:
        open_work = bool(self._state.starts or self._state.to_end)
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


def _with(pending: PendingStart, config: FaultToleranceConfig) -> PendingStart:
    return pending.model_copy(update={"start": pending.start.model_copy(update={"config": config})})
