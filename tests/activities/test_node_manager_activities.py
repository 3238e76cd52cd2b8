"""What each activity makes of what NodeManagers do, over real sockets."""

import asyncio
import time
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails

from domain.messages.fault_manager import FreshLookCall, PaceCall
from domain.messages.round import ApplyCall, FinalizeCall, GuardCall, StopPodsCall, VerifyCall
from domain.watch import Question
from tests.activities.attempts import environment, node_manager_activities, run, within
from tests.activities.fake_pods import FakeInstance, answer, fake_instance, hang, healthy, refuse, unhealthy
from tests.eventually import eventually

REQUEST_ID = "scale-down-1"

PEER_TIMEOUT_SEC = 2.0
"""Short, and no matter to a busy machine."""


def guard_call(instance: FakeInstance, *, absent_ok: tuple[int, ...] = (), within_sec: float = 1.0) -> GuardCall:
    may = tuple(instance.pods[index].address for index in absent_ok)
    return GuardCall(
        request_id=REQUEST_ID,
        generation=3,
        lease_sec=15.0,
        must=tuple(pod.address for pod in instance.pods if pod.address not in may),
        may_be_absent=may,
        request_timeout_sec=PEER_TIMEOUT_SEC,
        deadline_at=within(within_sec),
    )


def apply_call(instance: FakeInstance, *, within_sec: float = 1.0, **fields: Any) -> ApplyCall:
    base: dict[str, Any] = {
        "request_id": REQUEST_ID,
        "generation": 3,
        "groups": (
            Question(manager=instance.pods[0].address, ranks=(0,)),
            Question(manager=instance.pods[1].address, ranks=(2, 3)),
        ),
        "removed_dp_ranks": (1,),
        "master_ip": "127.0.0.1",
        "master_rank": 0,
        "apply_margin_sec": 4.0,
        "lease_sec": 15.0,
        "request_timeout_sec": PEER_TIMEOUT_SEC,
        "deadline_at": within(within_sec),
    }
    return ApplyCall(**{**base, **fields})


async def test_guard_owns_every_participant_with_the_contracts_body() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        result = await run(activities.guard, guard_call(instance))
        assert set(result.guarded) == {pod.address for pod in instance.pods}
        assert instance.pods[0].bodies("guard") == [{"request_id": REQUEST_ID, "lease_sec": 15.0, "generation": 3}]


async def test_guard_waits_for_a_survivors_node_manager_that_comes_back() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        pod = instance.pods[1]
        await pod.vanish()
        guarding = asyncio.create_task(run(activities.guard, guard_call(instance, within_sec=10.0)))
        await asyncio.sleep(0.2)
        await pod.listen()
        assert len((await asyncio.wait_for(guarding, 10)).guarded) == 2


async def test_guard_names_a_survivors_node_manager_that_stays_away() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        await instance.pods[1].vanish()
        result = await run(activities.guard, guard_call(instance, within_sec=0.3))
        assert [(one.peer, one.reason) for one in result.unreachable] == [(str(instance.pods[1].address), "REFUSED_CONNECTION")]


@pytest.mark.parametrize("mute", [False, True], ids=["refused connection", "no answer"])
async def test_guard_goes_on_without_a_pod_that_holds_only_dead_ranks(mute: bool) -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        if mute:
            instance.pods[1].script("guard", hang(5), hang(5))
        else:
            await instance.pods[1].vanish()
        began = time.monotonic()
        result = await run(activities.guard, guard_call(instance, absent_ok=(1,), within_sec=10.0))
        assert result.absent == (instance.pods[1].address,)
        assert result.refusals == result.unreachable == ()
        assert time.monotonic() - began < 8  # not until the deadline


async def test_a_refusal_of_a_dead_only_pod_counts() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[1].script("guard", refuse("GUARD_HELD", holder="other"))
        result = await run(activities.guard, guard_call(instance, absent_ok=(1,)))
        assert [one.reason for one in result.refusals] == ["GUARD_HELD"]
        assert result.absent == ()


async def test_one_refusal_ends_the_waiting_for_the_others() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        await instance.pods[0].vanish()
        instance.pods[1].script("guard", refuse("OLD_GENERATION"))
        began = time.monotonic()
        result = await run(activities.guard, guard_call(instance, within_sec=20.0))
        assert [one.reason for one in result.refusals] == ["OLD_GENERATION"]
        assert time.monotonic() - began < 5


async def test_apply_sends_exactly_the_contracts_body() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        for pod in instance.pods:
            pod.guard = REQUEST_ID
        result = await run(activities.apply, apply_call(instance))
        assert result.accepted
        assert result.engines == {0: 202, 2: 202, 3: 202}
        assert instance.pods[1].bodies("apply") == [
            {
                "endpoint_ids": [2, 3],
                "instruction": "scale_down",
                "params": {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_master_rank": 0},
                "request_id": REQUEST_ID,
                "generation": 3,
                "apply_margin_sec": 4.0,
            }
        ]


@pytest.mark.parametrize("reason", ["LEASE_TOO_SHORT", "NOT_GUARDED"])
async def test_apply_renews_a_lease_that_is_short_or_lapsed(reason: str) -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        for pod in instance.pods:
            pod.guard = REQUEST_ID
        instance.pods[1].script("apply", refuse(reason))
        assert (await run(activities.apply, apply_call(instance))).accepted
        assert [route for route, _ in instance.pods[1].seen] == ["apply", "guard", "apply"]


async def test_apply_does_not_touch_a_pod_that_someone_else_took() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[0].guard, instance.pods[1].guard = REQUEST_ID, "another round"
        result = await run(activities.apply, apply_call(instance))
        assert [one.reason for one in result.refusals] == ["GUARD_HELD"]
        assert instance.pods[1].applied == {}


async def test_an_engines_refusal_is_told_with_its_status() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[0].guard = REQUEST_ID
        instance.pods[1].script("apply", refuse("ENGINE_REFUSED", engines={"2": {"http": 202}, "3": {"http": 400}}))
        result = await run(activities.apply, apply_call(instance))
        assert not result.accepted
        assert result.engines == {0: 202, 2: 202, 3: 400}
        assert [one.reason for one in result.refusals] == ["ENGINE_REFUSED"]


async def test_an_outcome_that_nobody_knows_stays_unknown() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[0].guard = REQUEST_ID
        instance.pods[1].script("apply", refuse("OUTCOME_UNKNOWN"))
        result = await run(activities.apply, apply_call(instance))
        assert (result.refusals, [one.reason for one in result.unknown]) == ((), ["OUTCOME_UNKNOWN"])
        assert len(instance.pods[1].bodies("apply")) == 1


async def test_a_node_manager_that_may_have_heard_is_unknown_and_one_that_cannot_have_is_refused() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[0].script("apply", hang(3), hang(3), hang(3))
        await instance.pods[1].vanish()
        result = await run(activities.apply, apply_call(instance, within_sec=0.6))
        assert [one.peer for one in result.unknown] == [str(instance.pods[0].address)]
        assert [one.peer for one in result.refusals] == [str(instance.pods[1].address)]


async def test_after_a_killed_worker_even_a_refused_connection_leaves_the_outcome_unknown() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        for pod in instance.pods:
            await pod.vanish()
        result = await run(activities.apply, apply_call(instance, within_sec=0.1), attempt=2)
        assert len(result.unknown) == 2


async def test_a_late_attempt_still_asks_once() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        for pod in instance.pods:
            pod.guard = REQUEST_ID
        call = apply_call(instance, deadline_at=within(-60))
        assert (await run(activities.apply, call, attempt=2)).accepted


async def test_an_acceptance_that_leaves_an_engine_out_is_none() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[0].guard = REQUEST_ID
        instance.pods[1].script("apply", answer(200, '{"status":"accepted","engines":{"2":{"http":202}}}'))
        result = await run(activities.apply, apply_call(instance))
        assert not result.accepted
        assert "lists {2: 202}" in result.unknown[0].message
        assert not result.refusals, "what says that it was accepted was heard"


def finalize_call(instance: FakeInstance, *, commit: bool = True, once: bool = False) -> FinalizeCall:
    managers = tuple(pod.address for pod in instance.pods)
    return FinalizeCall(
        request_id=REQUEST_ID,
        generation=3,
        commit=commit,
        managers=managers,
        retired=(Question(manager=managers[0], ranks=(1,)),),
        dead_committed=(1,),
        once=managers if once else (),
        request_timeout_sec=PEER_TIMEOUT_SEC,
        deadline_at=within(10.0 if once else 0.5),
    )


async def test_the_verdict_carries_each_pods_own_ranks_and_the_whole_set() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        result = await run(activities.finalize, finalize_call(instance))
        assert len(result.done) == 2
        bodies = [pod.bodies("finalize")[0] for pod in instance.pods]
        assert [body["retired_endpoint_ids"] for body in bodies] == [[1], []]
        assert [body["dead_committed"] for body in bodies] == [[1], [1]]


async def test_an_abort_names_no_ranks() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        call = finalize_call(instance, commit=False).model_copy(update={"retired": ()})
        await run(activities.finalize, call)
        body = instance.pods[0].bodies("finalize")[0]
        assert (body["commit"], body["retired_endpoint_ids"]) == (False, [])
        assert "dead_committed" not in body


async def test_a_verdict_that_is_not_taken_is_pending_or_refused() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        await instance.pods[0].vanish()
        instance.pods[1].script("finalize", refuse("VERDICT_DIFFERS"))
        result = await run(activities.finalize, finalize_call(instance))
        assert result.pending == (instance.pods[0].address,)
        assert [one.reason for one in result.refusals] == ["VERDICT_DIFFERS"]
        assert result.done == ()


async def test_a_node_manager_that_missed_the_guard_gets_one_try() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        await instance.pods[0].vanish()
        began = time.monotonic()
        result = await run(activities.finalize, finalize_call(instance, commit=False, once=True))
        assert result.pending == (instance.pods[0].address,)
        assert time.monotonic() - began < 2


def verify_call(instance: FakeInstance, within_sec: float) -> VerifyCall:
    groups = tuple(Question(manager=pod.address, ranks=pod.ranks) for pod in instance.pods)
    return VerifyCall(groups=groups, request_timeout_sec=PEER_TIMEOUT_SEC, deadline_at=within(within_sec))


async def test_verify_asks_again_only_those_without_a_completion() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[1].engines[3] = unhealthy(3)
        verifying = asyncio.create_task(run(activities.verify, verify_call(instance, 10.0)))
        await eventually(lambda: len(instance.pods[1].bodies("probe")) > 1, "it asks again")
        instance.pods[1].engines[3] = healthy(3)
        result = await asyncio.wait_for(verifying, 10)
        assert (result.ok, result.failed) == ((0, 1, 2, 3), {})
        assert instance.pods[1].bodies("probe")[-1]["endpoint_ids"] == [3]
        assert instance.pods[0].bodies("probe")[0]["timeout_sec"] < PEER_TIMEOUT_SEC


async def test_verify_tells_why_a_rank_gave_no_completion() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        instance.pods[1].engines[3] = unhealthy(3)
        result = await run(activities.verify, verify_call(instance, 0.3))
        assert (result.ok, result.failed) == ((0, 1, 2), {3: "HTTP 503"})


async def test_best_effort_calls_never_fail() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        await instance.pods[0].vanish()
        instance.pods[1].script("stop", refuse("OLD_GENERATION"))
        managers = tuple(pod.address for pod in instance.pods)
        await run(activities.stop_pods, StopPodsCall(managers=managers, generation=3, request_timeout_sec=PEER_TIMEOUT_SEC))
        await run(activities.pace, PaceCall(managers=managers, poll_interval_sec=0.25, request_timeout_sec=PEER_TIMEOUT_SEC))
        assert instance.pods[1].bodies("pace") == [{"poll_interval_sec": 0.25}]


@pytest.mark.parametrize(
    "ended",
    [ActivityCancellationDetails(not_found=True), ActivityCancellationDetails(worker_shutdown=True)],
    ids=["round", "worker"],
)
async def test_a_stop_that_was_begun_outlives_its_round_and_not_its_worker(ended: ActivityCancellationDetails) -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        pod = instance.pods[1]
        pod.script("stop", hang(0.5))
        env = environment()
        call = StopPodsCall(managers=(pod.address,), generation=3, request_timeout_sec=5.0)
        stopping = asyncio.create_task(env.run(activities.stop_pods, call))
        await eventually(lambda: len(pod.bodies("stop")) == 1, "the Pod is asked")
        env.cancel(ended)
        await asyncio.wait({stopping}, timeout=5)
        assert stopping.cancelled() is ended.worker_shutdown


async def test_a_fresh_look_tells_what_it_saw_and_what_it_could_not_see() -> None:
    async with fake_instance() as instance, node_manager_activities() as activities:
        await instance.pods[0].vanish()
        questions = tuple(Question(manager=pod.address, ranks=pod.ranks) for pod in instance.pods)
        result = await run(activities.fresh_look, FreshLookCall(questions=questions, request_timeout_sec=PEER_TIMEOUT_SEC))
        assert result.last_entries.keys() == {2, 3}
        assert result.unreadable.keys() == {0, 1}
        pod = instance.pods[1]
        assert result.node_manager_incarnations == {str(pod.address): pod.incarnation}
