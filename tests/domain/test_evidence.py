"""Reports laid over each other: which word is the newest, and which words never count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import EngineStatus, EntrySource, RankEntry
from domain.instance.evidence import (
    LONGEST_DELAY_SEC,
    Evidence,
    Merge,
    Report,
    arrival,
    from_entries,
    from_motor,
    from_operator,
    from_pod,
)
from domain.messages.controller import AdditionalInfo, SoftwareFaultReport
from domain.messages.node_manager import PodReport, RankReport
from tests.domain.instance_factories import T0, D, H, U, report, told

EXIT = EntrySource.PROCESS_EXIT
NONSENSE = EntrySource.PROTOCOL_ERROR


def status(evidence: Evidence, rank: int = 1) -> EngineStatus:
    return evidence.of(rank).status


@pytest.mark.parametrize(
    ("received_at", "counts_as"),
    [(T0 - 1, T0 - 1), (T0, T0), (T0 - 300, T0 - 300), (T0 + 0.1, T0), (T0 - 300.1, T0), (None, T0)],
    ids=["a moment ago", "now", "just within the limit", "in the future", "too long ago", "no stamp"],
)
def test_a_stamp_that_cannot_be_right_counts_as_now(received_at: float | None, counts_as: float) -> None:
    assert LONGEST_DELAY_SEC == 300
    assert arrival(received_at, T0) == counts_as


def test_the_first_times_of_a_fault_stay_and_a_healthy_report_clears_them() -> None:
    sick = told(report(1, H, T0), report(1, U, T0 + 1), report(1, U, T0 + 2), report(1, D, T0 + 3), report(1, D, T0 + 4))
    known = sick.of(1)
    assert (known.first_unhealthy_at, known.first_dead_at, known.last_healthy_at) == (T0 + 1, T0 + 3, T0)
    assert known.fault_since == T0 + 1
    well = sick.merge_all([report(1, H, T0 + 5)], ()).of(1)
    assert (well.first_unhealthy_at, well.first_dead_at, well.fault_since, well.last_healthy_at) == (None, None, None, T0 + 5)


def test_a_fault_that_changes_its_colour_keeps_its_age() -> None:
    flapping = told(report(1, D, T0), report(1, U, T0 + 10), report(1, D, T0 + 20), report(1, U, T0 + 30))
    assert flapping.first_fault_at([1]) == T0


def test_one_nodemanagers_reports_are_ordered_by_their_sequence_not_by_their_arrival() -> None:
    late = told(
        report(1, D, T0 + 5, life="a", node_manager="n", sequence=9), report(1, H, T0 + 6, life="a", node_manager="n", sequence=8)
    )
    assert status(late) is D


def test_a_newer_life_of_the_nodemanager_is_newer_whatever_its_sequence() -> None:
    lives = told(
        report(1, D, T0, life="a", node_manager="n", sequence=90),
        report(1, U, T0 + 1, life="b", node_manager="n", sequence=1),
        report(1, H, T0 + 2, life="a", node_manager="n", sequence=91),
    )
    assert status(lives) is U


def test_without_sequences_the_time_of_receipt_orders() -> None:
    assert status(told(report(1, D, T0 + 5), report(1, H, T0 + 4))) is D
    assert status(told(report(1, D, T0 + 5), report(1, H, T0 + 6))) is H


def test_a_process_exit_is_final_for_its_engine() -> None:
    gone = told(report(1, D, T0, source=EXIT, engine="e1"))
    for word in (report(1, H, T0 + 1, engine="e1"), report(1, U, T0 + 1, engine="e1"), report(1, H, T0 + 1)):
        still, merge = gone.merge(word, ())
        assert merge is Merge.PROCESS_EXITED
        assert status(still) is D


def test_a_new_engine_in_an_old_group_is_dead_evidence_whatever_it_says() -> None:
    group = told(report(1, H, T0, engine="e1"))
    stranger = group.merge_all([report(1, H, T0 + 1, engine="e2")], ())
    assert status(stranger) is D
    assert stranger.of(1).engine == "e1"
    again = stranger.merge_all([report(1, H, T0 + 2, engine="e2"), report(1, H, T0 + 3)], ())
    assert status(again) is D


def test_a_new_engine_is_welcome_while_the_group_is_formed() -> None:
    forming = told(report(1, D, T0, source=EXIT, engine="e1"), report(1, H, T0 + 1, engine="e2"), forming=True)
    assert status(forming) is H
    assert forming.of(1).engine == "e2"
    late, merge = forming.merge(report(1, D, T0 + 2, source=EXIT, engine="e1"), ())
    assert merge is Merge.PAST_ENGINE
    assert status(late) is H


def test_after_a_rebuild_engines_of_the_old_group_are_not_heard() -> None:
    old = told(
        *(report(rank, U, T0, engine=f"old-{rank}") for rank in range(4)), report(1, D, T0 + 1, source=EXIT, engine="old-1")
    )
    group = old.begin_forming().formed({rank: f"new-{rank}" for rank in range(4)}, range(4), T0 + 9)
    assert not group.faulty(range(4))
    assert not group.not_yet_ready(range(4))
    late, merge = group.merge(report(1, D, T0 + 10, engine="old-1"), ())
    assert merge is Merge.PAST_ENGINE
    assert not late.faulty(range(4))
    assert status(group.merge_all([report(1, U, T0 + 10, engine="new-1")], ())) is U


def test_a_new_engine_that_died_before_the_rebuild_was_over_stays_dead() -> None:
    forming = (
        told(report(1, U, T0, engine="old")).begin_forming().merge_all([report(1, D, T0 + 1, source=EXIT, engine="new")], ())
    )
    assert status(forming.formed({1: "new"}, [1], T0 + 2)) is D


def test_a_protocol_error_is_never_death_and_clears_nothing() -> None:
    fresh = told(report(1, H), report(1, D, T0 + 1, source=NONSENSE))
    assert status(fresh) is H
    assert fresh.of(1).protocol_error
    assert status(told(report(1, D), report(1, D, T0 + 1, source=NONSENSE))) is D


def test_what_a_removed_rank_says_does_not_count() -> None:
    evidence, merge = Evidence().merge(report(1, D), [1])
    assert merge is Merge.COMMITTED
    assert evidence == Evidence()


def test_a_removed_ranks_new_engine_is_heard_before_the_rebuild_is_known_to_have_ended() -> None:
    """Else a fault that strikes just then stands incomplete until the collection time is over: nobody tells it again."""
    rebuilding, merge = told(report(1, H, engine="old")).begin_forming().merge(report(1, U, T0 + 2, engine="new"), [1])
    assert merge is Merge.NEWS
    assert status(rebuilding.formed({1: "new"}, [1], T0 + 3)) is U
    assert rebuilding.formed({0: "other"}, [0], T0 + 3).of(1) == Evidence().of(1), "a relaunch leaves it removed"
    late, _ = rebuilding.merge(report(1, D, T0 + 4, engine="old"), [1])
    assert status(late.formed({1: "new"}, [1], T0 + 5)) is U, "its old engine is past"


def test_an_engine_that_could_not_be_read_says_nothing() -> None:
    known = told(report(1, D, T0))
    after, merge = known.merge(report(1, EngineStatus.UNKNOWN, T0 + 1), ())
    assert merge is Merge.NO_NEWS
    assert status(after) is D


def test_readiness_is_being_healthy_once() -> None:
    evidence = told(report(0, H), report(1, H), report(1, D, T0 + 1), report(2, U))
    assert evidence.not_yet_ready(range(4)) == (2, 3)


def test_the_last_look_of_a_strategy_silences_reports_that_are_still_under_way() -> None:
    pod = PodReport(
        instance_id=7,
        pod_ip="10.0.0.1",
        node_manager_port=1026,
        incarnation="a",
        reports=(RankReport(engine_id=0, engine_status=2, engine_incarnation="e", sequence=5, source=EntrySource.ENGINE),),
    )
    looked = {0: RankEntry(id=0, status="healthy", incarnation="e", sequence=6)}
    recovered = Evidence().merge_all([*from_pod(pod, T0), *from_entries(looked, T0 + 2)], ())
    assert status(recovered, 0) is H
    again, merge = recovered.merge(from_pod(pod, T0 + 3)[0], ())
    assert merge is Merge.OLDER
    assert again == recovered


def test_a_look_overrules_unnumbered_reports_by_time() -> None:
    looked = from_entries({0: RankEntry(id=0, status="healthy", sequence=6)}, T0 + 2)
    assert status(told(report(0, U, T0), *looked), 0) is H
    assert status(told(*looked, report(0, D, T0 + 3)), 0) is D


def test_motors_form_and_a_persons_word_become_reports() -> None:
    motor = SoftwareFaultReport(
        instance_id=7,
        pod_ip="10.0.0.1",
        engine_id=1,
        engine_status=1,
        exception_type="E",
        exception_message="m",
        additional_info=AdditionalInfo(ft_state="failed", mask=(0, 1)),
    )
    translated = from_motor(motor, T0)
    assert (translated.status, translated.node_manager, translated.entry.ft_state) == (D, "10.0.0.1", "failed")
    assert from_motor(motor.model_copy(update={"node_manager_port": 1026}), T0).node_manager == "10.0.0.1:1026"
    assert from_operator(2, U, T0).source is EntrySource.OPERATOR


numbered = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([H, U, D])), min_size=1, max_size=12)


def _numbered(history: list[tuple[int, EngineStatus]]) -> list[Report]:
    return [
        report(rank, word, T0 + index, life="a", node_manager="n", sequence=index + 1)
        for index, (rank, word) in enumerate(history)
    ]


@given(numbered, st.randoms())
def test_order_of_arrival_and_repetition_do_not_matter_to_what_stands(
    history: list[tuple[int, EngineStatus]], random: object
) -> None:
    reports = _numbered(history)
    shuffled = reports * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    in_order, mixed = told(*reports), told(*shuffled)
    assert [status(mixed, rank) for rank in range(4)] == [status(in_order, rank) for rank in range(4)]


@given(numbered)
def test_the_same_report_again_changes_nothing(history: list[tuple[int, EngineStatus]]) -> None:
    evidence = told(*_numbered(history))
    assert evidence.merge_all([_numbered(history)[-1]], ()) == evidence
