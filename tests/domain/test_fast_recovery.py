"""A fast recovery: what it asks of the world, when it lets the evidence decide anew, and that it never tries twice."""

from typing import Any

import pytest

from domain.engine import Dialect, FtCapability, Instruction
from domain.errors import AutotomyError, OutcomeUnknown, Refused, Transient
from domain.messages.round import ApplyResult, FinalizeResult, GuardResult, VerifyResult, ViewResult
from domain.messages.strategy import FastRecoveryOrder, FastRecoveryReport, RoundOutcome, RoundReason
from domain.round.fast_recovery import run_fast_recovery
from domain.round.gate import RetryGateCode
from domain.runtime import FtPhase
from tests.domain.round_factories import (
    BEGAN_AT,
    ScriptedPorts,
    Sweep,
    dead,
    exited,
    fault_tolerance,
    healthy,
    incarnation,
    pod,
    recovered,
    refusal,
    sees,
    topology,
    unhealthy,
)

REQUEST_ID = "fast-recovery-" + "0" * 31 + "1"
RELEASED = FtCapability(
    enabled=True, scale_down_supported=False, retry_supported=True, external_lb=True, eplb_enabled=False, dialect=Dialect.LEGACY
)
"""Released vLLM: `retry` and nothing else."""

STEPS = ["guard", "look_ready", "withdraw", "apply", "look_recovered", "verify", "finalize", "publish"]
STABILITY_SEC = 5.0


def order(**fields: Any) -> FastRecoveryOrder:
    base: dict[str, Any] = {
        "instance_id": 7,
        "generation": 3,
        "request_id": REQUEST_ID,
        "dead_committed": (),
        "phase_before": FtPhase.NORMAL,
        "topology": topology(capability=RELEASED),
        "config": fault_tolerance(enable_fast_recovery=True),
        "published_ranks": (0, 1, 2, 3),
        "view_revision": 10,
    }
    return FastRecoveryOrder(**{**base, **fields})


def all_unhealthy(**fields: Any) -> Sweep:
    return sees(*(unhealthy(rank, **fields) for rank in range(4)))


def ports(before: Sweep | None = None, after: list[Sweep] | None = None) -> ScriptedPorts:
    return ScriptedPorts(before=[before or all_unhealthy()], after=after or [recovered()])


async def played(world: ScriptedPorts, **fields: Any) -> FastRecoveryReport:
    return await run_fast_recovery(order(**fields), world)


def assert_not_applied(world: ScriptedPorts) -> None:
    assert world.called("apply") == world.called("withdraw") == world.called("publish") == world.called("finalize") == []


async def test_every_active_rank_retries_once_and_the_same_ranks_serve_again() -> None:
    world = ports()
    report = await played(world)
    assert world.names == STEPS
    assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.RECOVERED)
    assert (report.recovered, report.serving_published, report.view_revision) == ((0, 1, 2, 3), True, 12)
    (apply,) = world.called("apply")
    assert (apply.instruction, apply.request_id) == (Instruction.RETRY, REQUEST_ID)
    assert (apply.removed_dp_ranks, apply.master_ip, apply.master_rank) == ((), None, None)
    assert [group.ranks for group in apply.groups] == [(0, 1), (2, 3)]
    (finalize,) = world.called("finalize")
    assert (finalize.commit, finalize.retired, finalize.dead_committed) == (True, (), ())
    assert {step.phase for step in world.steps} == {FtPhase.DECIDING}


async def test_it_looks_a_second_time_after_the_stability_time() -> None:
    world = ports()
    await played(world)
    first, second = world.called("look_recovered")
    assert second.deadline_at - first.deadline_at == STABILITY_SEC + 5.0 - 30.0  # a request's time instead of a wait's
    assert world.clock == BEGAN_AT + STABILITY_SEC


async def test_ranks_that_were_removed_earlier_stay_removed() -> None:
    world = ports(sees(unhealthy(1), unhealthy(2), unhealthy(3)), [sees(healthy(1), healthy(2), healthy(3))])
    report = await played(world, dead_committed=(0,), phase_before=FtPhase.SCALED_DOWN_RUNNING, published_ranks=(1, 2, 3))
    assert report.recovered == (1, 2, 3)
    assert [group.ranks for group in world.called("apply")[0].groups] == [(1,), (2, 3)]
    assert world.called("publish")[0].ranks == (1, 2, 3)
    assert world.called("finalize")[0].dead_committed == (0,)


async def test_a_pod_that_was_emptied_earlier_takes_no_part() -> None:
    world = ports(sees(unhealthy(2), unhealthy(3)), [sees(healthy(2), healthy(3))])
    await played(world, dead_committed=(0, 1), phase_before=FtPhase.SCALED_DOWN_RUNNING)
    assert world.called("guard")[0].must == (pod(1),)
    assert world.called("finalize")[0].managers == (pod(1),)


class TestAdmission:
    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (RetryGateCode.FEATURE_DISABLED, {"config": fault_tolerance(enable_dp_scale_down=False)}),
            (RetryGateCode.FAST_RECOVERY_DISABLED, {"config": fault_tolerance()}),
            (
                RetryGateCode.ENGINE_RETRY_UNSUPPORTED,
                {"topology": topology(capability=RELEASED.model_copy(update={"retry_supported": False}))},
            ),
            (RetryGateCode.FT_CAPABILITY_MISSING, {"topology": topology(capability=None)}),
            (RetryGateCode.FT_CAPABILITY_INCONSISTENT, {"capability_consistent": False}),
        ],
    )
    async def test_a_closed_gate_touches_nothing(self, code: RetryGateCode, fields: dict[str, Any]) -> None:
        world = ports()
        report = await played(world, **fields)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.GATE_REFUSED)
        assert report.gate is not None
        assert code.value in report.gate.reason_codes
        assert world.calls == []

    async def test_an_instance_without_active_ranks_is_a_bad_order(self) -> None:
        world = ports()
        report = await played(world, dead_committed=(0, 1, 2, 3))
        assert report.reason is RoundReason.BAD_ORDER
        assert world.calls == []


class TestBeforeTheRetry:
    @pytest.mark.parametrize("gone", [dead(2), exited(2)], ids=["dead", "process exit"])
    async def test_a_dead_rank_lets_the_evidence_decide_anew(self, gone: Any) -> None:
        world = ports(sees(unhealthy(0), unhealthy(1), gone, unhealthy(3)))
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.ABANDONED, RoundReason.RANK_DIED)
        assert report.last_entries[2].status == "dead"
        assert_not_applied(world)
        assert world.names[-1] == "abort"

    async def test_ranks_that_are_all_healthy_are_left_alone(self) -> None:
        world = ports(recovered())
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.ABANDONED, RoundReason.FALSE_ALARM)
        assert_not_applied(world)

    async def test_one_that_has_not_noticed_is_waited_for_and_then_it_fails(self) -> None:
        world = ports(sees(healthy(0), unhealthy(1), unhealthy(2), unhealthy(3)))
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.NOT_READY_IN_TIME)
        assert "0 (healthy)" in report.detail
        assert world.clock == BEGAN_AT + 30.0
        assert_not_applied(world)

    async def test_the_wait_ends_while_the_engines_still_have_time_to_recover(self) -> None:
        world = ports(sees(healthy(0), unhealthy(1), unhealthy(2), unhealthy(3)))
        report = await played(world, first_unhealthy_at={1: BEGAN_AT - 100.0})
        assert report.reason is RoundReason.ENGINES_TIME_OVER
        assert world.clock == BEGAN_AT + 5.0

    async def test_another_holder_of_a_guard_is_respected(self) -> None:
        world = ports().script(guard=GuardResult(guarded=(pod(0),), refusals=(refusal("GUARD_HELD", pod(1)),)))
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.GUARD_REFUSED)
        assert_not_applied(world)

    async def test_an_unconfirmed_withdrawal_ends_it_before_the_retry(self) -> None:
        world = ports().script(withdraw=ViewResult(confirmed=False, refusals=(refusal("NO_ANSWER"),)))
        report = await played(world)
        assert (report.reason, report.withdrawn) == (RoundReason.WITHDRAW_UNCONFIRMED, True)
        assert world.called("apply") == []


class TestTheRetryFails:
    @pytest.mark.parametrize(
        ("result", "reason"),
        [
            (ApplyResult(accepted=False, refusals=(refusal("ENGINE_REFUSED"),)), RoundReason.APPLY_REFUSED),
            (ApplyResult(accepted=False, unknown=(refusal("OUTCOME_UNKNOWN"),)), RoundReason.APPLY_UNKNOWN),
            (ApplyResult(accepted=True, engines={0: 202, 1: 202, 2: 200, 3: 202}), RoundReason.APPLY_UNKNOWN),
            (Transient("no worker"), RoundReason.APPLY_UNKNOWN),
            (OutcomeUnknown("lost"), RoundReason.APPLY_UNKNOWN),
            (Refused("a bug"), RoundReason.PORT_FAILED),
        ],
    )
    async def test_it_is_sent_once_and_aborted(self, result: ApplyResult | AutotomyError, reason: RoundReason) -> None:
        world = ports().script(apply=result)
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, reason)
        assert len(world.called("apply")) == 1
        assert world.names[-1] == "abort"
        assert report.recovered == ()

    @pytest.mark.parametrize("request_id", [REQUEST_ID, "made-by-the-server", None], ids=["v1", "legacy", "not told"])
    async def test_an_engine_that_says_so_ends_the_wait_at_once(self, request_id: str | None) -> None:
        failed = unhealthy(2, ft_error="store timeout", last_ft_request_id=request_id)
        world = ports(after=[sees(healthy(0), healthy(1), failed, healthy(3))])
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.ENGINE_FAILED)
        assert world.clock == BEGAN_AT

    async def test_the_error_of_a_former_retry_proves_nothing(self) -> None:
        """In legacy no request id tells them apart: it stood there before ours was sent."""
        former = {"ft_error": "store timeout", "last_ft_request_id": "the one before"}
        world = ports(all_unhealthy(**former), [all_unhealthy(**former), recovered()])
        report = await played(world)
        assert report.outcome is RoundOutcome.SUCCEEDED, report.detail

    async def test_the_same_words_under_a_new_id_are_a_new_failure(self) -> None:
        world = ports(
            all_unhealthy(ft_error="store timeout", last_ft_request_id="the one before"),
            [all_unhealthy(ft_error="store timeout", last_ft_request_id="made by the server for ours")],
        )
        assert (await played(world)).reason is RoundReason.ENGINE_FAILED

    async def test_engines_that_hang_end_it_in_time(self) -> None:
        world = ports(after=[all_unhealthy()])
        report = await played(world)
        assert report.reason is RoundReason.NOT_RECOVERED_IN_TIME
        assert world.clock == BEGAN_AT + 30.0

    @pytest.mark.parametrize(
        "gone", [exited(2), healthy(2, incarnation=incarnation(2, life=2))], ids=["exited", "another process"]
    )
    async def test_a_rank_that_dies_meanwhile_ends_in_a_rebuild_not_in_a_scale_down(self, gone: Any) -> None:
        world = ports(after=[sees(healthy(0), healthy(1), gone, healthy(3))])
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.SURVIVOR_DIED)

    async def test_a_rank_that_breaks_again_is_seen_at_the_second_look(self) -> None:
        world = ports(after=[recovered(), sees(healthy(0), healthy(1), unhealthy(2), healthy(3))])
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.RELAPSED)
        assert "2 (unhealthy)" in report.detail
        assert world.called("verify") == world.called("publish") == []

    async def test_a_rank_without_a_completion_ends_it(self) -> None:
        world = ports().script(verify=VerifyResult(ok=(0, 1, 3), failed={2: "no answer"}))
        report = await played(world)
        assert (report.outcome, report.reason) == (RoundOutcome.FAILED, RoundReason.VERIFY_FAILED)
        assert world.names[-1] == "abort"


class TestAfterTheCommitPoint:
    async def test_an_unconfirmed_view_is_said_and_rolls_nothing_back(self) -> None:
        world = ports().script(publish=ViewResult(confirmed=False, refusals=(refusal("NO_ANSWER"),)))
        report = await played(world)
        assert (report.outcome, report.serving_published) == (RoundOutcome.SUCCEEDED, False)
        assert "not confirmed" in report.detail

    async def test_a_late_verdict_is_left_to_the_fault_manager(self) -> None:
        late = FinalizeResult(done=(pod(0),), pending=(pod(1),))
        world = ports().script(finalize=[late, FinalizeResult(pending=(pod(1),))])
        report = await played(world)
        assert (report.outcome, report.pending_finalize) == (RoundOutcome.SUCCEEDED, (str(pod(1)),))
        assert world.names[-2:] == ["publish", "finalize"]


@pytest.mark.parametrize("where", ["guard", "look_ready", "withdraw", "apply", "look_recovered"])
async def test_a_stop_before_the_commit_point_aborts(where: str) -> None:
    world = ports()
    world.stop_at = where
    report = await played(world)
    assert (report.outcome, report.reason) == (RoundOutcome.CANCELLED, RoundReason.CANCELLED)
    assert world.names[-1] == "abort"
    assert world.called("finalize") == world.called("publish") == []


@pytest.mark.parametrize("where", ["verify", "finalize", "publish"])
async def test_a_stop_after_it_changes_nothing(where: str) -> None:
    world = ports()
    world.stop_at = where
    assert (await played(world)).outcome is RoundOutcome.SUCCEEDED
    assert world.called("abort") == []
