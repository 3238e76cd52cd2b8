"""How each strategy begins: its order, and what beginning it does to the instance's state.

Pure functions `(state, running, decision, now) -> (state with the strategy running, order)`: `running` is the strategy as
the next generation, made by its row in `strategies.py`. An order is frozen: a running strategy keeps the topology,
configuration and view revision it began with.
"""

from domain.hardware import RECOVERY_LEVELS, FaultLevel
from domain.instance.decision import Decision, DecisionReason
from domain.instance.situation import ORDERED_BY_A_PERSON
from domain.instance.state import REVISIONS_OF_A_STRATEGY, InstanceState, Life, RunningStrategy, ServingView
from domain.messages.strategy import (
    FastRecoveryOrder,
    RebuildOrder,
    ReconfigurationOrder,
    ReinferenceOrder,
    RelaunchOrder,
    RoundOrder,
    TransactionOrder,
)
from domain.runtime import SERVING_PHASES, FtPhase


def begin_round(
    state: InstanceState, running: RunningStrategy, decision: Decision, now: float
) -> tuple[InstanceState, RoundOrder]:
    """A scale-down round that removes `decision.ranks` from the active group."""
    order = RoundOrder(
        **dict(_transaction_order(state, running)),
        pending_ranks=decision.ranks,
        reported_incarnations={rank: _reported_engine(state, rank) for rank in decision.ranks},
    )
    return _in_transaction(state, running.model_copy(update={"pending_ranks": decision.ranks}), now), order


def begin_fast_recovery(
    state: InstanceState, running: RunningStrategy, decision: Decision, now: float
) -> tuple[InstanceState, FastRecoveryOrder]:
    """A `retry` of every active rank."""
    return _in_transaction(state, running, now), FastRecoveryOrder(**dict(_transaction_order(state, running)))


def begin_rebuild(
    state: InstanceState, running: RunningStrategy, decision: Decision, now: float
) -> tuple[InstanceState, ReconfigurationOrder]:
    """InstanceReconfiguration. One that a person forced starts the budget anew.

    Hardware that stands by now is rebuilt around; what is reported later is a new reason.
    """
    order = ReconfigurationOrder(**dict(_rebuild_order(state, running, decision)))
    earlier = () if decision.reason is DecisionReason.FORCED else state.rebuilt_at
    window_began = now - state.config.reconfiguration_window_sec
    standing = [fault.key for fault in state.evidence.hardware.standing(*RECOVERY_LEVELS)]
    started = _withdrawing(state, running, decision, now).but(
        life=Life.RUNNING,
        owed=None,
        owed_detail="",
        budget_spent=False,
        rebuilt_at=(*(at for at in earlier if at > window_began), now),
    )
    return started.handling(standing), order


def begin_relaunch(
    state: InstanceState, running: RunningStrategy, decision: Decision, now: float
) -> tuple[InstanceState, RelaunchOrder]:
    """EngineRelaunch: new engines for original − dead_committed."""
    order = RelaunchOrder(**dict(_rebuild_order(state, running, decision)), dead_committed=state.dead_committed)
    return _withdrawing(state, running, decision, now).but(life=Life.RUNNING), order


def begin_reinference(
    state: InstanceState, running: RunningStrategy, decision: Decision, now: float
) -> tuple[InstanceState, ReinferenceOrder]:
    """TokenReinference: wait for the listed L2 faults. Each is tried once; the view stays as it is."""
    order = ReinferenceOrder(
        instance_id=state.instance_id,
        generation=running.generation,
        topology=state.topology,
        config=state.config,
        ranks=decision.ranks,
        why=why_of(decision),
    )
    listed = state.config.token_reinference_codes
    tried = [fault.key for fault in state.evidence.hardware.open(FaultLevel.L2) if fault.fault_code in listed]
    started = started_with(state, running, revisions=0).handling(tried)
    return started.entering(FtPhase.DECIDING, now) if state.phase in SERVING_PHASES else started, order


def started_with(state: InstanceState, running: RunningStrategy, revisions: int = REVISIONS_OF_A_STRATEGY) -> InstanceState:
    """With this strategy running. `revisions`: how many of the view's next ones are its own."""
    return state.but(
        strategy=running,
        generation=max(state.generation, running.generation),
        view_revision=state.view_revision + revisions,
        looked_for=None,
        woken_for=None,
    )


def _transaction_order(state: InstanceState, running: RunningStrategy) -> TransactionOrder:
    """What a round and a fast recovery are ordered with alike."""
    assert running.request_id is not None, f"{running.kind} is no transaction"
    noticed = {rank: at for rank in state.active if (at := state.evidence.of(rank).first_unhealthy_at) is not None}
    return TransactionOrder(
        instance_id=state.instance_id,
        generation=running.generation,
        topology=state.topology,
        config=state.config,
        request_id=running.request_id,
        dead_committed=state.dead_committed,
        phase_before=state.phase,
        capability_consistent=state.topology.ft_capability_consistent,
        published_ranks=state.view.ranks,
        view_revision=state.view_revision,
        isolated=state.isolated,
        first_unhealthy_at=noticed,
    )


def _rebuild_order(state: InstanceState, running: RunningStrategy, decision: Decision) -> RebuildOrder:
    """What a rebuild and a relaunch are ordered with alike."""
    return RebuildOrder(
        instance_id=state.instance_id,
        generation=running.generation,
        topology=state.topology,
        config=state.config,
        view_revision=state.view_revision,
        isolated=state.isolated,
        why=why_of(decision),
        lost_node_managers=state.lost_node_managers,
    )


def _in_transaction(state: InstanceState, running: RunningStrategy, now: float) -> InstanceState:
    started = started_with(state, running).but(request_id=running.request_id, last_error=None, gate=None, stage_times={})
    return started.entering(FtPhase.DECIDING, now)


def _withdrawing(state: InstanceState, running: RunningStrategy, decision: Decision, now: float) -> InstanceState:
    """A strategy that stops engines: not serving from here on; what failed before it is still the last error.

    Unless a person ordered it: an order is no error, and ends what was one.
    """
    why = "" if decision.reason in ORDERED_BY_A_PERSON else state.owed_detail or why_of(decision)
    started = started_with(state, running.model_copy(update={"why": why})).but(
        evidence=state.evidence.begin_forming(),
        view=ServingView(revision=state.view.revision, ranks=(), confirmed=False),
        last_error=why or None,
    )
    return started.entering(FtPhase.RECONFIGURING, now)


def why_of(decision: Decision) -> str:
    return f"{decision.reason}: {decision.detail}" if decision.detail else str(decision.reason)


def _reported_engine(state: InstanceState, rank: int) -> str | None:
    """The engine whose death is known: the group's own, also where a newer process answers in its place."""
    known = state.evidence.of(rank)
    return known.engine or (known.newest.engine if known.newest else None)
