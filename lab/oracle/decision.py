"""A second opinion on the FaultManager's decisions: design §3 read aloud, slowly, rule by rule.

It shares nothing with `domain/instance/decision.py`, not even a type, and was written before that file was read: the two meet in
`test_decision_oracle.py`, which enumerates situations and compares. Each rule stands under the words that it comes
from. Where the words leave a choice, the choice and its reason follow after "Reading:".

Times are plain seconds on one clock; a `Situation` is everything that a decision may depend on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

HEALTHY, UNHEALTHY, DEAD, UNREPORTED = "healthy", "unhealthy", "dead", "unreported"


@dataclass(frozen=True)
class RankSays:
    """What stands for one rank, and when it was first said in this episode (seconds; None = never)."""

    status: str = UNREPORTED
    unhealthy_at: float | None = None
    dead_at: float | None = None

    @property
    def faulty_since(self) -> float:
        """When this rank's trouble began. Reading: an UNHEALTHY that became DEAD came when it was UNHEALTHY."""
        return min(at for at in (self.unhealthy_at, self.dead_at) if at is not None)


@dataclass(frozen=True)
class Hardware:
    """One hardware fault. `node_wide`: it names a node, not a card."""

    key: str
    level: str
    mapped: frozenset[int]
    at: float
    complete: bool = True
    handled: bool = False
    code: str = ""
    node_wide: bool = False


@dataclass(frozen=True)
class Strategy:
    """The strategy that runs, and whether it has passed its commit point (only a ScaleDownRound has one)."""

    kind: str
    committed: bool = False


@dataclass(frozen=True)
class Switches:
    """What is configured; the defaults are design §3's and §6's."""

    feature: bool = True
    engine_relaunch: bool = True
    fast_recovery: bool = False
    retry_supported: bool = False
    wake_idle_survivors: bool = False
    node_loss_is_death: bool = False
    withdraw_on_first_fault: bool = False
    min_alive_ranks: int = 1
    reconfiguration_budget: int = 3
    correlation_window_sec: float = 5.0
    collection_timeout_sec: float = 60.0
    reinference_codes: frozenset[str] = frozenset({"0x00F1FEF5", "0x08520003"})


@dataclass(frozen=True)
class Situation:
    original: tuple[int, ...]
    says: dict[int, RankSays]
    hardware: tuple[Hardware, ...] = ()
    dead_committed: frozenset[int] = frozenset()
    strategy: Strategy | None = None
    all_ever_ready: bool = True
    rebuilding: bool = False
    lost: frozenset[int] = frozenset()
    """Ranks in Pods whose heartbeat is lost and whose NodeManager does not answer the API either."""
    decode: bool = False
    forced: bool = False
    """An operator asks for a reconfiguration, by force."""
    failed: bool = False
    """A strategy ended in a failure that means reconfiguration, and none has begun since."""
    abandoned_rounds: int = 0
    """Within the budget's window."""
    reconfigurations: int = 0
    """Within the budget's window; the last one ended long ago, so that no back-off is left."""
    looked: bool = False
    """The one fresh look of rule 10 was taken for the evidence that stands."""
    woken: bool = False
    """The one completion of `wake_idle_survivors` was sent for the evidence that stands."""
    switches: Switches = field(default_factory=Switches)
    now: float = 0.0


class Act(StrEnum):
    NOTHING = "nothing"
    KEEP = "keep"  # a strategy runs: keep the evidence, decide when it ends
    WAIT = "wait"
    LOOK = "look"
    WAKE = "wake"
    PERSON = "person"  # the budget is spent: withdrawn, until a person forces a reconfiguration
    PREEMPT = "preempt"
    RECONFIGURE = "InstanceReconfiguration"
    RELAUNCH = "EngineRelaunch"
    SCALE_P2D = "ScaleP2D"
    TOKEN_REINFERENCE = "TokenReinference"
    FAST_RECOVERY = "FastRecovery"
    SCALE_DOWN = "ScaleDownRound"


@dataclass(frozen=True)
class Verdict:
    """What to do, by which rule (0: before all rules), until when to wait (seconds; None = no timer), and what else follows."""

    act: Act
    rule: int
    until: float | None = None
    ranks: frozenset[int] = frozenset()
    """Whom it is about: removed by a round, told to retry, or woken."""
    dropped: frozenset[str] = frozenset()
    """Keys of the hardware faults that rule 4 marks handled."""
    isolated: bool = False
    """An L3 isolation stands: withdrawn, and ADD is withheld."""
    withdrawn: bool = False
    """The view has to be withdrawn now, for that or for another reason."""


# "L1–L3 act only through rule 3 and the table; an unknown level counts as an unmappable L6."
MINOR = ("L1", "L2", "L3")
MAJOR = ("L4", "L5", "L6")


def is_major(fault: Hardware) -> bool:
    return fault.level not in MINOR


def is_unmappable(fault: Hardware) -> bool:
    return not fault.complete or fault.level not in MINOR + MAJOR


def touches(fault: Hardware, ranks: Iterable[int]) -> bool:
    """Reading: a fault whose mapping is incomplete may touch anything; "never guess" (contracts §6)."""
    return is_unmappable(fault) or bool(fault.mapped & set(ranks))


def judge(s: Situation) -> Verdict:
    """The eleven rules in their order, first match wins."""
    # "active = original − dead_committed; D = DEAD ∩ active; U = UNHEALTHY ∩ active."
    active = frozenset(s.original) - s.dead_committed
    dead = frozenset(rank for rank in active if _status(s, rank) == DEAD)
    unhealthy = frozenset(rank for rank in active if _status(s, rank) == UNHEALTHY)

    # "A fault that has been acted on … is marked handled and does not fire again until it was cleared."
    fresh = [fault for fault in s.hardware if not fault.handled]

    # "L3 | isolate (withdraw) until cleared"; "While an L3 isolation stands, ADD is withheld."
    # Reading: a card that holds only removed ranks isolates nobody.
    isolated = any(fault.level == "L3" and touches(fault, active) for fault in s.hardware)

    # "4. a hardware fault whose mapped ∩ active is empty → marked handled and dropped; nothing starts for it."
    # Reading: it drops the fault, then the other rules look at what is left. An unmappable fault maps nothing, and is
    # rule 5's all the same, or rule 5 could never match; so only a complete mapping is dropped.
    dropped = frozenset(fault.key for fault in fresh if is_major(fault) and not touches(fault, active))
    hardware = [fault for fault in fresh if is_major(fault) and touches(fault, active)]

    # "L4–L6, unmappable or feature off | isolate at once", "mappable, feature on | isolation deferred: the round withdraws".
    isolated_at_once = bool(hardware) and (not s.switches.feature or any(is_unmappable(fault) for fault in hardware))
    # "withdraw_on_first_fault (withdraw the view at the first accepted report, phase unchanged, republish when the evidence
    #  clears)"
    at_first = s.switches.withdraw_on_first_fault and bool(dead or unhealthy or hardware)

    verdict = _first_match(s, active, dead, unhealthy, fresh, hardware)

    # "Reconfigurations have a budget (3 in 30 min, back-off); spent → the instance stays withdrawn in RECONFIGURING, says
    #  so, and waits for `autotomy instance reconfigure --force`."
    act = verdict.act
    if act is Act.RECONFIGURE and not s.forced and s.reconfigurations >= s.switches.reconfiguration_budget:
        act = Act.PERSON
    withdrawn = isolated or isolated_at_once or at_first
    return Verdict(act, verdict.rule, verdict.until, verdict.ranks, dropped, isolated, withdrawn)


def _first_match(
    s: Situation,
    active: frozenset[int],
    dead: frozenset[int],
    unhealthy: frozenset[int],
    fresh: list[Hardware],
    hardware: list[Hardware],
) -> Verdict:
    # "2. a strategy runs → keep the evidence, decide when it ends. Pre-emption ▲: only an operator's forced
    #  reconfiguration or an unmappable hardware fault L4–L6, only over ScaleDownRound before its commit point,
    #  FastRecovery or EngineRelaunch; cancel, wait for its end signal (abort included), then escalate."
    # Reading: before rule 1 in effect, for there is "one strategy at a time", with the feature off too.
    if s.strategy is not None:
        may_be_stopped = s.strategy.kind in ("FastRecovery", "EngineRelaunch") or (
            s.strategy.kind == "ScaleDownRound" and not s.strategy.committed
        )
        if may_be_stopped and (s.forced or any(is_unmappable(fault) for fault in hardware)):
            return Verdict(Act.PREEMPT, 2)
        return Verdict(Act.KEEP, 2)

    # Not a rule of its own: "waits for `autotomy instance reconfigure --force`". It needs no evidence.
    if s.forced:
        return Verdict(Act.RECONFIGURE, 0)

    # "Round failed → reconfiguration." "FastRecovery failed → reconfiguration, never scale-down." Reading: whatever the
    #  evidence says by then, so before the rules that judge it.
    if s.failed:
        return Verdict(Act.RECONFIGURE, 0)

    # "3. TokenReinference applies (hardware L2 code on its list) → it first."
    # Reading: for the table's L2 row it is the same with the feature off; a card of removed ranks alone starts nothing.
    if any(fault.level == "L2" and fault.code in s.switches.reinference_codes and touches(fault, active) for fault in fresh):
        return Verdict(Act.TOKEN_REINFERENCE, 3)

    # "1. feature off → original strategy (table below), nothing else."
    # Reading: rule 11 stays ("also with the feature off"); hardware before software, as no relaunch mends a card.
    if not s.switches.feature:
        if hardware:
            return _original_of_hardware(s, 1)
        if dead or unhealthy:
            return _original_of_software(s, 1)
        return _eleven(s, active)

    # "5. there is evidence and the instance is not ACTIVE (not all of its active ranks were ever ready, or it is being
    #  rebuilt), or some hardware fault is not fully mappable → original strategy, no correlation wait."
    not_active = not s.all_ever_ready or s.rebuilding
    if any(is_unmappable(fault) for fault in hardware) or (not_active and hardware):
        return _original_of_hardware(s, 5)
    # Reading: the table's software row is "with the feature off"; with it on, "everything that fails goes to
    #  InstanceReconfiguration".
    if not_active and (dead or unhealthy):
        return Verdict(Act.RECONFIGURE, 5)

    # "node_loss_is_death, default off ▲: Pods' heartbeats lost and an L6 node fault and every active rank outside them
    #  UNHEALTHY → their ranks count as DEAD; such a node fault waits under rule 10, not 9."
    # Reading: "them" is the lost Pods that an L6 node fault covers.
    node_losses = [f for f in hardware if f.level == "L6" and f.node_wide] if s.switches.node_loss_is_death else []
    gone = frozenset(rank for fault in node_losses for rank in fault.mapped & s.lost & active)
    if gone and all(_status(s, rank) == UNHEALTHY for rank in active - gone):
        dead, unhealthy = dead | gone, unhealthy - gone

    software = [s.says[rank] for rank in active if _status(s, rank) in (UNHEALTHY, DEAD)]
    # "Hardware came first" = its earliest received_at is before that of every standing UNHEALTHY/DEAD entry of an active
    #  rank, or there is none.
    first_hardware = min((fault.at for fault in hardware), default=None)
    hardware_first = first_hardware is not None and all(first_hardware < entry.faulty_since for entry in software)
    mapped = frozenset(rank for fault in hardware for rank in fault.mapped & active)

    # "software_collection_timeout_sec after the first"
    # Reading: a node fault that waits under rule 10 counts as such a first, or its wait had no end.
    firsts = [entry.faulty_since for entry in software] + [fault.at for fault in node_losses]
    collected_at = min(firsts) + s.switches.collection_timeout_sec if firsts else None

    # "6. D = ∅, U = active → FastRecovery if applicable (enable_fast_recovery, all engines support retry); else wait for
    #  DEAD until the software collection timeout, then as rule 10."
    if not dead and unhealthy == active and s.switches.fast_recovery and s.switches.retry_supported:
        return Verdict(Act.FAST_RECOVERY, 6, ranks=active)
    if not dead and unhealthy == active:
        return _ten(s, collected_at, 6)

    # "7. D = active → reconfiguration."
    if dead == active:
        return Verdict(Act.RECONFIGURE, 7)

    # "8. D ≠ ∅, U ≠ ∅, D ∪ U = active → ScaleDownRound, if (when hardware came first) its mapped ranks ⊆ D; otherwise as
    #  rule 9/10."   And: "min_alive_ranks (fewer → reconfiguration)".
    if dead and unhealthy and dead | unhealthy == active and (not hardware_first or mapped <= dead):
        # "Round abandoned → re-decide, at most 3 times per budget window, then reconfiguration."
        if len(unhealthy) < s.switches.min_alive_ranks or s.abandoned_rounds > 3:
            return Verdict(Act.RECONFIGURE, 8)
        return Verdict(Act.SCALE_DOWN, 8, ranks=dead)

    # "9. hardware came first and no FT perception by first hardware received_at + hardware_ft_correlation_window_sec →
    #  reconfiguration. Perception ▲ = every mapped rank reported DEAD, or all active UNHEALTHY; a perceived but
    #  incomplete set goes on under rule 10."
    # Reading: "by" is judged by received_at; whoever reported UNHEALTHY in time and DEAD later was perceived in time.
    correlated_at = None
    under_nine = [fault for fault in hardware if fault not in node_losses]
    if hardware_first and under_nine:
        correlated_at = min(fault.at for fault in under_nine) + s.switches.correlation_window_sec
        nine_maps = frozenset(rank for fault in under_nine for rank in fault.mapped & active)
        perceived = all(_by(s, rank, DEAD, correlated_at) for rank in nine_maps) or all(
            _by(s, rank, UNHEALTHY, correlated_at) for rank in active
        )
        if perceived:
            correlated_at = None
        elif s.now >= correlated_at:
            return Verdict(Act.RECONFIGURE, 9)

    # "10. software evidence, incomplete → wait; software_collection_timeout_sec after the first → one fresh look …"
    # Reading: while rule 9 still waits, both timers run, and the earlier one ends the wait.
    if correlated_at is not None and (collected_at is None or s.now < collected_at):
        return Verdict(Act.WAIT, 9, min(correlated_at, collected_at or correlated_at))
    if software or node_losses:
        # "wake_idle_survivors (DEAD known, survivors HEALTHY because nothing runs: one bounded completion to each …)"
        # Reading: at once, and once; a survivor that was never reported is no worse than a healthy one.
        if s.switches.wake_idle_survivors and dead and not unhealthy and not s.woken:
            return Verdict(Act.WAKE, 10, ranks=active - dead)
        return _ten(s, collected_at, 10)

    return _eleven(s, active)


def _ten(s: Situation, collected_at: float | None, rule: int) -> Verdict:
    # "… → one **fresh look** at the engines through their NodeManagers, merged; evidence gone → forget it; rules 6–8 match
    #  now → they act ▲; else reconfiguration."
    # Reading: gone evidence and rules 6–8 were seen above; what comes here after the look is the "else".
    assert collected_at is not None
    if s.now < collected_at:
        return Verdict(Act.WAIT, rule, collected_at)
    return Verdict(Act.RECONFIGURE if s.looked else Act.LOOK, rule)


def _eleven(s: Situation, active: frozenset[int]) -> Verdict:
    # "11. only a lost heartbeat of a Pod with active ranks (heartbeat_timeout_sec, and its NodeManager does not answer the
    #  API either) → InstanceReconfiguration, also with the feature off. Nothing → nothing."
    if s.lost & active:
        return Verdict(Act.RECONFIGURE, 11)
    return Verdict(Act.NOTHING, 11)


def _original_of_software(s: Situation, rule: int) -> Verdict:
    # "software (engine DEAD/UNHEALTHY) with the feature off | EngineRelaunch if enable_engine_relaunch (true), failed →
    #  InstanceReconfiguration | same"
    return Verdict(Act.RELAUNCH if s.switches.engine_relaunch else Act.RECONFIGURE, rule)


def _original_of_hardware(s: Situation, rule: int) -> Verdict:
    # "L4–L6, unmappable or feature off | isolate at once, InstanceReconfiguration | isolate at once, ScaleP2D, failed →
    #  InstanceReconfiguration" (prefill and union | decode)
    return Verdict(Act.SCALE_P2D if s.decode else Act.RECONFIGURE, rule)


def _status(s: Situation, rank: int) -> str:
    return s.says.get(rank, RankSays()).status


def _by(s: Situation, rank: int, status: str, deadline: float) -> bool:
    """Whether a rank that stands as faulty had said `status` by then."""
    entry = s.says.get(rank, RankSays())
    if entry.status not in (UNHEALTHY, DEAD):
        return False
    at = entry.dead_at if status == DEAD else entry.unhealthy_at
    return at is not None and at <= deadline and (status == UNHEALTHY or entry.status == DEAD)
