"""What a decision is about: the evidence, the situation that it meets, and the sets that the rules speak of.

`Case` gives the words of design §3 their meaning: active, D, U, the hardware faults that count, "hardware came first",
when the collection of software evidence began. The rules themselves are in `decision.py`.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from domain.config import FaultToleranceConfig
from domain.engine import EngineStatus
from domain.hardware import RECOVERY_LEVELS, FaultLevel, HardwareFault, isolating
from domain.instance.evidence import Evidence
from domain.model import Rank, Strict
from domain.topology import NodeManagerAddress, Topology


class DecisionReason(StrEnum):
    """Why. One reason belongs to one outcome of one rule, to what an ended strategy left behind, or to the budget."""

    FORCED = "FORCED"  # a person ordered a rebuild, whatever the budget says
    ORDERED = "ORDERED"  # a person ordered one within the budget
    ROUND_FAILED = "ROUND_FAILED"  # a scale-down round ended in failure
    FAST_RECOVERY_FAILED = "FAST_RECOVERY_FAILED"  # never followed by a scale-down (I9)
    RELAUNCH_FAILED = "RELAUNCH_FAILED"
    REINFERENCE_FAILED = "REINFERENCE_FAILED"
    SCALE_P2D_UNAVAILABLE = "SCALE_P2D_UNAVAILABLE"  # asked for, and not there yet
    REBUILD_FAILED = "REBUILD_FAILED"
    STRATEGY_LOST = "STRATEGY_LOST"  # a strategy ended without a word: what it did is not known
    IN_DOUBT = "IN_DOUBT"  # the FaultManager began without memory over an instance in an unclear state
    FEATURE_OFF = "FEATURE_OFF"  # rule 1: the original strategy for a software fault
    FEATURE_OFF_HARDWARE = "FEATURE_OFF_HARDWARE"  # rule 1: the original strategy for an L4–L6
    STRATEGY_RUNS = "STRATEGY_RUNS"  # rule 2
    UNMAPPABLE_PREEMPTS = "UNMAPPABLE_PREEMPTS"  # rule 2: the running strategy cannot mend what has come in
    TOKEN_REINFERENCE = "TOKEN_REINFERENCE"  # rule 3: a listed L2 may heal by itself
    REMOVED_RANKS_ONLY = "REMOVED_RANKS_ONLY"  # rule 4: hardware of ranks that were removed, or are not ours
    NOT_ACTIVE = "NOT_ACTIVE"  # rule 5: a fault in an instance that was never complete, or is being rebuilt
    UNMAPPABLE_HARDWARE = "UNMAPPABLE_HARDWARE"  # rule 5
    FAST_RECOVERY = "FAST_RECOVERY"  # rule 6: everybody noticed, nobody is dead, and the engines can retry
    ALL_UNHEALTHY = "ALL_UNHEALTHY"  # rule 6: they cannot; nobody is guessed
    ALL_DEAD = "ALL_DEAD"  # rule 7
    COMPLETE = "COMPLETE"  # rule 8: dead and unhealthy ranks together are the whole active group
    TOO_FEW_SURVIVORS = "TOO_FEW_SURVIVORS"  # rule 8: fewer than min_alive_ranks would be left
    ABANDONED_TOO_OFTEN = "ABANDONED_TOO_OFTEN"  # rule 8: rounds keep finding the dead alive
    HARDWARE_FIRST = "HARDWARE_FIRST"  # rule 9: the engines have not perceived the hardware fault yet
    HARDWARE_NOT_PERCEIVED = "HARDWARE_NOT_PERCEIVED"  # rule 9: nor did they within the window
    WAKE_SURVIVORS = "WAKE_SURVIVORS"  # rule 10, with wake_idle_survivors: nobody could notice yet
    INCOMPLETE = "INCOMPLETE"  # rule 10
    NODE_LOSS = "NODE_LOSS"  # rule 10, with node_loss_is_death: a node is gone, the survivors have not all noticed
    NODE_MANAGER_LOST = "NODE_MANAGER_LOST"  # rule 11
    ISOLATED = "ISOLATED"  # an L3 stands: withdrawn until it is cleared, nothing else to do
    NO_EVIDENCE = "NO_EVIDENCE"  # rule 11: nothing is wrong
    BACK_OFF = "BACK_OFF"  # the next rebuild has to wait a moment
    BUDGET_SPENT = "BUDGET_SPENT"


ORDERED_BY_A_PERSON: Final = (DecisionReason.FORCED, DecisionReason.ORDERED)
"""Done also while the automation is off, and no error of the instance."""


class Situation(Strict):
    """What a decision depends on beside the evidence. Times are epoch seconds.

    `strategy_runs` with `preemptible`: a strategy that may still be stopped. `owed`: the rebuild that an ended strategy, a
    lost memory or a person left behind, whatever the evidence says now. `looked_for`, `woken_for`: the beginning of the
    collection (`Case.collecting_since`) for which the fresh look was taken, or the survivors were woken.
    `rebuilt_at`: when the rebuilds of the window began; `rebuild_ended_at`: the last end.
    """

    dead_committed: tuple[Rank, ...] = ()
    rebuilding: bool = False
    strategy_runs: bool = False
    preemptible: bool = False
    owed: DecisionReason | None = None
    owed_detail: str = ""
    looked_for: float | None = None
    woken_for: float | None = None
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
        """D = DEAD ∩ active, and with `node_loss_is_death` the ranks of nodes that are gone."""
        return tuple(sorted({*self.evidence.standing(EngineStatus.DEAD, self.active), *self.gone}))

    @cached_property
    def unhealthy(self) -> tuple[int, ...]:
        """U = UNHEALTHY ∩ active."""
        return tuple(rank for rank in self.evidence.standing(EngineStatus.UNHEALTHY, self.active) if rank not in self.gone)

    @property
    def has_software(self) -> bool:
        return bool(self.dead or self.unhealthy)

    @property
    def is_active(self) -> bool:
        """Every active rank was ready once, and the instance is not being rebuilt."""
        return not self.situation.rebuilding and not self.evidence.not_yet_ready(self.active)

    @cached_property
    def hardware(self) -> tuple[HardwareFault, ...]:
        """The L4–L6 that count: not handled yet, and of an active rank as far as one can know; the oldest first."""
        return tuple(fault for fault in self.evidence.hardware.open(*RECOVERY_LEVELS) if self.touches(fault))

    @cached_property
    def removed_only(self) -> tuple[HardwareFault, ...]:
        """The L4–L6 that nobody acted on and that concern no active rank."""
        return tuple(fault for fault in self.evidence.hardware.open(*RECOVERY_LEVELS) if not self.touches(fault))

    @cached_property
    def unmappable(self) -> tuple[HardwareFault, ...]:
        return tuple(fault for fault in self.hardware if not fault.mappable)

    @cached_property
    def healing(self) -> tuple[HardwareFault, ...]:
        """The listed L2 that have not been waited for yet."""
        listed = self.config.token_reinference_codes
        return tuple(f for f in self.evidence.hardware.open(FaultLevel.L2) if f.fault_code in listed and self.touches(f))

    @cached_property
    def isolating(self) -> tuple[HardwareFault, ...]:
        """The L3 for which the instance is withdrawn."""
        return isolating(self.evidence.hardware, self.active)

    def touches(self, fault: HardwareFault) -> bool:
        """Whether a fault may concern an active rank; one that is not fully mapped always may."""
        return not fault.mappable or bool(set(fault.ranks) & set(self.active))

    def mapped(self, faults: tuple[HardwareFault, ...]) -> tuple[int, ...]:
        """The active ranks that these faults map to, ascending."""
        return tuple(sorted({rank for fault in faults for rank in fault.ranks} & set(self.active)))

    @property
    def hardware_came_first(self) -> bool:
        """The earliest L4–L6 is older than every standing fault of an active rank. A tie is software first."""
        if not self.hardware:
            return False
        software = self.evidence.first_fault_at(self.active)
        return software is None or self.hardware[0].received_at < software

    @cached_property
    def node_losses(self) -> tuple[HardwareFault, ...]:
        """With `node_loss_is_death`: L6 of whole nodes. They wait for the survivors to notice (rule 10), not for perception."""
        if not self.config.node_loss_is_death:
            return ()
        return tuple(f for f in self.hardware if f.level is FaultLevel.L6 and f.of_whole_node and f.mappable)

    @cached_property
    def gone(self) -> frozenset[int]:
        """The ranks that count as DEAD because their node is gone: its Pods are silent, everybody else has noticed."""
        silent = {rank for manager in self.situation.lost_node_managers for rank in self.topology.ranks_of(manager)}
        lost = silent & set(self.mapped(self.node_losses))
        noticed = set(self.evidence.standing(EngineStatus.UNHEALTHY, self.active))
        return frozenset(lost) if lost and set(self.active) - lost <= noticed else frozenset()

    @cached_property
    def collecting_since(self) -> float | None:
        """When the first of what has to be completed was received; None: there is nothing."""
        first = self.evidence.first_fault_at(self.active)
        times = [fault.received_at for fault in self.node_losses]
        return min(times if first is None else [first, *times], default=None)

    def within_window(self, times: tuple[float, ...]) -> int:
        """How many of these times lie within the budget's window."""
        return sum(1 for at in times if at > self.now - self.config.reconfiguration_window_sec)
