"""The looping look: what ends it, what keeps the guards alive, and what a next attempt inherits."""

import asyncio
import time
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails

from activities.watching import WatchMemory
from domain.messages.round import Lease, WatchCall
from domain.watch import ApplyReadyWatch, Question, RecoveredWatch, Removal, WatchState
from tests.activities.attempts import environment, node_manager_activities, run, within
from tests.activities.fake_pods import FakeInstance, entry, fake_instance, hang, refuse, unhealthy
from tests.eventually import eventually

REQUEST_ID = "scale-down-1"


def apply_ready(instance: FakeInstance, *removed: int, dead_confirm_sec: float = 0.3) -> ApplyReadyWatch:
    survivors = {pod.address: tuple(rank for rank in pod.ranks if rank not in removed) for pod in instance.pods}
    return ApplyReadyWatch(
        survivors=tuple(Question(manager=manager, ranks=ranks) for manager, ranks in survivors.items() if ranks),
        removing=tuple(Removal(rank=rank, manager=instance.pod_of(rank).address, manager_has_survivors=True) for rank in removed),
        dead_confirm_sec=dead_confirm_sec,
    )


def look_call(instance: FakeInstance, watch: ApplyReadyWatch | RecoveredWatch, **fields: Any) -> WatchCall:
    base: dict[str, Any] = {
        "instance_id": instance.instance_id,
        "request_id": REQUEST_ID,
        "generation": 3,
        "watch": watch,
        "poll_interval_sec": 0.05,
        "request_timeout_sec": 0.5,
        "deadline_at": within(10.0),
        "lease": Lease(managers=tuple(pod.address for pod in instance.pods), lease_sec=15.0, renew_every_sec=60.0),
    }
    return WatchCall(**{**base, **fields})


def never_ready(instance: FakeInstance) -> ApplyReadyWatch:
    """A watch that waits for ever: rank 1 is dead, rank 3 does not notice."""
    instance.kill(1)
    instance.pods[1].engines[3] = entry(3, "healthy")
    return apply_ready(instance, 1)


async def test_it_ends_as_soon_as_everybody_is_ready() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.kill(1)
        instance.pods[1].engines[3] = entry(3, "healthy")
        looking = asyncio.create_task(run(activities.look, look_call(instance, apply_ready(instance, 1))))
        await eventually(lambda: len(instance.pods[1].bodies("status")) > 2, "it sweeps")
        instance.pods[1].engines[3] = unhealthy(3)
        result = await asyncio.wait_for(looking, 5)
        assert result.observation.verdict is WatchState.DONE
        assert result.sweeps > 2


async def test_once_is_one_sweep() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        result = await run(activities.look, look_call(instance, never_ready(instance), once=True))
        assert result.sweeps == 1


async def test_a_deadline_that_is_over_still_gets_a_last_look() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.kill(1)
        call = look_call(instance, apply_ready(instance, 1), deadline_at=within(-100))
        result = await run(activities.look, call, attempt=2)
        assert result.observation.verdict is WatchState.DONE


async def test_it_waits_until_the_deadline_and_says_for_what() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.kill(1)
        instance.pods[1].engines[3] = entry(3, "healthy")
        call = look_call(instance, apply_ready(instance, 1), deadline_at=within(0.3))
        result = await run(activities.look, call)
        assert result.observation.verdict is WatchState.WAIT
        assert "3 (healthy)" in result.observation.detail


async def test_an_unreachable_node_manager_is_waited_for() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.kill(1)
        await instance.pods[1].vanish()
        looking = asyncio.create_task(run(activities.look, look_call(instance, apply_ready(instance, 1))))
        await eventually(lambda: len(instance.pods[0].bodies("status")) > 2, "it sweeps")
        await instance.pods[1].listen()
        assert (await asyncio.wait_for(looking, 5)).observation.verdict is WatchState.DONE


async def test_an_answer_under_another_ranks_key_is_nonsense() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.kill(1)
        instance.pods[1].engines[3] = entry(2, "unhealthy")
        result = await run(activities.look, look_call(instance, apply_ready(instance, 1)))
        assert result.observation.verdict is WatchState.FAILED
        assert result.observation.reason == "ENGINE_PROTOCOL"


async def test_guards_are_renewed_beside_the_sweeps() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        lease = Lease(managers=tuple(pod.address for pod in instance.pods), lease_sec=15.0, renew_every_sec=0.1)
        call = look_call(instance, never_ready(instance), lease=lease, deadline_at=within(0.5))
        await run(activities.look, call)
        renewals = instance.pods[0].bodies("guard")
        assert len(renewals) >= 2
        assert renewals[0] == {"request_id": REQUEST_ID, "lease_sec": 15.0, "generation": 3}


async def test_a_later_attempt_renews_first() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        call = look_call(instance, never_ready(instance), deadline_at=within(0.3))
        await run(activities.look, call, attempt=2)
        assert len(instance.pods[0].bodies("guard")) == 1


@pytest.mark.parametrize("reason", ["GUARD_HELD", "OLD_GENERATION", "VERDICT_KNOWN"])
async def test_a_pod_that_is_someone_elses_ends_the_look(reason: str) -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[1].script("guard", refuse(reason, holder="other"))
        lease = Lease(managers=(instance.pods[1].address,), lease_sec=15.0, renew_every_sec=0.1)
        result = await run(activities.look, look_call(instance, never_ready(instance), lease=lease))
        assert result.lost_guard is not None
        assert result.lost_guard.reason == reason


async def test_a_renewal_that_fails_otherwise_ends_nothing() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[1].script("guard", refuse("JOURNAL"), hang(1))
        lease = Lease(managers=(instance.pods[1].address,), lease_sec=15.0, renew_every_sec=0.1)
        call = look_call(instance, never_ready(instance), lease=lease, deadline_at=within(0.5))
        assert (await run(activities.look, call)).lost_guard is None


async def test_a_next_attempt_goes_on_from_what_the_last_one_saw() -> None:
    """Silence that began two attempts ago counts from its beginning, whatever worker looks."""
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.kill(1)
        instance.pods[0].engines[1] = entry(1, "unknown", source="poll_error")
        watch = apply_ready(instance, 1, dead_confirm_sec=30.0)
        began = time.time() - 31
        silent = watch.removing[0].model_copy(update={"quiet_since": began})
        memory = WatchMemory(watch=watch.model_copy(update={"removing": (silent,)}), sweeps=40, began_at=began)
        result = await run(activities.look, look_call(instance, watch), attempt=3, memory=memory)
        assert result.observation.verdict is WatchState.DONE
        assert result.sweeps > 40


async def test_what_it_saw_travels_with_its_heartbeats() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        beats: list[Any] = []
        env = environment()
        env.on_heartbeat = lambda *details: beats.append(details)
        call = look_call(instance, never_ready(instance), deadline_at=within(1.3))
        await env.run(activities.look, call)
        memory = WatchMemory.model_validate_json(beats[-1][0])
        assert memory.sweeps > 1
        assert memory.watch.entries.keys() == {0, 1, 2, 3}


async def test_cancelled_by_the_workflow_it_returns_what_it_saw_last() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        env = environment()
        looking = asyncio.create_task(env.run(activities.look, look_call(instance, never_ready(instance))))
        await eventually(lambda: len(instance.pods[1].bodies("status")) > 2, "it sweeps")
        env.cancel(ActivityCancellationDetails(cancel_requested=True))
        result = await asyncio.wait_for(looking, 5)
        assert result.observation.verdict is WatchState.WAIT
        assert result.sweeps > 1


async def test_cancelled_otherwise_it_is_no_result() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        env = environment()
        looking = asyncio.create_task(env.run(activities.look, look_call(instance, never_ready(instance))))
        await eventually(lambda: len(instance.pods[1].bodies("status")) > 2, "it sweeps")
        env.cancel(ActivityCancellationDetails(timed_out=True))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(looking, 5)


async def test_a_leaving_worker_lets_go_at_once() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        env = environment()
        looking = asyncio.create_task(env.run(activities.look, look_call(instance, never_ready(instance))))
        await eventually(lambda: len(instance.pods[1].bodies("status")) > 2, "it sweeps")
        env.worker_shutdown()
        with pytest.raises(Exception, match="another one goes on") as caught:
            await asyncio.wait_for(looking, 5)
        assert not getattr(caught.value, "non_retryable", True)
