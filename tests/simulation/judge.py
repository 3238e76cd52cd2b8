"""What must hold in every world: the invariants over what was seen, and rules about each round's own report.

One world may be too short to show a record of each kind; many together must, or an invariant that was never broken was
never judged either: `not_judged` names those. Three invariants are judged elsewhere, for no round makes what they speak of:

    I9, I17   fast recoveries and rebuilds: `tests/domain/test_instance_life.py` and the drills
    I12       histories: `tests/histories` and the drills
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from domain.messages.node_manager import NodeManagerReason
from domain.messages.strategy import RoundOutcome, RoundReason
from lab.oracle.invariants import Invariant, check_all, violations
from lab.oracle.observations import (
    ApplySeen,
    CommitSeen,
    EngineIdSeen,
    GenerationSeen,
    GuardSeen,
    Observation,
    PhaseSeen,
    RoundSeen,
    RouteSeen,
    StatusSeen,
    VerdictSeen,
    ViewSeen,
)
from tests.simulation.world import Played, RoundPlayed

NEEDS: Mapping[Invariant, tuple[type[Observation], ...]] = {
    Invariant.I1: (ApplySeen,),
    Invariant.I2: (ApplySeen, StatusSeen, CommitSeen),
    Invariant.I3: (ViewSeen, RouteSeen),
    Invariant.I4: (PhaseSeen, CommitSeen),
    Invariant.I5: (ViewSeen, CommitSeen),
    Invariant.I6: (PhaseSeen, ViewSeen),
    Invariant.I7: (ApplySeen, StatusSeen),
    Invariant.I8: (GuardSeen, VerdictSeen),
    Invariant.I10: (GuardSeen, VerdictSeen),
    Invariant.I11: (RoundSeen,),
    Invariant.I13: (ApplySeen,),
    Invariant.I14: (EngineIdSeen, ApplySeen),
    Invariant.I15: (RouteSeen, CommitSeen),
    Invariant.I16: (GenerationSeen, ViewSeen),
}
"""What each invariant is judged on here."""


OLD_FOR_NOBODY: Final = "called the round's generation old, though it had taken no newer one"


def seen_kinds(played: Played) -> Counter[type[Observation]]:
    """How many records of each kind this world gave."""
    return Counter(type(event) for event in played.observed.events)


def not_judged(seen: Counter[type[Observation]]) -> list[str]:
    """Which invariants were given no record of a kind that they need, in all worlds together."""
    return [f"{invariant}: no {kind.__name__}" for invariant, kinds in NEEDS.items() for kind in kinds if not seen[kind]]


def judge(played: Played) -> list[str]:
    """Everything that is wrong with this world; empty if nothing is."""
    found = [f"{v.invariant}: {v.what}" for v in violations(check_all(played.observed))]
    found += [f"guard left on {name}" for name in played.guards_left]
    found += [f"{name} never took the newest view" for name in played.not_converged]
    ordered = {this.order.request_id for this in played.rounds}
    foreign = sorted({a.request_id for a in played.observed.of(ApplySeen)} - ordered)
    found += [f"an engine was called under {request_id}, which no round has" for request_id in foreign]
    for number, round_played in enumerate(played.rounds, start=1):
        found += [f"round {number}: {what}" for what in _round_faults(played, round_played)]
    return found


def _round_faults(played: Played, this: RoundPlayed) -> Iterator[str]:
    report, order = this.report, this.order
    applies = [a for a in played.observed.of(ApplySeen) if a.request_id == order.request_id]
    told = {str(manager): played.verdicts.get((str(manager), order.request_id)) for manager in order.topology.managers}
    committed_at = sorted(name for name, verdict in told.items() if verdict is True)
    aborted_at = sorted(name for name, verdict in told.items() if verdict is False)
    if (report.outcome is RoundOutcome.SUCCEEDED) != report.committed:
        yield f"{report.outcome} with committed={report.committed}"
    if committed_at and aborted_at:
        yield f"committed at {committed_at} and aborted at {aborted_at}"
    if report.committed and aborted_at:
        yield f"committed, but aborted at {aborted_at}"
    if not report.committed and committed_at:
        yield f"{report.outcome}, but committed at {committed_at}"
    if not report.committed and report.dead_committed != order.dead_committed:
        yield f"{report.outcome}, but dead_committed became {report.dead_committed}"
    if this.removed_alive:
        yield f"ranks {list(this.removed_alive)} were removed though they live and answer"
    for refusal in report.refusals:
        if refusal.reason == NodeManagerReason.OLD_GENERATION and not _newer_was_taken(played, this, refusal.peer):
            yield f"{refusal.peer} {OLD_FOR_NOBODY}"
    if report.committed and frozenset(report.survivors) != this.members_after:
        yield f"committed survivors {report.survivors}, but the engines step together as {sorted(this.members_after)}"
    if any(apply.removed != frozenset(report.removed_dp_ranks) for apply in applies):
        yield f"engines were told other sets than {report.removed_dp_ranks}"
    if any(apply.engine not in report.survivors for apply in applies):
        yield "an engine was told to shrink that is no survivor"
    if report.outcome is RoundOutcome.ABANDONED and report.withdrawn:
        yield "abandoned after it had withdrawn the view"
    revision = order.view_revision
    if not report.withdrawn and any((view.revision or 0) > revision for view in _views_during(played, this)):
        yield "a view was pushed by a round that says it withdrew none"
    if report.withdrawn and applies and not _del_came_first(played, this, applies):
        yield "apply was sent before every Coordinator had stopped routing"
    if played.scenario.calm and report.outcome is not RoundOutcome.SUCCEEDED and not _too_few(this):
        yield f"nothing went wrong, and yet: {report.outcome} {report.reason} {report.detail}"


def _newer_was_taken(played: Played, this: RoundPlayed, manager: str) -> bool:
    taken = (seen.generation for seen in played.observed.of(GenerationSeen) if seen.receiver == manager)
    return max(taken, default=0) > this.order.generation


def _views_during(played: Played, this: RoundPlayed) -> list[ViewSeen]:
    """Views that this round owns: nobody else takes these two revisions."""
    owned = (this.order.view_revision + 1, this.order.view_revision + 2)
    return [view for view in played.observed.of(ViewSeen) if view.revision in owned]


def _del_came_first(played: Played, this: RoundPlayed, applies: list[ApplySeen]) -> bool:
    """At the first apply no Coordinator routes to anything."""
    standing: dict[str, ViewSeen] = {}
    first = min(apply.at for apply in applies)
    for view in played.observed.of(ViewSeen):
        if view.at <= first:
            standing[view.coordinator] = view
    return not any(view.endpoints for view in standing.values())


def _too_few(this: RoundPlayed) -> bool:
    return this.report.reason is RoundReason.GATE_REFUSED and len(this.report.survivors) < this.order.config.min_alive_ranks
