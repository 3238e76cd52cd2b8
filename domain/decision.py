"""What to do about an instance: one pure function over evidence, situation, topology, configuration and time.

`decide` goes through the rules of design §3 in their order; the first that matches gives the `Decision`, with the reason as
an enum and, where it waits, until when and what comes then. It has no clock and no memory: called twice with the same
arguments it says the same, so it may be called as often as anybody likes, and each rule is a row in a table of tests.

Rules 3, 4 and 9 and the other half of rule 5 judge hardware faults; they will stand in `RULES` at their place.

Whatever ends in a rebuild passes `_rebuild`, which keeps the budget: so many rebuilds within the window, with growing
pauses; once it is spent the instance stays withdrawn until a person orders one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from domain.config import FaultToleranceConfig
from domain.engine import EngineStatus
from domain.evidence import Evidence
from domain.model import Rank, Strict
from domain.topology import NodeManagerAddress, Topology

ABANDONED_ROUNDS_ALLOWED: Final = 3
"""Rounds that may be abandoned within the budget's window before the instance is rebuilt instead."""

FIRST_BACK_OFF_SEC: Final = 5.0
"""The pause before the second rebuild of a window; it doubles with each further one."""


class Action(StrEnum):
    NOTHING = "nothing"
    KEEP = "keep"  # a strategy runs: the evidence waits for its end
    WAIT = "wait"  # until `Decision.until`
    FRESH_LOOK = "fresh_look"  # ask the engines, once, before giving up on complete evidence
    SCALE_DOWN = "scale_down"  # a ScaleDownRound that removes `Decision.ranks`
    RECONFIGURE = "reconfigure"  # InstanceReconfiguration
    PREEMPT = "preempt"  # stop the running strategy, and decide again when it has ended
    STAY_WITHDRAWN = "stay_withdrawn"  # the budget is spent; a person has to order the next rebuild


class DecisionReason(StrEnum):
    """Why. One reason belongs to one rule or to the budget."""

    FORCED = "FORCED"  # a person ordered a rebuild, whatever the budget says
    ORDERED = "ORDERED"  # a person ordered one within the budget
    ROUND_FAILED = "ROUND_FAILED"  # a scale-down round ended in failure
    REBUILD_FAILED = "REBUILD_FAILED"  # so did a rebuild
    STRATEGY_LOST = "STRATEGY_LOST"  # a strategy ended without a word: what it did is not known
    IN_DOUBT = "IN_DOUBT"  # the FaultManager began without memory over an instance in an unclear state
    FEATURE_OFF = "FEATURE_OFF"  # rule 1: the original strategy
    STRATEGY_RUNS = "STRATEGY_RUNS"  # rule 2
    NOT_ACTIVE = "NOT_ACTIVE"  # rule 5: a fault in an instance that was never complete
    ALL_UNHEALTHY = "ALL_UNHEALTHY"  # rule 6: nobody is known dead, and fast recovery does not apply
    ALL_DEAD = "ALL_DEAD"  # rule 7
    COMPLETE = "COMPLETE"  # rule 8: dead and unhealthy ranks together are the whole active group
    ABANDONED_TOO_OFTEN = "ABANDONED_TOO_OFTEN"  # rule 8: rounds keep finding the dead alive
    INCOMPLETE = "INCOMPLETE"  # rule 10
    NODE_MANAGER_LOST = "NODE_MANAGER_LOST"  # rule 11
    NO_EVIDENCE = "NO_EVIDENCE"  # rule 11: nothing is wrong
    BACK_OFF = "BACK_OFF"  # the next rebuild has to wait a moment
    BUDGET_SPENT = "BUDGET_SPENT"


class Decision(Strict):
    """`ranks`: what a round removes. `until` (epoch seconds) and `then`: where it waits, until when and what comes then."""

    action: Action
    reason: DecisionReason
    detail: str = ""
    ranks: tuple[Rank, ...] = ()
    until: float | None = None
    then: str = ""


class Situation(Strict):
    """What a decision depends on beside the evidence. Times are epoch seconds.

    `strategy_runs` with `preemptible`: a round before its commit point. `owed`: the rebuild that an ended strategy, a lost
    memory or a person left behind, whatever the evidence says now. `looked_for`: the `Evidence.first_fault_at` for which
    the fresh look has been taken. `rebuilt_at`: when the rebuilds of the window began; `rebuild_ended_at`: the last end.
    """

    dead_committed: tuple[Rank, ...] = ()
    rebuilding: bool = False
    strategy_runs: bool = False
    preemptible: bool = False
    owed: DecisionReason | None = None
    owed_detail: str = ""
    looked_for: float | None = None
    abandoned_at: tuple[float, ...] = ()
    rebuilt_at: tuple[float, ...] = ()
    rebuild_ended_at: float | None = None
    budget_spent: bool = False
    lost_node_managers: tuple[NodeManagerAddress, ...] = ()


@dataclass(frozen=True)
class Case:
    """One call of `decide`: its arguments, and the sets that the rules speak of."""

    evidence: Evidence
    situation: Situation
    topology: Topology
    config: FaultToleranceConfig
    now: float

    @cached_property
    def active(self) -> tuple[int, ...]:
        """original − dead_committed."""
        return tuple(rank for rank in self.topology.ranks if rank not in self.situation.dead_committed)

    @cached_property
    def dead(self) -> tuple[int, ...]:
        """D = DEAD ∩ active."""
        return self.evidence.standing(EngineStatus.DEAD, self.active)

    @cached_property
    def unhealthy(self) -> tuple[int, ...]:
        """U = UNHEALTHY ∩ active."""
        return self.evidence.standing(EngineStatus.UNHEALTHY, self.active)

    @property
    def has_evidence(self) -> bool:
        return bool(self.dead or self.unhealthy)

    def within_window(self, times: tuple[float, ...]) -> int:
        """How many of these times lie within the budget's window."""
        return sum(1 for at in times if at > self.now - self.config.reconfiguration_window_sec)


Rule = Callable[[Case], Decision | None]


def decide(evidence: Evidence, situation: Situation, topology: Topology, config: FaultToleranceConfig, now: float) -> Decision:
    """The first rule of design §3 that matches, at `now` (epoch seconds). Pure; never raises."""
    case = Case(evidence, situation, topology, config, now)
    for rule in RULES:
        decision = rule(case)
        if decision is not None:
            return decision
    return Decision(action=Action.NOTHING, reason=DecisionReason.NO_EVIDENCE)


def _person_forces(case: Case) -> Decision | None:
    """A forced rebuild passes the budget, and pre-empts a round that has not committed yet (rule 2's exception)."""
    if case.situation.owed is not DecisionReason.FORCED:
        return None
    if not case.situation.strategy_runs:
        why = case.situation.owed_detail or "ordered by a person"
        return Decision(action=Action.RECONFIGURE, reason=DecisionReason.FORCED, detail=why)
    if case.situation.preemptible:
        return Decision(
            action=Action.PREEMPT,
            reason=DecisionReason.FORCED,
            detail="a person ordered a rebuild; the running strategy is stopped first",
            then="the instance is rebuilt when the strategy has ended",
        )
    return None


def _rebuild_is_owed(case: Case) -> Decision | None:
    """What an ended strategy or a lost memory left behind; later evidence does not lift it."""
    if case.situation.owed is None or case.situation.strategy_runs:
        return None
    return _rebuild(case, case.situation.owed, case.situation.owed_detail)


def _rule_1_feature_off(case: Case) -> Decision | None:
    """Feature off: the original strategy for a software fault. EngineRelaunch is not there yet, so the instance is rebuilt."""
    if case.config.enable_dp_scale_down_proxy or case.situation.strategy_runs or not case.has_evidence:
        return None
    return _rebuild(case, DecisionReason.FEATURE_OFF, _faults(case))


def _rule_2_strategy_runs(case: Case) -> Decision | None:
    if not case.situation.strategy_runs:
        return None
    return Decision(action=Action.KEEP, reason=DecisionReason.STRATEGY_RUNS, then="what has been reported is judged at its end")


def _rule_5_not_active(case: Case) -> Decision | None:
    """A fault in an instance that is not ACTIVE: there is no group that could shrink."""
    missing = case.evidence.not_yet_ready(case.active)
    if not case.has_evidence or not (missing or case.situation.rebuilding):
        return None
    return _rebuild(case, DecisionReason.NOT_ACTIVE, f"{_faults(case)}; never ready so far: {list(missing)}")


def _rule_6_all_unhealthy(case: Case) -> Decision | None:
    """Everybody noticed a fault and nobody is known dead: nobody may be guessed. Fast recovery does not apply yet."""
    if case.dead or set(case.unhealthy) != set(case.active):
        return None
    return _collect(case, DecisionReason.ALL_UNHEALTHY)


def _rule_7_all_dead(case: Case) -> Decision | None:
    if not case.dead or set(case.dead) != set(case.active):
        return None
    return _rebuild(case, DecisionReason.ALL_DEAD, "every active rank is dead")


def _rule_8_complete(case: Case) -> Decision | None:
    """D ≠ ∅, U ≠ ∅, D ∪ U = active: shed the dead."""
    if not (case.dead and case.unhealthy) or {*case.dead, *case.unhealthy} != set(case.active):
        return None
    abandoned = case.within_window(case.situation.abandoned_at)
    if abandoned >= ABANDONED_ROUNDS_ALLOWED:
        return _rebuild(case, DecisionReason.ABANDONED_TOO_OFTEN, f"{abandoned} rounds found a dead rank alive")
    return Decision(action=Action.SCALE_DOWN, reason=DecisionReason.COMPLETE, ranks=case.dead, detail=_faults(case))


def _rule_10_incomplete(case: Case) -> Decision | None:
    if not case.has_evidence:
        return None
    return _collect(case, DecisionReason.INCOMPLETE)


def _rule_11_node_manager_lost(case: Case) -> Decision | None:
    """Only a lost heartbeat: lifecycle, not removal evidence. Only Pods with active ranks count."""
    lost = [manager for manager in case.situation.lost_node_managers if set(case.topology.ranks_of(manager)) & set(case.active)]
    if not lost:
        return None
    return _rebuild(case, DecisionReason.NODE_MANAGER_LOST, f"no heartbeat and no answer from {', '.join(map(str, lost))}")


RULES: Final[tuple[Rule, ...]] = (
    _person_forces,
    _rebuild_is_owed,
    _rule_1_feature_off,
    _rule_2_strategy_runs,
    _rule_5_not_active,
    _rule_6_all_unhealthy,
    _rule_7_all_dead,
    _rule_8_complete,
    _rule_10_incomplete,
    _rule_11_node_manager_lost,
)


def _collect(case: Case, reason: DecisionReason) -> Decision:
    """Wait for more; when the collection time is over look once at the engines themselves, and only then rebuild."""
    first = case.evidence.first_fault_at(case.active)
    since = first if first is not None else case.now
    until = since + case.config.software_collection_timeout_sec
    if case.now < until:
        return Decision(
            action=Action.WAIT,
            reason=reason,
            detail=_faults(case),
            until=until,
            then="one fresh look at the engines; if it completes nothing and clears nothing, the instance is rebuilt",
        )
    if case.situation.looked_for != since:
        return Decision(action=Action.FRESH_LOOK, reason=reason, detail=_faults(case), then="what is seen is decided on at once")
    return _rebuild(
        case, reason, f"still so after {case.config.software_collection_timeout_sec:g} s and a fresh look: {_faults(case)}"
    )


def _rebuild(case: Case, reason: DecisionReason, detail: str = "") -> Decision:
    """A rebuild within the budget: at once, after a pause, or not any more."""
    used, allowed = case.within_window(case.situation.rebuilt_at), case.config.reconfiguration_budget
    if case.situation.budget_spent or used >= allowed:
        return Decision(
            action=Action.STAY_WITHDRAWN,
            reason=DecisionReason.BUDGET_SPENT,
            detail=f"{reason}: {detail}" if detail else str(reason),
            then=f"a person has to look: {allowed} rebuilds in {case.config.reconfiguration_window_sec:g} s did not help; "
            f"`autotomy instance reconfigure {case.topology.instance_id} --force` orders the next one",
        )
    pause = FIRST_BACK_OFF_SEC * 2 ** (used - 1) if used else 0.0
    not_before = (case.situation.rebuild_ended_at or 0.0) + pause
    if case.now < not_before:
        why = f"{reason}; rebuild {used + 1} of {allowed}"
        return Decision(
            action=Action.WAIT, reason=DecisionReason.BACK_OFF, detail=why, until=not_before, then="the instance is rebuilt"
        )
    return Decision(action=Action.RECONFIGURE, reason=reason, detail=detail)


def _faults(case: Case) -> str:
    silent = [rank for rank in case.active if rank not in case.dead and rank not in case.unhealthy]
    words = [f"dead: {list(case.dead)}", f"unhealthy: {list(case.unhealthy)}"]
    return ", ".join([*words, f"without a fault: {silent}"] if silent else words)
