"""FaultManager on a real Temporal server: from its assembly over one lost rank to a shrunk instance, and what can go wrong."""

import asyncio
from datetime import timedelta
from functools import partial

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

import domain.instance.strategy_life
import workflows.fault_manager
import workflows.parts.instance_errands
from domain.engine import EntrySource, RankEntry
from domain.messages.fault_manager import (
    END_SIGNAL,
    CommandOutcome,
    CommandReply,
    InstanceRemoval,
    JournalsResult,
    LookUpResult,
    ReconfigureCall,
    StrategyState,
    fault_manager_id,
)
from domain.messages.round import PeerRefusal
from domain.messages.strategy import RoundOutcome, StrategyKind
from domain.runtime import FtPhase, RuntimeRecord
from service.temporal import SEARCH_ATTRIBUTES
from tests.eventually import eventually
from tests.workflows.factories import config, round_end
from tests.workflows.fault_manager_world import DEAD, HEALTHY, UNHEALTHY, World, a_world
from workers.workflow_runner import workflow_runner
from workflows.fault_manager import FaultManager


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that says nothing for a moment is looked up."""
    for module in (domain.instance.strategy_life, workflows.parts.instance_errands):
        monkeypatch.setattr(module, "QUIET_LIMIT_SEC", 0.3)


def in_phase(phase: FtPhase, record: RuntimeRecord) -> bool:
    return record.phase is phase


async def command(world: World, name: str, call: ReconfigureCall | None = None) -> CommandReply:
    """A person's command; one that the validator refuses comes back as the reply that it stands for."""
    try:
        reply = await world.handle.execute_update(name, args=[call] if call else [], result_type=CommandReply)
    except WorkflowUpdateFailedError as refused:
        cause = refused.cause
        if not isinstance(cause, ApplicationError):
            raise
        return CommandReply(outcome=CommandOutcome(str(cause.type)), message=cause.message)
    assert isinstance(reply, CommandReply)
    return reply


async def test_a_dead_rank_is_shed_and_the_survivors_are_the_instance(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        first = await world.serve()
        assert (first.phase, first.generation, first.view_revision) == (FtPhase.NORMAL, 1, 1)
        order = await world.fail_over((1,))
        assert (order.pending_ranks, order.generation, order.view_revision) == ((1,), 2, 1)
        assert order.request_id.startswith("scale-down-")
        assert len(order.request_id) == len("scale-down-") + 32
        for step, phase in enumerate((FtPhase.DECIDING, FtPhase.SCALING_DOWN, FtPhase.POST_SCALE_CLEANUP), start=1):
            await world.progress(order, step, phase)
            await world.until(partial(in_phase, phase), f"phase {phase}")
        assert await world.commit(order)
        assert (await world.record()).dead_committed == (1,)
        await world.end_round(order)
        record = await world.until(lambda r: r.can_serve, "the survivors serve")
        assert (record.phase, record.alive_dp_ranks, record.view_revision) == (FtPhase.SCALED_DOWN_RUNNING, (0, 2, 3), 3)
        assert record.stage_times == {"guard": 0.1}
        second = await world.fail_over((3,))
        assert (second.dead_committed, second.pending_ranks, second.generation) == ((1,), (3,), 3)
        assert second.published_ranks == (0, 2, 3)


async def test_nodemanagers_look_more_often_while_a_fault_is_held(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        await world.report({1: DEAD})
        await world.until_true(lambda: [call.poll_interval_sec for call in world.asked("pace")][-1:] == [0.25], "fault pace")
        await world.report({1: HEALTHY})
        await world.until_true(lambda: [call.poll_interval_sec for call in world.asked("pace")][-1:] == [1.0], "calm pace")


async def test_the_same_fault_a_hundred_times_is_one_round(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        for _ in range(50):
            await world.report({1: DEAD, 0: UNHEALTHY}, engine="old")
        await world.end_round(order)
        await world.until(lambda r: r.phase is FtPhase.SCALED_DOWN_RUNNING, "shrunk")
        await world.signal("report_software_fault", {"engine_id": 1, "engine_status": DEAD})
        await asyncio.gather(*(world.record() for _ in range(5)))
        assert len(world.rounds) == 1
        assert not world.rebuilds


async def test_a_failed_round_is_followed_by_a_rebuild_and_the_instance_is_whole_again(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        await world.end_round(order, RoundOutcome.FAILED, withdrawn=True, detail="engine 2 said failed")
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        rebuild = world.rebuilds[-1]
        assert (rebuild.generation, rebuild.view_revision >= 3) == (3, True)
        assert "engine 2 said failed" in ((await world.record()).last_error or "")
        await world.end_rebuild(rebuild)
        record = await world.until(lambda r: r.can_serve, "rebuilt")
        assert (record.phase, record.alive_dp_ranks, record.dead_committed) == (FtPhase.NORMAL, (0, 1, 2, 3), ())


async def test_an_idle_group_is_looked_at_once_and_then_rebuilt(temporal_client: Client) -> None:
    async with a_world(temporal_client, config(software_collection_timeout_sec=0.8)) as world:
        await world.serve()
        await world.report({1: DEAD})
        waiting = await world.until(lambda r: r.waiting and "INCOMPLETE" in r.waiting.reason, "a visible wait")
        assert waiting.waiting is not None
        assert waiting.waiting.until is not None
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert len(world.asked("fresh_look")) == 1
        assert not world.rounds


async def test_evidence_that_a_fresh_look_clears_is_forgotten(temporal_client: Client) -> None:
    async with a_world(temporal_client, config(software_collection_timeout_sec=0.5)) as world:
        await world.serve()
        world.last_entries = {rank: RankEntry(id=rank, status="healthy", sequence=999) for rank in range(4)}
        await world.report({1: DEAD})
        await world.until_true(lambda: world.asked("fresh_look"), "a look")
        record = await world.until(lambda r: r.waiting is None, "nothing to wait for")
        assert record.can_serve
        assert not world.rebuilds


async def test_an_abandoned_round_leaves_the_instance_serving(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        looked = {rank: RankEntry(id=rank, status="healthy", sequence=999) for rank in range(4)}
        await world.end_round(order, RoundOutcome.ABANDONED, last_entries=looked)
        record = await world.until(lambda r: r.phase is FtPhase.NORMAL, "back")
        assert record.can_serve
        assert not world.rebuilds


async def test_a_view_that_was_not_confirmed_is_pushed_until_it_is(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        world.coordinators_confirm = False
        await world.end_round(order, serving_published=False)
        record = await world.until(lambda r: r.phase is FtPhase.SCALED_DOWN_RUNNING and r.last_error, "unconfirmed")
        assert not record.can_serve
        await world.until_true(lambda: [call.revision for call in world.asked("push_view")][-1:] == [3], "a push")
        world.coordinators_confirm = True
        assert (await world.until(lambda r: r.can_serve, "confirmed")).view_revision == 3


async def test_a_late_verdict_is_repeated_until_the_nodemanager_takes_it(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        world.finalize_pending = True
        await world.end_round(order, pending_finalize=("127.0.0.2:1026",))
        await world.until_true(lambda: len(world.asked("finalize")) >= 2, "two tries")
        call = world.asked("finalize")[-1]
        assert (call.commit, call.retired[0].ranks, call.request_id) == (True, (1,), order.request_id)
        assert (await world.record()).pending_finalize == ("127.0.0.2:1026",)
        world.finalize_pending = False
        await world.until(lambda r: not r.pending_finalize, "taken")


@pytest.mark.parametrize("reason", ["STALE", "VERDICT_DIFFERS"])
async def test_a_late_verdict_that_is_refused_is_said_and_not_repeated(temporal_client: Client, reason: str) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        world.finalize_refusal = reason
        await world.end_round(order, pending_finalize=("127.0.0.2:1026",))
        record = await world.until(lambda r: world.asked("finalize") and not r.pending_finalize, "dropped")
        assert f"finalize: 127.0.0.2:1026: {reason}" in (record.last_error or "")
        assert len(world.asked("finalize")) == 1


async def test_no_failing_activity_ends_the_workflow(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        world.fails = {"push_view", "pace", "usable_search_attributes", "await_engines_ready"}
        await world.begin()
        await world.until_true(lambda: world.asked("start_node_managers"), "started")
        await world.report(dict.fromkeys(range(4), HEALTHY))
        record = await world.until(lambda r: r.phase is FtPhase.NORMAL, "assembled")
        assert not record.can_serve
        await world.until(lambda r: "push_view is told to fail" in (r.last_error or ""), "the failure is shown")
        world.fails.clear()
        await world.until(lambda r: r.can_serve, "it recovers by itself")


async def test_an_assembly_that_cannot_go_on_says_what_it_waits_for(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        world.start_refuses = True
        await world.begin()
        record = await world.until(lambda r: "have not all taken the start" in (r.waiting.reason if r.waiting else ""), "a wait")
        assert record.phase is FtPhase.RECONFIGURING
        await world.until_true(lambda: len(world.asked("start_node_managers")) >= 2, "start is repeated")
        assert "127.0.0.3:1026" in ((await world.record()).last_error or "")
        world.start_refuses = False
        await world.until(lambda r: "not ready" in (r.waiting.reason if r.waiting else ""), "it goes on")
        assert not world.rebuilds


async def test_a_rank_that_dies_while_the_instance_is_assembled_leads_to_a_rebuild(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.begin()
        await world.until_true(lambda: world.asked("await_engines_ready"), "started")
        await world.report({1: DEAD}, source=EntrySource.PROCESS_EXIT)
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert "NOT_ACTIVE" in world.rebuilds[0].why


async def test_an_idle_instance_adds_no_history(temporal_client: Client) -> None:
    settings = config(strategy_center_check_interval_sec=0.2)
    async with a_world(temporal_client, settings) as world:
        await world.serve()
        await world.until_true(lambda: [call.poll_interval_sec for call in world.asked("pace")][-1:] == [1.0], "calm")
        await world.record()
        before = await world.history_length()
        for _ in range(20):
            await world.record()
            await asyncio.sleep(0.05)
        assert await world.history_length() == before


async def test_spent_budget_stays_withdrawn_until_a_person_forces_a_rebuild(temporal_client: Client) -> None:
    async with a_world(temporal_client, config(reconfiguration_budget=1)) as world:
        await world.serve()
        await world.report(dict.fromkeys(range(4), DEAD))
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        await world.end_rebuild(world.rebuilds[0], succeeded=False)
        record = await world.until(lambda r: "BUDGET_SPENT" in (r.waiting.reason if r.waiting else ""), "given up")
        assert (record.phase, record.can_serve) == (FtPhase.RECONFIGURING, False)
        assert record.waiting is not None
        assert "--force" in record.waiting.then
        await world.until_true(lambda: world.asked("push_view")[-1].ranks == (), "withdrawn")
        assert (await command(world, "reconfigure", ReconfigureCall())).outcome is CommandOutcome.BUDGET_SPENT
        assert (await command(world, "reconfigure", ReconfigureCall(force=True))).accepted
        await world.until_true(lambda: len(world.rebuilds) == 2, "the forced rebuild")
        await world.end_rebuild(world.rebuilds[1])
        await world.until(lambda r: r.can_serve, "whole again")


async def test_a_forced_rebuild_stops_a_round_before_its_commit_point(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        assert (await command(world, "reconfigure", ReconfigureCall())).outcome is CommandOutcome.STRATEGY_RUNS
        assert (await command(world, "reconfigure", ReconfigureCall(force=True))).accepted
        round_handle = world.client.get_workflow_handle(StrategyKind.SCALE_DOWN.workflow_id(world.instance_id, 2))
        await asyncio.wait_for(round_handle.result(), 10)  # the stand-in ends when it is told to stop
        assert not world.rebuilds, "its end is waited for, abort included"
        await world.signal(END_SIGNAL, round_end(order, RoundOutcome.CANCELLED))
        await world.until_true(lambda: world.rebuilds, "the rebuild")
        assert "FORCED" in world.rebuilds[0].why


async def test_republish_is_a_new_revision_and_is_refused_during_a_strategy(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        assert (await command(world, "republish")).accepted
        await world.until(lambda r: r.can_serve and r.view_revision == 2, "revision 2")
        assert world.asked("push_view")[-1].ranks == (0, 1, 2, 3)
        await world.fail_over((1,))
        assert (await command(world, "republish")).outcome is CommandOutcome.STRATEGY_RUNS


async def test_a_burst_of_signals_while_it_continues_as_new_with_a_round_running(
    temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.fault_manager, "CONTINUE_AS_NEW_AT_EVENTS", 60)
    async with a_world(temporal_client, sandboxed=False) as world:
        await world.serve()
        order = await world.fail_over((1,))
        first_run = (await world.handle.describe()).run_id
        burst = [world.report({0: UNHEALTHY, 2: UNHEALTHY}) for _ in range(40)]
        await asyncio.gather(*burst, world.commit(order), world.end_round(order))
        record = await world.until(lambda r: r.can_serve, "the end was not missed")
        assert record.dead_committed == (1,)
        assert (await world.handle.describe()).run_id != first_run
        await world.report({2: HEALTHY, 3: DEAD, 0: HEALTHY})
        await world.until(lambda r: r.engine_statuses["3"].status == "dead", "the last of them counts")
        assert not world.rebuilds


async def test_a_long_history_ends_when_nothing_is_open_and_not_before(
    temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a large group's reports would stream into a continue-as-new, and each refusal of it costs a replay."""
    monkeypatch.setattr(workflows.fault_manager, "CALM_AT_EVENTS", 30)
    async with a_world(temporal_client, sandboxed=False) as world:
        await world.serve()
        order = await world.fail_over((1,))
        first_run = (await world.handle.describe()).run_id
        for sequence in range(30):
            await world.report({0: UNHEALTHY, 2: UNHEALTHY})
            if sequence % 10 == 0:
                await world.record()
        description = await world.handle.describe()
        assert (description.run_id, description.history_length > 30) == (first_run, True)
        await world.commit(order)
        await world.end_round(order)
        await world.report({0: HEALTHY, 2: HEALTHY, 3: HEALTHY})

        async def next_run() -> bool:
            return (await world.handle.describe()).run_id != first_run

        await eventually(next_run, "calm, it continues as new")
        record = await world.until(lambda r: r.can_serve, "as if nothing had been")
        assert record.dead_committed == (1,)
        assert not world.rebuilds


async def test_terminated_during_a_round_it_is_started_again_by_the_rounds_own_words(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        order = await world.fail_over((1,))
        await world.handle.terminate()
        world.found[2] = LookUpResult(state=StrategyState.RUNNING)
        world.journals = JournalsResult(
            complete=True,
            started=True,
            highest_generation=2,
            view_revision=1,
            published_ranks=(0, 1, 2, 3),
            open_request_ids={"127.0.0.2:1026": order.request_id},
        )
        await world.client.start_workflow(
            "FaultManager",
            world.start(),
            id=fault_manager_id(world.instance_id),
            task_queue=world.task_queue,
            start_signal=END_SIGNAL,
            start_signal_args=[round_end(order)],
        )
        record = await world.until(lambda r: r.can_serve, "it serves with the survivors")
        assert (record.phase, record.dead_committed) == (FtPhase.SCALED_DOWN_RUNNING, (1,))
        assert len(world.rounds) == 1
        assert not world.rebuilds


async def test_terminated_while_it_served_it_takes_the_instance_over_as_it_is(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        await world.handle.terminate()
        world.journals = JournalsResult(
            complete=True, started=True, highest_generation=3, dead_committed=(1,), view_revision=5, published_ranks=(0, 2, 3)
        )
        await world.begin()
        record = await world.until(lambda r: r.can_serve, "taken over")
        assert (record.phase, record.dead_committed, record.view_revision) == (FtPhase.SCALED_DOWN_RUNNING, (1,), 6)
        order = await world.fail_over((3,))
        assert (order.generation, order.dead_committed) == (4, (1,))


async def test_in_doubt_after_a_restart_it_rebuilds(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        silent = PeerRefusal(peer="127.0.0.2:1026", reason="UNREACHABLE", message="no answer")
        world.journals = JournalsResult(
            complete=False, started=True, highest_generation=3, view_revision=5, unreachable=(silent,)
        )
        await world.begin()
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert world.rebuilds[0].generation == 4
        assert world.rebuilds[0].view_revision >= 5
        assert "127.0.0.2:1026" in world.rebuilds[0].why


@pytest.mark.usefixtures("impatient")
async def test_a_strategy_that_fell_silent_is_looked_up(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        world.found[2] = LookUpResult(state=StrategyState.RUNNING)
        await world.serve()
        order = await world.fail_over((1,))
        await world.until_true(lambda: len(world.asked("look_up_strategy")) >= 2, "look-ups while it runs")
        world.found[2] = LookUpResult(state=StrategyState.ENDED, end=round_end(order))
        await world.until(lambda r: r.can_serve and r.dead_committed == (1,), "its report is found")


async def test_a_strategy_that_was_terminated_is_noticed_at_once_and_followed_by_a_rebuild(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        world.found[2] = LookUpResult(state=StrategyState.LOST)
        world.journals = JournalsResult(complete=True, started=True, highest_generation=2, dead_committed=(1,), view_revision=3)
        await world.fail_over((1,))
        await world.client.get_workflow_handle(StrategyKind.SCALE_DOWN.workflow_id(world.instance_id, 2)).terminate()
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert "STRATEGY_LOST" in world.rebuilds[0].why
        assert (await world.record()).dead_committed == (1,), "the journals were asked first"


async def test_a_workflow_id_that_is_taken_by_the_past_is_passed_over(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        taken = StrategyKind.SCALE_DOWN.workflow_id(world.instance_id, 2)
        past = await temporal_client.start_workflow(
            "ScaleDownRound", {"request_id": "past"}, id=taken, task_queue="nobody", execution_timeout=timedelta(seconds=30)
        )
        await past.terminate()
        world.found[2] = LookUpResult(state=StrategyState.LOST)
        order = await world.fail_over((1,))
        assert order.generation == 3
        assert len(world.rounds) == 1


async def test_a_removed_instance_is_withdrawn_and_its_faultmanager_ends(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        await world.signal("terminate", InstanceRemoval(reason="no longer needed", stop_engines=True))
        await asyncio.wait_for(world.handle.result(), 15)
        assert world.asked("push_view")[-1].ranks == ()
        assert world.asked("stop_node_managers")[-1].generation == 2
        assert (await world.handle.describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_new_configuration_counts_from_the_next_decision_on(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        await world.signal("config_changed", config(enable_dp_scale_down=False))
        await world.report({1: DEAD, 0: UNHEALTHY, 2: UNHEALTHY, 3: UNHEALTHY})
        await world.until_true(lambda: world.others, "the original strategy")
        kind, order = world.others[0]
        assert (kind, order["why"].split(":")[0]) == (StrategyKind.ENGINE_RELAUNCH, "FEATURE_OFF")
        assert not world.rounds


async def test_it_is_found_and_read_in_the_web_ui(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        assert set(SEARCH_ATTRIBUTES) >= {"InstanceId", "FtPhase", "DeadRanks", "ServingPublished"}
        shown = (await world.handle.describe()).search_attributes
        assert shown["InstanceId"] == [world.instance_id]
        assert shown["FtPhase"] == ["NORMAL"]
        assert shown["ServingPublished"] == [True]
        details = await world.handle.query("__temporal_workflow_metadata")
        assert f"## Instance {world.instance_id}: NORMAL, serving" in str(details)


async def test_its_history_replays_to_the_same_commands(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        await world.serve()
        await world.end_round(await world.fail_over((1,)))
        await world.until(lambda r: r.can_serve, "shrunk")
        history = await world.handle.fetch_history()
        replayer = Replayer(
            workflows=[FaultManager], workflow_runner=workflow_runner(), data_converter=temporal_client.data_converter
        )
        await replayer.replay_workflow(history)
