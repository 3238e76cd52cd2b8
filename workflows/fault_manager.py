"""FaultManager: one per instance, as long as the instance lives (design §3). Evidence in, decisions, one strategy at a time.

All it knows is one frozen state (`domain.instance.state`). Signals and updates change that state and never await; one loop
judges it (`domain.instance.decision.decide`) and acts. Whatever has to be asked or told is an errand beside the loop, so nothing
that hangs outside can keep a decision waiting.

A strategy is an abandoned child. Its handle is never awaited: it tells its progress, commit and end by itself, so this
workflow may continue as new, be terminated and be started again while a round runs. Its workflow id holds the instance's
generation, and Temporal lets an id run once: that is the fence against two strategies at a time.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from workflows.parts.alarm import Alarm
from workflows.parts.children import Child, start_abandoned
from workflows.parts.evidence_intake import take_signal
from workflows.parts.instance_errands import FaultManagerErrands
from workflows.parts.instance_memory import Memory, now
from workflows.parts.instance_page import show
from workflows.parts.strategy_run import start_attributes

with workflow.unsafe.imports_passed_through():
    from domain.instance.commands import why_not_hold, why_not_reconfigure, why_not_release, why_not_republish
    from domain.instance.decision import Action, Decision, DecisionReason, decide
    from domain.instance.learning import assembled
    from domain.instance.plan import Plan, PlanRequest, plan
    from domain.instance.state import InstanceState, Life, RunningStrategy
    from domain.instance.strategies import STARTED_BY, STRATEGIES, Strategy
    from domain.instance.strategy_life import QUIET_LIMIT_SEC, took_commit
    from domain.messages.event_pusher import EVENT_PUSHER_ID, FORGET_SIGNAL, ForgetInstance
    from domain.messages.fault_manager import (
        FAULT_MANAGER_WORKFLOW,
        PLAN_QUERY,
        CommandOutcome,
        CommandReply,
        FaultManagerStart,
        HoldCall,
        ReconfigureCall,
        StrategyState,
    )
    from domain.messages.round import CommitRecord
    from domain.messages.strategy import STOP_SIGNAL
    from domain.runtime import FtPhase, RuntimeRecord

CALM_AT_EVENTS: Final = 400
CALM_AT_BYTES: Final = 1_048_576
"""Length of history beyond which the workflow continues as new as soon as nothing is open. Another worker must be able to
replay a run within one workflow task (`domain.receivers.TASK_TIMEOUT`); and while signals stream in, a
continue-as-new may be refused, which costs a replay each time. Measured with 320 ranks on one core: 1,500 events of eight
rounds take 1.1 s."""

CONTINUE_AS_NEW_AT_EVENTS: Final = 1_500
"""The same without waiting for a calm moment."""


@workflow.defn(name=FAULT_MANAGER_WORKFLOW)
class FaultManager:
    """See the module's docstring."""

    @workflow.init
    def __init__(self, start: FaultManagerStart) -> None:
        self._memory = Memory(start)
        self._errands = FaultManagerErrands(self._memory)
        self._alarm = Alarm(self._memory.wake)
        self._ended = False

    @workflow.run
    async def run(self, start: FaultManagerStart) -> RuntimeRecord:
        while True:
            self._memory.changed = False
            await self._turn()
            if not self._continue_wanted():
                self._errands.pursue()
            show(self._memory)
            if self._ended:
                return self.status()
            if self._continue_wanted() and self._errands.idle and workflow.all_handlers_finished():
                workflow.continue_as_new(self._state.carried())
            await self._until_changed()

    # What comes in: nothing here awaits.

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, values: Sequence[RawValue]) -> None:
        """Every signal, whatever its name and inputs; what cannot be used is recorded as refused."""
        known = self._state.evidence.hardware.faults
        taken = take_signal(self._state, name, values, now())
        self._memory.become(taken.one_signal_more())
        for key, fault in self._state.evidence.hardware.faults.items():
            if key not in known and not fault.mappable:
                workflow.logger.warning(
                    "hardware fault that cannot be mapped", extra={"fault": str(fault), "why": fault.unmapped}
                )

    @workflow.update
    def record_commit(self, record: CommitRecord) -> bool:
        """A round is at its commit point. True: recorded (also if it was before). False: not a round of this group."""
        state, recorded = took_commit(self._state, record, now())
        self._memory.become(state)
        return recorded

    @workflow.update
    def republish(self) -> CommandReply:
        """Push the published view again under a new revision."""
        self._memory.become(self._state.republishing())
        return _accept(f"pushing the view as revision {self._state.view.revision}")

    @workflow.update
    def reconfigure(self, call: ReconfigureCall) -> CommandReply:
        """Rebuild the instance. With `force` it passes the budget, and stops what may be stopped (rule 2)."""
        why = DecisionReason.FORCED if call.force else DecisionReason.ORDERED
        ordered = self._state.but(owed=why, owed_detail=call.why)
        self._memory.become(ordered if ordered.strategy is not None else ordered.owing(why, call.why, now()))
        return _accept("the instance is going to be rebuilt")

    @workflow.update
    def hold(self, call: HoldCall) -> CommandReply:
        """Automation off: what is decided is recorded and not done. A strategy that runs goes on to its end."""
        self._memory.become(self._state.but(held=call.why or "by a person"))
        running = self._state.strategy
        return _accept(f"the automation is off{f'; {running.workflow_id} goes on to its end' if running is not None else ''}")

    @workflow.update
    def release(self) -> CommandReply:
        """Automation on: what stands by now is decided on, and acted on."""
        self._memory.become(self._state.but(held=None))
        return _accept("the automation is on")

    # Refused before they enter history.

    @republish.validator
    def _may_republish(self) -> None:
        _require(why_not_republish(self._state))

    @reconfigure.validator
    def _may_reconfigure(self, call: ReconfigureCall) -> None:
        _require(why_not_reconfigure(self._state, call))

    @hold.validator
    def _may_hold(self, call: HoldCall) -> None:
        _require(why_not_hold(self._state))

    @release.validator
    def _may_release(self) -> None:
        _require(why_not_release(self._state))

    @workflow.query
    def status(self) -> RuntimeRecord:
        """The FT runtime record (contracts §5)."""
        return self._state.record(self._state.waiting(self._memory.decision), now())

    @workflow.query(name=PLAN_QUERY)
    def dry_run(self, request: PlanRequest) -> Plan:
        """What would happen if these ranks died now (`domain.instance.plan`). Fails for ranks that the instance does not have."""
        return plan(self._state, request.dead, now())

    # The loop.

    @property
    def _state(self) -> InstanceState:
        return self._memory.state

    async def _turn(self) -> None:
        """Judge the state once, and act."""
        state = self._state
        self._memory.decision = None
        match state.life:
            case Life.LEARNING:
                return
            case Life.ENDING:
                await self._end()
                return
            case Life.ASSEMBLING:
                if not state.node_managers_started:
                    return
                if not state.evidence.not_yet_ready(state.active) and not state.holds_evidence:
                    self._memory.become(assembled(state, now()))
                    state = self._state
        decision = decide(state.evidence, state.situation(), state.topology, state.config, now())
        self._memory.decision = decision
        if decision.handled:
            self._memory.become(state.handling(decision.handled))
        await self._act(decision)
        followed = self._state.following(decision)
        if followed != self._state:
            self._memory.become(followed)

    async def _act(self, decision: Decision) -> None:
        """What the automation does about it; with the automation off only what a person ordered."""
        if self._state.automation_off and decision.reason not in (DecisionReason.FORCED, DecisionReason.ORDERED):
            if decision.action is Action.WAKE:
                self._memory.become(self._state.but(woken_for=self._memory.collecting_since()))
            return
        match decision.action:
            case action if action in STARTED_BY and not self._state.reseed:
                await self._start(STARTED_BY[action], decision)
            case Action.SCALE_P2D:
                why = f"ScaleP2D is not available yet, the instance is rebuilt instead; {decision.detail}"
                self._memory.become(self._state.owing(DecisionReason.SCALE_P2D_UNAVAILABLE, why, now()))
            case Action.PREEMPT:
                await self._stop_strategy()
            case Action.STAY_WITHDRAWN if not self._state.budget_spent:
                owed, why = self._state.owed or DecisionReason.BUDGET_SPENT, f"{decision.detail}; {decision.then}"
                resting = self._state.withdrawn(now()).but(budget_spent=True, owed=owed, last_error=why)
                self._memory.become(resting.but(owed_detail=resting.owed_detail or decision.detail))

    async def _start(self, wanted: Strategy[Any, Any], decision: Decision) -> None:
        """Start the strategy that is decided on, as the next generation."""
        phase_before = self._state.phase
        state, order = wanted.start(self._state, decision, workflow.uuid4().hex, now())
        strategy = state.strategy
        assert strategy is not None
        self._memory.become(state)
        workflow.logger.info("strategy starts", extra={"id": strategy.workflow_id, "reason": decision.reason.value})
        what = f"{decision.action} of ranks {list(decision.ranks)}" if decision.ranks else str(decision.action)
        child = await start_abandoned(
            wanted.workflow,
            order,
            workflow_id=strategy.workflow_id,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            summary=f"instance {state.instance_id}: {what}, {decision.reason}",
            details=f"{decision.reason}: {decision.detail}",
            execution_timeout=timedelta(seconds=wanted.execution_bound_sec(state.config)),
            search_attributes=_first_attributes(state, strategy),
        )
        if child is None:
            await self._on_taken_id(decision, phase_before)
        else:
            child.add_done_callback(partial(self._on_closed, strategy.generation))

    def _on_closed(self, generation: int, _child: Child) -> None:
        """A hint, no more: a strategy that closed without having told its end is looked up at once, not when it is missed."""
        strategy = self._state.strategy
        if strategy is not None and strategy.generation == generation:
            self._memory.become(self._state.but(strategy=strategy.model_copy(update={"last_word_at": 0.0})))

    async def _on_taken_id(self, decision: Decision, phase_before: FtPhase) -> None:
        """Somebody of this generation was started before: attach if it runs; else this FaultManager is behind, and asks."""
        strategy = self._state.strategy
        if strategy is None:
            return  # its end came in meanwhile
        try:
            found = (await self._errands.ask_about(strategy.kind, strategy.generation)).state
        except ActivityError:
            found = StrategyState.RUNNING  # not known: wait for its word, the look-up asks again
        if self._state.strategy is None:
            return
        if found is StrategyState.RUNNING:
            attached = self._state.strategy.model_copy(update={"attached": True})
            self._memory.become(self._state.but(strategy=attached))
            return
        state = self._state.but(strategy=None, reseed=True)
        if STRATEGIES[strategy.kind].stops_engines:
            self._memory.become(state.owing(decision.reason, decision.detail, now()))
        else:
            self._memory.become(state.entering(phase_before, now()))

    async def _stop_strategy(self) -> None:
        """Ask the running strategy to end; once. Whether it does before its commit point is its own affair."""
        strategy = self._state.strategy
        if strategy is None or strategy.stop_requested:
            return
        self._memory.become(self._state.but(strategy=strategy.model_copy(update={"stop_requested": True})))
        try:
            await workflow.get_external_workflow_handle(strategy.workflow_id).signal(STOP_SIGNAL)
        except FailureError as error:
            self._memory.note_failure(f"stop {strategy.workflow_id}", str(error))

    async def _end(self) -> None:
        """The instance was deleted: no strategy, no view, and engines only if they are wanted. Bounded; what is left is said."""
        state = self._state
        over = state.terminate_at is not None and now() >= state.terminate_at
        if state.strategy is not None and not over:
            await self._stop_strategy()
            return
        if state.view.ranks:
            self._memory.become(state.withdrawn(now()))
            return
        if not state.view.confirmed and not over:
            return
        self._memory.become(state.but(strategy=None, generation=state.generation + 1))
        try:
            if state.stop_engines:
                await self._errands.stop_engines()
            pusher = workflow.get_external_workflow_handle(EVENT_PUSHER_ID)
            await pusher.signal(FORGET_SIGNAL, ForgetInstance(instance_id=state.instance_id))
        except FailureError as error:
            self._memory.note_failure("end", str(error.cause or error))
        self._ended = True

    def _continue_wanted(self) -> bool:
        info = workflow.info()
        length = info.get_current_history_length()
        if info.is_continue_as_new_suggested() or length > CONTINUE_AS_NEW_AT_EVENTS:
            return True
        long = length > CALM_AT_EVENTS or info.get_current_history_size() > CALM_AT_BYTES
        return long and self._state.nothing_open and self._errands.idle

    async def _until_changed(self) -> None:
        """Sleep until something came in, or until the next moment at which time alone changes the decision."""
        waiting = self._state.waiting(self._memory.decision)
        self._alarm.set(self._next_wake(), waiting.reason if waiting is not None else "")
        await workflow.wait_condition(lambda: self._memory.changed)

    def _next_wake(self) -> float | None:
        """None in an instance where nothing is open: it adds no history. What is past already has been seen to this turn."""
        state, decision = self._state, self._memory.decision
        moments = [
            decision.until if decision is not None else None,
            self._errands.next_at(),
            state.terminate_at,
            state.strategy.last_word_at + QUIET_LIMIT_SEC if state.strategy is not None else None,
        ]
        if state.strategy is None and state.holds_evidence:
            moments.append(now() + state.config.strategy_center_check_interval_sec)
        return min((moment for moment in moments if moment is not None and moment > now()), default=None)


def _first_attributes(state: InstanceState, strategy: RunningStrategy) -> TypedSearchAttributes | None:
    """By what a strategy is found from its start on."""
    return start_attributes(
        state.search_attributes or (),
        InstanceId=state.instance_id,
        FtPhase=state.phase.value,
        RequestId=strategy.request_id or "",
        DeadRanks=[str(rank) for rank in strategy.pending_ranks],
        ServingPublished=bool(state.view.ranks),
        Outcome="running",
    )


def _accept(message: str) -> CommandReply:
    return CommandReply(outcome=CommandOutcome.ACCEPTED, message=message)


def _require(refusal: CommandReply | None) -> None:
    if refusal is not None:
        raise ApplicationError(refusal.message, type=refusal.outcome.value)
