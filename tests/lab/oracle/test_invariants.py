"""Each invariant turns red on the violation planted for it, and on nothing else; clean runs break none."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.config import DpScaleDownConfig
from domain.engine import EngineStatus, Instruction
from lab.oracle.invariants import Invariant, check, check_all, violations
from lab.oracle.observations import (
    AddressSeen,
    ApplySeen,
    EngineIdSeen,
    Event,
    FastRecoveryFailed,
    GenerationSeen,
    GuardGone,
    GuardSeen,
    HardwareFaultSeen,
    Observed,
    OutageSeen,
    PhaseSeen,
    RebuildExcuse,
    RebuildSeen,
    RecoveredSeen,
    RoundSeen,
    RouteSeen,
    StatusSeen,
    ViewChange,
    ViewSeen,
)
from tests.domain.synthetic_rounds import clean_run, endpoints, request_id

ROUND = request_id(1)
POD = "127.0.0.2:1026"
Mutation = Callable[[Event], Event | None]


@pytest.fixture(scope="module")
def clean() -> Observed:
    """Four ranks, rank 1 lost at t=100, in place."""
    return clean_run(4, (frozenset({1}),))


def changed(run: Observed, mutate: Mutation | None = None, *more: Event) -> Observed:
    """The run with each record mutated (None drops it) and `more` added."""
    kept = [mutate(event) if mutate else event for event in run.events]
    return run.model_copy(update={"events": (*(event for event in kept if event is not None), *more)})


def broken(run: Observed) -> set[str]:
    return {str(violation.invariant) for violation in violations(check_all(run))}


def apply_to(engine: int, removed: frozenset[int], at: float = 104.0, name: str = ROUND) -> ApplySeen:
    return ApplySeen(at=at, engine=engine, request_id=name, instruction=Instruction.SCALE_DOWN, removed=removed)


def view_of(at: float, revision: int, ranks: set[int]) -> ViewSeen:
    return ViewSeen(
        at=at, coordinator="coordinator-a", change=ViewChange.SET, revision=revision, endpoints=endpoints(frozenset(ranks))
    )


def removed_sets(ranks: set[int]) -> Mutation:
    def mutate(event: Event) -> Event:
        return event.model_copy(update={"removed": frozenset(ranks)}) if isinstance(event, ApplySeen) else event

    return mutate


def without(kind: type) -> Mutation:
    return lambda event: None if isinstance(event, kind) else event


def without_del(event: Event) -> Event | None:
    return None if isinstance(event, ViewSeen) and event.change is ViewChange.DEL else event


def engine_2_told_more(event: Event) -> Event:
    told = isinstance(event, ApplySeen) and event.engine == 2
    return event.model_copy(update={"removed": frozenset({1, 3})}) if told else event


def hardware_instead_of_death(event: Event) -> Event:
    dead = isinstance(event, StatusSeen) and event.status is EngineStatus.DEAD
    return HardwareFaultSeen(at=event.at, ranks=frozenset({1})) if dead else event


def slow_round(event: Event) -> Event:
    return event.model_copy(update={"ended_at": 199.0, "bound_sec": 90.0}) if isinstance(event, RoundSeen) else event


def died(rank: int, at: float, *, final: bool = False) -> StatusSeen:
    return StatusSeen(at=at, rank=rank, status=EngineStatus.DEAD, final=final)


def said(rank: int, status: EngineStatus, at: float) -> StatusSeen:
    return StatusSeen(at=at, rank=rank, status=status)


def without_death(event: Event) -> Event | None:
    return None if isinstance(event, StatusSeen) and event.status is EngineStatus.DEAD else event


def moved_view(at: float, revision: int) -> ViewSeen:
    moved = endpoints({0, 2, 3}) | {3: "127.0.0.9:10003"}
    return ViewSeen(at=at, coordinator="coordinator-a", change=ViewChange.SET, revision=revision, endpoints=moved)


def record(at: float, phase: str, *, published: bool = True, committed: frozenset[int] = frozenset()) -> PhaseSeen:
    """A status record that claims to serve."""
    return PhaseSeen(
        at=at, asked_at=at - 0.01, phase=phase, can_serve=True, serving_published=published, dead_committed=committed
    )


def early_record() -> PhaseSeen:
    return record(104.5, "SCALING_DOWN", committed=frozenset({1})).model_copy(update={"can_serve": False})


def guard(at: float, name: str, lease_sec: float = 85.0) -> GuardSeen:
    return GuardSeen(at=at, manager=POD, request_id=name, expires_at=at + lease_sec)


def released(at: float, name: str) -> GuardGone:
    return GuardGone(at=at, manager=POD, request_id=name)


def excused(excuse: RebuildExcuse, at: float = 145.0) -> RoundSeen:
    return RoundSeen(at=at, request_id="other", ended_at=at + 3, bound_sec=100, excuse=excuse)


def away(at: float, ended_at: float) -> OutageSeen:
    return OutageSeen(at=at, process="worker-1", ended_at=ended_at)


@dataclass(frozen=True)
class Planted:
    """A violation: what is done to the clean run, and which invariants must (exactly) turn red."""

    name: str
    reds: set[str]
    mutate: Mutation | None = None
    more: tuple[Event, ...] = ()


def rebuild(at: float = 150.0, *, gate_allowed: bool = True) -> RebuildSeen:
    return RebuildSeen(at=at, completed_at=at + 5, readmitted=frozenset({0, 1, 2, 3}), gate_allowed=gate_allowed)


def complete_set(at: float = 140.0) -> tuple[Event, ...]:
    """Rank 3 dead, the other survivors of the first round unhealthy."""
    unhealthy = [StatusSeen(at=at, rank=rank, status=EngineStatus.UNHEALTHY) for rank in (0, 2)]
    return (StatusSeen(at=at, rank=3, status=EngineStatus.DEAD), *unhealthy)


DEADLINE = RebuildExcuse.DEADLINE
PLANTED = [
    Planted("one engine called twice under one id", {"I1"}, more=(apply_to(0, frozenset({1}), at=104.2),)),
    Planted("one engine told another set", {"I2"}, engine_2_told_more, (died(3, 103.5),)),
    Planted("a living rank removed", {"I2", "I7", "I13"}, removed_sets({1, 3})),
    Planted("a dead rank left in the group", {"I2"}, more=(died(3, 101.0),)),
    Planted("a committed rank missing in the second apply", {"I2"}, more=(died(3, 130.0), apply_to(0, frozenset({3}), 140, "x"))),
    Planted("a rank that never was is served", {"I3"}, more=(view_of(108.0, 4, {0, 2, 3, 9}),)),
    Planted("a rank moved to another port", {"I3"}, more=(moved_view(108.0, 4),)),
    Planted(
        "a rank found at another port", {"I3"}, more=tuple(AddressSeen(at=9, rank=0, address=where) for where in ("a:1", "b:1"))
    ),
    Planted("a request answered by another rank", {"I3"}, more=(RouteSeen(at=108.0, rank=0, answered_by=2),)),
    Planted("dead_committed before the engines recovered", {"I4"}, more=(early_record(),)),
    Planted("committed before the engines recovered", {"I4"}, without(RecoveredSeen)),
    Planted("a SET brings the dead rank back", {"I5"}, more=(view_of(108.0, 4, {0, 1, 2, 3}),)),
    Planted("the view was not withdrawn before the commit", {"I5"}, without_del),
    Planted("can_serve while scaling down", {"I6"}, more=(record(104.0, "SCALING_DOWN"),)),
    Planted("can_serve without a published view", {"I6"}, more=(record(99.5, "NORMAL", published=False),)),
    Planted("can_serve while Coordinators are empty", {"I6"}, more=(record(104.0, "NORMAL"),)),
    Planted("a rank removed because of hardware alone", {"I2", "I7"}, hardware_instead_of_death),
    Planted("a rank removed that was healthy again", {"I2", "I7"}, more=(said(1, EngineStatus.HEALTHY, 101.5),)),
    Planted("a rank removed that only noticed, after all", {"I2", "I7"}, more=(said(1, EngineStatus.UNHEALTHY, 101.5),)),
    Planted("two live guards", {"I8"}, more=(guard(103.0, "other"),)),
    Planted("a guard released without its verdict", {"I8"}, more=(guard(110.0, "other", lease_sec=20), released(112.0, "other"))),
    Planted("scale_down after a failed fast recovery", {"I9"}, more=(FastRecoveryFailed(at=101.0),)),
    Planted("a guard without a verdict that still holds", {"I10"}, more=(guard(190.0, "other"),)),
    Planted("a round that took too long", {"I11"}, slow_round),
    Planted("a round that never ended", {"I11"}, more=(RoundSeen(at=110.0, request_id="other", ended_at=None, bound_sec=60),)),
    Planted("everybody removed", {"I2", "I7", "I13"}, removed_sets({0, 1, 2, 3})),
    Planted(
        "an engine told to remove itself",
        {"I13"},
        more=(apply_to(1, frozenset({1})), RecoveredSeen(at=105.0, engine=1, request_id=ROUND)),
    ),
    Planted("a foreign engine called", {"I14"}, more=(EngineIdSeen(at=103.0, rank=2, answered=3),)),
    Planted("an engine called that named no rank", {"I14"}, more=(EngineIdSeen(at=103.0, rank=2, answered=None),)),
    Planted("engines called that were never asked who they are", {"I14"}, without(EngineIdSeen)),
    Planted("a request routed to the dead rank", {"I15"}, more=(RouteSeen(at=110.0, rank=1),)),
    Planted("a generation going back", {"I16"}, more=(GenerationSeen(at=110.0, receiver=POD, generation=0),)),
    Planted("a view revision going back", {"I16"}, more=(view_of(110.0, 1, {0, 2, 3}),)),
    Planted("a rebuild over a complete set", {"I17"}, more=(*complete_set(), rebuild())),
    Planted(
        "a rebuild, and an excuse of the round before", {"I17"}, more=(*complete_set(), excused(DEADLINE, at=120.0), rebuild())
    ),
    Planted("a rebuild, and a failed retry before", {"I17"}, more=(FastRecoveryFailed(at=120.0), *complete_set(), rebuild())),
    Planted("a rebuild long after a process was away", {"I17"}, more=(away(1.0, 7.0), *complete_set(), rebuild())),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_violation_turns_exactly_its_invariant_red(clean: Observed, planted: Planted) -> None:
    assert broken(changed(clean, planted.mutate, *planted.more)) == planted.reds


def test_every_invariant_has_a_planted_violation() -> None:
    assert set().union(*(planted.reds for planted in PLANTED)) == {str(invariant) for invariant in Invariant}


def test_violation_names_the_invariant_says_what_and_shows_the_records(clean: Observed) -> None:
    again = apply_to(0, frozenset({1}), at=104.2)
    (violation,) = check(changed(clean, None, again), Invariant.I1).violations
    assert violation.what == f"engine 0 was called again under {ROUND}"
    assert violation.events == (apply_to(0, frozenset({1})), again)


ALLOWED = [
    ("an engine refused", (*complete_set(), excused(RebuildExcuse.ENGINE_REFUSED), rebuild())),
    ("the gate was closed", (*complete_set(), rebuild(gate_allowed=False))),
    ("a fast recovery failed", (*complete_set(), FastRecoveryFailed(at=145.0), rebuild())),
    ("a process stayed away", (*complete_set(), away(141.0, 149.0), rebuild())),
    ("a process was away when the rank died", (away(130.0, 140.5), *complete_set(), rebuild())),
    (
        "the survivors ended too, whatever they say",
        (*complete_set(), *(died(rank, 141.0, final=True) for rank in (0, 2)), said(0, EngineStatus.UNHEALTHY, 142.0), rebuild()),
    ),
    ("nobody was left", (*complete_set(), died(0, 141.0), died(2, 141.0), rebuild())),
    ("survivors had not noticed", (died(3, 140.0), rebuild())),
]


@pytest.mark.parametrize(("why", "events"), ALLOWED, ids=[why for why, _ in ALLOWED])
def test_rebuild_is_allowed(clean: Observed, why: str, events: tuple[Event, ...]) -> None:
    assert broken(changed(clean, None, *events)) == set(), why


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("its process had ended", (died(1, 100.0, final=True), said(1, EngineStatus.HEALTHY, 101.0))),
        ("it became healthy after the last look", (died(1, 100.0), said(1, EngineStatus.HEALTHY, 103.0))),
        ("nobody could read it any more", (died(1, 100.0), said(1, EngineStatus.UNKNOWN, 101.0))),
    ],
)
def test_rank_may_be_removed_that_was_dead_at_the_last_look(clean: Observed, why: str, words: tuple[Event, ...]) -> None:
    assert broken(changed(clean, without_death, *words)) == set(), why


def test_rebuild_brings_back_a_rank_whose_process_had_ended() -> None:
    back = rebuild(150.0)
    run = Observed(instance_id=7, original=frozenset({0, 1}), events=(died(1, 140.0, final=True), back), ended_at=200.0)
    assert run.statuses(150.0)[1] is EngineStatus.DEAD
    assert run.statuses(156.0)[1] is EngineStatus.HEALTHY


def test_rank_may_be_served_again_once_a_rebuild_brought_it_back(clean: Observed) -> None:
    back = (died(0, 140), died(2, 140), died(3, 140), rebuild(), view_of(160.0, 6, {0, 1, 2, 3}), RouteSeen(at=161.0, rank=1))
    assert broken(changed(clean, None, *back)) == set()


def test_can_serve_is_excused_while_the_coordinator_itself_is_down(clean: Observed) -> None:
    down = OutageSeen(at=110.0, process="coordinator", ended_at=113.0)
    empty = tuple(
        ViewSeen(at=110.0, coordinator=name, change=ViewChange.SET, revision=None, endpoints={})
        for name in ("coordinator-a", "coordinator-b")
    )
    assert broken(changed(clean, None, down, *empty, record(112.0, "SCALED_DOWN_RUNNING", committed=frozenset({1})))) == set()


@pytest.mark.parametrize(("asked_at", "red"), [(116.0, set()), (125.0, {Invariant.I6})])
def test_can_serve_is_excused_until_a_restarted_coordinator_must_have_its_first_set(
    clean: Observed, asked_at: float, red: set[Invariant]
) -> None:
    down = OutageSeen(at=110.0, process="coordinator", ended_at=113.0)
    started = tuple(
        ViewSeen(at=115.0, coordinator=name, change=ViewChange.SET, revision=None, endpoints={})
        for name in ("coordinator-a", "coordinator-b")
    )
    serving = record(asked_at, "SCALED_DOWN_RUNNING", committed=frozenset({1}))
    assert broken(changed(clean, None, down, *started, serving)) == red


def test_nothing_observed_is_not_ok() -> None:
    unread = Observed(instance_id=7, original=frozenset({0, 1}), events=(), ended_at=1.0)
    assert [judgement.ok for judgement in check_all(unread)] == [False] * len(Invariant)


def test_quiet_sources_that_were_read_are_observations(clean: Observed) -> None:
    quiet = changed(clean, without(ApplySeen))
    judgement = check(quiet, Invariant.I1)
    assert judgement.ok
    assert judgement.observations == 4


def test_bound_of_a_round_is_the_sum_of_its_deadlines() -> None:
    assert DpScaleDownConfig().round_bound_sec == 15 + 2 * 30 + 2 * 15 + 15 + 15 + 20


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, tuple[frozenset[int], ...]]:
    """A group of 2–8 ranks and up to three disjoint losses that leave a survivor."""
    dp_size = draw(st.integers(2, 8))
    order = draw(st.permutations(range(dp_size)))
    doomed = order[: draw(st.integers(1, dp_size - 1))]
    cuts = sorted({0, len(doomed), *draw(st.lists(st.integers(0, len(doomed)), max_size=2))})
    return dp_size, tuple(frozenset(doomed[begin:end]) for begin, end in pairwise(cuts))


@given(losses())
def test_clean_rounds_break_nothing_and_every_invariant_has_something_to_judge(
    case: tuple[int, tuple[frozenset[int], ...]],
) -> None:
    judgements = check_all(clean_run(*case))
    assert violations(judgements) == ()
    assert all(judgement.observations > 0 for judgement in judgements)
