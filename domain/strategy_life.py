"""What a strategy does to its instance's state: its start, its progress, its commit, its end, and its silence.

Pure functions from state to state. All of them may be called twice with the same message, or late, or for a strategy that
was replaced meanwhile: (generation, step) orders them, and what is not newer changes nothing.

The end report carries the last entry per rank that the strategy looked at. It is merged into the evidence before the next
decision, so that reports which are still under way cannot start anything (design §3).
"""

from domain.decision import Decision, DecisionReason
from domain.engine import RankEntry
from domain.evidence import from_look
from domain.instance import REVISIONS_OF_A_STRATEGY, InstanceState, PendingFinalize, RunningStrategy, ServingView
from domain.invariants import round_bound_sec
from domain.messages.round import CommitRecord, RoundOrder, RoundOutcome, RoundReason, RoundReport
from domain.messages.strategy import ReconfigurationOrder, ReconfigurationReport, StrategyEnd, StrategyKind, StrategyProgress
from domain.runtime import SERVING_PHASES, FtPhase, resting_phase
from domain.topology import Topology

QUIET_LIMIT_SEC = 60.0
"""A strategy that says nothing for so long is looked up."""

_OUTAGE_SLACK_SEC = 3600.0
"""Outages of worker and server count into a workflow's execution time: the last bound is generous."""


def start_round(state: InstanceState, decision: Decision, request_id: str, now: float) -> tuple[InstanceState, RoundOrder]:
    """The next generation's scale-down round, ordered: removes `decision.ranks` from the active group."""
    generation = state.generation + 1
    order = RoundOrder(
        instance_id=state.instance_id,
        generation=generation,
        request_id=request_id,
        pending_ranks=decision.ranks,
        dead_committed=state.dead_committed,
        phase_before=state.phase,
        topology=state.topology,
        config=state.config,
        published_ranks=state.view.ranks,
        view_revision=state.view_revision,
        reported_incarnations={rank: _reported_engine(state, rank) for rank in decision.ranks},
        first_unhealthy_at={rank: at for rank in state.active if (at := state.evidence.of(rank).first_unhealthy_at) is not None},
    )
    running = _running(state, StrategyKind.SCALE_DOWN, generation, now).model_copy(
        update={"request_id": request_id, "pending_ranks": decision.ranks}
    )
    started = _started(state, running).but(request_id=request_id, last_error=None, gate=None, stage_times={})
    return started.entering(FtPhase.DECIDING, now), order


def _reported_engine(state: InstanceState, rank: int) -> str | None:
    """The engine whose death is known: the group's own, also where a newer process answers in its place."""
    known = state.evidence.of(rank)
    return known.engine or (known.newest.engine if known.newest else None)


def start_rebuild(state: InstanceState, decision: Decision, now: float) -> tuple[InstanceState, ReconfigurationOrder]:
    """The next generation's InstanceReconfiguration. One that a person forced starts the budget anew."""
    generation = state.generation + 1
    why = f"{decision.reason}: {decision.detail}" if decision.detail else str(decision.reason)
    order = ReconfigurationOrder(
        instance_id=state.instance_id,
        generation=generation,
        topology=state.topology,
        config=state.config,
        view_revision=state.view_revision,
        why=why,
    )
    earlier = () if decision.reason is DecisionReason.FORCED else state.rebuilt_at
    window_began = now - state.config.reconfiguration_window_sec
    running = _running(state, StrategyKind.INSTANCE_RECONFIGURATION, generation, now)
    started = _started(state, running).but(
        owed=None,
        owed_detail="",
        budget_spent=False,
        lost_node_managers=(),
        rebuilt_at=(*(at for at in earlier if at > window_began), now),
        evidence=state.evidence.begin_forming(),
        view=ServingView(revision=state.view.revision, ranks=(), confirmed=False),
        last_error=why,
    )
    return started.entering(FtPhase.RECONFIGURING, now), order


def _running(state: InstanceState, kind: StrategyKind, generation: int, now: float) -> RunningStrategy:
    return RunningStrategy(
        kind=kind,
        workflow_id=kind.workflow_id(state.instance_id, generation),
        generation=generation,
        view_revision=state.view_revision,
        phase_before=state.phase,
        started_at=now,
        last_word_at=now,
    )


def _started(state: InstanceState, running: RunningStrategy) -> InstanceState:
    return state.but(
        strategy=running,
        generation=max(state.generation, running.generation),
        view_revision=state.view_revision + REVISIONS_OF_A_STRATEGY,
        looked_for=None,
    )


def attach(state: InstanceState, kind: StrategyKind, generation: int, now: float) -> InstanceState:
    """Take over a strategy that runs already, of which this FaultManager knows only that it does."""
    running = _running(state, kind, generation, now).model_copy(update={"attached": True})
    attached = _started(state, running)
    if kind is StrategyKind.INSTANCE_RECONFIGURATION:
        return attached.but(evidence=attached.evidence.begin_forming(), owed=None, owed_detail="")
    return attached.but(phase=FtPhase.DECIDING)


def execution_bound_sec(state: InstanceState, kind: StrategyKind) -> float:
    """The last bound of a strategy's workflow, for the case that nothing else ended it."""
    if kind is StrategyKind.SCALE_DOWN:
        return 2 * round_bound_sec(state.config.dp_scale_down_config) + _OUTAGE_SLACK_SEC
    return 2 * state.config.reconfiguration_deadline_sec + _OUTAGE_SLACK_SEC


def is_newer(state: InstanceState, generation: int) -> bool:
    """A strategy that this FaultManager never started and that is younger than all it knows."""
    return generation > state.generation


def took_progress(state: InstanceState, progress: StrategyProgress, now: float) -> InstanceState:
    """A strategy said how far it is. Late and foreign words change nothing."""
    if state.strategy is None and is_newer(state, progress.generation):
        state = attach(state, progress.kind, progress.generation, now)
    strategy = state.strategy
    step = progress.step
    if strategy is None or strategy.generation != progress.generation or step.step <= strategy.step:
        return state
    state = state.but(
        strategy=strategy.model_copy(
            update={
                "step": step.step,
                "detail": step.detail,
                "last_word_at": now,
                "request_id": step.request_id if strategy.kind is StrategyKind.SCALE_DOWN else None,
                "pending_ranks": step.pending_ranks,
                "attached": False,
            }
        )
    )
    state = state.but(phase=step.phase) if strategy.attached else state.entering(step.phase, now)
    if state.phase is FtPhase.SCALING_DOWN:
        state = state.but(view=ServingView(revision=strategy.view_revision + 1, ranks=(), confirmed=True))
    return state


def took_commit(state: InstanceState, record: CommitRecord, now: float) -> tuple[InstanceState, bool]:
    """A round's commit point. False: it belongs to a group that is gone, and changes nothing."""
    if state.strategy is None and record.generation >= state.generation and state.phase not in SERVING_PHASES:
        state = attach(state, StrategyKind.SCALE_DOWN, record.generation, now)
    strategy = state.strategy
    if strategy is None or strategy.generation != record.generation:
        return state, set(record.dead_committed) <= set(state.dead_committed) and record.generation == state.generation
    committed = tuple(sorted({*state.dead_committed, *record.dead_committed}))
    marked = strategy.model_copy(
        update={"committed_at": strategy.committed_at or now, "last_word_at": now, "request_id": record.request_id}
    )
    return state.but(
        dead_committed=committed,
        strategy=marked,
        request_id=record.request_id,
        view_revision=max(state.view_revision, record.view_revision),
    ), True


def took_end(state: InstanceState, end: StrategyEnd, now: float) -> InstanceState:
    """A strategy ended. An end that is not the running strategy's, or no newer one's, changes nothing."""
    if state.strategy is None and is_newer(state, end.generation):
        state = attach(state, end.kind, end.generation, now)
    strategy = state.strategy
    if strategy is None or strategy.generation != end.generation or strategy.kind is not end.kind:
        return state
    state = state.but(strategy=None, looked_for=None)
    if end.round is not None:
        return _after_round(state, strategy, end.round, now)
    if end.reconfiguration is not None:
        return _after_rebuild(state, strategy, end.reconfiguration, now)
    return after_loss(state.but(strategy=strategy), f"{end.workflow_id} ended without a report", now)


def after_loss(state: InstanceState, why: str, now: float) -> InstanceState:
    """The strategy is gone and said nothing: what it did is not known, so journals are read and the instance is rebuilt."""
    strategy = state.strategy
    if strategy is None:
        return state
    ended = now if strategy.kind is StrategyKind.INSTANCE_RECONFIGURATION else state.rebuild_ended_at
    reason = _still_ordered(state, DecisionReason.STRATEGY_LOST)
    return state.but(strategy=None, reseed=True, rebuild_ended_at=ended).owing(reason, why, now)


def _after_round(state: InstanceState, strategy: RunningStrategy, report: RoundReport, now: float) -> InstanceState:
    revision = max(state.view_revision, strategy.view_revision + REVISIONS_OF_A_STRATEGY, report.view_revision)
    state = state.but(
        view_revision=revision,
        request_id=report.request_id,
        gate=report.gate if report.gate is not None else state.gate,
        stage_times=report.stage_times,
        absent_node_managers=report.absent_node_managers,
        pending_finalize=(*state.pending_finalize, *_pending(state.topology, report)),
    )
    match report.outcome:
        case RoundOutcome.SUCCEEDED:
            return _after_success(state, strategy, report, now)
        case RoundOutcome.ABANDONED if strategy.committed_at is None:
            state = _looking(state, report.looked, now)
            return state.but(abandoned_at=(*state.abandoned_at, now)[-16:]).entering(strategy.phase_before, now)
        case RoundOutcome.CANCELLED if strategy.committed_at is None and not report.withdrawn and state.owed is None:
            return _looking(state, report.looked, now).entering(strategy.phase_before, now)
        case _:
            why = f"{strategy.workflow_id}: {report.reason}" + (f": {report.detail}" if report.detail else "")
            reason = _still_ordered(state, DecisionReason.ROUND_FAILED)
            reseed = report.reason is RoundReason.GUARD_REFUSED
            return _looking(state, report.looked, now).but(reseed=state.reseed or reseed).owing(reason, why, now)


def _after_success(state: InstanceState, strategy: RunningStrategy, report: RoundReport, now: float) -> InstanceState:
    """The survivors are the instance now. A view that not every Coordinator has acknowledged goes on being pushed."""
    committed = tuple(sorted({*state.dead_committed, *report.dead_committed}))
    state = _looking(state.but(dead_committed=committed), report.looked, strategy.committed_at or now)
    if report.committed:
        view = ServingView(
            revision=report.view_revision or strategy.view_revision + REVISIONS_OF_A_STRATEGY,
            ranks=state.active,
            confirmed=report.serving_published,
        )
        state = state.but(view=view, last_error=None if report.serving_published else "Coordinators have not all confirmed")
    phase = resting_phase(committed)
    if state.phase is FtPhase.SCALING_DOWN:
        state = state.entering(FtPhase.POST_SCALE_CLEANUP, now)
    return state.entering(phase, now)


def _after_rebuild(state: InstanceState, strategy: RunningStrategy, report: ReconfigurationReport, now: float) -> InstanceState:
    revision = max(state.view_revision, strategy.view_revision + REVISIONS_OF_A_STRATEGY, report.view_revision)
    state = state.but(view_revision=revision, rebuild_ended_at=now, stage_times=report.stage_times)
    if not report.succeeded:
        why = f"{strategy.workflow_id}: {report.reason}" + (f": {report.detail}" if report.detail else "")
        return _looking(state, report.looked, now).but(reseed=True).owing(DecisionReason.REBUILD_FAILED, why, now)
    evidence = state.evidence.formed(report.engine_incarnations, state.topology.ranks, now)
    whole = state.but(
        evidence=evidence.merge_all(from_look(report.looked, now), ()),
        dead_committed=(),
        pending_finalize=(),
        absent_node_managers=(),
        abandoned_at=(),
        last_error=None if report.serving_published else "Coordinators have not all confirmed",
        view=ServingView(
            revision=report.view_revision or strategy.view_revision + REVISIONS_OF_A_STRATEGY,
            ranks=state.topology.ranks,
            confirmed=report.serving_published,
        ),
    )
    return whole.entering(FtPhase.NORMAL, now)


def _looking(state: InstanceState, looked: dict[int, RankEntry], looked_at: float) -> InstanceState:
    return state.but(evidence=state.evidence.merge_all(from_look(looked, looked_at), state.dead_committed))


def _still_ordered(state: InstanceState, reason: DecisionReason) -> DecisionReason:
    """A person's order outlives the end of what it stopped."""
    return DecisionReason.FORCED if state.owed is DecisionReason.FORCED else reason


def _pending(topology: Topology, report: RoundReport) -> tuple[PendingFinalize, ...]:
    managers = [manager for manager in topology.managers if str(manager) in report.pending_finalize]
    return tuple(
        PendingFinalize(
            request_id=report.request_id,
            generation=report.generation,
            commit=report.committed,
            manager=manager,
            retired=tuple(rank for rank in topology.ranks_of(manager) if rank in report.removed_dp_ranks)
            if report.committed
            else (),
            dead_committed=report.dead_committed,
        )
        for manager in managers
    )
