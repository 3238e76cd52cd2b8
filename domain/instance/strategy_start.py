"""How a strategy begins: the next generation, its order, and what that does to the instance's state.

Pure functions from a state and the decision to the state with the strategy running, and the order that its workflow is
started with. An order is frozen: a running strategy keeps the topology, configuration and view revision it began with.
`STARTING` are the actions that begin one; ScaleP2D is not among them yet.
"""

from typing import Final

from domain.hardware import RECOVERY_LEVELS, FaultLevel
from domain.instance.decision import Action, Decision, DecisionReason
from domain.instance.situation import ORDERED_BY_A_PERSON
from domain.instance.state import REVISIONS_OF_A_STRATEGY, InstanceState, Life, RunningStrategy, ServingView
from domain.messages.strategy import (
    FastRecoveryOrder,
    RebuildOrder,
    ReconfigurationOrder,
    ReinferenceOrder,
    RelaunchOrder,
    RoundOrder,
    StrategyKind,
    TransactionOrder,
)
from domain.runtime import SERVING_PHASES, FtPhase

_OUTAGE_SLACK_SEC = 3600.0
"""Outages of worker and server count into a workflow's execution time: the last bound is generous."""

Order = RoundOrder | FastRecoveryOrder | ReconfigurationOrder | RelaunchOrder | ReinferenceOrder

STARTING: Final = (
    Action.SCALE_DOWN,
    Action.FAST_RECOVERY,
    Action.TOKEN_REINFERENCE,
    Action.ENGINE_RELAUNCH,
    Action.RECONFIGURE,
)


def start_round(state: InstanceState, decision: Decision, request_id: str, now: float) -> tuple[InstanceState, RoundOrder]:
    """A scale-down round that removes `decision.ranks` from the active group."""
    running = _running(state, StrategyKind.SCALE_DOWN, now).model_copy(
        update={"request_id": request_id, "pending_ranks": decision.ranks}
    )
    order = RoundOrder(
        **dict(_transaction_order(state, running, request_id)),
        pending_ranks=decision.ranks,
        reported_incarnations={rank: _reported_engine(state, rank) for rank in decision.ranks},
    )
    return _in_transaction(state, running, now), order


def start_fast_recovery(
    state: InstanceState, decision: Decision, request_id: str, now: float
) -> tuple[InstanceState, FastRecoveryOrder]:
    """A `retry` of every active rank."""
    running = _running(state, StrategyKind.FAST_RECOVERY, now).model_copy(update={"request_id": request_id})
    order = FastRecoveryOrder(**dict(_transaction_order(state, running, request_id)))
    return _in_transaction(state, running, now), order


def start_rebuild(state: InstanceState, decision: Decision, now: float) -> tuple[InstanceState, ReconfigurationOrder]:
    """InstanceReconfiguration. One that a person forced starts the budget anew.

    Hardware that stands by now is rebuilt around; what is reported later is a new reason.
    """
    running = _running(state, StrategyKind.INSTANCE_RECONFIGURATION, now)
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


def start_relaunch(state: InstanceState, decision: Decision, now: float) -> tuple[InstanceState, RelaunchOrder]:
    """EngineRelaunch: new engines for original − dead_committed."""
    running = _running(state, StrategyKind.ENGINE_RELAUNCH, now)
    order = RelaunchOrder(**dict(_rebuild_order(state, running, decision)), dead_committed=state.dead_committed)
    return _withdrawing(state, running, decision, now).but(life=Life.RUNNING), order


def start_reinference(state: InstanceState, decision: Decision, now: float) -> tuple[InstanceState, ReinferenceOrder]:
    """TokenReinference: wait for the listed L2 faults. Each is tried once; the view stays as it is."""
    running = _running(state, StrategyKind.TOKEN_REINFERENCE, now)
    order = ReinferenceOrder(
        instance_id=state.instance_id,
        generation=running.generation,
        topology=state.topology,
        config=state.config,
        ranks=decision.ranks,
        why=_why(decision),
    )
    listed = state.config.token_reinference_codes
    tried = [fault.key for fault in state.evidence.hardware.open(FaultLevel.L2) if fault.fault_code in listed]
    started = _started(state, running, revisions=0).handling(tried)
    return started.entering(FtPhase.DECIDING, now) if state.phase in SERVING_PHASES else started, order


def start(state: InstanceState, decision: Decision, unique: str, now: float) -> tuple[InstanceState, Order]:
    """What an action of `STARTING` begins. `unique` (32 hex digits) makes a transaction's request id."""
    match decision.action:
        case Action.SCALE_DOWN:
            return start_round(state, decision, f"{StrategyKind.SCALE_DOWN}-{unique}", now)
        case Action.FAST_RECOVERY:
            return start_fast_recovery(state, decision, f"{StrategyKind.FAST_RECOVERY}-{unique}", now)
        case Action.TOKEN_REINFERENCE:
            return start_reinference(state, decision, now)
        case Action.ENGINE_RELAUNCH:
            return start_relaunch(state, decision, now)
        case Action.RECONFIGURE:
            return start_rebuild(state, decision, now)
        case other:
            raise ValueError(f"{other} starts no strategy")


def attach(state: InstanceState, kind: StrategyKind, generation: int, now: float) -> InstanceState:
    """Take over a strategy that runs already, of which this FaultManager knows only that it does."""
    running = _running(state, kind, now).model_copy(
        update={"generation": generation, "workflow_id": kind.workflow_id(state.instance_id, generation), "attached": True}
    )
    attached = _started(state, running)
    if kind in (StrategyKind.INSTANCE_RECONFIGURATION, StrategyKind.ENGINE_RELAUNCH):
        return attached.but(evidence=attached.evidence.begin_forming(), owed=None, owed_detail="")
    return attached.but(phase=FtPhase.DECIDING)


def bound_sec(state: InstanceState, kind: StrategyKind) -> float:
    """How long a strategy may take without outages: the sum of its deadlines (I11)."""
    times = state.config.dp_scale_down_config
    match kind:
        case StrategyKind.SCALE_DOWN:
            return times.round_bound_sec
        case StrategyKind.FAST_RECOVERY:
            return times.round_bound_sec + state.config.fast_recovery_stability_sec
        case StrategyKind.TOKEN_REINFERENCE:
            return state.config.token_reinference_deadline_sec + times.verify_deadline_sec
        case _:
            return state.config.reconfiguration_deadline_sec + times.verify_deadline_sec + times.coordinator_deadline_sec


def execution_bound_sec(state: InstanceState, kind: StrategyKind) -> float:
    """The last bound of a strategy's workflow, for the case that nothing else ended it."""
    return 2 * bound_sec(state, kind) + _OUTAGE_SLACK_SEC


def _running(state: InstanceState, kind: StrategyKind, now: float) -> RunningStrategy:
    generation = state.generation + 1
    return RunningStrategy(
        kind=kind,
        workflow_id=kind.workflow_id(state.instance_id, generation),
        generation=generation,
        view_revision=state.view_revision,
        phase_before=state.phase,
        started_at=now,
        bound_at=now + bound_sec(state, kind),
        isolated=state.isolated,
        last_word_at=now,
    )


def _started(state: InstanceState, running: RunningStrategy, revisions: int = REVISIONS_OF_A_STRATEGY) -> InstanceState:
    return state.but(
        strategy=running,
        generation=max(state.generation, running.generation),
        view_revision=state.view_revision + revisions,
        looked_for=None,
        woken_for=None,
    )


def _transaction_order(state: InstanceState, running: RunningStrategy, request_id: str) -> TransactionOrder:
    """What a round and a fast recovery are ordered with alike."""
    noticed = {rank: at for rank in state.active if (at := state.evidence.of(rank).first_unhealthy_at) is not None}
    return TransactionOrder(
        instance_id=state.instance_id,
        generation=running.generation,
        topology=state.topology,
        config=state.config,
        request_id=request_id,
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
        why=_why(decision),
        lost_node_managers=state.lost_node_managers,
    )


def _in_transaction(state: InstanceState, running: RunningStrategy, now: float) -> InstanceState:
    started = _started(state, running).but(request_id=running.request_id, last_error=None, gate=None, stage_times={})
    return started.entering(FtPhase.DECIDING, now)


def _withdrawing(state: InstanceState, running: RunningStrategy, decision: Decision, now: float) -> InstanceState:
    """A strategy that stops engines: not serving from here on; what failed before it is still the last error.

    Unless a person ordered it: an order is no error, and ends what was one.
    """
    why = "" if decision.reason in ORDERED_BY_A_PERSON else state.owed_detail or _why(decision)
    started = _started(state, running.model_copy(update={"why": why})).but(
        evidence=state.evidence.begin_forming(),
        view=ServingView(revision=state.view.revision, ranks=(), confirmed=False),
        last_error=why or None,
    )
    return started.entering(FtPhase.RECONFIGURING, now)


def _why(decision: Decision) -> str:
    return f"{decision.reason}: {decision.detail}" if decision.detail else str(decision.reason)


def _reported_engine(state: InstanceState, rank: int) -> str | None:
    """The engine whose death is known: the group's own, also where a newer process answers in its place."""
    known = state.evidence.of(rank)
    return known.engine or (known.newest.engine if known.newest else None)
