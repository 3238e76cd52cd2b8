"""A dry run: what would happen if these ranks died now? Nothing is touched, and nothing is guessed twice.

The plan is not a second description of the rules. It lays the assumed deaths over the evidence that the FaultManager holds,
lets `decide` judge that, and builds the round's own order and ledger: gate, participants, survivors and apply body are
what a round itself would use. Assumed is the evidence of a clean fault: the named ranks DEAD, every other active rank
that is not dead already UNHEALTHY, because its group has halted.
"""

from collections.abc import Iterable

from domain.config import DpScaleDownConfig
from domain.engine import EngineStatus, EntrySource
from domain.instance.decision import Action, Decision, DecisionReason, decide
from domain.instance.evidence import Evidence, from_operator
from domain.instance.state import InstanceState
from domain.instance.strategies import SCALE_DOWN, STARTED_BY
from domain.messages.node_manager import ApplyRequest
from domain.messages.strategy import StepReport
from domain.model import Generation, InstanceId, Port, Rank, Revision, Strict
from domain.round.gate import gate
from domain.round.instruction import apply_request, scale_down_call
from domain.round.ledger import RoundLedger
from domain.runtime import FtPhase, GateRecord, iso

_UNIQUE = 32 * "0"

PLANNED_REQUEST_ID = f"{SCALE_DOWN.kind}-{_UNIQUE}"
"""Stands where a round would have its own id."""


class PlanRequest(Strict):
    """Query `plan` of FaultManager: the ranks that are assumed to die."""

    dead: tuple[Rank, ...]


class PlannedDecision(Strict):
    """What the rules say, in the words of `domain.instance.decision`. `until` is UTC, ISO 8601."""

    action: Action
    reason: DecisionReason
    detail: str
    until: str | None
    then: str


class PlannedParticipant(Strict):
    """One NodeManager that would be guarded. `may_be_absent`: it holds dead ranks only, the round goes on without it."""

    node_manager: str
    survivors: tuple[Rank, ...]
    leaving: tuple[Rank, ...]
    may_be_absent: bool
    emptied: bool


class PlannedApply(Strict):
    """The body that one NodeManager would get; it adds `dp_store_port` and calls each of the engines once."""

    node_manager: str
    body: ApplyRequest


class PlannedMaster(Strict):
    """The lowest survivor: where the group meets again."""

    rank: Rank
    ip: str
    store_port: Port


class LeaseArithmetic(Strict):
    """How long the guards hold (design §6), as a sum a person can check; all in seconds.

    `lease_sec` = 2·execution_deadline + 4·request_timeout + max(5, poll_interval). `apply_margin_sec`: what must be left of
    it when apply is sent. `engines_give_up_sec`: after their own fault engines exit by themselves; None: not declared.
    """

    lease_sec: float
    sum: str
    apply_margin_sec: float
    round_bound_sec: float
    engines_give_up_sec: float | None


class PlannedRound(Strict):
    """The scale-down round for these deaths, whether or not the rules would start it."""

    gate: GateRecord
    generation: Generation
    survivors: tuple[Rank, ...]
    removed_dp_ranks: tuple[Rank, ...]
    participants: tuple[PlannedParticipant, ...]
    master: PlannedMaster | None
    apply: tuple[PlannedApply, ...]
    lease: LeaseArithmetic
    withdraw_revision: Revision
    publish_revision: Revision


class Plan(Strict):
    """The answer of a dry run. `round` is None where every assumed rank was removed before.

    `dead`: all ranks that count as dead then, the assumed ones and those that are dead already. `outlook`: how it would
    end, in a sentence. `automation_off`: why nothing of it would be done without a person; None while the automation is on.
    """

    instance_id: InstanceId
    phase: FtPhase
    assumed_dead: tuple[Rank, ...]
    removed_already: tuple[Rank, ...]
    dead: tuple[Rank, ...]
    unhealthy: tuple[Rank, ...]
    decision: PlannedDecision
    outlook: str
    automation_off: str | None
    round: PlannedRound | None


class _Desk:
    """The ports of a round that never leaves the desk."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def stop_requested(self) -> str | None:
        return None

    def progress(self, report: StepReport) -> None:
        """Nobody is told."""


def plan(state: InstanceState, dead: Iterable[int], now: float) -> Plan:
    """What the FaultManager in `state` would do at `now` (epoch seconds) if the ranks `dead` died. Pure.

    Raises:
        ValueError: a rank that the instance does not have, or none at all.
    """
    assumed = tuple(sorted(set(dead)))
    foreign = [rank for rank in assumed if rank not in state.topology.ranks]
    if foreign or not assumed:
        known = f"ranks 0..{len(state.topology.ranks) - 1}"
        raise ValueError(f"instance {state.instance_id} has {known}, not {foreign}" if foreign else "no rank is named")
    evidence = _supposing(state, assumed, now)
    supposed = state.but(evidence=evidence)
    decision = decide(evidence, supposed.situation(), state.topology, state.config, now)
    lost = evidence.standing(EngineStatus.DEAD, state.active)
    planned = _round(supposed, lost, now) if lost else None
    return Plan(
        instance_id=state.instance_id,
        phase=state.phase,
        assumed_dead=assumed,
        removed_already=tuple(rank for rank in assumed if rank in state.dead_committed),
        dead=lost,
        unhealthy=evidence.standing(EngineStatus.UNHEALTHY, state.active),
        decision=_shown(decision),
        outlook=_outlook(decision, planned),
        automation_off=_automation_off(state),
        round=planned,
    )


def _supposing(state: InstanceState, assumed: tuple[int, ...], now: float) -> Evidence:
    """The evidence after a clean fault: reported through the NodeManagers, so it is merged as any other report."""
    evidence = state.evidence
    if not set(assumed) & set(state.active):
        return evidence  # they were removed before: nobody would notice anything
    known_dead = evidence.standing(EngineStatus.DEAD, state.active)
    for rank in state.active:
        status = EngineStatus.DEAD if rank in assumed or rank in known_dead else EngineStatus.UNHEALTHY
        if evidence.of(rank).status is not status:
            report = from_operator(rank, status, now).model_copy(update={"source": EntrySource.ENGINE})
            evidence, _ = evidence.merge(report, state.dead_committed)
    return evidence


def _shown(decision: Decision) -> PlannedDecision:
    return PlannedDecision(
        action=decision.action,
        reason=decision.reason,
        detail=decision.detail,
        until=iso(decision.until) if decision.until is not None else None,
        then=decision.then,
    )


def _outlook(decision: Decision, planned: PlannedRound | None) -> str:
    """What a person wants to know first; failures of engines are not foreseen."""
    match decision.action:
        case Action.SCALE_DOWN if planned is not None and not planned.gate.allowed:
            codes = ", ".join(planned.gate.reason_codes)
            return f"the gate refuses the round ({codes}): no engine is told anything, and the instance is rebuilt"
        case Action.SCALE_DOWN if planned is not None:
            return f"ranks {list(planned.survivors)} go on serving in place, without ranks {list(planned.removed_dp_ranks)}"
        case action if action in STARTED_BY:
            return STARTED_BY[action].outlook
        case Action.KEEP:
            return "the strategy that runs goes on; what has been reported is judged at its end"
        case Action.NOTHING:
            return "nothing happens"
    return decision.then or str(decision.action)


def _automation_off(state: InstanceState) -> str | None:
    if state.held is not None:
        return f"held: {state.held}"
    return "observe_only" if state.config.observe_only else None


def _round(state: InstanceState, lost: tuple[int, ...], now: float) -> PlannedRound:
    """The round's own order and ledger, asked what they hold."""
    removal = Decision(action=Action.SCALE_DOWN, reason=DecisionReason.COMPLETE, ranks=lost)
    _, order = SCALE_DOWN.start(state, removal, _UNIQUE, now)
    ledger = RoundLedger(order, _Desk(now))
    call = scale_down_call(ledger) if ledger.survivors else None
    master = None
    if call is not None and call.master_ip is not None and call.master_rank is not None:
        port = state.topology.dp_master_port + call.master_rank
        master = PlannedMaster(rank=call.master_rank, ip=call.master_ip, store_port=port)
    capability = state.topology.ft_capability
    return PlannedRound(
        gate=gate(order.config, capability, len(ledger.survivors), capability_consistent=order.capability_consistent),
        generation=order.generation,
        survivors=ledger.survivors,
        removed_dp_ranks=ledger.removed,
        participants=_participants(ledger),
        master=master,
        apply=tuple(PlannedApply(node_manager=str(group.manager), body=apply_request(call, group)) for group in call.groups)
        if call is not None
        else (),
        lease=_lease(order.config.dp_scale_down_config, capability.engine_recovery_timeout_sec if capability else None),
        withdraw_revision=order.view_revision + 1,
        publish_revision=order.view_revision + 2,
    )


def _participants(ledger: RoundLedger) -> tuple[PlannedParticipant, ...]:
    must, dead_only = ledger.participants()
    found = []
    for manager in (*must, *dead_only):
        own = ledger.topology.ranks_of(manager)
        left = tuple(rank for rank in own if rank in ledger.survivors)
        found.append(
            PlannedParticipant(
                node_manager=str(manager),
                survivors=left,
                leaving=tuple(rank for rank in own if rank in ledger.leaving),
                may_be_absent=manager in dead_only,
                emptied=not left,
            )
        )
    return tuple(found)


def _lease(times: DpScaleDownConfig, give_up_sec: float | None) -> LeaseArithmetic:
    terms = (
        f"2·{times.execution_deadline_sec:g} (execution_deadline_sec) + 4·{times.request_timeout_sec:g} "
        f"(request_timeout_sec) + max(5, {times.poll_interval_sec:g} (poll_interval_sec)) = {times.lease_sec:g}"
    )
    return LeaseArithmetic(
        lease_sec=times.lease_sec,
        sum=terms,
        apply_margin_sec=times.apply_margin_sec,
        round_bound_sec=times.round_bound_sec,
        engines_give_up_sec=give_up_sec,
    )
