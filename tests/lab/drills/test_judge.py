"""Every check turns red on what it is there for; a clean run passes them all."""

from dataclasses import dataclass
from typing import Any

import pytest

from domain.engine import EngineStatus
from domain.messages.round import PeerRefusal
from domain.messages.strategy import RoundOutcome, RoundReason, RoundReport
from lab.drills.drill import Drill, in_place
from lab.drills.drill import rebuilt as ends_rebuilt
from lab.drills.judge.commands import no_apply, no_round, not_withdrawn_before
from lab.drills.judge.every_drill import checks_of, judge
from lab.drills.judge.processes import killed as was_killed
from lab.drills.judge.processes import stopped as was_stopped
from lab.drills.record.engine_log import EngineLife, EngineLine
from lab.drills.record.evidence import SILENCES, Evidence, rebuild_excuse
from lab.drills.record.histories import Replay
from lab.drills.record.traffic import RequestRecord
from lab.oracle.observations import RebuildExcuse, RouteSeen, StatusSeen
from lab.stack.record import EventKind, StackEvent
from service.peer import Silence
from tests.lab.drills.recorded import (
    MANAGERS,
    PROCESSES,
    RANKS,
    SURVIVORS,
    apply_line,
    completion,
    coordinator_view,
    drill,
    evidence,
    happened,
    journal,
    killed,
    report,
    request,
    requests,
    started,
    stopped,
    survivor,
    victim,
    view_lines,
    with_line,
)


def red(found: Evidence, judged: Drill | None = None) -> set[str]:
    return {check.name for check in judge(judged or drill(), found) if not check.ok}


def lives(**changed: list[EngineLife]) -> dict[int, list[EngineLife]]:
    """The recorded lives; `rank2=[...]` replaces one rank's."""
    own = {rank: [victim() if rank == 1 else survivor(rank)] for rank in RANKS}
    return own | {int(name.removeprefix("rank")): value for name, value in changed.items()}


def told(rank: int, **changes: Any) -> EngineLife:
    """A survivor whose command was another one."""
    life = survivor(rank)
    lines = tuple(apply_line(rank, **changes) if line.event == "apply" else line for line in life.lines)
    return life.model_copy(update={"lines": lines})


def test_clean_run_passes_every_check_and_each_has_observations() -> None:
    checks = judge(drill(), evidence())
    assert [check.name for check in checks if not check.ok] == []
    assert all(check.observations > 0 for check in checks)


@dataclass(frozen=True)
class Planted:
    name: str
    check: str
    changes: dict[str, Any]


PARAMS = {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.3", "dp_store_port": 29502}
PLANTED = [
    Planted(
        "an engine called twice", "one apply per engine", {"lives": lives(rank2=[with_line(survivor(2), apply_line(2, 103.5))])}
    ),
    Planted("a refused command", "one apply per engine", {"lives": lives(rank2=[told(2, http=400)])}),
    Planted("another set", "removed set", {"lives": lives(rank2=[told(2, params={"removed_dp_ranks": [1, 3]})])}),
    Planted("another master", "master is the lowest survivor", {"lives": lives(rank2=[told(2, params=PARAMS)])}),
    Planted(
        "applied while published",
        "withdrawn before apply",
        {"view_lines": {"coordinator-0": view_lines()[:2] + view_lines()[3:]}},
    ),
    Planted("never published again", "published after recovery", {"view_lines": {"coordinator-0": view_lines()[:3]}}),
    Planted(
        "one journal knows nothing", "committed ranks", {"journals": {MANAGERS[0]: journal("a"), MANAGERS[1]: journal("b", ())}}
    ),
    Planted("the dead rank served", "published ranks", {"views": {"coordinator-0": coordinator_view(RANKS)}}),
    Planted("an engine mute", "completion on each survivor", {"completions": [completion(0), completion(2)]}),
    Planted(
        "an engine in another's place",
        "completion on each survivor",
        {"completions": [*map(completion, (0, 2)), completion(3, 2)]},
    ),
    Planted("a survivor restarted", "engines kept", {"lives": lives(rank2=[survivor(2), survivor(2)])}),
    Planted("a removed rank started again", "removed ranks stay gone", {"lives": lives(rank1=[victim(), victim()])}),
    Planted(
        "a Pod stopped",
        "Pod not stopped",
        {"stack_events": [*started(), happened(104.0, EventKind.EXITED, MANAGERS[0], "exit code 0")]},
    ),
    Planted(
        "the API crashed",
        "nobody else ended",
        {"stack_events": [*started(), happened(104.0, EventKind.EXITED, "api", "SIGABRT")]},
    ),
    Planted("no repeated SET", "SET brings nothing back", {"unchanged_refreshes": {"coordinator-0": 0.0}}),
    Planted("a late failure", "requests after recovery", {"requests": [*requests(), request(99, 106.0, 0, ok=False)]}),
    Planted("a survivor without clients", "clients reach each survivor", {"requests": requests()[:-1]}),
    Planted("no history", "histories", {"workflows": []}),
    Planted("an orphan", "nothing left behind", {"orphans": ("engine-2 (pid 4711: python -m lab.simulator)",)}),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_planted_fault_turns_its_check_red(planted: Planted) -> None:
    assert planted.check in red(evidence(**planted.changes))


def test_every_check_of_an_in_place_drill_has_a_planted_fault() -> None:
    names = {check.name for check in judge(drill(), evidence()) if not check.name.startswith("I")}
    assert names == {planted.check for planted in PLANTED}
    assert len(checks_of(drill())) == len(names)


def test_invariants_are_judged_over_the_same_evidence() -> None:
    routed = [*evidence().polled, RouteSeen(at=107.0, rank=1)]
    assert {name.split()[0] for name in red(evidence(polled=routed))} == {"I15"}


LAST_SEC = 170.0
"""Longer than a round may take here: 155 s."""


def late_round(*, set_before_del: bool = False, **changes: Any) -> Evidence:
    """The round's verdicts and its view come LAST_SEC after the guard; `set_before_del`: a Coordinator came back before."""
    end = 102.6 + LAST_SEC
    polled = [event.model_copy(update={"at": end}) if event.at == 104.1 else event for event in evidence().polled]
    lines = [line.model_copy(update={"mono": end}) if line.event == "add" else line for line in view_lines()]
    if set_before_del:
        lines.insert(2, lines[1].model_copy(update={"mono": 102.7}))
        polled = list(evidence().polled)
    return evidence(**{"polled": polled, "view_lines": {"coordinator-0": lines}, "ended_at": end + 10.0, **changes})


def is_late(found: Evidence) -> bool:
    return any(name.startswith("I11") for name in red(found))


def test_round_that_takes_too_long_is_late_unless_a_worker_or_the_server_was_away_meanwhile() -> None:
    def away(name: str, at: float, until: float) -> dict[str, Any]:
        return {"stack_events": [*started(), *killed(name, at, until)], "killed": frozenset({name})}

    assert is_late(late_round())
    assert not is_late(late_round(**away("worker-0", 110.0, 150.0)))
    assert not is_late(late_round(**away("temporal", 110.0, 150.0)))
    assert is_late(late_round(**away("coordinator-0", 110.0, 150.0))), "the bound has their deadlines in it"
    assert is_late(late_round(**away("worker-0", 20.0, 60.0))), "before the round"
    both = [*started(), *killed("worker-0", 110.0, 120.0), *killed("temporal", 110.0, 120.0)]
    assert is_late(late_round(stack_events=both)), "both were away at once: 10 s, not 20"


def test_view_that_was_served_before_the_engines_recovered_ends_no_round() -> None:
    assert is_late(late_round(set_before_del=True))


@pytest.mark.parametrize("what", ["TimeoutError: ", "report of scale-down-7-2: it has none"])
def test_history_that_could_not_be_read_is_red(what: str) -> None:
    found = red(evidence(unread=(what,)))
    assert {name.split()[0] for name in found} == {"histories", "I12"}


@pytest.mark.parametrize("replay", [Replay(tasks=40, faults=("scale-down-7-2.json: [TMPRL1100] nondeterminism",)), Replay()])
def test_history_that_does_not_replay_is_red_and_so_is_none_at_all(replay: Replay) -> None:
    assert {name.split()[0] for name in red(evidence(replay=replay))} == {"I12"}


def test_ranks_that_serve_on_lose_no_request_and_answer_to_the_end() -> None:
    expected = drill(in_place((1,)), undisturbed=SURVIVORS)

    def told(*more: RequestRecord, since: float | None = 100.0) -> set[str]:
        calm = [record for record in requests() if record.ok]
        return red(evidence(requests=[*calm, *more], last_injection=since), expected)

    assert told() == set()
    assert told(request(99, 100.5, 1, ok=False).model_copy(update={"rank": 1})) == set(), "it was hit, not they"
    assert told(request(99, 100.5, 2, ok=False)) == {"requests go on"}
    assert told(since=105.5) == {"requests go on"}, "rank 0 did not answer any more"
    assert told(since=None) == {"requests go on"}


def test_a_rank_that_its_nodemanager_saw_silent_for_long_enough_counts_as_dead() -> None:
    mute = victim().model_copy(update={"lines": victim().lines[:2]})
    seen = evidence().entries[0].model_copy(update={"source": "poll_error"})
    silent, confirmed_sec = [seen, *evidence().entries[1:]], 10.0
    found = evidence(lives=lives(rank1=[mute]), entries=silent, ended_at=seen.at + confirmed_sec)
    assert red(found) == set()
    spoke = seen.model_copy(update={"at": seen.at + confirmed_sec - 1.0, "status": "healthy"})
    found = evidence(lives=lives(rank1=[mute]), entries=[*silent, spoke], ended_at=seen.at + confirmed_sec)
    assert {name.split()[0] for name in red(found)} == {"I2", "I7"}


def test_process_that_was_to_be_stopped_must_have_stood_still_for_long_enough_and_gone_on() -> None:
    expected = drill(in_place((1,)), was_stopped(1, for_sec=10.0))
    for_10_sec, for_a_moment = stopped("worker-0", 103.0, 113.0), stopped("worker-0", 103.0, 103.1)
    crash = crashed("worker-0", 105.0)
    assert red(evidence(stack_events=[*started(), *for_10_sec]), expected) == set()
    assert red(evidence(stack_events=[*started(), *for_10_sec[:1]]), expected) == {"stopped and continued"}
    assert red(evidence(stack_events=started()), expected) == {"stopped and continued"}
    assert red(evidence(stack_events=[*started(), *for_a_moment]), expected) == {"stopped and continued"}
    assert red(evidence(stack_events=[*started(), *for_10_sec, *crash]), expected) == {
        "stopped and continued",
        "nobody else ended",
    }


def crashed(name: str, at: float, detail: str = "exit code 1") -> list[StackEvent]:
    """It ends by itself, and is brought back."""
    return [happened(at, EventKind.EXITED, name, detail), happened(at + 1.0, EventKind.RESTARTED, name)]


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("detail", ["exit code 1", "SIGKILL", "SIGSEGV"])
def test_process_that_ended_by_itself_is_told_in_every_drill(name: str, detail: str) -> None:
    crash = crashed(name, 103.0, detail)
    assert "nobody else ended" in red(evidence(stack_events=[*started(), *crash]))
    assert "nobody else ended" in red(rebuilt(stack_events=[*started(), *crash]), REBUILT)


def test_killed_once_and_ended_twice_is_told() -> None:
    expected = drill(in_place((1,)), was_killed(1))
    story = [*started(), *killed("worker-0", 103.0, 105.0)]
    names = frozenset({"worker-0"})
    assert red(evidence(stack_events=story, killed=names), expected) == set()
    assert red(evidence(stack_events=[*story, *crashed("worker-0", 107.0)], killed=names), expected) == {"nobody else ended"}


def test_pods_are_stopped_on_purpose_in_a_rebuild_and_where_that_is_expected_only() -> None:
    left = [*started(), *crashed(MANAGERS[1], 104.5, "exit code 0")]
    assert red(rebuilt(stack_events=left), REBUILT) == set()
    assert "nobody else ended" in red(evidence(stack_events=left))
    expected = drill(in_place((1,), leaving=(MANAGERS[1],)))
    assert red(evidence(stack_events=left), expected) == set()


def test_ends_before_the_installation_was_ready_are_its_own_affair() -> None:
    early = [*started(), *crashed("worker-0", 5.0), happened(20.0, EventKind.READY, "")]
    assert red(evidence(stack_events=early)) == set()


def test_stopped_coordinator_serves_nobody_whatever_its_view_says() -> None:
    story = stopped("coordinator-0", 105.5, 106.5)
    late = [*requests(), request(99, 106.0, 0, ok=False)]
    assert "requests after recovery" in red(evidence(requests=late))
    assert "requests after recovery" not in red(evidence(requests=late, stack_events=[*started(), *story]))


def test_process_that_was_to_be_killed_must_have_been_and_be_back() -> None:
    expected = drill(in_place((1,)), was_killed(1))
    story = [*started(), *killed("worker-0", 103.0, 105.0)]
    names = frozenset({"worker-0"})
    assert red(evidence(stack_events=story, killed=names), expected) == set()
    assert red(evidence(stack_events=story[:-1], killed=names), expected) == {"killed and back"}
    assert red(evidence(stack_events=started(), killed=names), expected) == {"killed and back"}


REBUILT = drill(ends_rebuilt(), no_apply(), no_round(), not_withdrawn_before(3.0), traffic=False)


def second_life(rank: int, *, ready: bool = True) -> EngineLife:
    lines = [EngineLine(rank=rank, mono=106.0, event="start", port=10000 + rank)]
    if ready:
        lines.append(EngineLine(rank=rank, mono=108.0, event="ready", port=10000 + rank))
    return EngineLife(rank=rank, file=f"engine-{rank}-2.jsonl", lines=tuple(lines))


def first_life(rank: int) -> EngineLife:
    lines = [EngineLine(rank=rank, mono=10.0, event="start", port=10000 + rank), EngineLine(rank=rank, mono=12.0, event="ready")]
    lines += [EngineLine(rank=rank, mono=105.0, event="exit", reason="SIGTERM", code=0)]
    return EngineLife(rank=rank, file=f"engine-{rank}-1.jsonl", lines=tuple(lines))


def rebuilt(**changes: Any) -> Evidence:
    """Nobody noticed; the instance was rebuilt after the collection time."""
    lines = view_lines()
    withdrawn = [line.model_copy(update={"mono": 104.5}) for line in lines if line.event == "del"]
    again = [line.model_copy(update={"mono": 109.0, "ranks": RANKS}) for line in lines if line.event == "add"]
    whole: dict[str, Any] = {
        "lives": {rank: [victim() if rank == 1 else first_life(rank), second_life(rank)] for rank in RANKS},
        "view_lines": {"coordinator-0": [*lines[:2], *withdrawn, *again]},
        "journals": {manager: journal(manager, ()).model_copy(update={"transactions": ()}) for manager in MANAGERS},
        "views": {"coordinator-0": coordinator_view(RANKS)},
        "polled": [event for event in evidence().polled if event.at < 95 or event.at > 109],
        "requests": [],
        "completions": [completion(rank) for rank in RANKS],
        "reports": [],
    }
    return evidence(**(whole | changes))


def test_clean_rebuild_passes() -> None:
    assert red(rebuilt(), REBUILT) == set()


PLANTED_IN_A_REBUILD = [
    Planted(
        "a command", "no apply", {"lives": {**rebuilt().lives, 2: [with_line(first_life(2), apply_line(2)), second_life(2)]}}
    ),
    Planted("a round", "no round", {"journals": {MANAGERS[0]: journal(MANAGERS[0], ())}}),
    Planted("withdrawn at once", "not withdrawn early", {"view_lines": {"coordinator-0": view_lines()}}),
    Planted("an old engine", "engines renewed", {"lives": {**rebuilt().lives, 2: [first_life(2)]}}),
    Planted(
        "an engine not ready",
        "engines renewed",
        {"lives": {**rebuilt().lives, 2: [first_life(2), second_life(2, ready=False)]}},
    ),
]


@pytest.mark.parametrize("planted", PLANTED_IN_A_REBUILD, ids=lambda planted: planted.name)
def test_planted_fault_in_a_rebuild_turns_its_check_red(planted: Planted) -> None:
    assert planted.check in red(rebuilt(**planted.changes), REBUILT)


def test_rebuild_over_a_complete_set_breaks_i17() -> None:
    noticed = [StatusSeen(at=102.0, rank=rank, status=EngineStatus.UNHEALTHY) for rank in SURVIVORS]
    found = rebuilt(polled=[*rebuilt().polled, *noticed])
    assert any(name.startswith("I17") for name in red(found, REBUILT))


def refused_round(reason: RoundReason, *refusals: tuple[str, str]) -> RoundReport:
    """One whose peers said no, or nothing: (peer, its reason word). Its words for people say something else."""
    told = tuple(PeerRefusal(peer=peer, reason=word, message=f"{word}; said so (HTTP 502)") for peer, word in refusals)
    detail = "c:1: GUARD_HELD (x); c:2: NO_ANSWER (y)"
    ended = {"outcome": RoundOutcome.FAILED, "reason": reason, "detail": detail, "refusals": told, "committed": False}
    return report().model_copy(update=ended)


@pytest.mark.parametrize(
    ("reason", "refusals", "excuse"),
    [
        (RoundReason.GUARD_REFUSED, [("a:1", "GUARD_HELD")], RebuildExcuse.GUARD_LOST),
        (RoundReason.GUARD_LOST, [("a:1", "GUARD_HELD")], RebuildExcuse.GUARD_LOST),
        (RoundReason.GUARD_REFUSED, [("a:1", "OLD_GENERATION")], None),
        (RoundReason.GUARD_REFUSED, [("a:1", "JOURNAL"), ("b:1", "GUARD_HELD")], RebuildExcuse.GUARD_LOST),
        (RoundReason.GUARD_LOST, [("a:1", "VERDICT_KNOWN")], None),
        (RoundReason.APPLY_REFUSED, [("a:1", "ENGINE_REFUSED")], RebuildExcuse.ENGINE_REFUSED),
        (RoundReason.APPLY_REFUSED, [("a:1", "GUARD_HELD")], RebuildExcuse.GUARD_LOST),
        (RoundReason.APPLY_REFUSED, [("a:1", "LEASE_TOO_SHORT")], None),
        (RoundReason.APPLY_REFUSED, [("a:1", "BODY_DIFFERS"), ("b:1", "NO_ANSWER")], None),
        (RoundReason.APPLY_REFUSED, [("a:1", "REFUSED_CONNECTION")], RebuildExcuse.DEADLINE),
        (RoundReason.NOT_READY_IN_TIME, [], RebuildExcuse.DEADLINE),
        (RoundReason.PORT_FAILED, [], None),
    ],
)
def test_refused_round_excuses_a_rebuild_by_what_its_peers_said(
    reason: RoundReason, refusals: list[tuple[str, str]], excuse: RebuildExcuse | None
) -> None:
    assert rebuild_excuse(refused_round(reason, *refusals)) is excuse


def test_every_way_to_be_silent_is_known() -> None:
    assert set(Silence) == SILENCES


def test_engine_that_answered_for_another_rank_and_was_called_breaks_i14() -> None:
    wrong = EngineLine(rank=2, mono=102.5, event="identity", ids=(3,))
    assert {name.split()[0] for name in red(evidence(lives=lives(rank2=[with_line(survivor(2), wrong)])))} == {"I14"}


def test_silent_rank_that_spoke_again_was_not_dead_any_more() -> None:
    mute = victim().model_copy(update={"lines": victim().lines[:2]})
    silent = evidence().entries[0].model_copy(update={"source": "poll_error", "at": 80.0})
    spoke = silent.model_copy(update={"source": "engine", "status": "healthy", "at": 100.0})
    found = evidence(lives=lives(rank1=[mute]), entries=[silent, spoke, *evidence().entries[1:]])
    assert {name.split()[0] for name in red(found)} == {"I2", "I7"}


def test_check_without_observations_is_not_ok() -> None:
    silent = evidence(lives=lives(rank0=[victim(0)], rank2=[victim(2)], rank3=[victim(3)]))
    check = next(check for check in judge(drill(), silent) if check.name == "removed set")
    assert (check.ok, check.observations, check.detail) == (False, 0, "nothing was observed")
