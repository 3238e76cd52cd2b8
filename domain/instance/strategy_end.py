"""What each strategy's end means for the instance's state, and what it means when one is gone without a word.

Pure functions `(state, strategy, report, now) -> state`, over a state in which the strategy runs no more. The report
carries the last entry per rank that the strategy looked at. It is merged into the evidence before the next decision, so
that reports which are still under way cannot start anything (design §3).
"""

from domain.engine import RankEntry
from domain.instance.decision import DecisionReason
from domain.instance.evidence import from_entries
from domain.instance.state import REVISIONS_OF_A_STRATEGY, InstanceState, Life, PendingFinalize, RunningStrategy, ServingView
from domain.messages.strategy import (
    FastRecoveryReport,
    RebuildReport,
    ReinferenceReason,
    ReinferenceReport,
    RelaunchReport,
    RoundOutcome,
    RoundReason,
    RoundReport,
    TransactionReport,
)
from domain.runtime import SERVING_PHASES, FtPhase, resting_phase
from domain.topology import Topology

_UNCONFIRMED = "Coordinators have not all confirmed the view"


def after_round(state: InstanceState, strategy: RunningStrategy, report: RoundReport, now: float) -> InstanceState:
    state = _after_transaction(state, strategy, report)
    state = state.but(absent_node_managers=report.absent_node_managers)
    match report.outcome:
        case RoundOutcome.SUCCEEDED:
            return _after_success(state, strategy, report, now)
        case RoundOutcome.ABANDONED if strategy.committed_at is None:
            return back(looking(state, report.last_entries, now), strategy, now, abandoned=True)
        case RoundOutcome.CANCELLED if strategy.committed_at is None and not report.withdrawn and state.owed is None:
            return back(looking(state, report.last_entries, now), strategy, now)
        case _:
            why = failure("round", report.reason, report.detail, strategy)
            reason = still_ordered(state, DecisionReason.ROUND_FAILED)
            reseed = report.reason is RoundReason.GUARD_REFUSED
            return looking(state, report.last_entries, now).but(reseed=state.reseed or reseed).owing(reason, why, now)


def after_fast_recovery(state: InstanceState, strategy: RunningStrategy, report: FastRecoveryReport, now: float) -> InstanceState:
    """Nobody was removed: success serves as before, failure ends in a rebuild and never in a scale-down (I9)."""
    state = looking(_after_transaction(state, strategy, report), report.last_entries, now)
    match report.outcome:
        case RoundOutcome.SUCCEEDED:
            view = published(strategy, report, state.active)
            error = None if view.confirmed else _UNCONFIRMED
            return state.but(view=view, last_error=error).entering(resting_phase(state.dead_committed), now)
        case RoundOutcome.ABANDONED:
            return back(state, strategy, now, abandoned=True)
        case RoundOutcome.CANCELLED if not report.withdrawn and state.owed is None:
            return back(state, strategy, now)
        case _:
            why = failure("fast recovery", report.reason, report.detail, strategy)
            reseed = report.reason is RoundReason.GUARD_REFUSED
            reason = still_ordered(state, DecisionReason.FAST_RECOVERY_FAILED)
            return state.but(reseed=state.reseed or reseed).owing(reason, why, now)


def after_reinference(state: InstanceState, strategy: RunningStrategy, report: ReinferenceReport, now: float) -> InstanceState:
    """The fault was tried once. Where it has not healed and engines show a fault, the rules judge that; else it failed."""
    state = looking(state.but(stage_times=report.stage_times), report.last_entries, now)
    if report.healed:
        return back(state, strategy, now)
    why = failure("token reinference", report.reason, report.detail, strategy)
    judged_by_rules = state.holds_evidence or not state.config.enable_dp_scale_down_proxy
    if judged_by_rules or report.reason is ReinferenceReason.CANCELLED:
        return back(state.but(last_error=why), strategy, now)
    return state.owing(still_ordered(state, DecisionReason.REINFERENCE_FAILED), why, now)


def lost_in_the_middle(state: InstanceState, strategy: RunningStrategy, why: str, now: float) -> InstanceState:
    """What it did is not known: the journals are read, and the instance is rebuilt."""
    reason = still_ordered(state, DecisionReason.STRATEGY_LOST)
    return state.but(reseed=True).owing(reason, why, now)


def lost_rebuild(state: InstanceState, strategy: RunningStrategy, why: str, now: float) -> InstanceState:
    """The same, and the next one keeps its distance from it."""
    return lost_in_the_middle(state.but(rebuild_ended_at=now), strategy, why, now)


def lost_wait(state: InstanceState, strategy: RunningStrategy, why: str, now: float) -> InstanceState:
    """It touched nothing."""
    return back(state.but(last_error=why), strategy, now)


def _after_transaction(state: InstanceState, strategy: RunningStrategy, report: TransactionReport) -> InstanceState:
    """What both kinds of transaction leave behind, however they ended."""
    return state.but(
        view_revision=max(state.view_revision, strategy.view_revision + REVISIONS_OF_A_STRATEGY, report.view_revision),
        request_id=report.request_id,
        gate=report.gate if report.gate is not None else state.gate,
        stage_times=report.stage_times,
        pending_finalize=(*state.pending_finalize, *_pending(state.topology, report)),
    )


def back(state: InstanceState, strategy: RunningStrategy, now: float, *, abandoned: bool = False) -> InstanceState:
    """In the phase before the strategy, as if it had not been; how often that was an abandoned one is counted.

    A FaultManager without memory that attached to it does not know what was before: it asks the journals once more, now
    that nothing runs.
    """
    state = state.but(abandoned_at=(*state.abandoned_at, now)[-16:]) if abandoned else state
    if strategy.phase_before in SERVING_PHASES or state.life is not Life.RUNNING or state.owed is not None:
        return state.entering(strategy.phase_before, now)
    return state.entering(FtPhase.RECONFIGURING, now).but(life=Life.LEARNING)


def _after_success(state: InstanceState, strategy: RunningStrategy, report: RoundReport, now: float) -> InstanceState:
    """The survivors are the instance now. A view that not every Coordinator has acknowledged goes on being pushed."""
    committed = tuple(sorted({*state.dead_committed, *report.dead_committed}))
    state = looking(state.but(dead_committed=committed), report.last_entries, strategy.committed_at or now)
    if report.committed:
        view = published(strategy, report, state.active)
        state = state.but(view=view, last_error=None if view.confirmed else _UNCONFIRMED)
    phase = resting_phase(committed)
    if state.phase is FtPhase.SCALING_DOWN:
        state = state.entering(FtPhase.POST_SCALE_CLEANUP, now)
    return state.entering(phase, now)


def after_rebuild(state: InstanceState, strategy: RunningStrategy, report: RebuildReport, now: float) -> InstanceState:
    """A rebuild makes the group whole; a relaunch starts the shrunk one anew. What led to it is told as past from then on."""
    relaunch = isinstance(report, RelaunchReport)
    revision = max(state.view_revision, strategy.view_revision + REVISIONS_OF_A_STRATEGY, report.view_revision)
    ended = state.rebuild_ended_at if relaunch else now
    state = state.but(view_revision=revision, rebuild_ended_at=ended, stage_times=report.stage_times)
    if not report.succeeded:
        why = failure("relaunch" if relaunch else "rebuild", report.reason, report.detail, strategy)
        reason = DecisionReason.RELAUNCH_FAILED if relaunch else DecisionReason.REBUILD_FAILED
        return looking(state, report.last_entries, now).but(reseed=True).owing(still_ordered(state, reason), why, now)
    committed = state.dead_committed if relaunch else ()
    state = state.but(dead_committed=committed)
    view = published(strategy, report, state.active)
    past = f"{'relaunched' if relaunch else 'rebuilt'} because {strategy.why}" if strategy.why else None
    evidence = state.evidence.formed(report.engine_incarnations, state.active, now)
    started = state.but(
        evidence=evidence.merge_all(from_entries(report.last_entries, now), committed),
        pending_finalize=(),
        absent_node_managers=(),
        lost_node_managers=(),
        abandoned_at=(),
        last_error=past if view.confirmed else _UNCONFIRMED,
        view=view,
    )
    return started.entering(resting_phase(committed), now)


def published(
    strategy: RunningStrategy,
    report: TransactionReport | RebuildReport,
    ranks: tuple[int, ...],
) -> ServingView:
    """The view that a strategy left behind: these ranks, or withdrawn still where it was told to leave it so."""
    if strategy.isolated and not report.serving_published:
        return ServingView(revision=report.view_revision or strategy.view_revision + 1, ranks=(), confirmed=True)
    revision = report.view_revision or strategy.view_revision + REVISIONS_OF_A_STRATEGY
    return ServingView(revision=revision, ranks=ranks, confirmed=report.serving_published)


def failure(what: str, reason: object, detail: str, strategy: RunningStrategy) -> str:
    """What a person reads of a strategy that failed: what, why, the details as the peers told them, and where to look."""
    return f"{what} failed: {reason}{f': {detail}' if detail else ''} ({strategy.workflow_id})"


def looking(state: InstanceState, looked: dict[int, RankEntry], looked_at: float) -> InstanceState:
    return state.but(evidence=state.evidence.merge_all(from_entries(looked, looked_at), state.dead_committed))


def still_ordered(state: InstanceState, reason: DecisionReason) -> DecisionReason:
    """A person's order outlives the end of what it stopped."""
    return DecisionReason.FORCED if state.owed is DecisionReason.FORCED else reason


def _pending(topology: Topology, report: TransactionReport) -> tuple[PendingFinalize, ...]:
    managers = [manager for manager in topology.managers if str(manager) in report.pending_finalize]
    if isinstance(report, RoundReport):
        commit, removed, dead_committed = report.committed, report.removed_dp_ranks, report.dead_committed
    else:
        commit, removed, dead_committed = report.outcome is RoundOutcome.SUCCEEDED, (), ()
    return tuple(
        PendingFinalize(
            request_id=report.request_id,
            generation=report.generation,
            commit=commit,
            manager=manager,
            retired=tuple(rank for rank in topology.ranks_of(manager) if rank in removed) if commit else (),
            dead_committed=dead_committed,
        )
        for manager in managers
    )
