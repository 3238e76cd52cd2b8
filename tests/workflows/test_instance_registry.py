"""InstanceRegistry: a declaration that was acknowledged leads to a running FaultManager, whoever dies in between."""

import asyncio
import gc
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner

import workflows.instance_registry
from activities.fault_manager import FaultManagerActivities
from domain.messages.fault_manager import FaultManagerStart, fault_manager_id
from domain.messages.instance_registry import (
    DeclareCall,
    RegisterCall,
    RegisterResult,
    RegistryOutcome,
    RegistryReply,
    RemoveCall,
)
from domain.messages.registration import Admission, RegisterRequest
from domain.registration import Assembly, RegisteredInstance, RegistryState, founded, topology_of
from service.fault_manager_input import fault_manager_input
from tests.eventually import eventually
from tests.leaving_worker import LeavingWorker
from tests.registration.factories import registration
from tests.workflows.factories import config, topology
from tests.workflows.fault_manager_world import PATIENCE_SEC
from workers.workflow_runner import workflow_runner
from workflows.instance_registry import InstanceRegistry

_TERMINATED = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED

Registry = WorkflowHandle[InstanceRegistry, None]


@workflow.defn(name="FaultManager", sandboxed=False)
class StandInFaultManager:
    """Runs until it is told to end."""

    def __init__(self) -> None:
        self.removal: dict[str, object] | None = None

    @workflow.run
    async def run(self, start: FaultManagerStart) -> dict[str, object]:
        await workflow.wait_condition(lambda: self.removal is not None)
        assert self.removal is not None
        return self.removal

    @workflow.signal
    def terminate(self, removal: dict[str, object]) -> None:
        self.removal = removal


@asynccontextmanager
async def a_registry(client: Client, *, sandboxed: bool = True, start: RegistryState | None = None) -> AsyncIterator[Registry]:
    """A registry of its own; outside the sandbox a test can change a constant of the workflow."""
    task_queue = f"registry-{uuid.uuid4().hex[:8]}"
    async with LeavingWorker(
        client,
        task_queue=task_queue,
        workflows=[InstanceRegistry, StandInFaultManager],
        activities=[FaultManagerActivities(client, task_queue).owned_topology],
        workflow_runner=workflow_runner() if sandboxed else UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow(InstanceRegistry.run, start or RegistryState(), id=task_queue, task_queue=task_queue)
        try:
            yield handle
        finally:
            await client.get_workflow_handle(task_queue).terminate()


def new_id() -> int:
    return uuid.uuid4().int % 1_000_000_000


async def declare(registry: Registry, instance_id: int, ranks: int = 4, net: str = "127.0.0") -> RegistryReply:
    call = DeclareCall(topology=topology(instance_id, ranks, net=net), config=config())
    return await registry.execute_update(InstanceRegistry.declare, call)


async def until_running(client: Client, instance_id: int) -> WorkflowHandle[object, object]:
    end = time.monotonic() + PATIENCE_SEC
    while True:
        try:
            handle = client.get_workflow_handle(fault_manager_id(instance_id))
            if (await handle.describe()).close_time is None:
                return handle
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        assert time.monotonic() < end, "its FaultManager never ran"
        await asyncio.sleep(0.03)


async def test_a_declared_instance_gets_its_faultmanager(temporal_client: Client) -> None:
    async with a_registry(temporal_client) as registry:
        instance_id = new_id()
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.DECLARED
        fault_manager = await until_running(temporal_client, instance_id)
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.UNCHANGED
        conflict = await declare(registry, instance_id, ranks=2)
        assert conflict.outcome is RegistryOutcome.CONFLICT
        assert "DELETE" in conflict.message
        view = await registry.query(InstanceRegistry.instances)
        assert [one.instance_id for one in view.instances] == [instance_id]
        removal = RemoveCall(instance_id=instance_id, reason="done", stop_engines=True)
        assert (await registry.execute_update(InstanceRegistry.remove, removal)).outcome is RegistryOutcome.REMOVED
        assert await asyncio.wait_for(fault_manager.result(), 10) == {"reason": "done", "stop_engines": True}
        assert (await registry.execute_update(InstanceRegistry.remove, removal)).outcome is RegistryOutcome.UNKNOWN
        assert (await registry.query(InstanceRegistry.instances)).instances == ()


async def test_an_instance_declared_again_at_once_gets_a_new_faultmanager_when_the_old_one_has_ended(
    temporal_client: Client,
) -> None:
    async with a_registry(temporal_client) as registry:
        instance_id = new_id()
        old = await temporal_client.start_workflow(
            "FaultManager",
            FaultManagerStart(instance_id=instance_id, topology=topology(instance_id), config=config()),
            id=fault_manager_id(instance_id),
            task_queue=registry.id,
        )
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.DECLARED
        await old.signal("terminate", {"reason": "old", "stop_engines": False})
        await asyncio.wait_for(old.result(), 10)
        new = await until_running(temporal_client, instance_id)
        assert (await new.describe()).run_id != old.result_run_id
        await new.terminate()


async def pending(registry: Registry) -> list[int]:
    """The instances that wait for their FaultManager."""
    return list((await registry.query(InstanceRegistry.instances)).starts)


async def test_a_topology_is_kept_until_a_faultmanager_has_it_however_long_another_one_is_ending(
    temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.instance_registry, "START_LIMIT_SEC", 0.0)
    monkeypatch.setattr(workflows.instance_registry, "RETRY_SEC", 0.2)
    async with a_registry(temporal_client, sandboxed=False) as registry:
        instance_id = new_id()
        old = await temporal_client.start_workflow(
            "FaultManager",
            FaultManagerStart(instance_id=instance_id, topology=topology(instance_id, 2), config=config()),
            id=fault_manager_id(instance_id),
            task_queue=registry.id,
        )
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.DECLARED
        await asyncio.sleep(1.0)
        assert await pending(registry) == [instance_id]
        await old.signal("terminate", {"reason": "old", "stop_engines": False})
        await asyncio.wait_for(old.result(), 10)

        async def started() -> bool:
            return await pending(registry) == []

        await eventually(started, "its own FaultManager runs")
        new = await until_running(temporal_client, instance_id)
        start = await fault_manager_input(temporal_client, new.id)
        assert start is not None
        assert start.topology == topology(instance_id)
        await new.terminate()


async def test_a_faultmanager_that_has_this_topology_already_is_the_wanted_one(
    temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.instance_registry, "START_LIMIT_SEC", 0.0)
    async with a_registry(temporal_client, sandboxed=False) as registry:
        instance_id = new_id()
        running = await temporal_client.start_workflow(
            "FaultManager",
            FaultManagerStart(instance_id=instance_id, topology=topology(instance_id), config=config()),
            id=fault_manager_id(instance_id),
            task_queue=registry.id,
        )
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.DECLARED

        async def started() -> bool:
            return await pending(registry) == []

        await eventually(started, "it is found")
        assert (await running.describe()).close_time is None
        await running.terminate()


async def test_the_next_registry_goes_on_where_the_former_was_terminated(temporal_client: Client) -> None:
    """What `service.registry_memory` does: the former one's answer is the next one's input."""
    async with a_registry(temporal_client) as registry:
        instance_id = new_id()
        old = await temporal_client.start_workflow(
            "FaultManager",
            FaultManagerStart(instance_id=instance_id, topology=topology(instance_id, 2), config=config()),
            id=fault_manager_id(instance_id),
            task_queue=registry.id,
        )
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.DECLARED
        await registry.terminate()
        former = await registry.query(InstanceRegistry.instances)
        await old.terminate()
        await temporal_client.start_workflow(InstanceRegistry.run, former, id=registry.id, task_queue=registry.id)
        new = await until_running(temporal_client, instance_id)
        start = await fault_manager_input(temporal_client, new.id)
        assert start is not None
        assert start.topology == topology(instance_id)
        await new.terminate()


async def test_nonsense_does_not_hurt_the_registry(temporal_client: Client) -> None:
    async with a_registry(temporal_client) as registry:
        await registry.signal("config_changed")
        await registry.signal("config_changed", args=[1, 2])
        await registry.signal("what_is_this", {"a": 1})
        with pytest.raises(WorkflowUpdateFailedError):
            await registry.execute_update("declare", {"topology": 3})
        with pytest.raises(WorkflowUpdateFailedError):
            await registry.execute_update("declare")
        instance_id = new_id()
        assert (await declare(registry, instance_id)).outcome is RegistryOutcome.DECLARED
        await (await until_running(temporal_client, instance_id)).terminate()


async def test_a_faultmanager_that_a_person_terminates_leaves_no_failure_behind_that_nobody_fetches(
    temporal_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Its registry goes on without a complaint of Python about a child that nobody waits for."""
    async with a_registry(temporal_client) as registry:
        instance_id = new_id()
        await declare(registry, instance_id)
        await (await until_running(temporal_client, instance_id)).terminate()

        async def is_told() -> bool:
            return any(e.event_type == _TERMINATED for e in (await registry.fetch_history()).events)

        await eventually(is_told, "the registry's history says that it was terminated")
        await declare(registry, new_id())  # answered by a workflow task after that one
        gc.collect()
    assert "never retrieved" not in caplog.text


async def test_the_pods_of_an_instance_are_no_other_ones_until_it_is_removed(temporal_client: Client) -> None:
    async with a_registry(temporal_client) as registry:
        first, second = new_id(), new_id()
        assert (await declare(registry, first)).outcome is RegistryOutcome.DECLARED
        fault_manager = await until_running(temporal_client, first)
        refused = await declare(registry, second, ranks=2)
        assert refused.outcome is RegistryOutcome.CONFLICT
        assert "127.0.0.2:1026" in refused.message
        assert f"instance {first}" in refused.message
        assert (await declare(registry, first)).outcome is RegistryOutcome.UNCHANGED
        await registry.execute_update(InstanceRegistry.remove, RemoveCall(instance_id=first, reason="over", stop_engines=False))
        await asyncio.wait_for(fault_manager.result(), PATIENCE_SEC)
        await eventually(lambda: declared_at_last(registry, second), "its Pods are free")
        await (await until_running(temporal_client, second)).terminate()


async def declared_at_last(registry: Registry, instance_id: int) -> bool:
    return (await declare(registry, instance_id, ranks=2)).outcome is RegistryOutcome.DECLARED


async def test_declarations_survive_continue_as_new(temporal_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows.instance_registry, "CONTINUE_AS_NEW_AT_EVENTS", 30)
    async with a_registry(temporal_client, sandboxed=False) as registry:
        first_run = (await registry.describe()).run_id
        declared = [new_id() for _ in range(8)]
        for index, instance_id in enumerate(declared):
            assert (await declare(registry, instance_id, net=f"127.0.{index}")).outcome is RegistryOutcome.DECLARED

        async def another_run() -> bool:
            return (await registry.describe()).run_id != first_run

        await eventually(another_run, "it continues as new, once no topology waits in it")
        view = await registry.query(InstanceRegistry.instances)
        assert [one.instance_id for one in view.instances] == declared
        assert not view.starts
        assert [one.version for one in view.instances] == list(range(1, 9))
        for instance_id in declared:
            await (await until_running(temporal_client, instance_id)).terminate()


WARNED_OF_FROM_BYTES = 512 * 1024
REFUSED_FROM_BYTES = 2 * 1024 * 1024
"""By Temporal: a payload."""


def pods(instance: int, count: int) -> list[RegisterRequest]:
    """All that register for an instance, each with eight ranks."""
    return [
        registration(
            node_rank,
            nnodes=count,
            dp_size=8 * count,
            job_name=f"deepseek-v3-decode-{instance}",
            model_name="deepseek-v3",
            pod_ip=f"10.{instance // 250}.{instance % 250}.{node_rank + 1}",
            node_name=f"node-{instance:04d}-{node_rank:03d}",
            device_ids=tuple((str(chip),) for chip in range(8)),
            life=uuid.uuid4().hex,
        )
        for node_rank in range(count)
    ]


def seated(instance: int, requests: list[RegisterRequest]) -> Assembly:
    assembly = founded(instance, requests[0], until=4e9)
    for request in requests[1:]:
        assembly = assembly.seating(request)
    return assembly


@pytest.mark.parametrize(("instances", "pods_each"), [(1000, 1), (1000, 2), (100, 40)])
def test_what_the_registry_knows_of_a_whole_cluster_fits_into_one_payload(instances: int, pods_each: int) -> None:
    assemblies = [seated(number, pods(number, pods_each)) for number in range(instances)]
    registered = []
    for assembly in assemblies:
        lives = {str(seat.address): seat.incarnation for seat in assembly.seats.values()}
        registered.append(RegisteredInstance.of(topology_of(assembly), 1, lives))
    job_ids = {assembly.job_name: assembly.instance_id for assembly in assemblies}
    settled = RegistryState(instances=tuple(registered), job_ids=job_ids)
    assert len(settled.model_dump_json()) < WARNED_OF_FROM_BYTES
    worst = RegistryState(assemblies=tuple(assemblies), job_ids=job_ids)
    assert len(worst.model_dump_json()) < REFUSED_FROM_BYTES * 0.6


async def test_a_hundred_instances_whose_forty_pods_register_at_once_continue_as_new(
    temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: of each of a hundred instances one Pod is missing."""
    monkeypatch.setattr(workflows.instance_registry, "CONTINUE_AS_NEW_AT_EVENTS", 10)
    start = RegistryState(assemblies=tuple(seated(number, pods(number, 40)[:-1]) for number in range(100)))
    async with a_registry(temporal_client, sandboxed=False, start=start) as registry:
        first_run = (await registry.describe()).run_id
        here = temporal_client.get_workflow_handle(registry.id)
        for _ in range(4):
            again = RegisterCall(request=pods(7, 40)[0], config=config())
            result: RegisterResult = await here.execute_update("register", again, result_type=RegisterResult)
            assert (result.instance_id, result.admission) == (7, Admission.SEATED)

        async def another_run() -> bool:
            return (await here.describe()).run_id != first_run

        await eventually(another_run, "it continues as new")
        known: RegistryState = await here.query("instances", result_type=RegistryState)
        assert len(known.assemblies) == 100
