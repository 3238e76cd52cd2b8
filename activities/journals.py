"""What an instance has been through, asked of those who keep records: for a FaultManager without memory (design §1).

Three sources: the NodeManagers' journals (generations, committed ranks, open transactions), EventPusher (the newest
view), and the Coordinators (which revision they hold). Each may be away; what could be learnt until the deadline is what
there is, and `complete` says whether every NodeManager answered.
"""

import asyncio
import logging
from typing import Final

import httpx
from temporalio import activity
from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.attempt import Attempt, attempt, concurrently, settled
from activities.node_manager_client import NodeManagerClient
from domain.errors import AutotomyError
from domain.messages.coordinator import INSTANCES_PATH, CoordinatorView, PublishedInstance
from domain.messages.event_pusher import EVENT_PUSHER_ID, EventPusherState
from domain.messages.fault_manager import JournalsCall, JournalsResult
from domain.messages.node_manager import JournalReply
from domain.messages.round import PeerRefusal
from domain.topology import NodeManagerAddress
from service.peer import PeerRefused, get, refusal

log = logging.getLogger(__name__)

_NOT_FOUND: Final = 404


class JournalActivities:
    """`http` and `client` are the worker's."""

    def __init__(self, http: httpx.AsyncClient, client: Client) -> None:
        self._http = http
        self._client = client

    @activity.defn
    async def read_journals(self, call: JournalsCall) -> JournalsResult:
        """The highest that was seen anywhere. A NodeManager whose FT routes are off keeps no journal to ask."""
        async with attempt("read_journals") as run:
            managers = call.topology.managers
            works = [settled(self._journal(manager, call, run)) for manager in managers]
            asking = asyncio.ensure_future(self._views(call))
            try:
                answers = dict(zip(managers, await concurrently(works), strict=True))
                pushed, held = await asking
            finally:
                asking.cancel()
            return _summary(call, answers, pushed, held)

    async def _journal(self, manager: NodeManagerAddress, call: JournalsCall, run: Attempt) -> JournalReply | None:
        client = NodeManagerClient(self._http, manager)
        try:
            return await run.until_answered(client.journal, call.deadline_at, call.request_timeout_sec)
        except PeerRefused as no:
            if no.status == _NOT_FOUND:
                return None
            raise

    async def _views(self, call: JournalsCall) -> tuple[EventPusherState, tuple[PublishedInstance, ...]]:
        """What EventPusher keeps, and this instance as each Coordinator that answers holds it."""
        pusher = await self._event_pusher(call.request_timeout_sec)
        works = [
            settled(get(self._http, f"{url.rstrip('/')}{INSTANCES_PATH}", CoordinatorView, call.request_timeout_sec))
            for url in pusher.coordinators
        ]
        views = [view for view in await concurrently(works) if not isinstance(view, AutotomyError)]
        found = [view.instance(call.topology.instance_id) for view in views]
        return pusher, tuple(instance for instance in found if instance is not None)

    async def _event_pusher(self, timeout_sec: float) -> EventPusherState:
        try:
            async with asyncio.timeout(timeout_sec):
                handle = self._client.get_workflow_handle(EVENT_PUSHER_ID)
                state: EventPusherState = await handle.query("state", result_type=EventPusherState)
                return state
        except (TimeoutError, RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError) as error:
            log.warning("EventPusher does not tell its views", extra={"why": str(error)})
            return EventPusherState()


def _summary(
    call: JournalsCall,
    answers: dict[NodeManagerAddress, JournalReply | AutotomyError | None],
    pushed: EventPusherState,
    held: tuple[PublishedInstance, ...],
) -> JournalsResult:
    instance_id = call.topology.instance_id
    journals = {
        str(manager): answer
        for manager, answer in answers.items()
        if isinstance(answer, JournalReply) and answer.instance_id in (None, instance_id)
    }
    silent: tuple[PeerRefusal, ...] = tuple(
        refusal(manager, answer) for manager, answer in answers.items() if isinstance(answer, AutotomyError)
    )
    known = pushed.views.get(instance_id)
    views = [(known.revision, known.ranks)] if known is not None else []
    views += [(instance.revision or 0, instance.ranks) for instance in held]
    revision, ranks = max(views, default=(0, ()))
    return JournalsResult(
        complete=not silent,
        highest_generation=max((journal.highest_generation for journal in journals.values()), default=0),
        dead_committed=tuple(sorted({rank for journal in journals.values() for rank in journal.dead_committed})),
        view_revision=revision,
        published_ranks=ranks,
        open_request_ids=_open_requests(journals),
        started=any(journal.instance_id is not None for journal in journals.values()),
        unreachable=silent,
    )


def _open_requests(journals: dict[str, JournalReply]) -> dict[str, str]:
    """By NodeManager, the transaction that has its Pod and no verdict yet."""
    open_ones = {}
    for manager, journal in journals.items():
        without_verdict = {t.request_id for t in journal.transactions if t.verdict is None}
        if journal.guard is not None and journal.guard.request_id in without_verdict:
            open_ones[manager] = journal.guard.request_id
    return open_ones
