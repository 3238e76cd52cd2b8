"""Judges a run: by what its drill lists, by what every drill is held to, and by the invariants.

Everything is judged over what was recorded outside the Controller. A check names how many observations it judged; one
that had nothing to look at is not ok.
"""

from collections.abc import Iterator
from typing import Final

from lab.drills.check import Check, Seen, check
from lab.drills.drill import Drill
from lab.drills.judge import commands, processes, serving
from lab.drills.outcome import Finding
from lab.drills.record.evidence import Evidence
from lab.oracle.invariants import Invariant, check_all

REPLAYED: Final = "replaying the histories gives the same commands"
"""Whole ones, each workflow task of them; that every prefix replays too is tested in tests/workflows/test_replay.py."""
FEATURE_INVARIANTS: Final = frozenset({Invariant.I4, Invariant.I6, Invariant.I8, Invariant.I10, Invariant.I11})
"""These are seen in journals, guards and the runtime record, none of which is there while the feature is off."""


def judge(drill: Drill, evidence: Evidence) -> tuple[Finding, ...]:
    """All that must hold: the checks first, then the invariants."""
    unseen = frozenset() if drill.can_scale_down else FEATURE_INVARIANTS
    return (*(each.find(evidence) for each in checks_of(drill)), *_invariants(evidence, unseen))


def checks_of(drill: Drill) -> tuple[Check, ...]:
    """What is judged of a drill besides the invariants, its own checks in the middle."""
    return (*_by_its_end(drill), *drill.checks, *_by_its_clients(drill), histories_exported(), processes.nothing_left())


def listing(drill: Drill) -> str:
    """All that must hold, for people: each check with what it was told and what it means, and the invariants."""
    lines = [f"  {each}: {each.meaning}" for each in checks_of(drill)]
    unseen = () if drill.can_scale_down else sorted(FEATURE_INVARIANTS, key=list(Invariant).index)
    without = f" but {', '.join(unseen)}, which only the feature shows" if unseen else ""
    return "\n".join([*lines, f"  and the invariants I1–I17{without}"])


def _by_its_end(drill: Drill) -> Iterator[Check]:
    """What follows from the end that the drill has: who serves, which engines, which processes have left."""
    end = drill.end
    if end.losses:
        yield from commands.shrunk(*end.losses)
    yield serving.committed(end.gone) if drill.can_scale_down else serving.routes_are_off()
    yield serving.published(end.gone)
    yield serving.completion_on_each(end.gone)
    yield serving.engines_renewed() if end.rebuilt else serving.engines_kept(end.gone)
    if end.gone:
        yield serving.stay_gone(end.gone)
    yield processes.nobody_else_ended(processes.pods(drill.spec) if end.rebuilt else end.leaving)


def _by_its_clients(drill: Drill) -> Iterator[Check]:
    if drill.traffic and drill.undisturbed:
        yield serving.requests_go_on(drill.undisturbed)
    elif drill.traffic:
        yield serving.requests_after_recovery()
        yield serving.clients_reach_each(drill.end.gone)


@check("histories")
def histories_exported(evidence: Evidence) -> Seen:
    """The bundle holds every workflow's history, and each round that ended has told its report."""
    faults = [f"not read: {what}" for what in evidence.unread]
    return Seen(len(evidence.workflows), faults, f"{len(evidence.workflows)} workflow runs")


def _invariants(evidence: Evidence, unseen: frozenset[Invariant]) -> Iterator[Finding]:
    """I1–I17 over the whole run, without `unseen`; I12 over its exported histories."""
    for judgement in check_all(evidence.observed):
        if judgement.invariant in unseen:
            continue
        if judgement.invariant is Invariant.I13:
            replay, unread = evidence.replay, [f"not read, not replayed: {what}" for what in evidence.unread]
            yield Finding.of(
                f"I12 {REPLAYED}", replay.tasks, [*replay.faults, *unread], "each workflow task gave the same commands"
            )
        faults = [violation.what for violation in judgement.violations]
        yield Finding.of(f"{judgement.invariant} {judgement.text}", judgement.observations, faults, "holds")
