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
from domain.messages.fault_manager import FaultManagerStart, fault_manager_id
from domain.messages.instance_registry import DeclareCall, RegistryOutcome, RegistryReply, RegistryStart, RemoveCall
from tests.eventually import eventually
from tests.leaving_worker import LeavingWorker
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
async def a_registry(client: Client, *, sandboxed: bool = True) -> AsyncIterator[Registry]:
    """A registry of its own; outside the sandbox a test can change a constant of the workflow."""
    task_queue = f"registry-{uuid.uuid4().hex[:8]}"
    async with LeavingWorker(
        client,
        task_queue=task_queue,
        workflows=[InstanceRegistry, StandInFaultManager],
        workflow_runner=workflow_runner() if sandboxed else UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow(InstanceRegistry.run, RegistryStart(), id=task_queue, task_queue=task_queue)
        try:
            yield handle
        finally:
            await handle.terminate()


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
        assert [one.topology.instance_id for one in view.instances] == [instance_id]
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
        assert (await registry.describe()).run_id != first_run
        view = await registry.query(InstanceRegistry.instances)
        assert [one.topology.instance_id for one in view.instances] == declared
        assert [one.version for one in view.instances] == list(range(1, 9))
        for instance_id in declared:
            await (await until_running(temporal_client, instance_id)).terminate()
