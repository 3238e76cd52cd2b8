"""The two waits as folds: each proof of death, silence and its interruptions, and what holds for any sequence of sweeps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.engine import EntrySource, ProcessState, RankEntry
from domain.round.ledger import RoundLedger
from domain.watch import (
    Answer,
    ApplyReadyWatch,
    Confirmation,
    Question,
    RecoveredWatch,
    Removal,
    WatchReason,
    WatchState,
)
from tests.domain.round_factories import (
    ScriptedPorts,
    Sweep,
    dead,
    exited,
    healthy,
    incarnation,
    mute,
    order,
    pod,
    ready,
    sees,
    topology,
    unhealthy,
)

SURVIVORS = (unhealthy(0), unhealthy(2), unhealthy(3))
GONE = sees(*SURVIVORS, unreachable=[pod(1)])


def first_watch(*pending: int, per_pod: int = 2, **fields: Any) -> ApplyReadyWatch:
    """The wait as a round over these ranks begins it."""
    ledger = RoundLedger(order(*pending, topology=topology(4, per_pod), **fields), ScriptedPorts())
    return ledger.watch


def after(watch: ApplyReadyWatch, *sweeps: tuple[float, Sweep]) -> tuple[ApplyReadyWatch, WatchState]:
    """The watch after these (time, sweep)s, and its last verdict."""
    verdict = WatchState.WAIT
    for at, sweep in sweeps:
        watch, observation = watch.fold(tuple(sweep(question) for question in watch.questions()), at)
        verdict = observation.verdict
    return watch, verdict


def confirmation(watch: ApplyReadyWatch) -> Confirmation | None:
    return watch.removing[0].confirmed


class TestConfirmation:
    @pytest.mark.parametrize(
        ("entry", "confirmed"),
        [
            (dead(1), Confirmation.ENGINE_DEAD),
            (exited(1), Confirmation.PROCESS_EXIT),
            (dead(1, source=EntrySource.PROCESS_EXIT), Confirmation.PROCESS_EXIT),
            (healthy(1, process=ProcessState.EXITED), Confirmation.PROCESS_EXIT),
            (healthy(1, incarnation=incarnation(1, life=2)), Confirmation.NEW_INCARNATION),
            (mute(1, incarnation=incarnation(1, life=2)), Confirmation.NEW_INCARNATION),
            (RankEntry(id=1, status="retired"), Confirmation.RETIRED),
        ],
    )
    def test_what_proves_a_death_at_once(self, entry: RankEntry, confirmed: Confirmation) -> None:
        watch, verdict = after(first_watch(1), (0.0, sees(*SURVIVORS, entry)))
        assert (confirmation(watch), verdict) == (confirmed, WatchState.DONE)

    @pytest.mark.parametrize(
        ("entry", "verdict"),
        [
            (mute(1), WatchState.WAIT),
            (RankEntry(id=1, status="degraded", incarnation=incarnation(1)), WatchState.WAIT),
            (healthy(1), WatchState.ABANDONED),
            (unhealthy(1), WatchState.ABANDONED),
            (healthy(1, incarnation=None), WatchState.ABANDONED),
        ],
    )
    def test_what_proves_none(self, entry: RankEntry, verdict: WatchState) -> None:
        watch, told = after(first_watch(1), (0.0, sees(*SURVIVORS, entry)))
        assert (confirmation(watch), told) == (None, verdict)

    def test_a_report_without_incarnation_makes_no_process_a_new_one(self) -> None:
        watch = first_watch(1, reported_incarnations={})
        assert after(watch, (0.0, sees(*SURVIVORS, healthy(1, incarnation=incarnation(1, life=2)))))[1] is WatchState.ABANDONED

    def test_silence_that_lasts_confirms(self) -> None:
        quiet = sees(*SURVIVORS, mute(1))
        watch, verdict = after(first_watch(1), (100.0, quiet), (109.9, quiet))
        assert (confirmation(watch), verdict) == (None, WatchState.WAIT)
        watch, verdict = after(watch, (110.0, quiet))
        assert (confirmation(watch), verdict) == (Confirmation.SILENCE, WatchState.DONE)

    @pytest.mark.parametrize(
        "interruption",
        [sees(*SURVIVORS, dead(1), nonsense=[1]), sees(*SURVIVORS, RankEntry(id=1, status="degraded"))],
    )
    def test_interrupted_silence_starts_anew(self, interruption: Sweep) -> None:
        quiet = sees(*SURVIVORS, mute(1))
        watch, _ = after(first_watch(1), (0.0, quiet), (9.0, interruption), (9.5, quiet), (12.0, quiet))
        assert (confirmation(watch), watch.removing[0].quiet_since) == (None, 9.5)
        assert after(watch, (19.5, quiet))[1] is WatchState.DONE

    def test_a_pod_of_dead_ranks_that_falls_silent_is_absent_after_the_same_time(self) -> None:
        watch, verdict = after(first_watch(1, per_pod=1), (0.0, GONE), (5.0, GONE))
        assert (confirmation(watch), verdict) == (None, WatchState.WAIT)
        watch, verdict = after(watch, (10.0, GONE))
        assert (confirmation(watch), verdict) == (Confirmation.ABSENT, WatchState.DONE)
        assert pod(1) not in {question.manager for question in watch.questions()}

    def test_a_pod_that_still_holds_a_survivor_is_never_absent(self) -> None:
        away = sees(unhealthy(2), unhealthy(3), unreachable=[pod(0)])
        watch, verdict = after(first_watch(1), (0.0, away), (100.0, away))
        assert (confirmation(watch), verdict, watch.removing[0].quiet_since) == (None, WatchState.WAIT, None)

    def test_a_pod_that_a_late_death_empties_can_be_absent(self) -> None:
        died = sees(dead(0), mute(1), unhealthy(2), unhealthy(3))
        away = sees(unhealthy(2), unhealthy(3), unreachable=[pod(0)])
        watch, _ = after(first_watch(1), (0.0, died), (1.0, away), (11.0, away))
        assert {removal.rank: removal.confirmed for removal in watch.removing} == {1: Confirmation.ABSENT, 0: Confirmation.ABSENT}

    def test_pods_that_did_not_answer_the_guard_are_not_asked(self) -> None:
        watch = first_watch(1, per_pod=1).with_absent({pod(1)})
        assert {question.manager for question in watch.questions()} == {pod(0), pod(2), pod(3)}
        assert after(watch, (0.0, sees(*SURVIVORS)))[1] is WatchState.DONE


class TestApplyReady:
    def test_survivors_and_removals_are_asked_apart(self) -> None:
        assert [(question.manager, question.ranks) for question in first_watch(1).questions()] == [
            (pod(0), (0,)),
            (pod(1), (2, 3)),
            (pod(0), (1,)),
        ]

    def test_late_deaths_join_the_removals_confirmed_by_the_very_same_sweep(self) -> None:
        watch, verdict = after(first_watch(1), (0.0, ready(1, 3)))
        assert (watch.removed_ranks, watch.survivor_ranks, verdict) == ((1, 3), (0, 2), WatchState.DONE)
        assert [question.ranks for question in watch.survivors] == [(0,), (2,)]

    @pytest.mark.parametrize(
        ("sweep", "reason"),
        [
            (sees(*SURVIVORS, dead(1), nonsense=[2]), WatchReason.ENGINE_PROTOCOL),
            (sees(*SURVIVORS, dead(1), left_out=[2]), WatchReason.ENGINE_MISSING),
            (sees(unhealthy(0), dead(1), unhealthy(2, ft_state="failed"), unhealthy(3)), WatchReason.ENGINE_FAILED),
            (sees(dead(0), dead(1), dead(2), dead(3)), WatchReason.NO_SURVIVOR),
        ],
    )
    def test_what_fails_says_why(self, sweep: Sweep, reason: WatchReason) -> None:
        watch = first_watch(1)
        _, observation = watch.fold(tuple(sweep(question) for question in watch.questions()), 0.0)
        assert (observation.verdict, observation.reason) == (WatchState.FAILED, reason)

    @pytest.mark.parametrize("ids", [(0, 0), (2,), (0, 1), ()])
    def test_an_answer_about_other_ranks_than_asked_fails(self, ids: tuple[int, ...]) -> None:
        question = Question(manager=pod(0), ranks=(0,))
        watch = ApplyReadyWatch(survivors=(question,), removing=(), dead_confirm_sec=10)
        answer = Answer(question=question, entries=tuple(unhealthy(rank) for rank in ids))
        _, observation = watch.fold((answer,), 0.0)
        assert observation.reason is WatchReason.ENGINE_MISSING

    def test_masks_never_decide(self) -> None:
        """Survivors that blame each other still are survivors."""
        blaming = sees(unhealthy(0, mask=(0, 0, 1, 1)), dead(1), unhealthy(2, mask=(1, 0, 0, 0)), unhealthy(3))
        watch, verdict = after(first_watch(1), (0.0, blaming))
        assert (watch.removed_ranks, verdict) == ((1,), WatchState.DONE)


class TestRecovered:
    WATCH = RecoveredWatch(
        survivors=(Question(manager=pod(0), ranks=(0,)), Question(manager=pod(1), ranks=(2, 3))),
        request_id="ours",
        incarnations={rank: incarnation(rank) for rank in (0, 2, 3)},
    )

    def verdict(self, sweep: Sweep) -> tuple[WatchState, WatchReason | None]:
        _, observation = self.WATCH.fold(tuple(sweep(question) for question in self.WATCH.questions()), 0.0)
        return observation.verdict, observation.reason

    def test_all_healthy_is_done(self) -> None:
        assert self.verdict(sees(healthy(0), healthy(2), healthy(3))) == (WatchState.DONE, None)

    def test_another_process_in_a_survivors_place_is_its_death(self) -> None:
        replaced = sees(healthy(0), healthy(2), healthy(3, incarnation=incarnation(3, life=2)))
        assert self.verdict(replaced) == (WatchState.FAILED, WatchReason.SURVIVOR_DIED)

    def test_an_entry_without_incarnation_is_taken_as_it_is(self) -> None:
        assert self.verdict(sees(healthy(0), healthy(2), healthy(3, incarnation=None)))[0] is WatchState.DONE

    def test_an_unreachable_node_manager_is_waited_for_and_named(self) -> None:
        sweep = sees(healthy(0), unreachable=[pod(1)])
        _, observation = self.WATCH.fold(tuple(sweep(question) for question in self.WATCH.questions()), 0.0)
        assert observation.verdict is WatchState.WAIT
        assert f"2 (unknown: NodeManager {pod(1)} did not answer" in observation.detail


RANKS = tuple(range(6))
LAYOUT = {0: (0, 1), 1: (2, 3), 2: (4, 5)}

words = st.sampled_from(["healthy", "unhealthy", "dead", "unknown", "retired", "degraded"])
lives = st.sampled_from([1, 1, 1, 2])


@st.composite
def entries(draw: st.DrawFn, rank: int) -> RankEntry:
    process = draw(st.sampled_from([ProcessState.RUNNING, ProcessState.RUNNING, ProcessState.EXITED]))
    return RankEntry(
        id=rank,
        status="dead" if process is ProcessState.EXITED else draw(words),
        ft_state=draw(st.sampled_from([None, None, None, "recovering", "failed"])),
        process=process,
        incarnation=draw(st.none() | lives.map(lambda life: incarnation(rank, life))),
    )


@st.composite
def watches(draw: st.DrawFn) -> ApplyReadyWatch:
    pending = draw(st.sets(st.sampled_from(RANKS), min_size=1, max_size=5))
    groups = {number: tuple(rank for rank in ranks if rank not in pending) for number, ranks in LAYOUT.items()}
    return ApplyReadyWatch(
        survivors=tuple(Question(manager=pod(number), ranks=ranks) for number, ranks in groups.items() if ranks),
        removing=tuple(
            Removal(
                rank=rank,
                manager=pod(rank // 2),
                manager_has_survivors=bool(groups[rank // 2]),
                reported_incarnation=incarnation(rank),
            )
            for rank in sorted(pending)
        ),
        dead_confirm_sec=10.0,
    )


@st.composite
def answers(draw: st.DrawFn, watch: ApplyReadyWatch) -> tuple[Answer, ...]:
    found = []
    for question in watch.questions():
        fault = draw(st.sampled_from([None, None, None, None, "unreachable", "protocol"]))
        told = () if fault else tuple(draw(entries(rank)) for rank in question.ranks)
        found.append(Answer(question=question, entries=told, fault=fault))
    return tuple(found)


@given(st.data())
def test_folding_one_sweep_twice_is_folding_it_once(data: st.DataObject) -> None:
    watch = data.draw(watches())
    sweep = data.draw(answers(watch))
    once, said = watch.fold(sweep, 50.0)
    twice, said_again = once.fold(sweep, 50.0)
    assert (twice, said_again.verdict, said_again.reason) == (once, said.verdict, said.reason)


@given(st.data())
def test_the_order_of_answers_does_not_matter(data: st.DataObject) -> None:
    watch = data.draw(watches())
    sweep = data.draw(answers(watch))
    shuffled = tuple(data.draw(st.permutations(sweep)))
    one, said = watch.fold(sweep, 50.0)
    other, said_too = watch.fold(shuffled, 50.0)
    assert one.model_dump() == other.model_dump()
    assert said == said_too


@given(st.data())
def test_every_rank_stays_exactly_once_survivor_or_removal(data: st.DataObject) -> None:
    watch, now = data.draw(watches()), 0.0
    before = set(watch.removed_ranks)
    for _ in range(data.draw(st.integers(1, 6))):
        watch, observation = watch.fold(data.draw(answers(watch)), now)
        assert sorted((*watch.survivor_ranks, *watch.removed_ranks)) == list(RANKS)
        assert before <= set(watch.removed_ranks), "a removal is never taken back"
        before = set(watch.removed_ranks)
        asked = sorted(rank for question in watch.questions() for rank in question.ranks)
        assert len(asked) == len(set(asked))
        assert {question.manager for question in watch.survivors if not question.ranks} == set()
        if observation.verdict is WatchState.DONE:
            assert watch.survivors
            assert all(removal.confirmed for removal in watch.removing)
            assert all(watch.entries[rank].status == "unhealthy" for rank in watch.survivor_ranks)
        if observation.verdict in (WatchState.FAILED, WatchState.ABANDONED):
            assert observation.reason is not None
            assert observation.detail
        now += data.draw(st.floats(0.0, 12.0))


@given(st.data())
def test_a_wait_survives_the_wire(data: st.DataObject) -> None:
    """What an activity heartbeats and resumes from is the very same wait."""
    watch = data.draw(watches())
    watch, _ = watch.fold(data.draw(answers(watch)), 1.0)
    assert ApplyReadyWatch.model_validate_json(watch.model_dump_json()) == watch


def test_of_several_identity_faults_the_same_one_is_named_in_any_order() -> None:
    watch = first_watch(1, per_pod=1)
    sweep = tuple(sees(*SURVIVORS, dead(1), nonsense=[0, 3], left_out=[2])(question) for question in watch.questions())
    assert watch.fold(sweep, 0.0)[1] == watch.fold(sweep[::-1], 0.0)[1]
