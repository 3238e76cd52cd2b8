"""What a FaultManager asks of the world while it decides: each is one activity, run as an errand beside the loop.

Which errands there is reason for follows from the state alone (`pursue`); what comes back changes the state. None of them
ever starts or steers a strategy: they learn, tell, push and clean up.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

from workflows.parts.errands import Errands
from workflows.parts.instance_memory import Memory, now

with workflow.unsafe.imports_passed_through():
    from activities.coordinator import CoordinatorActivities
    from activities.fault_manager import FaultManagerActivities
    from activities.journals import JournalActivities
    from activities.node_manager import NodeManagerActivities
    from activities.rebuild import RebuildActivities
    from domain.instance.decision import Action
    from domain.instance.evidence import from_entries
    from domain.instance.learning import after_journals, assembled, seeded
    from domain.instance.state import InstanceState, Life
    from domain.instance.strategy_life import QUIET_LIMIT_SEC, after_loss, attach, is_newer, took_end
    from domain.messages.fault_manager import (
        FreshLookCall,
        FreshLookResult,
        JournalsCall,
        JournalsResult,
        LookUpCall,
        LookUpResult,
        PaceCall,
        StrategyState,
        WakeCall,
    )
    from domain.messages.node_manager import NodeManagerReason
    from domain.messages.rebuild import (
        EnginesReadyCall,
        StartNodeManagersCall,
        StopNodeManagersCall,
    )
    from domain.messages.round import FinalizeCall, ViewCall
    from domain.messages.strategy import StrategyKind
    from domain.runtime import SERVING_PHASES
    from domain.watch import Question, questions

JOURNALS_LIMIT_SEC: Final = 60.0
"""How long NodeManagers are asked for their journals before the FaultManager goes on with what it knows (design §1)."""

START_LIMIT_SEC: Final = 60.0
READY_LIMIT_SEC: Final = 60.0
"""One attempt at these; they are repeated, but each is shown to people when it ends."""

STOP_LIMIT_SEC: Final = 60.0
_HEARTBEAT: Final = timedelta(seconds=3)
_SLACK_SEC: Final = 30.0
"""What an activity may take beyond its own deadline: worker outages count into it."""

_RETRY: Final = RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=5))

A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S")


class FaultManagerErrands:
    """Pursues what the state gives reason for."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._errands = Errands(memory.wake, memory.note_failure)

    @property
    def idle(self) -> bool:
        return self._errands.idle

    def next_at(self) -> float | None:
        """When the next of them is due, in epoch seconds."""
        return self._errands.next_at()

    def pursue(self) -> None:
        """Start whatever there is reason for and is not under way."""
        state, at = self._state, now()
        quiet = state.strategy is None
        told = state.node_managers_started or state.life is Life.RUNNING
        decision = self._memory.decision
        fresh_look = decision is not None and decision.action is Action.FRESH_LOOK and quiet
        waking = decision is not None and decision.action is Action.WAKE and quiet and not state.automation_off
        want = self._errands.want
        want("search attributes", state.search_attributes is None, self._ask_search_attributes, at)
        want("journals", state.life is Life.LEARNING or (state.reseed and quiet), self._read_journals, at)
        want("start", state.life is Life.ASSEMBLING and not state.node_managers_started, self._start_node_managers, at)
        want("ready", state.life is Life.ASSEMBLING and state.node_managers_started, self._await_ready, at)
        want("fresh look", fresh_look, self._look, at)
        want("wake", waking, self._wake, at)
        want("look-up", self._strategy_is_silent(at), self._look_up, at)
        want("view", not state.view.confirmed and quiet and state.life is not Life.LEARNING, self._push_view, at)
        want("finalize", bool(state.pending_finalize) and quiet, self._finalize, at)
        want("pace", told and state.pace_told != state.wanted_pace_sec and not state.config.observe_only, self._tell_pace, at)

    @property
    def _state(self) -> InstanceState:
        return self._memory.state

    @property
    def _timeout_sec(self) -> float:
        return self._state.config.dp_scale_down_config.request_timeout_sec

    def _strategy_is_silent(self, at: float) -> bool:
        return self._state.strategy is not None and at >= self._state.strategy.last_word_at + QUIET_LIMIT_SEC

    async def _call(self, method: Callable[[S, A], Awaitable[R]], argument: A, limit_sec: float, summary: str) -> R:
        return await workflow.execute_activity_method(
            method,
            argument,
            schedule_to_close_timeout=timedelta(seconds=limit_sec + _SLACK_SEC),
            heartbeat_timeout=_HEARTBEAT,
            retry_policy=_RETRY,
            summary=summary,
        )

    async def _ask_search_attributes(self) -> bool:
        """Those that the server does not know would fail every workflow task: asked once, carried over."""
        told = await workflow.execute_activity_method(
            FaultManagerActivities.usable_search_attributes,
            schedule_to_close_timeout=timedelta(seconds=_SLACK_SEC),
            heartbeat_timeout=_HEARTBEAT,
            retry_policy=_RETRY,
            summary="which search attributes does the server know",
        )
        self._memory.become(self._state.but(search_attributes=told.search_attributes))
        return True

    async def _read_journals(self) -> bool:
        before = self._state
        call = JournalsCall(
            topology=self._state.topology, request_timeout_sec=self._timeout_sec, deadline_at=now() + JOURNALS_LIMIT_SEC
        )
        what = "what has this instance been through"
        journals = await self._call(JournalActivities.read_journals, call, JOURNALS_LIMIT_SEC, what)
        if self._state.life is not Life.LEARNING:
            self._memory.become(seeded(self._state, journals).but(reseed=False))
            return True
        looked = await self._look_at_all() if journals.started else FreshLookResult()
        running = await self._find_running(journals)
        state = self._state
        if state.strategy is None and (before.strategy is not None or state.generation > before.generation):
            return False  # a strategy told its end meanwhile: what the journals said of it is out of date
        if running is not None and state.strategy is None and is_newer(state, running[1]):
            kind, generation = running
            state = attach(seeded(state, journals), kind, generation, now())
        state = after_journals(state, journals, looked, now())
        for end in state.deferred_ends:
            state = took_end(state, end, now())
        self._memory.become(state.but(deferred_ends=()))
        return True

    async def _find_running(self, journals: JournalsResult) -> tuple[StrategyKind, int] | None:
        """A round or rebuild that a FaultManager before this one started and that still runs."""
        newest = max(self._state.generation, journals.highest_generation)
        if newest == 0:
            return None
        for generation in (newest + 1, newest):
            for kind in StrategyKind:
                if (await self.ask_about(kind, generation)).state is StrategyState.RUNNING:
                    return kind, generation
        return None

    async def ask_about(self, kind: StrategyKind, generation: int) -> LookUpResult:
        """What became of one strategy, by its workflow id. Raises ActivityError when Temporal cannot be asked."""
        workflow_id = kind.workflow_id(self._state.instance_id, generation)
        call = LookUpCall(kind=kind, instance_id=self._state.instance_id, generation=generation, workflow_id=workflow_id)
        return await self._call(FaultManagerActivities.look_up_strategy, call, 10.0, f"does {workflow_id} run")

    async def _start_node_managers(self) -> bool:
        state = self._state
        call = StartNodeManagersCall(
            topology=state.topology,
            config=state.config,
            generation=state.generation,
            dead_committed=state.dead_committed,
            deadline_at=now() + START_LIMIT_SEC,
        )
        result = await self._call(RebuildActivities.start_node_managers, call, START_LIMIT_SEC, "start all NodeManagers")
        state = self._state.but(evidence=self._state.evidence.with_engines(result.engines))
        if any(refusal.reason == NodeManagerReason.OLD_GENERATION for refusal in result.refusals):
            self._memory.become(state.but(life=Life.LEARNING, last_error="NodeManagers know a newer generation"))
            return False
        missing = [str(manager) for manager in state.topology.managers if str(manager) not in result.started]
        words = "; ".join(f"{refusal.peer}: {refusal.reason} {refusal.message}" for refusal in result.refusals)
        error = f"start: {words or 'no answer from ' + ', '.join(missing)}" if missing or result.refusals else None
        self._memory.become(state.but(node_managers_started=error is None, last_error=error))
        return error is None

    async def _await_ready(self) -> bool:
        """Readiness is also reported; looking finds it where a report was lost, or where the feature is off."""
        state = self._state
        call = EnginesReadyCall(
            questions=questions(state.topology, state.active),
            poll_interval_sec=state.config.dp_scale_down_config.poll_interval_sec,
            request_timeout_sec=self._timeout_sec,
            deadline_at=now() + READY_LIMIT_SEC,
        )
        result = await self._call(RebuildActivities.await_engines_ready, call, READY_LIMIT_SEC, "wait until every rank is ready")
        state = self._state
        evidence = state.evidence.merge_all(from_entries(result.last_entries, now()), state.dead_committed)
        state = state.but(evidence=evidence)
        if not result.waiting and state.life is Life.ASSEMBLING and not evidence.faulty(state.active):
            state = assembled(state.but(evidence=evidence.known_ready(state.active)), now())
        elif result.waiting:
            words = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(result.waiting.items()))
            state = state.but(last_error=f"not ready yet: {words}")
        self._memory.become(state)
        return True

    async def _look_at_all(self) -> FreshLookResult:
        state = self._state
        call = FreshLookCall(questions=questions(state.topology, state.active), request_timeout_sec=self._timeout_sec)
        limit_sec = 2 * self._timeout_sec
        return await self._call(NodeManagerActivities.fresh_look, call, limit_sec, "look at every active rank")

    async def _look(self) -> bool:
        """Rule 10's one fresh look. A look that could not be made counts as made: waiting longer would help nobody."""
        try:
            result = await self._look_at_all()
            reports = from_entries(result.last_entries, now())
            self._memory.become(self._state.but(evidence=self._state.evidence.merge_all(reports, self._state.dead_committed)))
        finally:
            self._memory.become(self._state.but(looked_for=self._memory.collecting_since()))
        return True

    async def _wake(self) -> bool:
        """`wake_idle_survivors`: one completion to each, once. What the engines then find out, they report."""
        decision, since = self._memory.decision, self._memory.collecting_since()
        ranks = decision.ranks if decision is not None else ()
        call = WakeCall(questions=questions(self._state.topology, ranks), request_timeout_sec=self._timeout_sec)
        try:
            what = f"one completion to each of ranks {list(ranks)}"
            await self._call(NodeManagerActivities.wake, call, 2 * self._timeout_sec, what)
        finally:
            self._memory.become(self._state.but(woken_for=since))
        return True

    async def _look_up(self) -> bool:
        """A strategy has said nothing for long. What is found out is taken like a word from it."""
        strategy = self._state.strategy
        if strategy is None:
            return True
        found = await self.ask_about(strategy.kind, strategy.generation)
        state, at = self._state, now()
        if state.strategy is None or state.strategy.generation != strategy.generation:
            return True
        match found.state:
            case StrategyState.RUNNING:
                state = state.but(strategy=state.strategy.model_copy(update={"last_word_at": at}))
            case StrategyState.ENDED if found.end is not None:
                state = took_end(state, found.end, at)
            case _:
                state = after_loss(state, f"{strategy.workflow_id} ended without a report ({found.state})", at)
        self._memory.become(state)
        return True

    async def _push_view(self) -> bool:
        state = self._state
        view = state.view
        limit_sec = state.config.dp_scale_down_config.coordinator_deadline_sec
        call = ViewCall(
            topology=state.topology,
            revision=view.revision,
            ranks=view.ranks,
            request_timeout_sec=self._timeout_sec,
            deadline_at=now() + limit_sec,
        )
        what = f"ADD ranks {list(view.ranks)}" if view.ranks else "DEL"
        result = await self._call(CoordinatorActivities.push_view, call, limit_sec, f"view revision {view.revision}: {what}")
        state = self._state
        if state.view.revision != view.revision or state.view.ranks != view.ranks:
            return True  # another view is wanted by now
        if result.confirmed:
            mended = state.phase in SERVING_PHASES and not state.pending_finalize
            confirmed = view.model_copy(update={"confirmed": True})
            self._memory.become(state.but(view=confirmed, last_error=None if mended else state.last_error))
            return True
        words = "; ".join(f"{refusal.peer}: {refusal.reason} {refusal.message}" for refusal in result.refusals)
        overtaken = any(refusal.reason.upper() == "STALE" for refusal in result.refusals)
        if overtaken:
            state = state.republishing().but(reseed=True)
        self._memory.become(state.but(last_error=f"view revision {view.revision} is not confirmed: {words or 'no answer'}"))
        return False

    async def _finalize(self) -> bool:
        """One verdict at a time. A refusal is final too: the NodeManager knows better, and nothing is gained by repeating."""
        pending = self._state.pending_finalize[0]
        limit_sec = self._state.config.dp_scale_down_config.finalize_deadline_sec
        call = FinalizeCall(
            request_id=pending.request_id,
            generation=pending.generation,
            commit=pending.commit,
            managers=(pending.manager,),
            retired=(Question(manager=pending.manager, ranks=pending.retired),) if pending.retired else (),
            dead_committed=pending.dead_committed,
            request_timeout_sec=self._timeout_sec,
            deadline_at=now() + limit_sec,
        )
        what = f"{'commit' if pending.commit else 'abort'} {pending.request_id} at {pending.manager}"
        result = await self._call(NodeManagerActivities.finalize, call, limit_sec, what)
        state = self._state
        rest = tuple(one for one in state.pending_finalize if one != pending)
        if result.pending:
            self._memory.become(state.but(pending_finalize=(*rest, pending)))
            return False
        refused = "; ".join(f"{refusal.peer}: {refusal.reason} {refusal.message}" for refusal in result.refusals)
        self._memory.become(state.but(pending_finalize=rest, last_error=f"finalize: {refused}" if refused else state.last_error))
        return True

    async def _tell_pace(self) -> bool:
        """Best effort: a NodeManager that missed it looks less often, no more."""
        pace = self._state.wanted_pace_sec
        call = PaceCall(managers=self._state.topology.managers, poll_interval_sec=pace, request_timeout_sec=self._timeout_sec)
        try:
            await workflow.execute_activity_method(
                NodeManagerActivities.pace,
                call,
                schedule_to_close_timeout=timedelta(seconds=self._timeout_sec + _SLACK_SEC),
                heartbeat_timeout=_HEARTBEAT,
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary=f"look every {pace:g} s",
            )
        finally:
            self._memory.become(self._state.but(pace_told=pace))
        return True

    async def stop_engines(self) -> None:
        """The instance was deleted: stop every NodeManager's engines. Raises ActivityError."""
        state = self._state
        call = StopNodeManagersCall(
            managers=state.topology.managers,
            generation=state.generation,
            request_timeout_sec=self._timeout_sec,
            deadline_at=now() + STOP_LIMIT_SEC,
            instance_id=state.instance_id,
        )
        result = await self._call(RebuildActivities.stop_node_managers, call, STOP_LIMIT_SEC, "stop the instance's engines")
        left = "; ".join(f"{one.peer}: {one.reason}" for one in (*result.unreachable, *result.refusals))
        self._memory.become(self._state.but(last_error=f"not stopped: {left}" if left else self._state.last_error))
