"""The fence rules as a table: who may guard, apply and finalize (contracts §2)."""

import time

import pytest

from domain.engine import Instruction
from domain.messages.node_manager import (
    ApplyParams,
    ApplyRequest,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
)
from domain.pod.fence import (
    Begin,
    Fences,
    Granted,
    Join,
    Refusal,
    Repeated,
    Replay,
    Settle,
    decide_apply,
    decide_finalize,
    decide_guard,
    voided_by_start,
)
from domain.pod.records import ACCEPTED, ApplyBody, ApplyRecord, BootTime, Guard, Transaction, Verdict
from node_manager.boot_clock import boot_time

RECOVERY_SEC = 120.0


def at(sec: float, boot: str = "boot-a") -> BootTime:
    return BootTime(boot=boot, sec=sec)


def guard(request_id: str = "A", *, until: float = 100.0, generation: int | None = 5, applied: float | None = None) -> Guard:
    applied_at = at(applied) if applied is not None else None
    return Guard(request_id=request_id, generation=generation, expires_at=at(until), applied_at=applied_at)


def ledger(current: Guard | None = None, transaction: Transaction | None = None, highest: int = 5) -> Fences:
    return Fences(highest_generation=highest, guard=current, transaction=transaction, engine_recovery_timeout_sec=RECOVERY_SEC)


def guard_request(request_id: str = "A", generation: int | None = 5, lease_sec: float = 85.0) -> GuardRequest:
    return GuardRequest(request_id=request_id, lease_sec=lease_sec, generation=generation)


def apply_request(
    request_id: str = "A", *, removed: tuple[int, ...] = (1,), generation: int | None = 5, margin: float | None = 35.0
) -> ApplyRequest:
    return ApplyRequest(
        endpoint_ids=(0, 2),
        instruction=Instruction.SCALE_DOWN,
        params=ApplyParams(removed_dp_ranks=removed, dp_master_ip="10.0.0.1", dp_master_rank=0),
        request_id=request_id,
        generation=generation,
        apply_margin_sec=margin,
    )


def applied(request: ApplyRequest, outcome: str | None) -> Transaction:
    record = ApplyRecord(body=ApplyBody.of(request), outcome=outcome)
    return Transaction(request_id=request.request_id, generation=5, guarded=True, apply=record)


def finalize_request(request_id: str = "A", *, commit: bool, generation: int | None = 5) -> FinalizeRequest:
    return FinalizeRequest(request_id=request_id, commit=commit, retired_endpoint_ids=(1,), generation=generation)


def reason(decision: object) -> NodeManagerReason:
    assert isinstance(decision, Refusal), decision
    return decision.reason


# --- guard


def test_first_guard_takes_the_pod() -> None:
    decision = decide_guard(guard_request(), ledger(), at(10))
    assert isinstance(decision, Granted)
    assert (decision.guard.expires_at, decision.lapsed, decision.displaced) == (at(95), False, None)


def test_same_id_renews_and_keeps_the_time_of_its_apply() -> None:
    decision = decide_guard(guard_request(), ledger(guard(until=50, applied=20)), at(40))
    assert isinstance(decision, Granted)
    assert (decision.guard.expires_at, decision.guard.applied_at, decision.lapsed) == (at(125), at(20), False)


def test_same_id_renews_after_a_lapse_if_nobody_took_the_pod() -> None:
    decision = decide_guard(guard_request(), ledger(guard(until=50)), at(60))
    assert isinstance(decision, Granted)
    assert decision.lapsed


def test_other_live_id_is_refused_and_told_who_holds() -> None:
    for generation in (5, 6, None):
        decision = decide_guard(guard_request("B", generation), ledger(guard("A", until=50)), at(49))
        assert reason(decision) is NodeManagerReason.GUARD_HELD
        assert isinstance(decision, Refusal)
        assert decision.holder == "A"


def test_other_id_takes_the_pod_once_the_lease_is_over() -> None:
    decision = decide_guard(guard_request("B"), ledger(guard("A", until=50)), at(50))
    assert isinstance(decision, Granted)
    assert (decision.displaced, decision.lapsed) == ("A", False)


def test_who_lost_the_pod_after_a_lapse_does_not_get_it_back_by_renewing() -> None:
    lost = Transaction(request_id="A", guarded=True, taken_over_by="B")
    assert reason(decide_guard(guard_request("A"), ledger(None, lost), at(60))) is NodeManagerReason.GUARD_HELD


def test_between_apply_and_verdict_the_guard_outlives_its_lease_as_long_as_the_engines_may_recover() -> None:
    held = ledger(guard("A", until=50, applied=40))
    assert reason(decide_guard(guard_request("B"), held, at(40 + RECOVERY_SEC - 1))) is NodeManagerReason.GUARD_HELD
    assert isinstance(decide_guard(guard_request("B"), held, at(40 + RECOVERY_SEC)), Granted)


def test_a_lease_of_another_boot_is_over() -> None:
    held = ledger(guard("A", until=50, applied=10))
    assert isinstance(decide_guard(guard_request("B"), held, at(11, boot="boot-b")), Granted)


@pytest.mark.parametrize("step_sec", [3600.0, -3600.0])
def test_a_wall_clock_that_is_stepped_moves_no_lease(step_sec: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """D 15, on a NodeManager."""
    granted_at, wall = boot_time(), time.time
    held = Guard(request_id="A", generation=5, expires_at=BootTime(boot=granted_at.boot, sec=granted_at.sec + 85.0))
    monkeypatch.setattr(time, "time", lambda: wall() + step_sec)
    assert 0 < held.remaining_sec(boot_time()) <= 85.0
    assert reason(decide_guard(guard_request("B"), ledger(held), boot_time())) is NodeManagerReason.GUARD_HELD


@pytest.mark.parametrize("verdict", list(Verdict))
def test_guard_after_its_verdict_is_refused(verdict: Verdict) -> None:
    settled = Transaction(request_id="A", verdict=verdict)
    assert reason(decide_guard(guard_request(), ledger(None, settled), at(1))) is NodeManagerReason.VERDICT_KNOWN


def test_guard_of_an_old_generation_is_refused() -> None:
    assert reason(decide_guard(guard_request(generation=4), ledger(), at(1))) is NodeManagerReason.OLD_GENERATION


# --- apply


def decide(
    request: ApplyRequest, book: Fences, now: float = 10, *, in_flight: bool = False, gone: dict[int, Refusal] | None = None
) -> object:
    return decide_apply(request, book, at(now), in_flight=in_flight, unavailable=gone or {})


def test_apply_under_its_own_live_guard_begins() -> None:
    decision = decide(apply_request(), ledger(guard()))
    assert isinstance(decision, Begin)
    assert decision.guard.applied_at == at(10)


@pytest.mark.parametrize(
    ("book", "now"),
    [(ledger(), 10), (ledger(guard("B")), 10), (ledger(guard(until=50)), 50), (ledger(guard(until=50, applied=20)), 51)],
    ids=["never guarded", "somebody else's", "lapsed", "lapsed after an apply"],
)
def test_apply_without_a_live_guard_of_its_own_is_refused(book: Fences, now: float) -> None:
    assert reason(decide(apply_request(), book, now)) is NodeManagerReason.NOT_GUARDED


def test_apply_with_too_little_lease_left_is_refused() -> None:
    assert reason(decide(apply_request(margin=35), ledger(guard(until=44)))) is NodeManagerReason.LEASE_TOO_SHORT
    assert isinstance(decide(apply_request(margin=35), ledger(guard(until=45))), Begin)
    assert isinstance(decide(apply_request(margin=None), ledger(guard(until=11))), Begin)


def test_apply_of_an_old_generation_is_refused() -> None:
    assert reason(decide(apply_request(generation=4), ledger(guard()))) is NodeManagerReason.OLD_GENERATION


def test_apply_after_the_verdict_is_refused_even_if_it_was_answered_before() -> None:
    settled = applied(apply_request(), ACCEPTED).model_copy(update={"verdict": Verdict.ABORTED})
    assert reason(decide(apply_request(), ledger(guard(), settled))) is NodeManagerReason.VERDICT_KNOWN


def test_repeated_apply_gets_the_recorded_answer_also_without_guard() -> None:
    for outcome in (ACCEPTED, NodeManagerReason.ENGINE_REFUSED.value, NodeManagerReason.OUTCOME_UNKNOWN.value):
        decision = decide(apply_request(margin=1), ledger(None, applied(apply_request(), outcome)))
        assert isinstance(decision, Replay)
        assert decision.record.outcome == outcome


def test_repeated_apply_in_flight_joins() -> None:
    assert isinstance(decide(apply_request(), ledger(guard(), applied(apply_request(), None)), in_flight=True), Join)


def test_intent_without_outcome_and_without_flight_stays_unknown() -> None:
    assert reason(decide(apply_request(), ledger(guard(), applied(apply_request(), None)))) is NodeManagerReason.OUTCOME_UNKNOWN


def test_same_id_with_another_body_is_refused_but_order_is_no_difference() -> None:
    before = applied(apply_request(removed=(1, 3)), ACCEPTED)
    assert reason(decide(apply_request(removed=(1,)), ledger(guard(), before))) is NodeManagerReason.BODY_DIFFERS
    assert isinstance(decide(apply_request(removed=(3, 1)), ledger(guard(), before)), Replay)


def test_apply_to_an_engine_that_cannot_take_it_is_refused_before_anything_is_recorded() -> None:
    gone = {2: Refusal(NodeManagerReason.ENGINE_REFUSED, "engine 2: its process ended")}
    decision = decide(apply_request(), ledger(guard()), gone=gone)
    assert reason(decision) is NodeManagerReason.ENGINE_REFUSED
    assert isinstance(decision, Refusal)
    assert decision.engines is not None
    assert decision.engines["2"].http is None


# --- finalize


@pytest.mark.parametrize("commit", [True, False])
def test_verdict_of_the_guards_own_id_releases_it(commit: bool) -> None:
    decision = decide_finalize(finalize_request(commit=commit), ledger(guard(), Transaction(request_id="A")))
    assert isinstance(decision, Settle)
    assert (decision.release, decision.retire) == (True, commit)


def test_repeated_verdict_is_the_same_answer_and_another_one_is_refused() -> None:
    settled = ledger(None, Transaction(request_id="A", verdict=Verdict.COMMITTED))
    assert decide_finalize(finalize_request(commit=True), settled) == Repeated(Verdict.COMMITTED)
    assert reason(decide_finalize(finalize_request(commit=False), settled)) is NodeManagerReason.VERDICT_DIFFERS


def test_abort_of_an_unknown_id_is_a_tombstone_and_leaves_a_newer_guard() -> None:
    for generation in (4, 5, None):
        decision = decide_finalize(finalize_request("A", commit=False, generation=generation), ledger(guard("B")))
        assert isinstance(decision, Settle)
        assert (decision.release, decision.retire, decision.transaction.verdict) == (False, False, Verdict.ABORTED)


def test_commit_of_an_id_that_was_never_guarded_here_retires_and_leaves_the_newer_guard() -> None:
    decision = decide_finalize(finalize_request("A", commit=True), ledger(guard("B")))
    assert isinstance(decision, Settle)
    assert (decision.release, decision.retire) == (False, True)


def test_an_abort_proves_a_generation_only_where_its_round_had_the_pod() -> None:
    never, had = Transaction(request_id="A"), Transaction(request_id="A", guarded=True)
    for known, proven in ((never, None), (had, 9)):
        decision = decide_finalize(finalize_request("A", commit=False, generation=9), ledger(guard("B"), known))
        assert isinstance(decision, Settle)
        assert decision.generation == proven


@pytest.mark.parametrize("generation", [4, None])
def test_late_commit_of_another_id_is_stale(generation: int | None) -> None:
    decision = decide_finalize(finalize_request("A", commit=True, generation=generation), ledger(guard("B")))
    assert reason(decision) is NodeManagerReason.STALE


def test_commit_of_the_current_guard_needs_no_generation() -> None:
    assert isinstance(decide_finalize(finalize_request(commit=True, generation=None), ledger(guard())), Settle)


def test_a_newer_start_ends_open_transactions_of_older_generations_only() -> None:
    older = Transaction(request_id="A", generation=5)
    others = (
        Transaction(request_id="B", generation=6),
        Transaction(request_id="C", generation=None),
        Transaction(request_id="D", generation=5, verdict=Verdict.COMMITTED),
    )
    (ended,) = voided_by_start((older, *others), 6)
    assert ended == older.model_copy(update={"verdict": Verdict.ABORTED})
