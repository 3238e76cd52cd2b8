"""The invariants that hold in every run, whatever was killed (acceptance B), as one pure function each.

`check_all(observed)` judges the records of `lab.oracle.observations` and returns one `Judgement` an invariant: how many
records it looked at, and each violation with the records that show it. A judgement without observations is not ok: a
check that saw nothing has proved nothing. A source that was read to its end and held no offending record (an engine log
without an apply) is an observation; so "nothing happened" can be judged too.

I12 (replaying any prefix of a history gives the same commands) needs histories and a replayer: drills judge it by
`workers.replay`, beside these.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Final

from domain.engine import EngineStatus, Instruction
from domain.model import Strict
from lab.oracle.observations import (
    AddressSeen,
    ApplySeen,
    CommitSeen,
    EngineIdSeen,
    Event,
    FastRecoveryFailed,
    GenerationSeen,
    GuardGone,
    GuardSeen,
    Observed,
    OutageSeen,
    PhaseSeen,
    RebuildSeen,
    RecoveredSeen,
    RoundSeen,
    RouteSeen,
    SourceKind,
    StatusSeen,
    VerdictSeen,
    ViewSeen,
)

QUICK_RETURN_SEC: Final = 5.0
"""I17: processes that came back within this time are no reason to rebuild."""

FIRST_SET_SEC: Final = 5.0
"""I6: a restarted Coordinator has announced itself and taken a SET this long after its start."""

LAST_LOOK_MARGIN_SEC: Final = 2.0
"""I2, I7: what was seen of a rank later than this before an apply may have been after the round's last look."""

_SERVING_PHASES: Final = frozenset({"NORMAL", "SCALED_DOWN_RUNNING"})


class Invariant(StrEnum):
    I1 = "I1"
    I2 = "I2"
    I3 = "I3"
    I4 = "I4"
    I5 = "I5"
    I6 = "I6"
    I7 = "I7"
    I8 = "I8"
    I9 = "I9"
    I10 = "I10"
    I11 = "I11"
    I13 = "I13"
    I14 = "I14"
    I15 = "I15"
    I16 = "I16"
    I17 = "I17"


class Violation(Strict):
    """One broken invariant: what is wrong, in words with values, and the records that show it."""

    invariant: Invariant
    what: str
    events: tuple[Event, ...]


class Judgement(Strict):
    """One invariant's verdict over one run."""

    invariant: Invariant
    text: str
    observations: int
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return self.observations > 0 and not self.violations


Fault = tuple[str, tuple[Event, ...]]
Check = Callable[[Observed], tuple[int, Iterable[Fault]]]


def check_all(observed: Observed) -> tuple[Judgement, ...]:
    """Judge every invariant; in the order of acceptance B."""
    return tuple(check(observed, invariant) for invariant in Invariant)


def check(observed: Observed, invariant: Invariant) -> Judgement:
    """Judge one invariant over everything observed."""
    text, judge = _CHECKS[invariant]
    observations, faults = judge(observed)
    violations = tuple(Violation(invariant=invariant, what=what, events=events) for what, events in faults)
    return Judgement(invariant=invariant, text=text, observations=observations, violations=violations)


def violations(judgements: Iterable[Judgement]) -> tuple[Violation, ...]:
    """All violations, in order."""
    return tuple(violation for judgement in judgements for violation in judgement.violations)


def _applies(observed: Observed) -> list[ApplySeen]:
    return list(observed.of(ApplySeen))


def _scale_downs(observed: Observed) -> list[ApplySeen]:
    return [seen for seen in observed.of(ApplySeen) if seen.instruction is Instruction.SCALE_DOWN]


def _looked_at_engines(observed: Observed) -> int:
    return observed.read(SourceKind.ENGINE_LOG) + len(_applies(observed))


def _one_apply_each(observed: Observed) -> tuple[int, Iterable[Fault]]:
    def faults() -> Iterator[Fault]:
        first: dict[tuple[str, int], ApplySeen] = {}
        for seen in _applies(observed):
            earlier = first.setdefault((seen.request_id, seen.engine), seen)
            if earlier is not seen:
                yield f"engine {seen.engine} was called again under {seen.request_id}", (earlier, seen)

    return _looked_at_engines(observed), faults()


def _removed_is_committed_and_dead(observed: Observed) -> tuple[int, Iterable[Fault]]:
    def faults() -> Iterator[Fault]:
        sets: dict[str, ApplySeen] = {}
        for seen in _scale_downs(observed):
            told = sets.setdefault(seen.request_id, seen)
            if told.removed != seen.removed:
                yield (
                    f"{seen.request_id} told its engines different sets: {_list(told.removed)}, {_list(seen.removed)}",
                    (
                        told,
                        seen,
                    ),
                )
            committed = observed.committed(seen.at)
            if missing := committed - seen.removed:
                yield f"committed {_list(missing)} is missing from removed {_list(seen.removed)}", (seen,)
            if alive := seen.removed - committed - _perhaps_dead(observed, seen.at):
                yield f"{_list(alive)} removed without being dead", (seen,)
            if left := _surely_dead(observed, seen.at) - seen.removed:
                yield f"{_list(left)} was dead and is not in removed {_list(seen.removed)}", (seen,)

    return _looked_at_engines(observed), faults()


def _numbers_stay(observed: Observed) -> tuple[int, Iterable[Fault]]:
    views, routes = list(observed.of(ViewSeen)), list(observed.of(RouteSeen))
    homes: list[tuple[int, str, Event]] = [
        (rank, address, view) for view in views for rank, address in view.endpoints.items() if address
    ]
    homes += [(seen.rank, seen.address, seen) for seen in observed.of(AddressSeen)]

    def faults() -> Iterator[Fault]:
        for view in views:
            if foreign := view.endpoints.keys() - observed.original:
                yield f"view holds {_list(foreign)}, which the instance never had", (view,)
        first: dict[int, tuple[str, Event]] = {}
        for rank, address, seen in homes:
            known, earlier = first.setdefault(rank, (address, seen))
            if known != address:
                yield f"rank {rank} moved from {known} to {address}", (earlier, seen)
        for route in routes:
            if route.answered_by is not None and route.answered_by != route.rank:
                yield f"a request routed to rank {route.rank} was answered by rank {route.answered_by}", (route,)

    return len(views) + len(homes) + len(routes), faults()


def _not_committed_early(observed: Observed) -> tuple[int, Iterable[Fault]]:
    phases, commits = list(observed.of(PhaseSeen)), list(observed.of(CommitSeen))

    def faults() -> Iterator[Fault]:
        for seen in phases:
            if early := seen.dead_committed - _committable(observed, seen.at):
                yield f"dead_committed holds {_list(early)} before every survivor recovered", (seen,)
        for commit in commits:
            if early := commit.ranks - _committable(observed, commit.at):
                yield f"{_list(early)} committed before every survivor recovered", (commit,)

    return len(phases) + len(commits), faults()


def _committable(observed: Observed, at: float) -> frozenset[int]:
    """The ranks of each request whose engines have all recovered until then: no commit point can have been earlier."""
    recovered = {(seen.request_id, seen.engine) for seen in observed.of(RecoveredSeen) if seen.at <= at}
    told: dict[str, list[ApplySeen]] = {}
    for seen in _scale_downs(observed):
        told.setdefault(seen.request_id, []).append(seen)
    ranks: frozenset[int] = frozenset()
    for request_id, applies in told.items():
        if all((request_id, seen.engine) in recovered for seen in applies):
            ranks |= frozenset().union(*(seen.removed for seen in applies))
    return ranks


def _committed_is_not_published(observed: Observed) -> tuple[int, Iterable[Fault]]:
    views, commits = list(observed.of(ViewSeen)), list(observed.of(CommitSeen))

    def faults() -> Iterator[Fault]:
        for view in views:
            if back := view.endpoints.keys() & observed.committed(view.at):
                yield f"{view.change} brought {_list(back)} back", (view,)
        for commit in commits:
            for view in _standing_views(views, commit.at):
                if served := view.endpoints.keys() & commit.ranks:
                    yield f"{view.coordinator} still served {_list(served)} when they were committed", (view, commit)

    return len(views), faults()


def _standing_views(views: Iterable[ViewSeen], at: float) -> list[ViewSeen]:
    standing: dict[str, ViewSeen] = {}
    for view in views:
        if view.at <= at:
            standing[view.coordinator] = view
    return list(standing.values())


def _can_serve_is_true(observed: Observed) -> tuple[int, Iterable[Fault]]:
    phases, views = list(observed.of(PhaseSeen)), list(observed.of(ViewSeen))

    def faults() -> Iterator[Fault]:
        for seen in (phase for phase in phases if phase.can_serve):
            if seen.phase not in _SERVING_PHASES:
                yield f"can_serve in phase {seen.phase}", (seen,)
            elif not seen.serving_published:
                yield "can_serve while nothing is published", (seen,)
            elif views and not _published_within(views, seen.asked_at, seen.at) and not _coordinator_was_down(observed, seen):
                yield "can_serve while no Coordinator has an endpoint to route to", (seen,)

    return len(phases), faults()


def _published_within(views: Iterable[ViewSeen], begin: float, end: float) -> bool:
    meanwhile = [view for view in views if begin <= view.at <= end]
    return any(view.endpoints for view in [*_standing_views(views, begin), *meanwhile])


def _coordinator_was_down(observed: Observed, seen: PhaseSeen) -> bool:
    return any(
        outage.process.startswith("coordinator") and outage.at <= seen.at and _routes_again_by(observed, outage) >= seen.asked_at
        for outage in observed.of(OutageSeen)
    )


def _routes_again_by(observed: Observed, outage: OutageSeen) -> float:
    """A Coordinator that comes back routes nothing until its first SET, which it must have soon after it began."""
    if outage.ended_at is None:
        return float("inf")
    back = outage.ended_at
    begun = (view.at for view in observed.of(ViewSeen) if view.at >= back and view.revision is None and not view.endpoints)
    return min(begun, default=back) + FIRST_SET_SEC


def _hardware_adds_nothing(observed: Observed) -> tuple[int, Iterable[Fault]]:
    def faults() -> Iterator[Fault]:
        for seen in _scale_downs(observed):
            if hardware_only := seen.removed - observed.committed(seen.at) - _perhaps_dead(observed, seen.at):
                yield f"{_list(hardware_only)} removed without software evidence of death", (seen,)

    return _looked_at_engines(observed), faults()


def _guards_exclude_each_other(observed: Observed) -> tuple[int, Iterable[Fault]]:
    guards, gone = list(observed.of(GuardSeen)), list(observed.of(GuardGone))

    def faults() -> Iterator[Fault]:
        for guard in guards:
            for other in _live_guards(observed, guard.manager, guard.at):
                if other.request_id != guard.request_id:
                    yield f"{guard.manager} is guarded by {other.request_id} and {guard.request_id} at once", (other, guard)
        for end in gone:
            last = [seen for seen in guards if _same(seen, end) and seen.at <= end.at]
            judged = any(_same(verdict, end) and verdict.at <= end.at for verdict in observed.of(VerdictSeen))
            if last and not judged and end.at < last[-1].expires_at:
                yield f"{end.manager} let go of {end.request_id} without its verdict", (last[-1], end)

    return observed.read(SourceKind.JOURNAL) + len(guards) + len(gone), faults()


def _live_guards(observed: Observed, manager: str, at: float) -> list[GuardSeen]:
    """Each id's last grant before `at`, where neither a verdict nor the expiry had ended it."""
    ended = {verdict.request_id for verdict in observed.of(VerdictSeen) if verdict.manager == manager and verdict.at <= at}
    last = {seen.request_id: seen for seen in observed.of(GuardSeen) if seen.manager == manager and seen.at < at}
    return [seen for seen in last.values() if seen.request_id not in ended and seen.expires_at > at]


def _same(one: GuardSeen | GuardGone | VerdictSeen, other: GuardSeen | GuardGone | VerdictSeen) -> bool:
    return (one.manager, one.request_id) == (other.manager, other.request_id)


def _no_scale_down_after_failed_retry(observed: Observed) -> tuple[int, Iterable[Fault]]:
    failures = list(observed.of(FastRecoveryFailed))

    def faults() -> Iterator[Fault]:
        for failure in failures:
            rebuilt = min((seen.at for seen in observed.of(RebuildSeen) if seen.at >= failure.at), default=float("inf"))
            for seen in _scale_downs(observed):
                if failure.at < seen.at < rebuilt:
                    yield "scale_down after a failed fast recovery", (failure, seen)

    return _looked_at_engines(observed) + len(failures), faults()


def _guards_end(observed: Observed) -> tuple[int, Iterable[Fault]]:
    last: dict[tuple[str, str], GuardSeen] = {(seen.manager, seen.request_id): seen for seen in observed.of(GuardSeen)}

    def faults() -> Iterator[Fault]:
        for guard in last.values():
            judged = any(_same(verdict, guard) for verdict in observed.of(VerdictSeen))
            if not judged and guard.expires_at > observed.ended_at:
                yield f"{guard.request_id} on {guard.manager} has no verdict and still holds", (guard,)

    return observed.read(SourceKind.JOURNAL) + len(last), faults()


def _rounds_end_in_time(observed: Observed) -> tuple[int, Iterable[Fault]]:
    rounds = list(observed.of(RoundSeen))

    def faults() -> Iterator[Fault]:
        for seen in rounds:
            took = (observed.ended_at if seen.ended_at is None else seen.ended_at) - seen.at
            if took > seen.bound_sec:
                ended = "is still running" if seen.ended_at is None else "ended"
                yield f"{seen.request_id} {ended} after {took:.1f} s, its bound is {seen.bound_sec:.1f} s", (seen,)

    return observed.read(SourceKind.JOURNAL) + len(rounds), faults()


def _somebody_survives(observed: Observed) -> tuple[int, Iterable[Fault]]:
    def faults() -> Iterator[Fault]:
        for seen in _scale_downs(observed):
            if not observed.original - seen.removed:
                yield f"apply removes all of {_list(observed.original)}", (seen,)
            elif seen.engine in seen.removed:
                yield f"engine {seen.engine} was told to remove itself", (seen,)

    return _looked_at_engines(observed), faults()


def _identity_before_apply(observed: Observed) -> tuple[int, Iterable[Fault]]:
    identities = list(observed.of(EngineIdSeen))

    def faults() -> Iterator[Fault]:
        for seen in _applies(observed):
            before = [identity for identity in identities if identity.rank == seen.engine and identity.at <= seen.at]
            if not before:
                yield f"endpoint {seen.engine} was called and had never said who it is", (seen,)
            elif before[-1].answered != seen.engine:
                yield f"endpoint {seen.engine} answered as {_engine(before[-1].answered)} and was called", (before[-1], seen)

    return _looked_at_engines(observed) + len(identities), faults()


def _engine(answered: int | None) -> str:
    return "no one engine" if answered is None else f"engine {answered}"


def _no_route_to_committed(observed: Observed) -> tuple[int, Iterable[Fault]]:
    routes = list(observed.of(RouteSeen))

    def faults() -> Iterator[Fault]:
        for route in routes:
            if route.rank in observed.committed(route.at):
                yield f"a request was routed to committed rank {route.rank}", (route,)

    return len(routes), faults()


def _counters_never_go_back(observed: Observed) -> tuple[int, Iterable[Fault]]:
    generations = list(observed.of(GenerationSeen))
    views = [view for view in observed.of(ViewSeen) if view.revision is not None]

    def faults() -> Iterator[Fault]:
        for receiver in {seen.receiver for seen in generations}:
            own = [seen for seen in generations if seen.receiver == receiver]
            for earlier, later in pairwise(own):
                if later.generation < earlier.generation:
                    what = f"{receiver} went from generation {earlier.generation} back to {later.generation}"
                    yield what, (earlier, later)
        for coordinator in {view.coordinator for view in views}:
            taken = [view for view in views if view.coordinator == coordinator]
            for old, new in pairwise(taken):
                if (new.revision or 0) < (old.revision or 0):
                    yield f"{coordinator} went from revision {old.revision} back to {new.revision}", (old, new)

    return len(generations) + len(views), faults()


def _no_needless_rebuild(observed: Observed) -> tuple[int, Iterable[Fault]]:
    rebuilds, statuses = list(observed.of(RebuildSeen)), list(observed.of(StatusSeen))

    def faults() -> Iterator[Fault]:
        for rebuild in rebuilds:
            if not rebuild.gate_allowed or not _complete_set(observed, rebuild.at):
                continue
            since = observed.evidence_since(rebuild.at)
            if _all_back_quickly(observed, since, rebuild.at) and not _excused(observed, since, rebuild.at):
                yield "rebuilt although a complete set of UNHEALTHY and DEAD ranks stood", (rebuild,)

    return observed.read(SourceKind.ENGINE_LOG) + len(rebuilds) + len(statuses), faults()


def _complete_set(observed: Observed, at: float) -> bool:
    committed = observed.committed(at)
    active = {rank: status for rank, status in observed.statuses(at).items() if rank not in committed}
    return set(active.values()) == {EngineStatus.DEAD, EngineStatus.UNHEALTHY}


def _all_back_quickly(observed: Observed, since: float, at: float) -> bool:
    """No process of ours that was away while this evidence stood was away for long."""
    return all(
        (at if outage.ended_at is None else outage.ended_at) - outage.at <= QUICK_RETURN_SEC
        for outage in observed.of(OutageSeen)
        if outage.at <= at and (outage.ended_at is None or outage.ended_at >= since)
    )


def _excused(observed: Observed, since: float, at: float) -> bool:
    """A round, or a fast recovery, that tried on this very evidence has failed for a reason that excuses a rebuild."""
    rounds = (seen for seen in observed.of(RoundSeen) if seen.excuse is not None)
    return any(since <= seen.at <= at for seen in (*rounds, *observed.of(FastRecoveryFailed)))


def _perhaps_dead(observed: Observed, at: float) -> frozenset[int]:
    """The ranks that were dead at the last look before an apply, whenever that was."""
    return _dead_before(observed, at) | _dead_before(observed, at - LAST_LOOK_MARGIN_SEC)


def _surely_dead(observed: Observed, at: float) -> frozenset[int]:
    return _dead_before(observed, at) & _dead_before(observed, at - LAST_LOOK_MARGIN_SEC)


def _dead_before(observed: Observed, at: float) -> frozenset[int]:
    """The ranks whose last word was their death."""
    return frozenset(rank for rank, status in observed.statuses(at).items() if status is EngineStatus.DEAD)


def _list(ranks: Iterable[int]) -> str:
    return str(sorted(ranks))


_CHECKS: Final[dict[Invariant, tuple[str, Check]]] = {
    Invariant.I1: ("at most one apply per request id and engine, ever", _one_apply_each),
    Invariant.I2: ("removed_dp_ranks = dead_committed and this round's DEAD", _removed_is_committed_and_dead),
    Invariant.I3: ("no rank is renumbered, serving is part of the original ranks", _numbers_stay),
    Invariant.I4: ("a pending rank is not in dead_committed before the commit point", _not_committed_early),
    Invariant.I5: ("after commit no published view holds a committed rank", _committed_is_not_published),
    Invariant.I6: ("can_serve only in a serving phase and with a published view", _can_serve_is_true),
    Invariant.I7: ("hardware alone never adds a rank", _hardware_adds_nothing),
    Invariant.I8: ("no two live guards on one NodeManager; a stale id releases nothing", _guards_exclude_each_other),
    Invariant.I9: ("after a failed fast recovery no scale-down", _no_scale_down_after_failed_retry),
    Invariant.I10: ("every guard gets a verdict or expires", _guards_end),
    Invariant.I11: ("every round ends within its bound", _rounds_end_in_time),
    Invariant.I13: ("at least one survivor whenever apply is sent", _somebody_survives),
    Invariant.I14: ("engine id other than endpoint id: no apply", _identity_before_apply),
    Invariant.I15: ("no request is routed to a committed rank after its commit", _no_route_to_committed),
    Invariant.I16: ("generations and view revisions never go back", _counters_never_go_back),
    Invariant.I17: ("no rebuild while a complete set stood and every process came back", _no_needless_rebuild),
}
