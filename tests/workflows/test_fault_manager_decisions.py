"""What a FaultManager does about hardware, options and a person's commands, on a real server; strategies are stand-ins."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from domain.config import FaultToleranceConfig
from domain.messages.fault_manager import CommandReply, HoldCall, LookUpResult, ReconfigureCall, StrategyState
from domain.messages.strategy import ReconfigurationReason, ReinferenceReason, RoundOutcome, RoundReason, StrategyKind
from domain.runtime import FtPhase
from tests.workflows.factories import config
from tests.workflows.fault_manager_world import DEAD, HEALTHY, UNHEALTHY, World, a_world

pytestmark = pytest.mark.verify

ALL_UNHEALTHY = dict.fromkeys(range(4), UNHEALTHY)


@asynccontextmanager
async def serving(client: Client, settings: FaultToleranceConfig | None = None) -> AsyncIterator[World]:
    async with a_world(client, settings or config()) as world:
        await world.serve()
        yield world


async def hardware(world: World, level: str = "L5", npu: str = "Ascend910-1", code: str = "80E24E00") -> dict[str, Any]:
    """A fault of node-0, where ranks 0 and 1 are, as a person would report it."""
    fault = {"node_name": "node-0", "fault_code": code, "npu_name": npu, "level": level}
    await world.signal("report_hardware_fault", fault)
    return fault


async def other(world: World, kind: StrategyKind) -> dict[str, Any]:
    """The order of the strategy of that kind, once it runs."""
    await world.until_true(lambda: world.others and world.others[-1][0] is kind, f"{kind} runs")
    return world.others[-1][1]


async def test_fast_recovery_succeeds_and_the_instance_serves_as_before(temporal_client: Client) -> None:
    async with serving(temporal_client, config(enable_fast_recovery=True)) as world:
        await world.report(ALL_UNHEALTHY)
        order = await other(world, StrategyKind.FAST_RECOVERY)
        assert order["request_id"].startswith("fast-recovery-")
        record = await world.record()
        assert (record.phase, record.active_strategy) == (FtPhase.DECIDING, "fast-recovery")
        assert record.waiting is not None
        assert record.waiting.until is not None, "a running strategy has a bound"
        healthy = {str(rank): {"id": rank, "status": "healthy", "sequence": world.sequence + 9} for rank in range(4)}
        await world.end_other(
            request_id=order["request_id"],
            outcome=RoundOutcome.SUCCEEDED,
            reason=RoundReason.COMMITTED,
            recovered=[0, 1, 2, 3],
            withdrawn=True,
            serving_published=True,
            view_revision=order["view_revision"] + 2,
            last_entries=healthy,
        )
        record = await world.until(lambda r: r.can_serve, "serving")
        assert (record.phase, record.alive_dp_ranks, record.view_revision) == (
            FtPhase.NORMAL,
            (0, 1, 2, 3),
            order["view_revision"] + 2,
        )
        assert not world.rebuilds


async def test_fast_recovery_that_fails_ends_in_a_rebuild_whatever_is_known_by_then(temporal_client: Client) -> None:
    async with serving(temporal_client, config(enable_fast_recovery=True)) as world:
        await world.report(ALL_UNHEALTHY)
        order = await other(world, StrategyKind.FAST_RECOVERY)
        await world.report({1: DEAD})
        await world.end_other(
            request_id=order["request_id"],
            outcome=RoundOutcome.FAILED,
            reason=RoundReason.APPLY_REFUSED,
            detail="127.0.0.2:1026: ENGINE_REFUSED (engine 0 answered 400)",
            withdrawn=True,
        )
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert not world.rounds, "I9"
        record = await world.record()
        assert record.last_error is not None
        assert record.last_error.startswith("fast recovery failed: APPLY_REFUSED: 127.0.0.2:1026: ENGINE_REFUSED (engine 0")


async def test_a_failed_round_is_told_with_its_reason_and_detail_also_after_the_rebuild(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        order = await world.fail_over((1,))
        detail = "127.0.0.2:12911: ENGINE_REFUSED (engine 0 answered 400)"
        await world.end_round(order, RoundOutcome.FAILED, withdrawn=True, reason=RoundReason.APPLY_REFUSED, detail=detail)
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        record = await world.record()
        told = f"round failed: APPLY_REFUSED: {detail}"
        assert told in (record.last_error or "")
        assert told in world.rebuilds[-1].why
        assert record.waiting is not None
        assert record.waiting.until is not None
        await world.end_rebuild(world.rebuilds[-1])
        record = await world.until(lambda r: r.can_serve, "rebuilt")
        assert told in (record.last_error or ""), "the most recent failure stays to be read"


async def test_with_the_feature_off_a_relaunch_that_fails_is_followed_by_a_rebuild(temporal_client: Client) -> None:
    async with serving(temporal_client, config(enable_dp_scale_down=False)) as world:
        await world.report({1: DEAD})
        await other(world, StrategyKind.ENGINE_RELAUNCH)
        assert (await world.record()).phase is FtPhase.RECONFIGURING
        await world.end_other(succeeded=False, reason=ReconfigurationReason.NOT_READY_IN_TIME, detail="rank 1: starting")
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert "relaunch failed: NOT_READY_IN_TIME: rank 1: starting" in world.rebuilds[0].why


async def test_a_relaunch_that_succeeds_serves_with_new_engines(temporal_client: Client) -> None:
    async with serving(temporal_client, config(enable_dp_scale_down=False)) as world:
        await world.report({1: DEAD})
        order = await other(world, StrategyKind.ENGINE_RELAUNCH)
        await world.end_other(
            succeeded=True,
            reason=ReconfigurationReason.RELAUNCHED,
            serving_published=True,
            view_revision=order["view_revision"] + 2,
            engine_incarnations={str(rank): f"new-{rank}" for rank in range(4)},
        )
        await world.until(lambda r: r.can_serve and r.phase is FtPhase.NORMAL, "serving")
        await world.report({1: DEAD}, engine="old")
        await world.report(dict.fromkeys(range(4), HEALTHY), engine="new")
        assert len(world.others) == 1, "what is said of old engines counts no more"


async def test_a_listed_l2_is_waited_for_once_and_its_failure_leaves_the_rules_to_judge(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        await hardware(world, "L2", code="0x00F1FEF5")
        order = await other(world, StrategyKind.TOKEN_REINFERENCE)
        assert order["ranks"] == [1]
        assert (await world.record()).serving_published, "it touches nothing"
        dead = {"1": {"id": 1, "status": "dead", "sequence": world.sequence + 9, "incarnation": "old-1"}}
        await world.report({0: UNHEALTHY, 2: UNHEALTHY, 3: UNHEALTHY})
        await world.end_other(healed=False, reason=ReinferenceReason.RANK_DIED, detail="rank 1", last_entries=dead)
        await world.until_true(lambda: world.rounds, "the round that the evidence asks for")
        assert world.rounds[0].pending_ranks == (1,)


async def test_hardware_that_the_engines_do_not_perceive_ends_in_a_rebuild_and_is_handled(temporal_client: Client) -> None:
    async with serving(temporal_client, config(hardware_ft_correlation_window_sec=1.0)) as world:
        await world.signal("report_hardware_fault", {"node_name": "node-9", "fault_code": "80E24E00", "level": "L6"})
        record = await world.until(lambda r: r.rejected_signals, "refused")
        assert "no Pod on node 'node-9'" in record.rejected_signals[-1].reason
        await hardware(world)
        record = await world.until(lambda r: r.waiting is not None, "waiting")
        assert record.waiting is not None
        assert record.waiting.reason.startswith("HARDWARE_FIRST")
        assert record.can_serve, "isolation is deferred"
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert "HARDWARE_NOT_PERCEIVED" in world.rebuilds[0].why
        assert not world.rounds
        await world.end_rebuild(world.rebuilds[0])
        await world.until(lambda r: r.can_serve, "rebuilt")
        await hardware(world)
        assert len((await world.record()).hardware_faults) == 1
        assert len(world.rebuilds) == 1, "it was rebuilt around"


async def test_hardware_that_the_engines_perceive_is_a_round_of_the_dead(temporal_client: Client) -> None:
    async with serving(temporal_client, config(hardware_ft_correlation_window_sec=30.0)) as world:
        await hardware(world)
        order = await world.fail_over((1,))
        assert order.pending_ranks == (1,)
        await world.commit(order)
        await world.end_round(order)
        calm = await world.until(lambda r: r.phase is FtPhase.SCALED_DOWN_RUNNING and r.waiting is None, "the fault is handled")
        assert calm.hardware_faults


async def test_unmappable_hardware_stops_a_round_and_the_rebuild_waits_for_its_end(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        order = await world.fail_over((1,))
        world.found[order.generation] = LookUpResult(state=StrategyState.RUNNING)  # its end is still under way
        await hardware(world, npu="switch0")
        await world.until_stopped(StrategyKind.SCALE_DOWN, order.generation)
        assert not world.rebuilds, "not before the round has told its end, its abort included"
        await world.end_round(order, RoundOutcome.CANCELLED)
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert "UNMAPPABLE_HARDWARE" in world.rebuilds[0].why


async def test_a_decode_instance_asks_for_scale_p2d_and_is_rebuilt_with_the_reason(temporal_client: Client) -> None:
    async with a_world(temporal_client) as world:
        world.become_decode()
        await world.serve()
        await hardware(world, npu="switch0")
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert "SCALE_P2D_UNAVAILABLE" in world.rebuilds[0].why
        assert "switch0" in world.rebuilds[0].why


async def test_an_l3_keeps_the_instance_withdrawn_until_it_is_cleared(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        fault = await hardware(world, "L3")
        record = await world.until(lambda r: world.asked("push_view")[-1].ranks == (), "withdrawn")
        assert (record.phase, record.can_serve) == (FtPhase.NORMAL, False)
        order = await world.fail_over((1,))
        assert order.isolated, "the round leaves ADD to the FaultManager"
        await world.commit(order)
        await world.end_round(order, serving_published=False, view_revision=order.view_revision + 1)
        await world.until(lambda r: r.phase is FtPhase.SCALED_DOWN_RUNNING and r.can_serve, "rank 1 was the isolated one")
        await world.signal("clear_hardware_fault", fault)
        await hardware(world, "L3", npu="Ascend910-0")
        await world.until(
            lambda r: not r.can_serve and r.waiting is not None and "ISOLATED" in r.waiting.reason, "isolated again"
        )
        await world.signal("clear_hardware_fault", {**fault, "npu_name": "Ascend910-0"})
        record = await world.until(lambda r: r.can_serve, "published again")
        assert world.asked("push_view")[-1].ranks == (0, 2, 3)


async def test_hold_records_what_would_be_done_and_release_does_it(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        reply = await world.handle.execute_update("hold", HoldCall(why="maintenance"), result_type=CommandReply)
        assert reply.accepted
        await world.report({1: DEAD, 0: UNHEALTHY, 2: UNHEALTHY, 3: UNHEALTHY})
        record = await world.until(lambda r: r.waiting is not None and "would" in r.waiting.reason, "decided")
        assert record.held == "maintenance"
        assert record.waiting is not None
        assert "would scale_down of ranks [1]: COMPLETE" in record.waiting.reason
        assert not world.rounds
        await world.handle.execute_update("release", result_type=CommandReply)
        await world.until_true(lambda: world.rounds, "the round")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await world.handle.execute_update("release")
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == "NOT_HELD"


async def test_observe_only_touches_nothing_but_obeys_a_person(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        await world.signal("config_changed", config(observe_only=True, withdraw_on_first_fault=True))
        pushed = len(world.asked("push_view"))
        await world.report(dict.fromkeys(range(4), DEAD))
        record = await world.until(lambda r: r.waiting is not None and "observe_only" in r.waiting.reason, "decided")
        assert record.waiting is not None
        assert "would reconfigure: ALL_DEAD" in record.waiting.reason
        assert record.can_serve
        assert (len(world.asked("push_view")), world.rebuilds) == (pushed, [])
        await world.handle.execute_update("reconfigure", ReconfigureCall(), result_type=CommandReply)
        await world.until_true(lambda: world.rebuilds, "a person's rebuild")


async def test_withdraw_on_first_fault_and_back_when_the_evidence_clears(temporal_client: Client) -> None:
    async with serving(temporal_client, config(withdraw_on_first_fault=True)) as world:
        await world.report({1: UNHEALTHY})
        record = await world.until(lambda r: world.asked("push_view")[-1].ranks == (), "withdrawn")
        assert (record.phase, record.can_serve) == (FtPhase.NORMAL, False)
        await world.report({1: HEALTHY})
        await world.until(lambda r: r.can_serve, "published again")


async def test_idle_survivors_are_woken_once(temporal_client: Client) -> None:
    async with serving(temporal_client, config(wake_idle_survivors=True)) as world:
        await world.report({1: DEAD})
        await world.until_true(lambda: world.asked("wake"), "woken")
        record = await world.until(lambda r: r.waiting is not None and r.waiting.reason.startswith("INCOMPLETE"), "waits")
        assert record.waiting is not None
        (call,) = world.asked("wake")
        assert sorted(rank for question in call.questions for rank in question.ranks) == [0, 2, 3]
        await world.report({0: UNHEALTHY, 2: UNHEALTHY, 3: UNHEALTHY})
        await world.until_true(lambda: world.rounds, "what they found out is complete")


async def test_a_lost_nodemanager_is_rebuilt_around_and_one_that_is_back_is_not(temporal_client: Client) -> None:
    async with serving(temporal_client) as world:
        word = {"node_manager": {"ip": "127.0.0.3", "port": 1026}}
        await world.signal("node_manager_lost", {"node_manager": {"ip": "127.0.0.9", "port": 1026}})
        assert "has no NodeManager" in (await world.until(lambda r: r.rejected_signals, "refused")).rejected_signals[-1].reason
        await world.handle.execute_update("hold", HoldCall())
        await world.signal("node_manager_lost", word)
        await world.until(lambda r: r.lost_node_managers == ("127.0.0.3:1026",) and r.waiting is not None, "known")
        await world.signal("node_manager_back", word)
        await world.until(lambda r: not r.lost_node_managers and r.waiting is None, "back")
        await world.handle.execute_update("release")
        await world.signal("node_manager_lost", word)
        await world.until_true(lambda: world.rebuilds, "a rebuild")
        assert [str(manager) for manager in world.rebuilds[0].lost_node_managers] == ["127.0.0.3:1026"]
