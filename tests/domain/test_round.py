"""A round that succeeds: what it asks of the world, in which order, and what it reports."""

import pytest

from domain.engine import FtCapability
from domain.errors import OutcomeUnknown, Refused, Transient
from domain.messages.round import FinalizeResult, GuardResult, ViewResult
from domain.messages.strategy import RoundOutcome, RoundReason
from domain.runtime import FtPhase
from tests.domain.round_factories import (
    BEGAN_AT,
    CAPABILITY,
    REQUEST_ID,
    ScriptedPorts,
    dead,
    exited,
    fault_tolerance,
    healthy,
    incarnation,
    mute,
    order,
    played,
    pod,
    ready,
    recovered,
    refusal,
    sees,
    topology,
    unhealthy,
)

STEPS = ["guard", "look_ready", "withdraw", "apply", "look_recovered", "verify", "record_commit", "finalize", "publish"]
SCALE_UP = fault_tolerance(enable_dp_scale_up=True)


async def test_a_round_takes_every_step_once_and_in_order() -> None:
    ports = ScriptedPorts()
    report = await played(ports)
    assert [name for name, _ in ports.calls] == STEPS
    assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.COMMITTED)
    assert report.model_dump(include={"committed", "withdrawn", "serving_published", "view_revision", "detail"}) == {
        "committed": True,
        "withdrawn": True,
        "serving_published": True,
        "view_revision": 12,
        "detail": "",
    }
    assert report.dead_committed == report.removed_dp_ranks == (1,)
    assert report.survivors == (0, 2, 3)
    assert report.applied == {0: 202, 2: 202, 3: 202}
    assert report.gate is not None
    assert report.gate.allowed
    assert report.pending_finalize == report.absent_node_managers == ()
    assert {"guard", "apply_ready", "withdraw", "apply", "recover", "verify", "finalize", "publish"} == set(report.stage_times)


async def test_every_command_carries_the_one_request_id_and_the_generation() -> None:
    ports = ScriptedPorts()
    await played(ports)
    for name in ("guard", "look_ready", "apply", "look_recovered", "record_commit", "finalize"):
        (call,) = ports.called(name)
        assert (call.request_id, call.generation) == (REQUEST_ID, 3), name


async def test_phases_are_told_in_order_with_rising_steps() -> None:
    ports = ScriptedPorts()
    await played(ports)
    assert [step.phase for step in ports.steps] == [
        FtPhase.DECIDING,
        FtPhase.SCALING_DOWN,
        FtPhase.POST_SCALE_CLEANUP,
        FtPhase.SCALED_DOWN_RUNNING,
    ]
    assert [step.step for step in ports.steps] == [1, 2, 3, 4]
    assert all(step.pending_ranks == (1,) for step in ports.steps)


async def test_the_report_keeps_the_last_entry_that_was_seen_of_each_rank() -> None:
    ports = ScriptedPorts(
        before=[sees(healthy(0, sequence=1), dead(1, sequence=2), unhealthy(2, sequence=3), unhealthy(3)), ready(1)],
        after=[sees(healthy(0, sequence=7), healthy(2, sequence=8), healthy(3, sequence=9))],
    )
    report = await played(ports)
    assert {rank: entry.status for rank, entry in report.last_entries.items()} == {
        0: "healthy",
        1: "dead",
        2: "healthy",
        3: "healthy",
    }
    assert report.last_entries[0].sequence == 7


class TestApply:
    async def test_the_lowest_survivor_becomes_master_also_when_rank_0_is_removed(self) -> None:
        ports = ScriptedPorts(before=[ready(0)])
        report = await played(ports, order(0))
        (call,) = ports.called("apply")
        assert (call.removed_dp_ranks, call.master_rank, call.master_ip) == ((0,), 1, "10.1.0.2")
        assert report.dead_committed == (0,)

    async def test_the_second_loss_of_the_master_names_the_next_lowest(self) -> None:
        ports = ScriptedPorts(before=[sees(dead(1), unhealthy(2), unhealthy(3))], after=[sees(healthy(2), healthy(3))])
        report = await played(ports, order(1, dead_committed=(0,), phase_before=FtPhase.SCALED_DOWN_RUNNING))
        (call,) = ports.called("apply")
        assert (call.removed_dp_ranks, call.master_rank, call.master_ip) == ((0, 1), 2, "10.1.0.3")
        assert report.dead_committed == (0, 1)

    async def test_removed_ranks_are_cumulative_and_sorted(self) -> None:
        committed_before = order(5, 2, dead_committed=(7, 1), topology=topology(8, 4), phase_before=FtPhase.SCALED_DOWN_RUNNING)
        ports = ScriptedPorts(before=[sees(*(dead(r) if r in (2, 5) else unhealthy(r) for r in range(8)))], after=[recovered(8)])
        report = await played(ports, committed_before)
        (call,) = ports.called("apply")
        assert call.removed_dp_ranks == (1, 2, 5, 7)
        assert [(str(group.manager), group.ranks) for group in call.groups] == [
            ("10.0.0.1:1026", (0, 3)),
            ("10.0.0.2:1026", (4, 6)),
        ]
        (finalize,) = ports.called("finalize")
        assert [group.ranks for group in finalize.retired] == [(2,), (5,)]
        assert finalize.dead_committed == (1, 2, 5, 7) == report.dead_committed

    async def test_a_pending_rank_that_is_committed_already_is_not_removed_again(self) -> None:
        ports = ScriptedPorts(before=[ready(1, 2)])
        report = await played(ports, order(1, 2, dead_committed=(1,), phase_before=FtPhase.SCALED_DOWN_RUNNING))
        assert report.outcome is RoundOutcome.SUCCEEDED
        assert [group.ranks for group in ports.called("finalize")[0].retired] == [(2,)]

    async def test_apply_wants_enough_lease_for_the_recovery(self) -> None:
        ports = ScriptedPorts()
        await played(ports)
        (call,) = ports.called("apply")
        assert (call.apply_margin_sec, call.lease_sec, call.deadline_at) == (35.0, 85.0, BEGAN_AT + 15.0)


class TestDedupe:
    async def test_ranks_that_are_removed_already_succeed_where_the_group_runs_without_them(self) -> None:
        ports = ScriptedPorts()
        report = await played(ports, order(1, dead_committed=(1, 2), phase_before=FtPhase.SCALED_DOWN_RUNNING))
        assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.ALREADY_COMMITTED)
        assert (report.dead_committed, report.committed, report.serving_published) == ((1, 2), False, True)
        assert report.view_revision == 10
        assert ports.calls == []

    @pytest.mark.parametrize("phase", [phase for phase in FtPhase if phase is not FtPhase.SCALED_DOWN_RUNNING])
    async def test_and_fail_in_every_other_phase(self, phase: FtPhase) -> None:
        ports = ScriptedPorts()
        report = await played(ports, order(1, dead_committed=(1,), phase_before=phase))
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.ALREADY_COMMITTED)
        assert (report.serving_published, ports.calls) == (False, [])

    async def test_a_withdrawn_instance_is_not_reported_as_serving(self) -> None:
        report = await played(
            ScriptedPorts(),
            order(1, dead_committed=(1,), phase_before=FtPhase.SCALED_DOWN_RUNNING, published_ranks=()),
        )
        assert (report.outcome, report.serving_published) == (RoundOutcome.SUCCEEDED, False)


class TestParticipants:
    async def test_dead_only_pods_and_headless_members_are_guarded_and_finalized_but_never_looked_at(self) -> None:
        layout = topology(4, 1, headless=[(1, 8)])
        ports = ScriptedPorts(before=[ready(1)])
        await played(ports, order(1, topology=layout))
        (guard,) = ports.called("guard")
        assert guard.must == (pod(0), pod(2), pod(3))
        assert guard.may_be_absent == (pod(1), pod(8))
        assert set(ports.called("finalize")[0].managers) == {pod(0), pod(1), pod(2), pod(3), pod(8)}
        assert {group.manager for group in ports.called("apply")[0].groups} == {pod(0), pod(2), pod(3)}

    async def test_a_headless_member_of_a_survivor_must_answer(self) -> None:
        ports = ScriptedPorts(before=[ready(1)])
        await played(ports, order(1, topology=topology(4, 1, headless=[(2, 8)])))
        (guard,) = ports.called("guard")
        assert pod(8) in guard.must

    async def test_a_pod_that_an_earlier_round_emptied_takes_no_part(self) -> None:
        """It may be stopped, or its ip be reused, by now: its refusal says nothing about this round."""
        ports = ScriptedPorts(before=[sees(unhealthy(0), dead(2), unhealthy(3))], after=[sees(healthy(0), healthy(3))])
        report = await played(
            ports, order(2, dead_committed=(1,), topology=topology(4, 1), phase_before=FtPhase.SCALED_DOWN_RUNNING)
        )
        (guard,) = ports.called("guard")
        assert (guard.must, guard.may_be_absent) == ((pod(0), pod(3)), (pod(2),))
        assert set(ports.called("finalize")[0].managers) == {pod(0), pod(2), pod(3)}
        assert report.outcome is RoundOutcome.SUCCEEDED

    async def test_an_absent_dead_only_pod_does_not_stop_the_round(self) -> None:
        guarded = GuardResult(guarded=(pod(0), pod(2), pod(3)), absent=(pod(1),))
        ports = ScriptedPorts(before=[sees(unhealthy(0), unhealthy(2), unhealthy(3))]).script(guard=guarded)
        report = await played(ports, order(1, topology=topology(4, 1)))
        assert report.outcome is RoundOutcome.SUCCEEDED
        assert report.absent_node_managers == report.pending_finalize == ("10.0.0.2:1026",)
        assert pod(1) not in ports.called("finalize")[0].managers
        assert pod(1) not in ports.called("look_ready")[0].lease.managers

    async def test_a_pod_that_falls_silent_during_the_wait_is_absent_too(self) -> None:
        """Its lease is not renewed any more, and ADD does not wait for its finalize."""
        silent = sees(unhealthy(0), unhealthy(2), unhealthy(3), unreachable=[pod(1)])
        ports = ScriptedPorts(before=[silent])
        report = await played(ports, order(1, topology=topology(4, 1)))
        assert report.outcome is RoundOutcome.SUCCEEDED
        assert report.absent_node_managers == report.pending_finalize == ("10.0.0.2:1026",)
        assert [call.managers for call in ports.called("finalize")] == [(pod(0), pod(2), pod(3))]
        assert pod(1) not in ports.called("look_recovered")[0].lease.managers

    async def test_a_pod_that_is_emptied_by_a_late_death_stays_guarded(self) -> None:
        ports = ScriptedPorts(before=[ready(1, 2)])
        report = await played(ports, order(1, topology=topology(4, 1)))
        assert report.removed_dp_ranks == (1, 2)
        assert {group.manager for group in ports.called("apply")[0].groups} == {pod(0), pod(3)}
        assert pod(2) in ports.called("look_recovered")[0].lease.managers
        assert pod(2) in ports.called("finalize")[0].managers


class TestWaiting:
    async def test_waiting_is_told_only_when_the_first_look_is_not_enough(self) -> None:
        ports = ScriptedPorts(before=[sees(unhealthy(0), dead(1), healthy(2), unhealthy(3)), ready(1)])
        await played(ports)
        assert [step.phase for step in ports.steps][:3] == [
            FtPhase.DECIDING,
            FtPhase.WAITING_ENGINE_FAULT,
            FtPhase.SCALING_DOWN,
        ]
        assert "2 (healthy)" in ports.steps[1].detail
        assert [call.once for call in ports.called("look_ready")] == [True, False]

    async def test_a_late_death_is_absorbed_and_the_groups_are_rebuilt(self) -> None:
        ports = ScriptedPorts(before=[sees(healthy(0), dead(1), unhealthy(2), unhealthy(3)), ready(1, 0)])
        report = await played(ports)
        (apply,) = ports.called("apply")
        assert apply.removed_dp_ranks == report.dead_committed == (0, 1)
        assert [(group.manager, group.ranks) for group in apply.groups] == [(pod(1), (2, 3))]
        assert (apply.master_rank, report.survivors) == (2, (2, 3))
        assert [group.ranks for group in ports.called("finalize")[0].retired] == [(0, 1)]

    async def test_a_second_round_of_looks_starts_where_the_first_ended(self) -> None:
        ports = ScriptedPorts(before=[sees(unhealthy(0), mute(1), unhealthy(2), unhealthy(3))])
        await played(ports)
        first, second = ports.called("look_ready")
        assert first.deadline_at == second.deadline_at == BEGAN_AT + 30
        assert second.watch.removing[0].quiet_since == BEGAN_AT
        assert ports.called("withdraw")[0].deadline_at == BEGAN_AT + 10 + 15  # silence was confirmed after 10 s

    @pytest.mark.parametrize("confirmed_by", [dead(1), exited(1), healthy(1, incarnation=incarnation(1, life=2))])
    async def test_each_proof_of_death_counts_at_once(self, confirmed_by: object) -> None:
        ports = ScriptedPorts(before=[sees(unhealthy(0), confirmed_by, unhealthy(2), unhealthy(3))])  # type: ignore[arg-type]
        report = await played(ports)
        assert report.outcome is RoundOutcome.SUCCEEDED
        assert ports.clock == BEGAN_AT


class TestView:
    async def test_del_and_add_own_the_two_next_revisions(self) -> None:
        ports = ScriptedPorts()
        await played(ports)
        (withdraw,), (publish,) = ports.called("withdraw"), ports.called("publish")
        assert (withdraw.revision, withdraw.ranks) == (11, ())
        assert (publish.revision, publish.ranks) == (12, (0, 2, 3))

    @pytest.mark.parametrize(
        "outcome",
        [ViewResult(confirmed=False, refusals=(refusal("UNREACHABLE"),)), Transient("no worker"), Refused("no")],
    )
    async def test_an_unconfirmed_add_still_is_a_success_that_does_not_serve(self, outcome: object) -> None:
        report = await played(ScriptedPorts().script(publish=outcome))
        assert (report.outcome, report.committed, report.serving_published) == (RoundOutcome.SUCCEEDED, True, False)
        assert report.view_revision == 12
        assert "not confirmed" in report.detail


class TestAfterTheCommitPoint:
    async def test_the_fault_manager_is_told_the_new_set_before_anybody_retires_a_rank(self) -> None:
        ports = ScriptedPorts()
        await played(ports)
        (record,) = ports.called("record_commit")
        assert (record.dead_committed, record.view_revision, record.instance_id) == ((1,), 11, 7)
        assert ports.names.index("record_commit") < ports.names.index("finalize")

    @pytest.mark.parametrize("port", ["record_commit", "finalize", "publish"])
    @pytest.mark.parametrize("error", [Transient("gone"), Refused("no"), OutcomeUnknown("who knows")])
    async def test_a_failing_port_undoes_nothing(self, port: str, error: Exception) -> None:
        ports = ScriptedPorts().script(**{port: error})
        report = await played(ports)
        assert (report.outcome, report.committed, report.dead_committed) == (RoundOutcome.SUCCEEDED, True, (1,))
        assert ports.called("abort") == []
        assert ports.called("publish") != []

    async def test_the_round_goes_on_without_the_fault_managers_acknowledgement(self) -> None:
        ports = ScriptedPorts().script(record_commit=False)
        assert (await played(ports)).outcome is RoundOutcome.SUCCEEDED

    async def test_add_waits_for_finalize_one_request_timeout_then_the_late_ones_get_the_rest(self) -> None:
        ports = ScriptedPorts().script(finalize=FinalizeResult(done=(pod(0),), pending=(pod(1),)))
        report = await played(ports)
        first, late = ports.called("finalize")
        assert first.deadline_at - BEGAN_AT == 5.0
        assert (late.managers, late.deadline_at - BEGAN_AT, late.commit) == ((pod(1),), 15.0, True)
        assert late.retired == first.retired
        assert ports.names[-2:] == ["publish", "finalize"]
        assert report.pending_finalize == ()

    async def test_who_never_takes_the_verdict_is_left_to_the_fault_manager(self) -> None:
        pending = FinalizeResult(done=(pod(0),), pending=(pod(1),))
        report = await played(ScriptedPorts().script(finalize=[pending, FinalizeResult(pending=(pod(1),))]))
        assert (report.outcome, report.pending_finalize) == (RoundOutcome.SUCCEEDED, ("10.0.0.2:1026",))

    @pytest.mark.parametrize("call", ["record_commit", "finalize", "publish"])
    async def test_a_stop_comes_too_late(self, call: str) -> None:
        ports = ScriptedPorts()
        ports.stop_at = call
        report = await played(ports)
        assert (report.outcome, ports.called("abort")) == (RoundOutcome.SUCCEEDED, [])


class TestStopOfEmptiedPods:
    async def test_only_what_this_round_emptied_is_stopped_after_finalize(self) -> None:
        ports = ScriptedPorts(before=[sees(unhealthy(0), dead(2), unhealthy(3))], after=[sees(healthy(0), healthy(3))])
        layout = topology(4, 1)
        await played(
            ports,
            order(2, dead_committed=(1,), topology=layout, config=SCALE_UP, phase_before=FtPhase.SCALED_DOWN_RUNNING),
        )
        (stop,) = ports.called("stop_pods")
        assert (stop.managers, stop.generation) == ((pod(2),), 3)
        assert ports.names[-3:] == ["finalize", "stop_pods", "publish"]

    async def test_a_pod_that_keeps_a_survivor_is_not_stopped(self) -> None:
        ports = ScriptedPorts()
        await played(ports, order(1, config=SCALE_UP))
        assert ports.called("stop_pods") == []

    async def test_a_pod_that_was_partly_emptied_before_is_stopped_when_its_last_rank_goes(self) -> None:
        ports = ScriptedPorts(before=[sees(dead(0), unhealthy(2), unhealthy(3))])
        await played(ports, order(0, dead_committed=(1,), config=SCALE_UP, phase_before=FtPhase.SCALED_DOWN_RUNNING))
        assert ports.called("stop_pods")[0].managers == (pod(0),)

    async def test_nothing_is_stopped_without_scale_up(self) -> None:
        ports = ScriptedPorts(before=[ready(0, 1)])
        await played(ports, order(0, 1))
        assert ports.called("stop_pods") == []


async def test_verification_can_be_switched_off() -> None:
    ports = ScriptedPorts()
    report = await played(ports, order(1, config=fault_tolerance({"verify_inference": False})))
    assert (report.outcome, ports.called("verify")) == (RoundOutcome.SUCCEEDED, [])


async def test_fused_mc2_and_a_small_redundancy_are_no_gate() -> None:
    capability = FtCapability(**{**CAPABILITY.model_dump(), "num_redundant_experts": 1})
    assert (await played(ScriptedPorts(), order(1, topology=topology(capability=capability)))).outcome is RoundOutcome.SUCCEEDED
