"""What a FaultManager remembers of its instance: one frozen model, carried over continue-as-new.

`InstanceState` holds everything: the topology, what was committed, the evidence, the running strategy, the serving view
that is wanted, what is owed to NodeManagers, the budget. Small changes are its methods; what strategies do to it is in
`strategy_life.py`. From it follow the two things that others see: the `Situation` that `decide` judges and the
`RuntimeRecord` that operators read.

Two counters never go back (I16): `generation`, +1 at each strategy start, and `view_revision`, the highest revision of the
published view that was ever given out. A strategy that may change the view owns the next two revisions, used or not.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Self

from pydantic import Field
from pydantic_core import from_json, to_json

from domain.config import FaultToleranceConfig
from domain.engine import EngineStatus
from domain.hardware import RECOVERY_LEVELS, FaultLevel, isolating
from domain.instance.decision import Action, Decision, DecisionReason, Situation
from domain.instance.evidence import Evidence
from domain.instance.situation import ORDERED_BY_A_PERSON
from domain.messages.fault_manager import FaultManagerStart
from domain.messages.strategy import StrategyEnd, StrategyKind
from domain.model import Generation, InstanceId, Rank, Revision, Strict
from domain.runtime import (
    SERVING_PHASES,
    Budget,
    FtPhase,
    GateRecord,
    RejectedSignal,
    RuntimeRecord,
    Waiting,
    can_serve,
    iso,
    may_follow,
    rejected_signal,
    resting_phase,
    with_rejected,
)
from domain.serving import serving_ranks
from domain.topology import NodeManagerAddress, Topology

_ACTIONS_WITHOUT_EFFECT: Final = (Action.NOTHING, Action.KEEP, Action.WAIT, Action.FRESH_LOOK)
REVISIONS_OF_A_STRATEGY: Final = 2
"""A round or rebuild owns two revisions: the withdrawal and what it publishes at its end."""


class Life(StrEnum):
    """Which part of its life a FaultManager is in."""

    LEARNING = "learning"  # asks the journals what the instance has been through
    ASSEMBLING = "assembling"  # a new instance: NodeManagers are started, ranks become ready
    RUNNING = "running"
    ENDING = "ending"  # the instance was deleted: withdraw, stop, end


class RunningStrategy(Strict):
    """The one strategy that runs. `step` orders its progress; `view_revision` is the r it was ordered with.

    `attached`: found running by a FaultManager without memory, so its phase is taken as told. `committed_at`: when the
    commit was recorded; from then on nothing may stop it. `bound_at`: the sum of its deadlines, outages left aside. `isolated`:
    it was told to leave the view withdrawn. `stoppable`: its kind may be pre-empted. `why`: what made a rebuild or relaunch
    necessary; empty where a person ordered it.
    """

    kind: StrategyKind
    workflow_id: str
    generation: Generation
    view_revision: Revision
    phase_before: FtPhase
    started_at: float
    bound_at: float
    isolated: bool = False
    stoppable: bool = False
    why: str = ""
    last_word_at: float
    request_id: str | None = None
    pending_ranks: tuple[Rank, ...] = ()
    step: int = 0
    detail: str = ""
    attached: bool = False
    stop_requested: bool = False
    committed_at: float | None = None

    @property
    def preemptible(self) -> bool:
        """Rule 2: it may be stopped for something worse; nothing may after its commit point."""
        return self.stoppable and self.committed_at is None


class ServingView(Strict):
    """The view that is wanted. `ranks` empty = withdrawn. `confirmed`: every Coordinator that must know it has said so."""

    revision: Revision = 0
    ranks: tuple[Rank, ...] = ()
    confirmed: bool = True


class PendingFinalize(Strict):
    """A verdict that a NodeManager has not acknowledged yet."""

    request_id: str
    generation: Generation
    commit: bool
    manager: NodeManagerAddress
    retired: tuple[Rank, ...]
    dead_committed: tuple[Rank, ...]


class InstanceState(Strict):
    """Everything a FaultManager knows. All times are epoch seconds by `workflow.now()`.

    `deferred_ends`: ends of strategies that came while it was still learning. `pace_told`: the poll interval that the
    NodeManagers were last told. `search_attributes`: those that the server knows, None while nobody has asked.
    `terminate_at`: when the deletion of the instance is over, done or not; `stop_engines`: its engines are stopped, too.
    `held`: why a person switched the automation off; None while it is on. `last_strategy`: the workflow id of the strategy
    that ended last. `signals_taken`: every signal that came, whatever
    it was worth, over all runs of this FaultManager.
    """

    instance_id: InstanceId
    topology: Topology
    config: FaultToleranceConfig
    life: Life = Life.LEARNING
    phase: FtPhase = FtPhase.RECONFIGURING
    generation: Generation = 0
    view_revision: Revision = 0
    view: ServingView = ServingView()
    dead_committed: tuple[Rank, ...] = ()
    evidence: Evidence = Evidence()
    strategy: RunningStrategy | None = None
    last_strategy: str | None = None
    deferred_ends: tuple[StrategyEnd, ...] = ()
    owed: DecisionReason | None = None
    owed_detail: str = ""
    reseed: bool = False
    looked_for: float | None = None
    woken_for: float | None = None
    held: str | None = None
    abandoned_at: tuple[float, ...] = ()
    rebuilt_at: tuple[float, ...] = ()
    rebuild_ended_at: float | None = None
    budget_spent: bool = False
    node_managers_started: bool = False
    pending_finalize: tuple[PendingFinalize, ...] = ()
    absent_node_managers: tuple[str, ...] = ()
    lost_node_managers: tuple[NodeManagerAddress, ...] = ()
    pace_told: float | None = None
    request_id: str | None = None
    gate: GateRecord | None = None
    stage_times: dict[str, float] = Field(default_factory=dict)
    last_error: str | None = None
    rejected_signals: tuple[RejectedSignal, ...] = ()
    signals_taken: int = 0
    search_attributes: tuple[str, ...] | None = None
    terminate_at: float | None = None
    stop_engines: bool = False

    @classmethod
    def of(cls, start: FaultManagerStart) -> Self:
        """What a FaultManager begins with: a new one has only its topology, one that continues as new its memory too."""
        if start.state is None:
            return cls(instance_id=start.instance_id, topology=start.topology, config=start.config)
        return cls.model_validate_json(to_json({**from_json(start.state), "topology": start.topology, "config": start.config}))

    def carried(self) -> FaultManagerStart:
        """With what it continues as new; its topology, the largest part of it in calm times, once."""
        memory = self.model_dump_json(exclude_defaults=True, exclude={"topology", "config"})
        return FaultManagerStart(instance_id=self.instance_id, topology=self.topology, config=self.config, state=memory)

    @property
    def active(self) -> tuple[int, ...]:
        """The ranks that have not been removed: original − dead_committed."""
        return serving_ranks(self.topology, self.dead_committed)

    @property
    def serving_published(self) -> bool:
        return bool(self.view.ranks) and self.view.confirmed

    @property
    def holds_evidence(self) -> bool:
        """A standing software fault of an active rank, or an L4–L6 that nobody has acted on."""
        return bool(self.evidence.faulty(self.active) or self.evidence.hardware.open(*RECOVERY_LEVELS))

    @property
    def nothing_open(self) -> bool:
        """It runs, undisturbed: no strategy, none owed, no evidence, nothing left to be told."""
        settled = self.life is Life.RUNNING and not self.reseed and self.view.confirmed and not self.pending_finalize
        return settled and self.strategy is None and self.owed is None and not self.holds_evidence

    @property
    def isolated(self) -> bool:
        """An L3 hardware fault stands that touches an active rank: nothing may be published (observing isolates nobody)."""
        return not self.config.observe_only and bool(isolating(self.evidence.hardware, self.active))

    @property
    def automation_off(self) -> bool:
        """Decisions are recorded and not acted on, but for a person's orders."""
        return self.held is not None or self.config.observe_only

    @property
    def wanted_pace_sec(self) -> float:
        """How often NodeManagers should look at their engines now (design §6)."""
        times = self.config.dp_scale_down_config
        busy = self.holds_evidence or self.strategy is not None
        return times.fault_poll_interval_sec if busy else times.poll_interval_sec

    def but(self, **changes: object) -> Self:
        """This state with some fields changed."""
        return self.model_copy(update=changes)

    def entering(self, phase: FtPhase, now: float) -> Self:
        """In another phase, where the table of transitions allows it; a refused change is recorded and changes nothing."""
        if may_follow(self.phase, phase):
            return self.but(phase=phase)
        return self.rejecting(rejected_signal("phase", f"{self.phase} → {phase} is not in the table of transitions", "", now))

    def withdrawn(self, now: float) -> Self:
        """Not serving any more: RECONFIGURING, and an empty view is wanted, under a new revision unless it already has one.

        The revisions that the last strategy owned may have been used for another content: never again.
        """
        state = self.entering(FtPhase.RECONFIGURING, now)
        if not self.view.ranks and self.view.revision == self.view_revision:
            return state
        revision = self.view_revision + 1
        return state.but(view_revision=revision, view=ServingView(revision=revision, ranks=(), confirmed=False))

    def following(self, decision: Decision) -> Self:
        """With the view that fits a decision, where nothing runs and the phase serves: withdrawn while it says so.

        The phase does not change: an isolated instance is complete, it is only kept away from requests.
        """
        if self.strategy is not None or self.life is not Life.RUNNING or self.phase not in SERVING_PHASES or self.automation_off:
            return self
        wanted = () if decision.withdraw else self.active
        if self.view.ranks == wanted:
            return self
        revision = self.view_revision + 1
        return self.but(view_revision=revision, view=ServingView(revision=revision, ranks=wanted, confirmed=False))

    def handling(self, keys: Iterable[str]) -> Self:
        """These hardware faults were acted on."""
        return self.but(evidence=self.evidence.model_copy(update={"hardware": self.evidence.hardware.handle(keys)}))

    def serving(self, now: float) -> Self:
        """Complete again: in the resting phase that fits the committed set, and its view wanted under a new revision."""
        revision = self.view_revision + 1
        view = ServingView(revision=revision, ranks=self.active, confirmed=False)
        return self.entering(resting_phase(self.dead_committed), now).but(
            life=Life.RUNNING, view=view, view_revision=revision, last_error=None
        )

    def republishing(self) -> Self:
        """The same view again, under a new revision: for a person who doubts that the Coordinators have it."""
        revision = self.view_revision + 1
        return self.but(view_revision=revision, view=self.view.model_copy(update={"revision": revision, "confirmed": False}))

    def owing(self, why: DecisionReason, detail: str, now: float) -> Self:
        """A rebuild is owed; until it has succeeded the instance does not serve."""
        return self.withdrawn(now).but(owed=why, owed_detail=detail, last_error=detail or self.last_error)

    def rejecting(self, rejected: RejectedSignal) -> Self:
        """A signal or report was refused: the last few are kept for people."""
        return self.but(rejected_signals=with_rejected(self.rejected_signals, rejected))

    def one_signal_more(self) -> Self:
        """A signal was taken, used or refused: counted, so that anybody can compare with what was sent."""
        return self.but(signals_taken=self.signals_taken + 1)

    def situation(self) -> Situation:
        """What `decide` judges beside the evidence."""
        return Situation(
            dead_committed=self.dead_committed,
            rebuilding=self.evidence.forming,
            strategy_runs=self.strategy is not None,
            preemptible=self.strategy is not None and self.strategy.preemptible,
            owed=self.owed,
            owed_detail=self.owed_detail,
            looked_for=self.looked_for,
            woken_for=self.woken_for,
            abandoned_at=self.abandoned_at,
            rebuilt_at=self.rebuilt_at,
            rebuild_ended_at=self.rebuild_ended_at,
            budget_spent=self.budget_spent,
            lost_node_managers=self.lost_node_managers,
        )

    def record(self, waiting: Waiting | None, now: float) -> RuntimeRecord:
        """The FT runtime record (contracts §5)."""
        strategy = self.strategy
        pending = tuple(rank for rank in strategy.pending_ranks if rank in self.active) if strategy else ()
        window = self.config.reconfiguration_window_sec
        return RuntimeRecord(
            instance_id=self.instance_id,
            phase=self.phase,
            original_dp_ranks=self.topology.ranks,
            request_id=strategy.request_id if strategy and strategy.request_id else self.request_id,
            dead_committed=self.dead_committed,
            pending_removed_ranks=pending,
            alive_dp_ranks=tuple(rank for rank in self.active if rank not in pending),
            fallback_strategy=self.config.fallback_strategy.value,
            gate=self.gate,
            engine_statuses={str(rank): entry for rank, entry in self.evidence.entries().items()},
            serving_published=self.serving_published,
            last_error=self.last_error,
            can_serve=can_serve(self.phase, self.serving_published),
            generation=self.generation,
            view_revision=self.view.revision,
            active_strategy=strategy.kind.value if strategy else None,
            strategy_workflow_id=strategy.workflow_id if strategy else None,
            last_strategy_workflow_id=self.last_strategy,
            known_dead=self.evidence.standing(EngineStatus.DEAD, self.active),
            waiting=waiting,
            pending_finalize=tuple(sorted({str(pending.manager) for pending in self.pending_finalize})),
            absent_node_managers=self.absent_node_managers,
            lost_node_managers=tuple(map(str, self.lost_node_managers)),
            stage_times=self.stage_times,
            budget=Budget(
                used=sum(1 for at in self.rebuilt_at if at > now - window),
                allowed=self.config.reconfiguration_budget,
                window_sec=window,
            ),
            rejected_signals=self.rejected_signals,
            signals_taken=self.signals_taken,
            held=self.held,
            hardware_faults=tuple(map(str, self.evidence.hardware.standing(*FaultLevel))),
        )

    def waiting(self, decision: Decision | None) -> Waiting | None:
        """What is being waited for, in words; None in an instance that serves and has nothing open."""
        match self.life:
            case Life.LEARNING:
                return Waiting(reason="reading the NodeManagers' journals", until=None, then="the instance is taken over")
            case Life.ASSEMBLING:
                return self._waiting_for_assembly()
            case Life.ENDING:
                return Waiting(reason="the instance was deleted", until=None, then="it is withdrawn, and this FaultManager ends")
        if self.strategy is not None:
            what = f"{self.strategy.workflow_id}: {self.strategy.detail or 'started'}"
            then = self._then(decision.then) if decision is not None and decision.then else "its end is judged"
            return Waiting(reason=what, until=iso(self.strategy.bound_at), then=then)
        if decision is not None and self.automation_off and decision.action not in _ACTIONS_WITHOUT_EFFECT:
            return self._waiting_for_a_person(decision)
        if decision is not None and decision.then:
            until = iso(decision.until) if decision.until is not None else None
            words = f"{decision.reason}: {decision.detail}" if decision.detail else str(decision.reason)
            return Waiting(reason=words, until=until, then=self._then(decision.then))
        if not self.view.confirmed:
            what = f"Coordinators have not all acknowledged view revision {self.view.revision}"
            return Waiting(reason=what, until=None, then="it is pushed again")
        return None

    def _then(self, then: str) -> str:
        """What a decision foresees, as far as it will be done: while held, only what a person ordered is."""
        if self.held is None or self.owed in ORDERED_BY_A_PERSON:
            return then
        return f"what it decides waits for `{self._release}`; without the hold: {then}"

    @property
    def _release(self) -> str:
        return f"autotomy instance release {self.instance_id}"

    def _waiting_for_a_person(self, decision: Decision) -> Waiting:
        off = f"the automation is held: {self.held}" if self.held is not None else "observe_only"
        ranks = f" of ranks {list(decision.ranks)}" if decision.ranks else ""
        then = f"it acts after `{self._release}`" if self.held is not None else "nothing, unless a person orders a rebuild"
        return Waiting(
            reason=f"{off}; would {decision.action}{ranks}: {decision.reason}: {decision.detail}", until=None, then=then
        )

    def _waiting_for_assembly(self) -> Waiting:
        if not self.node_managers_started:
            managers = ", ".join(map(str, self.topology.managers))
            return Waiting(reason=f"NodeManagers {managers} have not all taken the start", until=None, then="engines start")
        missing = list(self.evidence.not_yet_ready(self.active))
        return Waiting(reason=f"ranks {missing} are not ready yet", until=None, then="the instance is published")
