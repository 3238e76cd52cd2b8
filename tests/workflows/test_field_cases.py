"""Cases from the field (acceptance D) that need a whole FaultManager or a whole round on a real server.

Most field cases are shown where their rule is tested; here are those about what happens between reports, rounds and people:
one fault from many mouths, masks, silence, a death at the worst moment, and a person who resets a workflow in the Web UI.
"""

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from domain.engine import EntrySource
from domain.messages.fault_manager import END_SIGNAL, REPORT_SIGNAL, JournalsResult, LookUpResult, StrategyState
from domain.messages.node_manager import PodReport, RankReport
from domain.messages.strategy import RoundOrder, RoundOutcome, RoundReason
from domain.runtime import FtPhase
from tests.eventually import eventually
from tests.workflows.factories import config, round_end
from tests.workflows.fault_manager_world import DEAD, HEALTHY, UNHEALTHY, World, a_world
from tests.workflows.strategy_world import round_report, strategy_world

pytestmark = pytest.mark.verify

FIRST, LAST = 0, -1


async def reset(client: Client, handle: "WorkflowHandle[Any, Any]", workflow_task: int) -> None:
    """What the Web UI's button "Reset" does: the workflow goes on, in a new run, from this one of its workflow tasks."""
    description = await handle.describe()
    history = await client.get_workflow_handle(handle.id, run_id=description.run_id).fetch_history()
    tasks = [event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=description.run_id),
            reason="a person, in the Web UI",
            workflow_task_finish_event_id=tasks[workflow_task],
            request_id=uuid4().hex,
        )
    )


def as_the_round_left_it(order: RoundOrder) -> JournalsResult:
    """What journals, EventPusher and Coordinators say when the round has committed and published."""
    return JournalsResult(
        complete=True,
        started=True,
        highest_generation=order.generation,
        dead_committed=order.pending_ranks,
        view_revision=order.view_revision + 2,
        published_ranks=tuple(rank for rank in order.topology.ranks if rank not in order.pending_ranks),
    )


async def pod_report(world: World, rank: int, status: int, life: str, sequence: int, **fields: Any) -> None:
    """One rank's report by its NodeManager, in this life of it."""
    manager = world.topology.manager_of_rank(rank)
    told = {"source": EntrySource.ENGINE, "engine_incarnation": f"old-{rank}", **fields}
    report = RankReport(engine_id=rank, engine_status=status, sequence=sequence, **told)
    pod = PodReport(
        instance_id=world.instance_id,
        pod_ip=manager.ip,
        node_manager_port=manager.port,
        incarnation=life,
        reports=(report,),
    )
    await world.signal(REPORT_SIGNAL, {"report": pod.model_dump(mode="json"), "received_at": time.time()})


async def test_a_rank_that_dies_during_the_cleanup_of_a_round_is_the_next_round(temporal_client: Client) -> None:
    """D 7."""
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        for step, phase in enumerate((FtPhase.DECIDING, FtPhase.SCALING_DOWN, FtPhase.POST_SCALE_CLEANUP), start=1):
            await world.progress(order, step, phase)
        assert await world.commit(order)
        looked = world.sequence
        await world.report({3: DEAD, 0: UNHEALTHY, 2: UNHEALTHY})
        await world.signal(END_SIGNAL, round_end(order, sequence=looked))
        await world.until_true(lambda: len(world.rounds) == 2, "a second round")
        second = world.rounds[-1]
        assert (second.dead_committed, second.pending_ranks, second.generation) == ((1,), (3,), order.generation + 1)
        assert not world.rebuilds


async def test_one_fault_from_two_sources_and_two_lives_of_its_nodemanager_is_one_round(temporal_client: Client) -> None:
    """D 8: a hundred reports, by the engine's status, by its process, by a NodeManager that was restarted, by a person."""
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        for number in range(30):
            await pod_report(world, 1, DEAD, "life-1", 100 + number)
            await pod_report(world, 1, DEAD, "life-1", 100 + number, source=EntrySource.PROCESS_EXIT)
            await pod_report(world, 1, DEAD, "life-2", 1 + number, source=EntrySource.PROCESS_EXIT)
        await world.end_round(order)
        for number in range(10):
            await pod_report(world, 1, DEAD, "life-2", 50 + number, source=EntrySource.PROCESS_EXIT)
        await world.signal("report_software_fault", {"engine_id": 1, "engine_status": DEAD})
        sent = (await world.record()).signals_taken
        record = await world.until(lambda r: r.can_serve and r.signals_taken >= sent and r.waiting is None, "calm again")
        assert (record.phase, record.dead_committed) == (FtPhase.SCALED_DOWN_RUNNING, (1,))
        assert (len(world.rounds), world.rebuilds) == (1, [])


async def test_masks_that_blame_the_wrong_peer_remove_nobody(temporal_client: Client) -> None:
    """D 9: all survivors are sure that it was rank 2."""
    async with a_world(temporal_client) as world:
        await world.serve()
        for rank in (0, 2, 3):
            await pod_report(world, rank, UNHEALTHY, "life-1", 100, mask=(1, 1, 0, 1))
        await pod_report(world, 1, DEAD, "life-1", 101)
        await world.until_true(lambda: world.rounds, "a round")
        assert world.rounds[0].pending_ranks == (1,)


async def test_a_mute_api_server_of_a_working_engine_is_forgotten_when_it_answers(temporal_client: Client) -> None:
    """D 19: its poller takes it for dead, the others serve on: no round; and no trace once it answers."""
    async with a_world(temporal_client, config(software_collection_timeout_sec=60)) as world:
        await world.serve()
        await world.report({1: DEAD}, source=EntrySource.POLL_ERROR)
        waiting = await world.until(lambda r: r.waiting and "INCOMPLETE" in r.waiting.reason, "it waits for the others")
        assert waiting.can_serve
        await world.report({1: HEALTHY})
        record = await world.until(lambda r: r.waiting is None, "nothing to wait for")
        assert (record.phase, record.can_serve) == (FtPhase.NORMAL, True)
        assert (world.rounds, world.rebuilds) == ([], [])


@pytest.mark.parametrize("level", ["", "RestartTheMoon"])
async def test_a_hardware_level_that_nobody_knows_is_not_mappable_and_said_in_the_log(
    temporal_client: Client, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D 22."""
    with caplog.at_level(logging.WARNING):
        async with a_world(temporal_client) as world:
            await world.serve()
            fault = {"node_name": "node-0", "fault_code": "80E24E00", "npu_name": "Ascend910-1", "level": level}
            await world.signal("report_hardware_fault", fault)
            await world.until_true(lambda: world.rebuilds, "a rebuild")
            assert "UNMAPPABLE_HARDWARE" in world.rebuilds[0].why
    said = [record for record in caplog.records if "hardware fault that cannot be mapped" in record.getMessage()]
    assert said
    assert not world.rounds


@pytest.mark.parametrize("workflow_task", [FIRST, LAST])
async def test_a_faultmanager_that_a_person_resets_after_a_round_never_serves_the_dead_rank(
    temporal_client: Client, workflow_task: int
) -> None:
    """D 26. The new run goes through its past once more: the round's id is taken, its end comes in again."""
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        assert await world.commit(order)
        await world.end_round(order)
        await world.until(lambda r: r.can_serve, "the survivors serve")
        world.found[order.generation] = LookUpResult(state=StrategyState.ENDED, end=round_end(order))
        world.journals = as_the_round_left_it(order)
        told = len(world.asked("push_view"))
        await reset(temporal_client, world.handle, workflow_task)
        record = await world.until(lambda r: (r.can_serve and r.waiting is None) or world.rebuilds, "it is settled again")
        assert record.phase in (FtPhase.SCALED_DOWN_RUNNING, FtPhase.RECONFIGURING)
        assert record.phase is FtPhase.RECONFIGURING or record.dead_committed == (1,)
        assert len(world.rounds) == 1
        assert all(1 not in view.ranks for view in world.asked("push_view")[told:])


@pytest.mark.parametrize("workflow_task", [FIRST, LAST])
async def test_a_faultmanager_that_a_person_resets_during_a_round_attaches_to_it(
    temporal_client: Client, workflow_task: int
) -> None:
    """D 26. Whatever the new run thinks of its past, the round that runs is the only one."""
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        await world.progress(order, 1, FtPhase.SCALING_DOWN)
        await world.until(lambda r: r.phase is FtPhase.SCALING_DOWN, "the round is under way")
        world.found[order.generation] = LookUpResult(state=StrategyState.RUNNING)
        world.journals = JournalsResult(
            complete=True,
            started=True,
            highest_generation=order.generation,
            view_revision=order.view_revision,
            published_ranks=(0, 1, 2, 3),
            open_request_ids={"127.0.0.2:1026": order.request_id},
        )
        told = len(world.asked("push_view"))
        await reset(temporal_client, world.handle, workflow_task)
        await world.until(
            lambda r: r.strategy_workflow_id and r.strategy_workflow_id.endswith(f"-{order.generation}"), "attached"
        )
        assert await world.commit(order)
        world.found[order.generation] = LookUpResult(state=StrategyState.ENDED, end=round_end(order))
        world.journals = as_the_round_left_it(order)
        await world.end_round(order)
        record = await world.until(lambda r: (r.can_serve and r.waiting is None) or world.rebuilds, "it is settled again")
        assert (record.phase, record.dead_committed) == (FtPhase.SCALED_DOWN_RUNNING, (1,))
        assert (len(world.rounds), world.rebuilds) == (1, [])
        assert all(1 not in view.ranks for view in world.asked("push_view")[told:])


async def test_a_round_that_a_person_resets_after_its_end_touches_nothing(temporal_client: Client) -> None:
    """D 26."""
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        order = world.instance.order(1)
        handle = await world.start_round(order)
        assert (await round_report(handle)).outcome is RoundOutcome.SUCCEEDED
        served = world.coordinator.ranks(world.instance.instance_id)
        await reset(temporal_client, handle, FIRST)
        again = await round_report(temporal_client.get_workflow_handle(handle.id))
        assert (again.outcome, again.reason) == (RoundOutcome.FAILED, RoundReason.GUARD_REFUSED)
        assert [len(pod.bodies("apply")) for pod in world.instance.pods] == [1, 1]
        assert [pod.verdicts[order.request_id] for pod in world.instance.pods] == [True, True]
        assert world.coordinator.ranks(world.instance.instance_id) == served == (0, 2, 3)


async def test_a_round_that_a_person_resets_while_the_engines_recover_applies_nothing_twice(temporal_client: Client) -> None:
    """D 26. The new run asks the NodeManagers again under the same id, and they know what they have done."""
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        world.instance.recovery_sec = None
        carried_out: list[dict[str, Any]] = []
        _count(world.instance, carried_out.append)
        order = world.instance.order(1)
        handle = await world.start_round(order)
        await eventually(lambda: len(carried_out) == 2, "both Pods are applied")
        await reset(temporal_client, handle, FIRST)
        again = temporal_client.get_workflow_handle(handle.id)
        await eventually(lambda: sum(len(pod.bodies("apply")) for pod in world.instance.pods) == 4, "it asks both again")
        world.instance.recover((0, 2, 3))
        report = await round_report(again)
        assert (report.outcome, report.dead_committed) == (RoundOutcome.SUCCEEDED, (1,)), report.detail
        assert len(carried_out) == 2
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)


def _count(instance: Any, note: Callable[[dict[str, Any]], None]) -> None:
    """Notes each apply that a NodeManager really passes on to its engines."""
    carry_out = instance.on_apply

    def on_apply(body: dict[str, Any]) -> None:
        note(body)
        carry_out(body)

    instance.on_apply = on_apply
