"""The FaultManager's turn, as the workflow takes it, and what the strategies that it starts do until they end."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from domain.engine import EngineStatus, RankEntry
from domain.hardware import RECOVERY_LEVELS
from domain.instance.decision import Action, Decision, DecisionReason, decide
from domain.instance.learning import after_journals, seeded
from domain.instance.situation import Case
from domain.instance.state import InstanceState
from domain.instance.state import Life as PartOfLife
from domain.instance.strategies import STARTED_BY, STRATEGIES
from domain.instance.strategy_life import after_loss, attach, took_commit, took_end, took_progress
from domain.messages.fault_manager import FreshLookResult, JournalsResult
from domain.messages.round import CommitRecord
from domain.messages.strategy import (
    FastRecoveryOrder,
    FastRecoveryReport,
    ReconfigurationOrder,
    ReconfigurationReason,
    ReconfigurationReport,
    ReinferenceOrder,
    ReinferenceReason,
    ReinferenceReport,
    RelaunchOrder,
    RelaunchReport,
    RoundOrder,
    RoundOutcome,
    RoundReason,
    RoundReport,
    StepReport,
    StrategyEnd,
    StrategyKind,
    StrategyProgress,
    StrategyReport,
)
from domain.runtime import SERVING_PHASES, FtPhase, may_follow
from tests.domain.instance_factories import D, H
from tests.domain.life_judge import A_COMPLETE_GROUP_IS_REBUILT, AFTER_A_FAILURE, ALL_RANKS, Life, Order, rarely

KINDS: dict[type, StrategyKind] = {strategy.order: kind for kind, strategy in STRATEGIES.items()}
FAILURES = st.sampled_from(
    [RoundReason.GATE_REFUSED, RoundReason.GUARD_REFUSED, RoundReason.NOT_READY_IN_TIME, RoundReason.APPLY_UNKNOWN]
)
TURNS_UNTIL_REST = 8


def start(state: InstanceState, decision: Decision, unique: str, now: float) -> tuple[InstanceState, Order]:
    """What the decision starts, as the FaultManager does it."""
    after, order = STARTED_BY[decision.action].start(state, decision, unique, now)
    return after, order


Move = TypeVar("Move", bound=Callable[..., None])


def runs(*kinds: type, committed: bool | None = None) -> Callable[[Move], Move]:
    """A rule's condition: a strategy of these orders runs, and has committed or not, where that is asked."""
    return precondition(lambda self: isinstance(self.order, kinds) and committed in (None, self.committed))


class Strategies(Life):
    """The rules of what runs."""

    @rule(runs=st.sampled_from([True, True, False]))
    def the_worker_stops_or_comes_back(self, runs: bool) -> None:
        """While none runs, what comes in waits, and is judged all at once."""
        self.worker_runs = runs

    def turn(self) -> None:
        """Decide and act until it waits, as the workflow's loop does."""
        if self.here.life is PartOfLife.LEARNING:
            self.learn()
        if not any(self._turn() for _ in range(TURNS_UNTIL_REST)):
            raise AssertionError("it does not come to rest")

    def _turn(self) -> bool:
        """One turn; true when it waits."""
        state = self.here
        decision = decide(state.evidence, state.situation(), state.topology, state.config, self.now)
        self.become(state.handling(decision.handled))
        waits = self._acts_not(decision)
        self.become(self.here.following(decision))
        if waits and self.here.phase is FtPhase.RECONFIGURING:
            assert self.here.strategy is not None or self.here.owed is not None, "I11: withdrawn, and nobody is waited for"
        if waits and self.here.strategy is None and self.here.phase in SERVING_PHASES and not self.here.automation_off:
            served = set(self.here.view.ranks)
            assert served == (set() if decision.withdraw else set(self.here.active)), "it rests and serves something else"
            assert not self.here.isolated or not served, "an L3 stands and it serves"
        return waits

    def _acts_not(self, decision: Decision) -> bool:
        """Whether there is nothing to do but to wait."""
        state = self.here
        if state.automation_off and decision.reason not in (DecisionReason.FORCED, DecisionReason.ORDERED):
            return True
        match decision.action:
            case action if action in STARTED_BY and state.reseed:
                self.become(state.but(reseed=False))
            case action if action in STARTED_BY:
                self._start(decision)
            case Action.SCALE_P2D:
                self.become(state.owing(DecisionReason.SCALE_P2D_UNAVAILABLE, decision.detail, self.now))
            case Action.FRESH_LOOK:
                self.become(state.but(looked_for=self._collecting_since()))
            case Action.WAKE:
                self.become(state.but(woken_for=self._collecting_since()))
            case Action.STAY_WITHDRAWN:
                owed = state.owed or DecisionReason.BUDGET_SPENT
                self.become(state.withdrawn(self.now).but(budget_spent=True, owed=owed))
                return True
            case Action.PREEMPT:
                assert state.strategy is not None
                assert state.strategy.preemptible
                assert not self.committed or state.strategy.committed_at is None
                self.become(state.but(strategy=state.strategy.model_copy(update={"stop_requested": True})))
                return True
            case Action.WAIT:
                assert decision.until is not None
                assert decision.until > self.now, "I11: it waits for what is past"
                return True
            case Action.KEEP:
                assert state.strategy is not None
                return True
            case _:
                assert self.may_rest(), "I11: evidence is held and nothing waits for anything"
                return True
        return False

    def _collecting_since(self) -> float | None:
        state = self.here
        return Case(state.evidence, state.situation(), state.topology, state.config, self.now).collecting_since

    def _start(self, decision: Decision) -> None:
        state = self.here
        assert state.strategy is None, "I1: two strategies"
        match decision.action:
            case Action.SCALE_DOWN:
                told_dead = self.dead_once | (set(ALL_RANKS) if state.lost_node_managers else set())
                assert set(decision.ranks) <= told_dead & set(state.active), "I7, I2: nobody reported these ranks DEAD"
                assert set(state.active) - set(decision.ranks), "I13: nobody would be left"
                assert not self.must_rebuild, "I9: a round after a failure"
            case Action.FAST_RECOVERY:
                assert not state.evidence.standing(D, state.active)
                assert not self.must_rebuild
            case Action.RECONFIGURE:
                self._judge_rebuild(decision)
        after, order = start(state, decision, f"{state.generation + 1:032x}", self.now)
        assert order.generation not in self.used_generations, "I1, I16: a generation twice"
        self.used_generations.add(order.generation)
        if isinstance(order, RoundOrder | FastRecoveryOrder):
            assert order.request_id not in self.used_ids, "I1: a request id twice"
            self.used_ids.add(order.request_id)
            assert order.dead_committed == state.dead_committed, "I2"
            assert order.published_ranks == state.view.ranks, "the view that it would withdraw is another one"
        self.order, self.steps, self.committed = order, 0, False
        self.become(after)

    def _judge_rebuild(self, decision: Decision) -> None:
        hardware = self.here.evidence.hardware.open(*RECOVERY_LEVELS)
        if self.is_complete():
            assert decision.reason in A_COMPLETE_GROUP_IS_REBUILT, f"I17: rebuilt because of {decision.reason}"
            assert decision.reason is not DecisionReason.INCOMPLETE or hardware, "I17: it was complete"
        assert not self.must_rebuild or decision.reason in AFTER_A_FAILURE, "a failure was forgotten"
        self.must_rebuild = False

    # Progress, commit and silence.

    @runs(RoundOrder, committed=False)
    @rule(phase=st.sampled_from([FtPhase.DECIDING, FtPhase.WAITING_ENGINE_FAULT, FtPhase.SCALING_DOWN]), told=st.booleans())
    def the_round_goes_on(self, phase: FtPhase, told: bool) -> None:
        """`told`: whether its word comes through."""
        if not may_follow(self.here.phase, phase):
            return
        self.steps += 1
        if phase is FtPhase.SCALING_DOWN:
            self._withdraw()
        if told:
            self.become(took_progress(self.here, self._progress(phase), self.now))

    @runs(FastRecoveryOrder, committed=False)
    @rule()
    def the_fast_recovery_withdraws(self) -> None:
        self.steps += 1
        self._withdraw()
        self.become(took_progress(self.here, self._progress(FtPhase.DECIDING), self.now))

    def _withdraw(self) -> None:
        assert isinstance(self.order, RoundOrder | FastRecoveryOrder | ReconfigurationOrder | RelaunchOrder)
        self.publish(self.order.view_revision + 1, ())

    def _withdrew(self) -> bool:
        return isinstance(self.order, RoundOrder | FastRecoveryOrder) and self.order.view_revision + 1 in self.published

    def _progress(self, phase: FtPhase) -> StrategyProgress:
        order = self._order()
        request_id = order.request_id if isinstance(order, RoundOrder | FastRecoveryOrder) else "none"
        pending = order.pending_ranks if isinstance(order, RoundOrder) else ()
        step = StepReport(
            step=self.steps, phase=phase, detail="on its way", request_id=request_id, pending_ranks=pending, at=self.now
        )
        kind = KINDS[type(order)]
        workflow_id = kind.workflow_id(7, order.generation)
        return StrategyProgress(kind=kind, instance_id=7, generation=order.generation, workflow_id=workflow_id, step=step)

    def _order(self) -> Order:
        assert self.order is not None
        return self.order

    @runs(RoundOrder, committed=False)
    @rule(told=st.booleans())
    def the_round_commits(self, told: bool) -> None:
        order = self._order()
        assert isinstance(order, RoundOrder)
        self._withdraw()
        self.committed = True
        self.removed.update(self._cumulative(order))
        if told:
            self._commit()

    @runs(RoundOrder, committed=True)
    @rule()
    def the_commit_is_told_again(self) -> None:
        self._commit()

    def _commit(self) -> None:
        order = self._order()
        assert isinstance(order, RoundOrder)
        record = CommitRecord(
            instance_id=7,
            generation=order.generation,
            request_id=order.request_id,
            dead_committed=self._cumulative(order),
            view_revision=order.view_revision + 1,
        )
        state, recorded = took_commit(self.here, record, self.now)
        assert recorded
        self.become(state, commits=True)

    def _cumulative(self, order: RoundOrder) -> tuple[int, ...]:
        return tuple(sorted({*order.dead_committed, *order.pending_ranks}))

    @precondition(lambda self: self.order is not None)
    @rule(really=rarely)
    def the_strategy_falls_silent(self, really: bool) -> None:
        if not really:
            return
        self.must_rebuild = self.must_rebuild or not isinstance(self.order, ReinferenceOrder)
        self.order = None
        self.become(after_loss(self.here, "it ended without a word", self.now))
        assert self.here.strategy is None

    @rule(really=rarely, late=st.booleans(), finalized=st.booleans())
    def the_fault_manager_forgets_everything(self, really: bool, late: bool, finalized: bool) -> None:
        """Terminated and started anew: it asks the journals. `late`: they do not know yet of the strategy that runs."""
        if not really:
            return
        before, order = self.here, self.order
        unknown = self._cumulative(order) if isinstance(order, RoundOrder) and self.committed and not finalized else ()
        journals = self._journals(
            highest_generation=before.generation - (order is not None and late),
            dead_committed=tuple(sorted(self.removed - (set(unknown) - set(before.dead_committed)))),
        )
        state = InstanceState(instance_id=7, topology=before.topology, config=before.config)
        if order is not None:
            state = attach(seeded(state, journals), KINDS[type(order)], order.generation, self.now)
        self.state = after_journals(state, journals, self._fresh_look(), self.now)
        self.become(self.state)  # revisions that nobody was told are forgotten rightly

    def learn(self) -> None:
        """What was attached to has ended and changed nothing: the journals are asked once more."""
        self.become(after_journals(self.here, self._journals(), self._fresh_look(), self.now), commits=True)

    def _journals(self, **changes: Any) -> JournalsResult:
        newest = max(self.published)
        fields: dict[str, Any] = {
            "highest_generation": self.here.generation,
            "dead_committed": tuple(sorted(self.removed)),
            "view_revision": newest,
            "published_ranks": self.published[newest],
            **changes,
        }
        return JournalsResult(complete=True, started=True, **fields)

    def _fresh_look(self) -> FreshLookResult:
        """The engines say what they said before."""
        alive = (rank for rank in ALL_RANKS if rank not in self.removed)
        return FreshLookResult(last_entries={rank: self.entry(rank, self.here.evidence.of(rank).status) for rank in alive})

    # Ends.

    @runs(RoundOrder, committed=False)
    @rule(told=st.booleans())
    def the_round_goes_well_to_its_end(self, told: bool) -> None:
        """All at once: so that lives get to a second round, and to a third."""
        self.the_round_goes_on(FtPhase.SCALING_DOWN, told)
        self.the_round_commits(told)
        self.the_round_succeeds(True)

    @runs(RoundOrder, committed=True)
    @rule(published=st.booleans())
    def the_round_succeeds(self, published: bool) -> None:
        order = self._order()
        assert isinstance(order, RoundOrder)
        removed = self._cumulative(order)
        survivors = tuple(rank for rank in ALL_RANKS if rank not in removed)
        self._end_round(
            RoundOutcome.SUCCEEDED,
            RoundReason.COMMITTED,
            committed=True,
            dead_committed=removed,
            removed_dp_ranks=removed,
            survivors=survivors,
            last_entries=self._looked(survivors, H),
            **self._added(survivors, published),
        )
        assert set(removed) <= set(self.here.dead_committed)

    @runs(RoundOrder, committed=False)
    @rule(reason=FAILURES)
    def the_round_fails(self, reason: RoundReason) -> None:
        self.must_rebuild = True
        self._end_round(RoundOutcome.FAILED, reason, withdrawn=self._withdrew())

    @runs(RoundOrder, committed=False)
    @rule()
    def the_round_is_abandoned(self) -> None:
        order = self._order()
        if isinstance(order, RoundOrder) and not self._withdrew():
            self._end_round(RoundOutcome.ABANDONED, RoundReason.FALSE_ALARM, last_entries=self._looked(order.pending_ranks, H))

    @runs(FastRecoveryOrder)
    @rule(published=st.booleans())
    def the_fast_recovery_succeeds(self, published: bool) -> None:
        order = self._order()
        assert isinstance(order, FastRecoveryOrder)
        self._withdraw()
        self._end_fast_recovery(
            RoundOutcome.SUCCEEDED,
            RoundReason.RECOVERED,
            recovered=self.here.active,
            withdrawn=True,
            last_entries=self._looked(self.here.active, H),
            **self._added(self.here.active, published),
        )

    @runs(FastRecoveryOrder)
    @rule(reason=FAILURES, rank=st.sampled_from(ALL_RANKS))
    def the_fast_recovery_fails(self, reason: RoundReason, rank: int) -> None:
        """I9: also where the evidence would make a complete set by then."""
        self.must_rebuild = True
        self._end_fast_recovery(RoundOutcome.FAILED, reason, withdrawn=self._withdrew(), last_entries=self._looked((rank,), D))

    @runs(FastRecoveryOrder)
    @rule(rank=st.sampled_from(ALL_RANKS))
    def the_fast_recovery_is_abandoned(self, rank: int) -> None:
        if not self._withdrew():
            self._end_fast_recovery(RoundOutcome.ABANDONED, RoundReason.RANK_DIED, last_entries=self._looked((rank,), D))

    @precondition(lambda self: self.state is not None and self.state.strategy is not None and self.state.strategy.stop_requested)
    @rule()
    def a_stopped_strategy_ends(self) -> None:
        withdrawn = self._withdrew()
        match self.order:
            case RoundOrder() if not self.committed:
                self._end_round(RoundOutcome.CANCELLED, RoundReason.CANCELLED, withdrawn=withdrawn)
            case FastRecoveryOrder():
                self._end_fast_recovery(RoundOutcome.CANCELLED, RoundReason.CANCELLED, withdrawn=withdrawn)
            case RelaunchOrder():
                self.must_rebuild = True
                self._end_relaunch(ReconfigurationReason.CANCELLED)

    @runs(ReconfigurationOrder, RelaunchOrder)
    @rule(published=st.booleans())
    def the_engines_are_started_anew(self, published: bool) -> None:
        order = self._order()
        assert isinstance(order, ReconfigurationOrder | RelaunchOrder)
        relaunch = isinstance(order, RelaunchOrder)
        before = self.here.dead_committed
        ranks = self.here.active if relaunch else ALL_RANKS
        self.group += 1
        self.dead_once.clear()
        self.removed = set(before) if relaunch else set()
        self._withdraw()
        changes = {
            **self._added(ranks, published),
            "engine_incarnations": {rank: self.engine(rank) for rank in ranks},
            "last_entries": self._looked(ranks, H),
        }
        if relaunch:
            self._end_relaunch(ReconfigurationReason.RELAUNCHED, **changes)
        else:
            self._end_rebuild(ReconfigurationReason.REBUILT, **changes)
        assert self.here.dead_committed == (before if relaunch else ())
        assert self.here.phase in SERVING_PHASES

    @runs(ReconfigurationOrder)
    @rule(really=rarely)
    def the_rebuild_fails(self, really: bool) -> None:
        if not really:
            return
        self.must_rebuild = True
        self._end_rebuild(ReconfigurationReason.NOT_READY_IN_TIME)

    @runs(RelaunchOrder)
    @rule()
    def the_relaunch_fails(self) -> None:
        self.must_rebuild = True
        self._end_relaunch(ReconfigurationReason.NOT_READY_IN_TIME)

    @runs(ReinferenceOrder)
    @rule(healed=st.booleans())
    def the_reinference_ends(self, healed: bool) -> None:
        order = self._order()
        reason = ReinferenceReason.HEALED if healed else ReinferenceReason.NOT_HEALED_IN_TIME
        kind: Literal[StrategyKind.TOKEN_REINFERENCE] = StrategyKind.TOKEN_REINFERENCE
        report = ReinferenceReport(kind=kind, instance_id=7, generation=order.generation, healed=healed, reason=reason)
        self._end(report)

    def _added(self, ranks: tuple[int, ...], published: bool) -> dict[str, Any]:
        """The ADD at the end of a strategy, acknowledged or not; withheld where an L3 stood when it was ordered."""
        order = self._order()
        assert not isinstance(order, ReinferenceOrder)
        if order.isolated:
            return {"serving_published": False, "view_revision": order.view_revision + 1}
        self.tell(order.view_revision + 2, ranks)
        return {"serving_published": published, "view_revision": order.view_revision + 2}

    def _looked(self, ranks: tuple[int, ...], status: EngineStatus) -> dict[int, RankEntry]:
        if status is D:
            self.dead_once.update(ranks)
        return {rank: self.entry(rank, status) for rank in ranks}

    def _end_round(self, outcome: RoundOutcome, reason: RoundReason, **changes: Any) -> None:
        order = self._order()
        assert isinstance(order, RoundOrder)
        said = {"view_revision": order.view_revision + self._withdrew(), "removed_dp_ranks": order.pending_ranks, **changes}
        names = {"instance_id": 7, "generation": order.generation, "request_id": order.request_id}
        self._end(RoundReport(kind=StrategyKind.SCALE_DOWN, outcome=outcome, reason=reason, **names, **said))

    def _end_fast_recovery(self, outcome: RoundOutcome, reason: RoundReason, **changes: Any) -> None:
        order = self._order()
        assert isinstance(order, FastRecoveryOrder)
        said = {"view_revision": order.view_revision + self._withdrew(), **changes}
        names = {"instance_id": 7, "generation": order.generation, "request_id": order.request_id}
        self._end(FastRecoveryReport(kind=StrategyKind.FAST_RECOVERY, outcome=outcome, reason=reason, **names, **said))

    def _end_rebuild(self, reason: ReconfigurationReason, **changes: Any) -> None:
        succeeded = reason is ReconfigurationReason.REBUILT
        names = {"instance_id": 7, "generation": self._order().generation}
        kind: Literal[StrategyKind.INSTANCE_RECONFIGURATION] = StrategyKind.INSTANCE_RECONFIGURATION
        self._end(ReconfigurationReport(kind=kind, succeeded=succeeded, reason=reason, **names, **changes))

    def _end_relaunch(self, reason: ReconfigurationReason, **changes: Any) -> None:
        succeeded = reason is ReconfigurationReason.RELAUNCHED
        names = {"instance_id": 7, "generation": self._order().generation, "dead_committed": self.here.dead_committed}
        self._end(RelaunchReport(kind=StrategyKind.ENGINE_RELAUNCH, succeeded=succeeded, reason=reason, **names, **changes))

    def _end(self, report: StrategyReport) -> None:
        assert report.kind is KINDS[type(self._order())]
        end = StrategyEnd(workflow_id=report.kind.workflow_id(7, report.generation), report=report)
        self.order = None
        self.become(took_end(self.here, end, self.now), commits=True)
        assert self.here.strategy is None
        assert took_end(self.here, end, self.now) == self.here, "an end that is told twice changes something"
