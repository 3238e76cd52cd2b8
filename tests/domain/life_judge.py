"""What must hold through the life of one instance, judged at every change of its state.

`Life` holds the state and the clock, and what only the world knows: which ranks were ever reported DEAD, what Coordinators
were told under which revision, which ids and generations were used. Every change passes `become`. After every move of the
world the FaultManager has its turn, unless no worker runs, and `judge` looks at the whole.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from domain.config import FaultToleranceConfig
from domain.engine import EngineStatus, EntrySource, RankEntry
from domain.instance.decision import DecisionReason
from domain.instance.evidence import Report
from domain.instance.state import InstanceState
from domain.messages.strategy import FastRecoveryOrder, ReconfigurationOrder, ReinferenceOrder, RelaunchOrder, RoundOrder
from domain.runtime import SERVING_PHASES, FtPhase
from tests.domain.instance_factories import T0, D, U, config

Order = RoundOrder | FastRecoveryOrder | ReconfigurationOrder | RelaunchOrder | ReinferenceOrder

ALL_RANKS = (0, 1, 2, 3)

rarely = st.integers(0, 5).map(lambda dice: dice == 5)
"""For moves that end everything: were they as likely as the others, no life would get far."""

AFTER_A_FAILURE = frozenset(
    {
        DecisionReason.FORCED,
        DecisionReason.ORDERED,
        DecisionReason.ROUND_FAILED,
        DecisionReason.FAST_RECOVERY_FAILED,
        DecisionReason.RELAUNCH_FAILED,
        DecisionReason.REINFERENCE_FAILED,
        DecisionReason.REBUILD_FAILED,
        DecisionReason.SCALE_P2D_UNAVAILABLE,
        DecisionReason.STRATEGY_LOST,
        DecisionReason.BUDGET_SPENT,
        DecisionReason.IN_DOUBT,
    }
)
"""Why an instance is rebuilt whatever its evidence says."""

A_COMPLETE_GROUP_IS_REBUILT = AFTER_A_FAILURE | {
    DecisionReason.ABANDONED_TOO_OFTEN,
    DecisionReason.UNMAPPABLE_HARDWARE,
    DecisionReason.HARDWARE_NOT_PERCEIVED,
    DecisionReason.INCOMPLETE,  # complete, but hardware that came first speaks of another rank: rule 8 gives it to rule 10
}


class Life(RuleBasedStateMachine):
    """One instance, and what the world knows of it. `removed`: by the engines themselves. `must_rebuild`: a strategy failed."""

    def __init__(self) -> None:
        super().__init__()
        self.state: InstanceState | None = None
        self.settings: FaultToleranceConfig = config()
        self.now = T0
        self.sequence = 0
        self.group = 1
        self.sent: list[Report] = []
        self.dead_once: set[int] = set()
        self.published: dict[int, tuple[int, ...]] = {}
        self.removed: set[int] = set()
        self.used_ids: set[str] = set()
        self.used_generations: set[int] = set()
        self.order: Order | None = None
        self.steps = 0
        self.committed = False
        self.must_rebuild = False
        self.worker_runs = True

    @property
    def here(self) -> InstanceState:
        assert self.state is not None
        return self.state

    def become(self, state: InstanceState, *, commits: bool = False) -> None:
        """The next state, judged against the one before. `commits`: dead_committed may change with it."""
        before, self.state = self.here, state
        assert state.generation >= before.generation, "I16"
        assert state.view_revision >= before.view_revision, "I16"
        assert state.view.revision >= before.view.revision, "I16"
        assert commits or state.dead_committed == before.dead_committed, "I4"
        if state.strategy is None:
            self.publish(state.view.revision, state.view.ranks)

    def publish(self, revision: int, ranks: tuple[int, ...]) -> None:
        """Coordinators may be told this under that revision, now."""
        self.tell(revision, ranks)
        assert not set(ranks) & set(self.here.dead_committed), f"I5: {list(ranks)} holds a removed rank"

    def tell(self, revision: int, ranks: tuple[int, ...]) -> None:
        known = self.published.setdefault(revision, ranks)
        assert known == ranks, f"I5: revision {revision} means {list(known)} and {list(ranks)}"

    @invariant()
    def the_fault_manager_turns_and_the_state_is_sound(self) -> None:
        if self.state is None:
            return
        self.judge()
        if self.worker_runs:
            self.turn()
            self.judge()

    def turn(self) -> None:
        """The FaultManager decides and acts, as often as it wants to."""

    def judge(self) -> None:
        state, served = self.here, set(self.here.view.ranks)
        assert served <= set(state.topology.ranks), "I3"
        assert not served & set(state.dead_committed), "I5: a removed rank is wanted in the view"
        assert state.strategy is not None or not served & self.removed, "I5: a rank is served that its group removed"
        record = state.record(None, self.now)
        assert not record.can_serve or (record.phase in SERVING_PHASES and record.serving_published), "I6"
        assert not set(record.pending_removed_ranks) & set(record.dead_committed), "I4"
        assert not [refused for refused in state.rejected_signals if refused.name == "phase"], "the table was broken"
        assert state.phase is not FtPhase.RECONFIGURING or not served, "it is rebuilt and serves"
        if state.strategy is None and state.phase in SERVING_PHASES:
            assert (state.phase is FtPhase.SCALED_DOWN_RUNNING) == bool(state.dead_committed)
            assert state.owed is None or state.owed in (DecisionReason.FORCED, DecisionReason.ORDERED), "it owes and serves"
        assert InstanceState.model_validate_json(state.model_dump_json(exclude_defaults=True)) == state

    def is_complete(self) -> bool:
        """A complete, gated U+D set stands, of an instance that is ACTIVE (I17)."""
        state = self.here
        dead, unhealthy = state.evidence.standing(D, state.active), state.evidence.standing(U, state.active)
        ready = not state.evidence.not_yet_ready(state.active) and not state.evidence.forming
        enough = len(unhealthy) >= state.config.min_alive_ranks and state.config.enable_dp_scale_down_proxy
        return bool(dead and unhealthy) and {*dead, *unhealthy} == set(state.active) and ready and enough

    def may_rest(self) -> bool:
        """Whether nothing may be waited for: no evidence of an active rank."""
        return not self.here.holds_evidence

    # What ranks say.

    def entry(self, rank: int, status: EngineStatus) -> RankEntry:
        """A rank's newest word, from the engine of the group that serves now."""
        self.sequence += 1
        return RankEntry(id=rank, status=status, incarnation=self.engine(rank), sequence=self.sequence)

    def engine(self, rank: int) -> str:
        return f"group-{self.group}-rank-{rank}"

    def hear(self, rank: int, status: EngineStatus, source: EntrySource = EntrySource.ENGINE) -> None:
        entry = self.entry(rank, status)
        told = Report(
            rank=rank,
            status=status,
            source=source,
            received_at=self.now,
            node_manager=str(self.here.topology.manager_of_rank(rank)),
            life="life-1",
            sequence=entry.sequence,
            engine=entry.incarnation,
            entry=entry,
        )
        self.sent.append(told)
        self.merge(told)

    def merge(self, told: Report) -> None:
        if told.status is D:
            self.dead_once.add(told.rank)
        evidence, _ = self.here.evidence.merge(told, self.here.dead_committed)
        self.become(self.here.but(evidence=evidence))
