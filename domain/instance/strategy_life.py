"""A strategy's life in the instance's state, after its start: it is found, tells progress, commits, ends, falls silent.

Pure functions from state to state. All of them may be called twice with the same message, or late, or for a strategy that
was replaced meanwhile: (generation, step) orders them, and what is not newer changes nothing. What differs from strategy
to strategy is in the table, `strategies.py`.
"""

from domain.instance.state import InstanceState, ServingView
from domain.instance.strategies import STRATEGIES
from domain.instance.strategy_start import started_with
from domain.messages.round import CommitRecord
from domain.messages.strategy import StrategyEnd, StrategyKind, StrategyProgress
from domain.runtime import SERVING_PHASES, FtPhase

QUIET_LIMIT_SEC = 60.0
"""A strategy that says nothing for so long is looked up."""


def attach(state: InstanceState, kind: StrategyKind, generation: int, now: float) -> InstanceState:
    """Take over a strategy that runs already, of which this FaultManager knows only that it does."""
    running = (
        STRATEGIES[kind]
        .running(state, now)
        .model_copy(
            update={"generation": generation, "workflow_id": kind.workflow_id(state.instance_id, generation), "attached": True}
        )
    )
    attached = started_with(state, running)
    if STRATEGIES[kind].stops_engines:
        return attached.but(evidence=attached.evidence.begin_forming(), owed=None, owed_detail="")
    return attached.but(phase=FtPhase.DECIDING)


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
                "request_id": step.request_id if STRATEGIES[strategy.kind].transaction else None,
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
    state = state.but(
        dead_committed=committed,
        strategy=marked,
        request_id=record.request_id,
        view_revision=max(state.view_revision, record.view_revision),
    )
    if state.view.ranks:  # the word that it was withdrawn, which comes before every commit, did not get here
        state = state.but(view=ServingView(revision=strategy.view_revision + 1, ranks=(), confirmed=True))
    if state.phase is FtPhase.SCALING_DOWN:
        state = state.entering(FtPhase.POST_SCALE_CLEANUP, now)
    return state, True


def took_end(state: InstanceState, end: StrategyEnd, now: float) -> InstanceState:
    """A strategy ended. An end that is not the running strategy's, or no newer one's, changes nothing."""
    if state.strategy is None and is_newer(state, end.generation):
        state = attach(state, end.kind, end.generation, now)
    strategy = state.strategy
    if strategy is None or strategy.generation != end.generation or strategy.kind is not end.kind:
        return state
    state = state.but(strategy=None, looked_for=None, last_strategy=strategy.workflow_id)
    return STRATEGIES[end.kind].end(state, strategy, end.report, now)


def after_loss(state: InstanceState, why: str, now: float) -> InstanceState:
    """The strategy is gone and said nothing."""
    strategy = state.strategy
    if strategy is None:
        return state
    state = state.but(strategy=None, last_strategy=strategy.workflow_id)
    return STRATEGIES[strategy.kind].lost(state, strategy, why, now)
