"""`EventPusher`: who the Coordinators are, and what each instance's newest view is (design §1, §5).

It is told each view revision before the first push of it leaves (`record_views`), and each Coordinator that announces
itself. One looping, heartbeating activity pushes SET to all of them: at once when a Coordinator needs it, a moment after a
view was recorded (whoever recorded it is pushing it), and every `set_interval_sec`. The loop is restarted only where
something changed, so an idle hour adds nothing to the history.

Restarted loops may overlap for a moment. That does no harm: a Coordinator takes a view by its revision, and what was
overtaken is stale there.

Whatever arrives, it goes on: updates that do not decode are rejected by Temporal, signals come in raw
(`workflows.parts.signal_intake`); what cannot be used is kept in `rejected` with its reason.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from workflows.parts.signal_intake import Handlers, SignalRefused, take_in, whole_config
from workflows.parts.strategy_run import HEARTBEAT_TIMEOUT, RETRY, being_cancelled, now

with workflow.unsafe.imports_passed_through():
    from activities.coordinator import CoordinatorActivities
    from activities.errors import from_activity_error
    from domain.config import FaultToleranceConfig
    from domain.messages.coordinator import RefreshEvent, RefreshRequest
    from domain.messages.event_pusher import (
        ANNOUNCE_UPDATE,
        EVENT_PUSHER_WORKFLOW,
        FORGET_AFTER_SEC,
        KEEP_WITHDRAWN_SEC,
        CoordinatorRecord,
        Coordinators,
        EventPusherState,
        ForgetInstance,
        KnownView,
        PushLoopCall,
        PushLoopResult,
        RecordedViews,
        ViewRecord,
        ViewsRecord,
    )
    from domain.messages.fault_manager import CONFIG_SIGNAL
    from domain.runtime import with_rejected
    from domain.serving import known_view

FORGET_SIGNAL: Final = "forget_instance"

SETTLE_SEC: Final = 2.0
"""How long after a recorded view SET carries it. Each new SET costs two workflow tasks and all views; a round records two."""

_LOOP_LIMIT: Final = timedelta(hours=24)
_MESSAGES_A_RUN: Final = 500
"""Temporal allows 2,000 updates and 10,000 signals a run; a new run starts long before."""


@workflow.defn(name=EVENT_PUSHER_WORKFLOW)
class EventPusher:
    """Lives for ever; `EventPusherState` is all it carries over."""

    @workflow.init
    def __init__(self, state: EventPusherState) -> None:
        self._state = state
        self._changed = True
        self._viewed = False
        self._messages = 0

    @workflow.run
    async def run(self, state: EventPusherState) -> None:
        while not self._run_is_long():
            await self._push_until_change()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._state)

    def _run_is_long(self) -> bool:
        return self._messages >= _MESSAGES_A_RUN or workflow.info().is_continue_as_new_suggested()

    async def _push_until_change(self) -> None:
        """One activity: from one change to the next, or until it has something to tell."""
        self._changed = self._viewed = False
        self._show()
        if not self._state.coordinators:
            await workflow.wait_condition(lambda: self._changed or self._viewed)
            return
        loop = workflow.start_activity_method(
            CoordinatorActivities.push_set_loop,
            self._call(),
            start_to_close_timeout=_LOOP_LIMIT,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRY,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=f"SET {len(self._state.views)} instances at {len(self._state.coordinators)} Coordinators, "
            f"every {self._state.set_interval_sec:g} s",
        )
        await workflow.wait_condition(lambda: self._changed or self._viewed or loop.done())
        if self._viewed:
            await self._let_views_settle()
        if not loop.done():
            loop.cancel()
        try:
            self._learn(await loop)
        except asyncio.CancelledError:
            if being_cancelled():
                raise  # an eviction; otherwise our own cancel met the loop's end
        except ActivityError as error:
            if not (self._changed or self._viewed):
                workflow.logger.error("the SET loop ended: %s", from_activity_error(error).message)
                await workflow.sleep(self._state.set_interval_sec, summary="before SET is tried again")

    async def _let_views_settle(self) -> None:
        """Whoever recorded a view pushes it now, and the next one soon: SET need not compete with that, only repair it."""
        try:
            await workflow.wait_condition(
                lambda: self._changed, timeout=SETTLE_SEC, timeout_summary="recorded views are being pushed; then SET"
            )
        except TimeoutError:
            pass

    def _call(self) -> PushLoopCall:
        ends = [known.forget_at for known in self._state.views.values() if known.forget_at is not None]
        return PushLoopCall(
            coordinators=self._coordinators(),
            views=tuple(known for _, known in sorted(self._state.views.items())),
            set_interval_sec=self._state.set_interval_sec,
            until=min(ends, default=None),
        )

    def _learn(self, result: PushLoopResult) -> None:
        """What a loop told when it ended: who answered when, who is to be forgotten; and deleted instances end too.

        The loop does not hear announcements: whom it would forget is kept where one has come in meanwhile.
        """
        at = now()
        heard = {
            url: record.model_copy(update={"last_answer_at": max(record.last_answer_at, result.answered.get(url, 0.0))})
            for url, record in self._state.coordinators.items()
        }
        kept = {
            url: record
            for url, record in heard.items()
            if url not in result.forgotten or record.last_answer_at >= at - FORGET_AFTER_SEC
        }
        views = {i: known for i, known in self._state.views.items() if known.forget_at is None or known.forget_at > at}
        self._become(coordinators=kept, views=views)

    @workflow.update
    def record_views(self, record: ViewsRecord) -> RecordedViews:
        """New revisions, told before their first push; a lower or equal one changes nothing. Replies who must hear of it."""
        self._take_views(record.views)
        revisions = {instance_id: self._state.views[instance_id].revision for instance_id in record.views}
        return RecordedViews(coordinators=self._coordinators(), revisions=revisions)

    @record_views.validator
    def _readable(self, record: ViewsRecord) -> None:
        """A view that Coordinators cannot be told would end every SET."""
        for instance_id, view in record.views.items():
            if view.id != instance_id:
                raise ValueError(f"under instance {instance_id} stands a view of instance {view.id}")
            try:
                RefreshRequest(event=RefreshEvent.SET, instances=(view.entry,))
            except ValueError as error:
                raise ValueError(f"the view of instance {instance_id} cannot be read: {error}") from None

    @workflow.update
    def record_view(self, record: ViewRecord) -> Coordinators:
        """One view, as workers told it before `record_views`; here while such a worker or history may be about."""
        instance_id = record.topology.instance_id
        self._take_views({instance_id: known_view(record)})
        return Coordinators(coordinators=self._coordinators(), known_revision=self._state.views[instance_id].revision)

    @record_view.validator
    def _only_ranks_of_the_instance(self, record: ViewRecord) -> None:
        foreign = sorted(set(record.ranks) - set(record.topology.ranks))
        if foreign:
            raise ValueError(f"ranks {foreign} are not ranks of instance {record.topology.instance_id}")

    @workflow.update
    def announce_coordinator(self, record: CoordinatorRecord) -> Coordinators:
        """A Coordinator says where it is and which life this is. New, in a new life or without a view: it gets a SET."""
        self._messages += 1
        self._take_announcement(record)
        return self._answer()

    @workflow.query
    def coordinators(self) -> Coordinators:
        """Who is known now."""
        return self._answer()

    @workflow.query
    def state(self) -> EventPusherState:
        """Everything: Coordinators, views with their revisions, refused signals."""
        return self._state

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """`announce_coordinator`, `config_changed`, `forget_instance`; anything else, or unreadable, is kept as rejected."""
        self._messages += 1
        handlers: Handlers[None] = {
            ANNOUNCE_UPDATE: lambda inputs: self._take_announcement(inputs.parsed(CoordinatorRecord)),
            CONFIG_SIGNAL: lambda inputs: self._take_config(whole_config(inputs)),
            FORGET_SIGNAL: lambda inputs: self._take_deletion(inputs.parsed(ForgetInstance)),
        }
        refused = take_in(name, args, handlers, now())
        if refused is not None:
            self._become(rejected=with_rejected(self._state.rejected, refused))
            self._show()

    def _take_views(self, views: Mapping[int, KnownView]) -> None:
        self._messages += 1
        known = self._state.views
        newer = {i: view for i, view in views.items() if i not in known or view.revision > known[i].revision}
        if newer:
            self._become(views={**known, **newer})
            self._viewed = True

    def _take_announcement(self, record: CoordinatorRecord) -> None:
        at = now()
        record = record.model_copy(update={"last_answer_at": min(record.last_answer_at, at) or at})
        known = self._state.coordinators.get(record.url)
        same_life = known is not None and known.incarnation == record.incarnation
        self._become(coordinators={**self._state.coordinators, record.url: record})
        self._changed = self._changed or not same_life or not record.has_view

    def _take_config(self, config: FaultToleranceConfig) -> None:
        if config.set_interval_sec != self._state.set_interval_sec:
            self._become(set_interval_sec=config.set_interval_sec)
            self._changed = True

    def _take_deletion(self, deleted: ForgetInstance) -> None:
        known = self._state.views.get(deleted.instance_id)
        if known is None:
            raise SignalRefused(f"instance {deleted.instance_id} is not known")
        ending = known.model_copy(update={"forget_at": now() + KEEP_WITHDRAWN_SEC})
        self._become(views={**self._state.views, deleted.instance_id: ending})
        self._changed = True

    def _become(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update=changes)

    def _coordinators(self) -> tuple[CoordinatorRecord, ...]:
        return tuple(record for _, record in sorted(self._state.coordinators.items()))

    def _answer(self) -> Coordinators:
        return Coordinators(coordinators=self._coordinators())

    def _show(self) -> None:
        lines = ["| instance | revision | ranks |", "|---|---|---|"]
        lines += [
            f"| {instance_id} | {known.revision} | {len(known.ranks) or 'withdrawn'} |"
            for instance_id, known in sorted(self._state.views.items())
        ]
        lines += ["", "| Coordinator | incarnation |", "|---|---|"]
        lines += [f"| {c.url} | {c.incarnation} |" for c in self._coordinators()]
        lines += ["", *(f"refused signal `{r.name}`: {r.reason}" for r in self._state.rejected)]
        workflow.set_current_details("\n".join(lines))
