"""A round that does not succeed: where it stops, what it leaves undone, whom it tells, and why it says so."""

import pytest

from domain.engine import RankEntry
from domain.errors import AutotomyError, OutcomeUnknown, Refused, Transient
from domain.messages.round import ApplyResult, FinalizeResult, GuardResult, VerifyResult, ViewResult
from domain.messages.strategy import RoundOutcome, RoundReason
from domain.round.gate import GateCode
from domain.topology import Topology
from tests.domain.round_factories import (
    BEGAN_AT,
    CAPABILITY,
    REQUEST_ID,
    ScriptedPorts,
    Sweep,
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
    refusal,
    sees,
    topology,
    unhealthy,
)

OTHER_ID = "scale-down-" + "0" * 31 + "2"


def with_capability(**changed: object) -> Topology:
    return topology(capability=CAPABILITY.model_copy(update=changed))


def assert_aborted_everywhere(ports: ScriptedPorts, *managers: int) -> None:
    """One abort, to every NodeManager where a guard was attempted, and nothing after it."""
    (abort,) = ports.called("abort")
    assert set(abort.managers) == {pod(number) for number in managers}
    assert (abort.commit, abort.retired, abort.request_id) == (False, (), REQUEST_ID)
    assert ports.names[-1] == "abort"
    assert ports.called("record_commit") == ports.called("finalize") == ports.called("publish") == []


class TestAdmission:
    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (GateCode.FEATURE_DISABLED, {"config": fault_tolerance(enable_fault_tolerance=False)}),
            (GateCode.FEATURE_DISABLED, {"config": fault_tolerance(enable_dp_scale_down=False)}),
            (GateCode.ENGINE_FT_REQUIRED, {"topology": with_capability(enabled=False)}),
            (GateCode.EXTERNAL_LB_REQUIRED, {"topology": with_capability(external_lb=False)}),
            (GateCode.AUTO_RECOVERY_CONFLICT, {"topology": with_capability(auto_recovery=True)}),
            (GateCode.ENGINE_SCALE_DOWN_UNSUPPORTED, {"topology": with_capability(scale_down_supported=False)}),
            (GateCode.EPLB_REQUIRED, {"topology": with_capability(eplb_enabled=False)}),
            (GateCode.EXPERT_REDUNDANCY_REQUIRED, {"topology": with_capability(num_redundant_experts=0)}),
            (GateCode.NO_SURVIVOR, {"pending_ranks": (0, 1, 2, 3)}),
            (GateCode.NO_SURVIVOR, {"pending_ranks": (1, 2), "dead_committed": (0, 3)}),
            (GateCode.NO_SURVIVOR, {"config": fault_tolerance(min_alive_ranks=4)}),
            (GateCode.FT_CAPABILITY_MISSING, {"topology": topology(capability=None)}),
            (GateCode.FT_CAPABILITY_INCONSISTENT, {"capability_consistent": False}),
        ],
    )
    async def test_a_closed_gate_refuses_before_anything_is_touched(self, code: GateCode, fields: dict[str, object]) -> None:
        ports = ScriptedPorts()
        report = await played(ports, order(1, **fields))
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.GATE_REFUSED)
        assert report.gate is not None
        assert report.gate.reason_codes == (code,)
        assert code in report.detail
        assert ports.calls == []

    async def test_the_gate_names_all_obstacles_at_once(self) -> None:
        report = await played(ScriptedPorts(), order(1, topology=with_capability(eplb_enabled=False, external_lb=False)))
        assert report.gate is not None
        assert report.gate.reason_codes == (GateCode.EXTERNAL_LB_REQUIRED, GateCode.EPLB_REQUIRED)

    @pytest.mark.parametrize("pending", [(4,), (1, 9)])
    async def test_foreign_ranks_are_a_bad_order(self, pending: tuple[int, ...]) -> None:
        ports = ScriptedPorts()
        report = await played(ports, order(*pending))
        assert (report.outcome, report.reason, ports.calls) == (RoundOutcome.FAILED, RoundReason.BAD_ORDER, [])
        assert str(pending[-1]) in report.detail


class TestGuard:
    async def test_an_unreachable_survivors_node_manager_fails_the_round(self) -> None:
        result = GuardResult(guarded=(pod(0),), unreachable=(refusal("UNREACHABLE", pod(1)),))
        ports = ScriptedPorts().script(guard=result)
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.GUARD_UNREACHABLE)
        assert "10.0.0.2:1026" in report.detail
        assert report.refusals == result.unreachable
        assert_aborted_everywhere(ports, 0, 1)
        assert ports.called("abort")[0].once == (pod(1),)
        assert (report.withdrawn, report.view_revision, report.committed) == (False, 10, False)

    @pytest.mark.parametrize("reason", ["GUARD_HELD", "OLD_GENERATION", "VERDICT_KNOWN"])
    @pytest.mark.parametrize("refusing", [0, 1])
    async def test_a_refusal_anywhere_fails_the_round_also_from_a_dead_only_pod(self, reason: str, refusing: int) -> None:
        others = tuple(pod(number) for number in range(4) if number != refusing)
        ports = ScriptedPorts().script(guard=GuardResult(guarded=others, refusals=(refusal(reason, pod(refusing)),)))
        report = await played(ports, order(1, topology=topology(4, 1)))
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.GUARD_REFUSED)
        assert reason in report.detail
        assert report.refusals == (refusal(reason, pod(refusing)),)
        assert_aborted_everywhere(ports, 0, 1, 2, 3)

    async def test_a_survivors_node_manager_of_which_nothing_was_learnt_counts_as_unreachable(self) -> None:
        ports = ScriptedPorts().script(guard=GuardResult(guarded=(pod(0),)))
        report = await played(ports)
        assert (report.reason, ports.called("look_ready")) == (RoundReason.GUARD_UNREACHABLE, [])
        assert "10.0.0.2:1026" in report.detail

    async def test_a_lost_guard_ends_the_wait(self) -> None:
        ports = ScriptedPorts()
        ports.lost_guard = refusal("GUARD_HELD", pod(1))
        report = await played(ports)
        assert (report.reason, ports.called("withdraw")) == (RoundReason.GUARD_LOST, [])
        assert_aborted_everywhere(ports, 0, 1)


ONE_STILL_HEALTHY = sees(unhealthy(0), dead(1), healthy(2), unhealthy(3))


class TestWaitForApplyReady:
    @pytest.mark.parametrize(
        "never_ready",
        [
            ONE_STILL_HEALTHY,
            sees(unhealthy(0), dead(1), unhealthy(2, ft_state="recovering"), unhealthy(3)),
            sees(unhealthy(0), dead(1), mute(2), unhealthy(3)),
            sees(unhealthy(0), dead(1), unhealthy(2), unhealthy(3), unreachable=[pod(1)]),
            sees(unhealthy(0), dead(1), unhealthy(2), RankEntry(id=3, status="degraded")),
        ],
    )
    async def test_a_survivor_that_is_not_ready_in_time_fails_the_round_before_anything_is_withdrawn(
        self, never_ready: Sweep
    ) -> None:
        ports = ScriptedPorts(before=[never_ready])
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.NOT_READY_IN_TIME)
        assert (ports.clock, report.withdrawn) == (BEGAN_AT + 30, False)
        assert_aborted_everywhere(ports, 0, 1)

    @pytest.mark.parametrize(
        ("sweep", "reason"),
        [
            (sees(unhealthy(0), dead(1), unhealthy(2, ft_state="failed"), unhealthy(3)), RoundReason.ENGINE_FAILED),
            (sees(unhealthy(0), dead(1), unhealthy(2), unhealthy(3), nonsense=[3]), RoundReason.ENGINE_PROTOCOL),
            (sees(unhealthy(0), dead(1), unhealthy(2), unhealthy(3), left_out=[3]), RoundReason.ENGINE_MISSING),
            (sees(unhealthy(0), dead(1), unhealthy(2), unhealthy(3), left_out=[1]), RoundReason.ENGINE_MISSING),
            (sees(unhealthy(0), dead(1), unhealthy(2), RankEntry(id=3, status="retired")), RoundReason.SURVIVOR_RETIRED),
            (sees(dead(0), dead(1), exited(2), dead(3)), RoundReason.NO_SURVIVOR),
        ],
    )
    async def test_what_can_never_become_ready_fails_at_once(self, sweep: Sweep, reason: RoundReason) -> None:
        ports = ScriptedPorts(before=[sweep])
        report = await played(ports)
        assert (report.outcome, report.reason, ports.clock) == (RoundOutcome.FAILED, reason, BEGAN_AT)
        assert_aborted_everywhere(ports, 0, 1)
        assert report.withdrawn is False

    async def test_too_few_survivors_after_a_late_death_fail_before_withdrawal(self) -> None:
        ports = ScriptedPorts(before=[ready(1, 2)])
        report = await played(ports, order(1, config=fault_tolerance(min_alive_ranks=3)))
        assert (report.reason, report.withdrawn) == (RoundReason.NO_SURVIVOR, False)
        assert "min_alive_ranks=3" in report.detail
        assert_aborted_everywhere(ports, 0, 1)

    @pytest.mark.parametrize("alive", [healthy(1), unhealthy(1), healthy(1, ft_state="recovering")])
    async def test_a_false_alarm_abandons_the_round_and_withdraws_nothing(self, alive: RankEntry) -> None:
        ports = ScriptedPorts(before=[sees(unhealthy(0), alive, unhealthy(2), unhealthy(3))])
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.ABANDONED, RoundReason.FALSE_ALARM)
        assert (report.withdrawn, report.view_revision, report.dead_committed) == (False, 10, ())
        assert report.last_entries[1] == alive
        assert_aborted_everywhere(ports, 0, 1)

    async def test_interrupted_silence_starts_anew(self) -> None:
        """Mute for 9 s, unreadable in another way for one sweep, mute again: 10 s count from there."""
        quiet = sees(unhealthy(0), mute(1), unhealthy(2), unhealthy(3))
        garbled = sees(unhealthy(0), mute(1), unhealthy(2), unhealthy(3), nonsense=[1])
        ports = ScriptedPorts(before=[quiet] * 37 + [garbled, quiet])
        report = await played(ports)
        assert report.outcome is RoundOutcome.SUCCEEDED
        interrupted_at = BEGAN_AT + 36 * 0.25
        assert ports.called("withdraw")[0].deadline_at - 15 == interrupted_at + 0.25 + 10

    async def test_the_dying_engines_nonsense_harms_nobody_else(self) -> None:
        ports = ScriptedPorts(before=[sees(unhealthy(0), dead(1), unhealthy(2), unhealthy(3), nonsense=[1]), ready(1)])
        assert (await played(ports)).outcome is RoundOutcome.SUCCEEDED

    async def test_a_survivor_whose_node_manager_is_away_is_called_so_and_not_by_its_last_word(self) -> None:
        away = sees(unhealthy(0), dead(1), unhealthy(2), unhealthy(3), unreachable=[pod(1)])
        ports = ScriptedPorts(before=[ONE_STILL_HEALTHY, away])
        report = await played(ports)
        assert "2 (unknown: NodeManager 10.0.0.2:1026 did not answer" in report.detail
        assert "2 (healthy" not in report.detail


class TestEnginesTime:
    """Engines exit by themselves 120 s after their fault; half an execution deadline must be left for the recovery."""

    @pytest.mark.parametrize(
        ("noticed", "ends_after", "reason"),
        [
            ({0: -10.0, 2: -2.0, 3: -1.0}, 30.0, RoundReason.NOT_READY_IN_TIME),
            ({0: -90.0, 2: -2.0, 3: -1.0}, 15.0, RoundReason.ENGINES_TIME_OVER),
            ({0: -2.0, 2: -100.0, 3: -1.0}, 5.0, RoundReason.ENGINES_TIME_OVER),
            ({0: -200.0}, 0.0, RoundReason.ENGINES_TIME_OVER),
            ({1: -100.0}, 30.0, RoundReason.NOT_READY_IN_TIME),  # of the rank that is to be removed: does not count
            ({}, 30.0, RoundReason.NOT_READY_IN_TIME),
        ],
    )
    async def test_the_earlier_of_both_deadlines_ends_the_wait(
        self, noticed: dict[int, float], ends_after: float, reason: RoundReason
    ) -> None:
        ports = ScriptedPorts(before=[ONE_STILL_HEALTHY])
        report = await played(ports, order(1, first_unhealthy_at={rank: BEGAN_AT + at for rank, at in noticed.items()}))
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, reason)
        assert ports.clock == BEGAN_AT + ends_after

    async def test_survivors_that_are_ready_at_the_last_look_go_on(self) -> None:
        ports = ScriptedPorts(before=[ONE_STILL_HEALTHY, ready(1)])
        report = await played(ports, order(1, first_unhealthy_at={0: BEGAN_AT - 200.0}))
        assert report.outcome is RoundOutcome.SUCCEEDED


class TestWithdraw:
    async def test_an_unconfirmed_withdrawal_ends_the_round_before_apply(self) -> None:
        unconfirmed = ViewResult(confirmed=False, refusals=(refusal("UNREACHABLE"),))
        ports = ScriptedPorts().script(withdraw=unconfirmed)
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.WITHDRAW_UNCONFIRMED)
        assert (report.withdrawn, report.view_revision, report.applied) == (True, 11, {})
        assert ports.called("apply") == []
        assert_aborted_everywhere(ports, 0, 1)


class TestApply:
    @pytest.mark.parametrize(
        ("result", "reason"),
        [
            (
                ApplyResult(accepted=False, engines={0: 202, 2: 400, 3: 202}, refusals=(refusal("ENGINE_REFUSED", pod(1)),)),
                RoundReason.APPLY_REFUSED,
            ),
            (
                ApplyResult(accepted=False, engines={0: 202}, unknown=(refusal("OUTCOME_UNKNOWN", pod(1)),)),
                RoundReason.APPLY_UNKNOWN,
            ),
            (
                ApplyResult(
                    accepted=False,
                    refusals=(refusal("LEASE_TOO_SHORT", pod(0)),),
                    unknown=(refusal("UNREACHABLE", pod(1)),),
                ),
                RoundReason.APPLY_REFUSED,
            ),
            (ApplyResult(accepted=True, engines={0: 202, 2: 200, 3: 202}), RoundReason.APPLY_UNKNOWN),
            (ApplyResult(accepted=True, engines={0: 202, 2: None, 3: 202}), RoundReason.APPLY_UNKNOWN),
            (ApplyResult(accepted=True, engines={0: 202, 3: 202}), RoundReason.APPLY_UNKNOWN),
            (ApplyResult(accepted=False), RoundReason.APPLY_UNKNOWN),
        ],
    )
    async def test_only_a_202_from_every_survivor_is_acceptance(self, result: ApplyResult, reason: RoundReason) -> None:
        ports = ScriptedPorts().script(apply=result)
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, reason)
        assert len(ports.called("apply")) == 1
        assert report.applied == result.engines
        assert report.detail != ""
        assert_aborted_everywhere(ports, 0, 1)

    async def test_a_refusal_is_told_together_with_what_stayed_unknown(self) -> None:
        result = ApplyResult(
            accepted=False, refusals=(refusal("LEASE_TOO_SHORT", pod(0)),), unknown=(refusal("UNREACHABLE", pod(1)),)
        )
        report = await played(ScriptedPorts().script(apply=result))
        assert "LEASE_TOO_SHORT" in report.detail
        assert "UNREACHABLE" in report.detail
        assert report.refusals == (*result.refusals, *result.unknown)

    @pytest.mark.parametrize("error", [Transient("no worker"), OutcomeUnknown("the activity ran out of time")])
    async def test_an_apply_port_that_ends_without_an_answer_leaves_the_outcome_unknown(self, error: AutotomyError) -> None:
        ports = ScriptedPorts().script(apply=error)
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.APPLY_UNKNOWN)
        assert error.message in report.detail
        assert len(ports.called("apply")) == 1
        assert_aborted_everywhere(ports, 0, 1)


class TestRecovery:
    @pytest.mark.parametrize(
        ("sweep", "reason"),
        [
            (
                sees(healthy(0), unhealthy(2, ft_error="too few experts", last_ft_request_id=REQUEST_ID), healthy(3)),
                RoundReason.ENGINE_FAILED,
            ),
            (sees(healthy(0), unhealthy(2, ft_state="failed"), healthy(3)), RoundReason.ENGINE_FAILED),
            (sees(healthy(0), dead(2), healthy(3)), RoundReason.SURVIVOR_DIED),
            (sees(healthy(0), exited(2), healthy(3)), RoundReason.SURVIVOR_DIED),
            (sees(healthy(0), healthy(2, incarnation=incarnation(2, life=2)), healthy(3)), RoundReason.SURVIVOR_DIED),
            (sees(healthy(0), healthy(2), healthy(3), nonsense=[2]), RoundReason.ENGINE_PROTOCOL),
            (sees(healthy(0), healthy(2), healthy(3), left_out=[2]), RoundReason.ENGINE_MISSING),
        ],
    )
    async def test_a_failure_after_apply_aborts_once_and_never_applies_again(self, sweep: Sweep, reason: RoundReason) -> None:
        ports = ScriptedPorts(after=[sweep])
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, reason)
        assert len(ports.called("apply")) == 1
        assert_aborted_everywhere(ports, 0, 1)
        assert (report.committed, report.dead_committed, report.removed_dp_ranks) == (False, (), (1,))
        assert (report.withdrawn, report.serving_published) == (True, False)

    @pytest.mark.parametrize(
        "never_done",
        [
            sees(healthy(0), unhealthy(2, ft_state="recovering"), healthy(3)),
            sees(healthy(0), unhealthy(2), healthy(3)),
            sees(healthy(0), unhealthy(2, ft_error="old", last_ft_request_id=OTHER_ID), healthy(3)),
            sees(healthy(0), mute(2), healthy(3)),
            sees(healthy(0), healthy(2), healthy(3), unreachable=[pod(1)]),
        ],
    )
    async def test_what_may_still_recover_is_waited_for_until_the_deadline(self, never_done: Sweep) -> None:
        ports = ScriptedPorts(after=[never_done])
        report = await played(ports)
        assert (report.reason, ports.clock) == (RoundReason.NOT_RECOVERED_IN_TIME, BEGAN_AT + 30)
        assert_aborted_everywhere(ports, 0, 1)

    async def test_an_ft_error_on_a_healthy_entry_proves_nothing(self) -> None:
        refused_duplicate = healthy(2, ft_error="status is HEALTHY", last_ft_request_id=REQUEST_ID)
        report = await played(ScriptedPorts(after=[sees(healthy(0), refused_duplicate, healthy(3))]))
        assert report.outcome is RoundOutcome.SUCCEEDED

    @pytest.mark.parametrize("result", [VerifyResult(ok=(0, 3), failed={2: "HTTP 503"}), VerifyResult(ok=(0, 3)), VerifyResult()])
    async def test_without_a_completion_on_each_survivor_nothing_is_committed(self, result: VerifyResult) -> None:
        ports = ScriptedPorts().script(verify=result)
        report = await played(ports)
        assert (report.outcome, report.reason, report.committed) == (RoundOutcome.FAILED, RoundReason.VERIFY_FAILED, False)
        assert "rank 2" in report.detail
        assert_aborted_everywhere(ports, 0, 1)


class TestStop:
    @pytest.mark.parametrize("call", ["guard", "look_ready", "withdraw", "apply", "look_recovered"])
    async def test_before_the_commit_point_it_aborts(self, call: str) -> None:
        ports = ScriptedPorts()
        ports.stop_at = call
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.CANCELLED, RoundReason.CANCELLED)
        assert_aborted_everywhere(ports, 0, 1)
        assert len(ports.called("apply")) == (1 if call in ("apply", "look_recovered") else 0)
        assert report.withdrawn is (call not in ("guard", "look_ready"))

    async def test_before_anything_was_guarded_there_is_nobody_to_tell(self) -> None:
        ports = ScriptedPorts()
        ports.stopping = True
        report = await played(ports)
        assert (report.outcome, ports.calls) == (RoundOutcome.CANCELLED, [])

    async def test_during_the_verification_it_comes_too_late(self) -> None:
        ports = ScriptedPorts()
        ports.stop_at = "verify"
        report = await played(ports)
        assert (report.outcome, ports.called("abort")) == (RoundOutcome.SUCCEEDED, [])

    async def test_a_failed_verification_is_reported_as_such_even_if_a_stop_came_meanwhile(self) -> None:
        ports = ScriptedPorts().script(verify=VerifyResult())
        ports.stop_at = "verify"
        assert (await played(ports)).reason is RoundReason.VERIFY_FAILED

    async def test_it_ends_a_wait_early(self) -> None:
        ports = ScriptedPorts(before=[ONE_STILL_HEALTHY])
        ports.stop_at = "look_ready"
        report = await played(ports)
        assert (report.outcome, ports.clock) == (RoundOutcome.CANCELLED, BEGAN_AT)


class TestFailingPorts:
    @pytest.mark.parametrize("port", ["guard", "look_ready", "withdraw", "look_recovered", "verify"])
    @pytest.mark.parametrize("error", [Transient("no worker answered"), Refused("no")])
    async def test_before_the_commit_point_the_round_fails_and_aborts(self, port: str, error: AutotomyError) -> None:
        ports = ScriptedPorts().script(**{port: error})
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.PORT_FAILED)
        assert error.message in report.detail
        assert_aborted_everywhere(ports, 0, 1)


class TestAbort:
    FAILING = VerifyResult()

    async def test_who_was_not_reached_is_named(self) -> None:
        result = FinalizeResult(done=(pod(0),), pending=(pod(1),))
        report = await played(ScriptedPorts().script(verify=self.FAILING, abort=result))
        assert "10.0.0.2:1026" in report.detail

    async def test_who_refused_it_is_named(self) -> None:
        result = FinalizeResult(done=(pod(0),), refusals=(refusal("VERDICT_DIFFERS", pod(1)),))
        report = await played(ScriptedPorts().script(verify=self.FAILING, abort=result))
        assert "VERDICT_DIFFERS" in report.detail
        assert report.refusals == ()  # what stopped the round was a completion that failed

    async def test_an_abort_that_cannot_be_sent_does_not_hide_the_first_reason(self) -> None:
        ports = ScriptedPorts().script(verify=self.FAILING, abort=Transient("no worker"))
        report = await played(ports)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.VERIFY_FAILED)
        assert "no worker" in report.detail
        assert len(ports.called("abort")) == 1

    async def test_absent_pods_are_told_once_more_but_never_waited_for(self) -> None:
        guarded = GuardResult(guarded=(pod(0), pod(2), pod(3)), absent=(pod(1),))
        ports = ScriptedPorts().script(guard=guarded, verify=self.FAILING)
        await played(ports, order(1, topology=topology(4, 1)))
        assert_aborted_everywhere(ports, 0, 1, 2, 3)
        assert ports.called("abort")[0].once == (pod(1),)
