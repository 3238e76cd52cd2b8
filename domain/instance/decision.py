"""What to do about an instance: one pure function over evidence, situation, topology, configuration and time.

`decide` goes through the rules of design §3 in their order; the first that matches gives the `Decision`, with the reason as
an enum and, where it waits, until when and what comes then. It has no clock and no memory: called twice with the same
arguments it says the same, so it may be called as often as anybody likes, and each rule is a row in a table of tests.

Two things are said beside the rule's own word, because they do not depend on which rule matched: hardware faults that
concern no active rank are to be marked as handled (rule 4), and whether the view has to be withdrawn meanwhile.

Whatever ends in a rebuild passes `_rebuild`, which keeps the budget: so many rebuilds within the window, with growing
pauses; once it is spent the instance stays withdrawn until a person orders one.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from domain.config import FaultToleranceConfig
from domain.instance.evidence import Evidence
from domain.instance.situation import Case, DecisionReason, Situation
from domain.model import Rank, Strict
from domain.round.gate import retry_gate
from domain.topology import Role, Topology

__all__ = [
    "ABANDONED_ROUNDS_ALLOWED",
    "FIRST_BACK_OFF_SEC",
    "RULES",
    "Action",
    "Decision",
    "DecisionReason",
    "Situation",
    "decide",
]

ABANDONED_ROUNDS_ALLOWED: Final = 3
"""How often an abandoned round is followed by a new decision within the budget's window; the next one ends in a rebuild."""

FIRST_BACK_OFF_SEC: Final = 5.0
"""The pause before the second rebuild of a window; it doubles with each further one, up to the window."""


class Action(StrEnum):
    NOTHING = "nothing"
    KEEP = "keep"  # a strategy runs: the evidence waits for its end
    WAIT = "wait"  # until `Decision.until`
    FRESH_LOOK = "fresh_look"  # ask the engines, once, before giving up on complete evidence
    WAKE = "wake"  # one completion to each of `Decision.ranks`, once, so that idle engines notice
    SCALE_DOWN = "scale_down"  # a ScaleDownRound that removes `Decision.ranks`
    FAST_RECOVERY = "fast_recovery"  # the engines' own `retry`, all of them
    TOKEN_REINFERENCE = "token_reinference"  # wait until `Decision.ranks` have healed by themselves
    ENGINE_RELAUNCH = "engine_relaunch"
    SCALE_P2D = "scale_p2d"
    RECONFIGURE = "reconfigure"  # InstanceReconfiguration
    PREEMPT = "preempt"  # stop the running strategy, and decide again when it has ended
    STAY_WITHDRAWN = "stay_withdrawn"  # the budget is spent; a person has to order the next rebuild


class Decision(Strict):
    """`ranks`: what the action is about. `until` (epoch seconds) and `then`: where it waits, until when and what comes then.

    `handled`: keys of hardware faults that need no action (rule 4). `isolated`: an L3 stands, nothing may be published.
    `withdraw`: the view has to be withdrawn meanwhile, for that or for another reason.
    """

    action: Action
    reason: DecisionReason
    detail: str = ""
    ranks: tuple[Rank, ...] = ()
    until: float | None = None
    then: str = ""
    handled: tuple[str, ...] = ()
    isolated: bool = False
    withdraw: bool = False


Rule = Callable[[Case], Decision | None]


def decide(evidence: Evidence, situation: Situation, topology: Topology, config: FaultToleranceConfig, now: float) -> Decision:
    """The first rule of design §3 that matches, at `now` (epoch seconds). Pure; never raises."""
    case = Case(evidence, situation, topology, config, now)
    decision = next((found for rule in RULES if (found := rule(case)) is not None), _nothing(case))
    beside = {"handled": tuple(fault.key for fault in case.removed_only), "isolated": bool(case.isolating)}
    return decision.model_copy(update={**beside, "withdraw": _must_withdraw(case)})


def _person_forces(case: Case) -> Decision | None:
    """A forced rebuild passes the budget, and pre-empts what may still be stopped (rule 2's exception)."""
    if case.situation.owed is not DecisionReason.FORCED:
        return None
    if not case.situation.strategy_runs:
        why = case.situation.owed_detail or "ordered by a person"
        return Decision(action=Action.RECONFIGURE, reason=DecisionReason.FORCED, detail=why)
    if case.situation.preemptible:
        return _preempt(DecisionReason.FORCED, "a person ordered a rebuild")
    return None


def _rebuild_is_owed(case: Case) -> Decision | None:
    """What an ended strategy or a lost memory left behind; later evidence does not lift it."""
    if case.situation.owed is None or case.situation.strategy_runs:
        return None
    return _rebuild(case, case.situation.owed, case.situation.owed_detail)


def _rule_1_feature_off(case: Case) -> Decision | None:
    """Feature off: the original strategies, and nothing else but rule 11. One strategy at a time holds all the same."""
    if case.config.enable_dp_scale_down_proxy or case.situation.strategy_runs:
        return None
    if case.healing:
        return _reinference(case)
    if case.hardware:
        return _original_for_hardware(case, DecisionReason.FEATURE_OFF_HARDWARE, _listed(case.hardware))
    if case.has_software:
        return _original_for_software(case)
    return None


def _rule_2_strategy_runs(case: Case) -> Decision | None:
    """Evidence waits for the strategy's end; only hardware that cannot be mapped, or a person, ends one early."""
    if not case.situation.strategy_runs:
        return None
    if case.unmappable and case.situation.preemptible:
        return _preempt(DecisionReason.UNMAPPABLE_PREEMPTS, _listed(case.unmappable))
    return Decision(action=Action.KEEP, reason=DecisionReason.STRATEGY_RUNS, then="what has been reported is judged at its end")


def _rule_3_token_reinference(case: Case) -> Decision | None:
    return _reinference(case) if case.healing else None


def _rule_4_removed_ranks(case: Case) -> Decision | None:
    """Hardware that concerns no active rank is dropped (`Decision.handled`); it alone is the reason where nothing else is."""
    anything = case.has_software or case.hardware or case.isolating or case.situation.lost_node_managers
    if not case.removed_only or anything:
        return None
    return Decision(action=Action.NOTHING, reason=DecisionReason.REMOVED_RANKS_ONLY, detail=_listed(case.removed_only))


def _rule_5_no_group_or_no_mapping(case: Case) -> Decision | None:
    """A fault that cannot be mapped, or an instance that is not ACTIVE: no group could shrink, nothing can correlate."""
    if case.unmappable:
        return _original_for_hardware(case, DecisionReason.UNMAPPABLE_HARDWARE, _listed(case.unmappable))
    if case.is_active or not (case.has_software or case.hardware):
        return None
    if case.hardware:
        return _original_for_hardware(case, DecisionReason.NOT_ACTIVE, _listed(case.hardware))
    why = f"{_faults(case)}; never ready so far: {list(case.evidence.not_yet_ready(case.active))}"
    return _rebuild(case, DecisionReason.NOT_ACTIVE, why)


def _rule_6_all_unhealthy(case: Case) -> Decision | None:
    """Everybody noticed a fault and nobody is known dead: the engines may retry, or one waits; nobody is guessed."""
    if case.dead or set(case.unhealthy) != set(case.active):
        return None
    topology = case.topology
    if retry_gate(case.config, topology.ft_capability, capability_consistent=topology.ft_capability_consistent).allowed:
        return Decision(action=Action.FAST_RECOVERY, reason=DecisionReason.FAST_RECOVERY, detail=_faults(case), ranks=case.active)
    return _collect(case, DecisionReason.ALL_UNHEALTHY)


def _rule_7_all_dead(case: Case) -> Decision | None:
    if not case.dead or set(case.dead) != set(case.active):
        return None
    return _rebuild(case, DecisionReason.ALL_DEAD, "every active rank is dead")


def _rule_8_complete(case: Case) -> Decision | None:
    """D ≠ ∅, U ≠ ∅, D ∪ U = active: shed the dead, unless hardware that came first speaks of somebody else."""
    if not (case.dead and case.unhealthy) or {*case.dead, *case.unhealthy} != set(case.active):
        return None
    if case.hardware_came_first and not set(case.mapped(case.hardware)) <= set(case.dead):
        return None
    if len(case.unhealthy) < case.config.min_alive_ranks:
        why = f"{len(case.unhealthy)} ranks would be left, min_alive_ranks is {case.config.min_alive_ranks}"
        return _rebuild(case, DecisionReason.TOO_FEW_SURVIVORS, why)
    abandoned = case.within_window(case.situation.abandoned_at)
    if abandoned > ABANDONED_ROUNDS_ALLOWED:
        return _rebuild(case, DecisionReason.ABANDONED_TOO_OFTEN, f"{abandoned} rounds found a dead rank alive")
    return Decision(action=Action.SCALE_DOWN, reason=DecisionReason.COMPLETE, ranks=case.dead, detail=_faults(case))


def _rule_9_hardware_first(case: Case) -> Decision | None:
    """Hardware came first: the engines have so long to perceive it; without that the evidence is not of one fault.

    Within the window the collection of software evidence may end first; then rule 10 has the word.
    """
    faults = tuple(fault for fault in case.hardware if fault not in case.node_losses)
    if not faults or not case.hardware_came_first:
        return None
    window_sec = case.config.hardware_ft_correlation_window_sec
    deadline = faults[0].received_at + window_sec
    if _perceived(case, case.mapped(faults), deadline):
        return None
    if case.now >= deadline:
        why = f"within {window_sec:g} s the engines perceived nothing of {_listed(faults)}; {_faults(case)}"
        return _rebuild(case, DecisionReason.HARDWARE_NOT_PERCEIVED, why)
    collected = _collected_at(case)
    if collected is not None and collected <= case.now:
        return None
    return Decision(
        action=Action.WAIT,
        reason=DecisionReason.HARDWARE_FIRST,
        detail=f"{_listed(faults)}; {_faults(case)}",
        until=deadline if collected is None else min(deadline, collected),
        then="unless its ranks are reported dead, or all ranks unhealthy, the instance is rebuilt",
    )


def _perceived(case: Case, mapped: tuple[int, ...], deadline: float) -> bool:
    """Every mapped rank was reported DEAD by then, or every active one UNHEALTHY; by receipt, whenever it is judged."""
    known = case.evidence.of
    deaths = [known(rank).first_dead_at for rank in mapped]
    notices = [known(rank).first_unhealthy_at for rank in case.active]
    return _all_by(deaths, deadline) or _all_by(notices, deadline)


def _all_by(times: list[float | None], deadline: float) -> bool:
    return all(at is not None and at <= deadline for at in times)


def _rule_10_incomplete(case: Case) -> Decision | None:
    if case.has_software:
        asleep = case.config.wake_idle_survivors and case.dead and not case.unhealthy
        if asleep and case.situation.woken_for != case.collecting_since:
            return _wake(case)
        return _collect(case, DecisionReason.INCOMPLETE)
    return _collect(case, DecisionReason.NODE_LOSS) if case.node_losses else None


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
    _rule_3_token_reinference,
    _rule_4_removed_ranks,
    _rule_5_no_group_or_no_mapping,
    _rule_6_all_unhealthy,
    _rule_7_all_dead,
    _rule_8_complete,
    _rule_9_hardware_first,
    _rule_10_incomplete,
    _rule_11_node_manager_lost,
)


def _nothing(case: Case) -> Decision:
    """Nothing to start; an L3 may keep the instance withdrawn all the same."""
    if not case.isolating:
        return Decision(action=Action.NOTHING, reason=DecisionReason.NO_EVIDENCE)
    return Decision(
        action=Action.NOTHING,
        reason=DecisionReason.ISOLATED,
        detail=_listed(case.isolating),
        then="the view is published again when the fault is cleared",
    )


def _must_withdraw(case: Case) -> bool:
    """An L3 stands; or an L4–L6 that no round will withdraw for; or the operator wants it at the first fault."""
    deferred = case.config.enable_dp_scale_down_proxy and not case.unmappable
    first_fault = case.config.withdraw_on_first_fault and (case.has_software or bool(case.hardware))
    return bool(case.isolating) or (bool(case.hardware) and not deferred) or first_fault


def _preempt(reason: DecisionReason, why: str) -> Decision:
    return Decision(
        action=Action.PREEMPT,
        reason=reason,
        detail=f"{why}; the running strategy is stopped first",
        then="what comes next is decided when the strategy has ended",
    )


def _reinference(case: Case) -> Decision:
    mapped = case.mapped(case.healing) if all(fault.mappable for fault in case.healing) else case.active
    return Decision(
        action=Action.TOKEN_REINFERENCE, reason=DecisionReason.TOKEN_REINFERENCE, ranks=mapped, detail=_listed(case.healing)
    )


def _original_for_hardware(case: Case, reason: DecisionReason, why: str) -> Decision:
    """The table's row L4–L6: a decode instance would give its work away, every other one is rebuilt."""
    if case.topology.role is Role.DECODE:
        return Decision(action=Action.SCALE_P2D, reason=reason, detail=why)
    return _rebuild(case, reason, why)


def _original_for_software(case: Case) -> Decision:
    """The table's row for software faults; a relaunch that fails ends in a rebuild."""
    if case.config.enable_engine_relaunch:
        return Decision(action=Action.ENGINE_RELAUNCH, reason=DecisionReason.FEATURE_OFF, detail=_faults(case))
    return _rebuild(case, DecisionReason.FEATURE_OFF, _faults(case))


def _wake(case: Case) -> Decision:
    return Decision(
        action=Action.WAKE,
        reason=DecisionReason.WAKE_SURVIVORS,
        ranks=tuple(rank for rank in case.active if rank not in case.dead),
        detail=_faults(case),
        then="survivors that could not notice anything while nothing ran report what they find",
    )


def _collected_at(case: Case) -> float | None:
    """When the collection of software evidence ends; None where nothing is collected."""
    since = case.collecting_since
    return None if since is None else since + case.config.software_collection_timeout_sec


def _collect(case: Case, reason: DecisionReason) -> Decision:
    """Wait for more; when the collection time is over look once at the engines themselves, and only then rebuild."""
    until = _collected_at(case) or case.now
    if case.now < until:
        return Decision(
            action=Action.WAIT,
            reason=reason,
            detail=_faults(case),
            until=until,
            then="one fresh look at the engines; if it completes nothing and clears nothing, the instance is rebuilt",
        )
    if case.situation.looked_for != case.collecting_since:
        return Decision(action=Action.FRESH_LOOK, reason=reason, detail=_faults(case), then="what is seen is decided on at once")
    return _rebuild(
        case, reason, f"still so after {case.config.software_collection_timeout_sec:g} s and a fresh look: {_faults(case)}"
    )


def _rebuild(case: Case, reason: DecisionReason, detail: str = "") -> Decision:
    """A rebuild within the budget: at once, after a pause, or not any more."""
    used, allowed = case.within_window(case.situation.rebuilt_at), case.config.reconfiguration_budget
    window_sec = case.config.reconfiguration_window_sec
    if case.situation.budget_spent or used >= allowed:
        return Decision(
            action=Action.STAY_WITHDRAWN,
            reason=DecisionReason.BUDGET_SPENT,
            detail=_told(reason, detail),
            then=f"a person has to look: {allowed} rebuilds in {window_sec:g} s did not help; "
            f"`autotomy instance reconfigure {case.topology.instance_id} --force` orders the next one",
        )
    pause_sec = min(FIRST_BACK_OFF_SEC * 2.0 ** (used - 1), window_sec) if used else 0.0
    not_before = (case.situation.rebuild_ended_at or 0.0) + pause_sec
    if case.now < not_before:
        why = f"{_told(reason, detail)}; rebuild {used + 1} of {allowed}"
        return Decision(
            action=Action.WAIT, reason=DecisionReason.BACK_OFF, detail=why, until=not_before, then="the instance is rebuilt"
        )
    return Decision(action=Action.RECONFIGURE, reason=reason, detail=detail)


def _told(reason: DecisionReason, detail: str) -> str:
    """Why a rebuild is wanted; of one that a spent budget left owed, the detail is the whole of it."""
    if detail and reason is DecisionReason.BUDGET_SPENT:
        return detail
    return f"{reason}: {detail}" if detail else str(reason)


def _faults(case: Case) -> str:
    """What is known of every active rank. Who answers nonsense, or whose NodeManager is lost, is not called well."""
    quiet = [rank for rank in case.active if rank not in case.dead and rank not in case.unhealthy]
    garbled = [rank for rank in quiet if case.evidence.of(rank).protocol_error is not None]
    lost = {rank for manager in case.situation.lost_node_managers for rank in case.topology.ranks_of(manager)}
    unheard = [rank for rank in quiet if rank in lost and rank not in garbled]
    words = [f"dead: {list(case.dead)}", f"unhealthy: {list(case.unhealthy)}"]
    if garbled:
        words.append(f"answering nonsense: {garbled}")
    if unheard:
        words.append(f"behind a lost NodeManager: {unheard}")
    well = [rank for rank in quiet if rank not in garbled and rank not in unheard]
    return ", ".join([*words, f"without a fault: {well}"] if well else words)


def _listed(faults: tuple[object, ...]) -> str:
    return "; ".join(map(str, faults))
