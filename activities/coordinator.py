"""The view to the Coordinators: one revision, pushed and confirmed (`push_view`); all of it, again and again (`push_set_loop`).

When a push counts (design §4, steps 6 and 11) depends on its direction. A DEL must hold **before** engines are touched, so
every Coordinator must be known not to route; an ADD only makes more possible, so who cannot be reached takes it later:

| a Coordinator … | DEL | ADD |
|---|---|---|
| acknowledges (applied, unchanged) | done | done |
| knows a higher revision | not confirmed, STALE | not confirmed, STALE |
| says it is another life (409 INCARNATION) | done: it routes nothing before a SET | asked again under its new life |
| refuses connections | asked until the deadline, then done: it routes nothing | done, if another one acknowledged |
| does not answer | not confirmed | not confirmed |
| refuses (400, another 409) | not confirmed | not confirmed |

Is no Coordinator known, then nobody routes: a DEL is confirmed; an ADD is not (NO_COORDINATOR), because nobody serves. The
first one that announces itself takes the view by SET, since EventPusher is told each revision before its first push.
"""

import logging
from typing import Final

import httpx
from temporalio import activity
from temporalio.client import Client

from activities.attempt import Attempt, attempt, concurrently, settled
from activities.view_recorder import ViewRecorder
from domain.errors import AutotomyError, Transient
from domain.messages.coordinator import (
    REFRESH_PATH,
    ConflictReason,
    RefreshEvent,
    RefreshOutcome,
    RefreshReply,
    RefreshRequest,
)
from domain.messages.event_pusher import (
    FORGET_AFTER_SEC,
    CoordinatorRecord,
    Coordinators,
    PushLoopCall,
    PushLoopResult,
    ViewRecord,
)
from domain.messages.round import PeerRefusal, ViewCall, ViewResult
from domain.model import Strict
from domain.serving import project
from service.peer import PeerRefused, PeerSilent, Silence, post, refusal

log = logging.getLogger(__name__)

STALE: Final = "STALE"
NO_COORDINATOR: Final = "NO_COORDINATOR"

_AGAIN_SEC: Final = 0.2
_SECOND_CHANCE_SEC: Final = 1.0
"""How long a Coordinator that refuses connections gets to come back before an ADD goes on without it."""


class Answered(Strict):
    """When each Coordinator (by url) last acknowledged a SET, in `Attempt.now()` seconds: the memory of the loop."""

    at: dict[str, float]


class CoordinatorActivities:
    """The activities that push views. `http` and `client` are the worker's; `task_queue` is where EventPusher runs."""

    def __init__(self, http: httpx.AsyncClient, client: Client, task_queue: str) -> None:
        self._http = http
        self._recorder = ViewRecorder.over(client, task_queue)

    @activity.defn
    async def push_view(self, call: ViewCall) -> ViewResult:
        """One revision to every Coordinator: ADD where `ranks` are given, DEL where there are none."""
        async with attempt("publish" if call.ranks else "withdraw") as run:
            push = ViewPush(self._http, call, run)
            known = await self._record(call, run)
            while True:
                result = await push.to_all(known)
                if result is not None:
                    return result
                await run.pause(min(_AGAIN_SEC, max(0.0, run.left(call.deadline_at))))
                known = await self._record(call, run)

    async def _record(self, call: ViewCall, run: Attempt) -> Coordinators:
        """EventPusher knows the revision from here on; it tells who the Coordinators are. Starts it where it is gone."""
        record = ViewRecord(topology=call.topology, revision=call.revision, ranks=call.ranks)
        return await run.until_answered(
            lambda timeout_sec: self._recorder.record(record, timeout_sec), call.deadline_at, call.request_timeout_sec
        )

    @activity.defn
    async def push_set_loop(self, call: PushLoopCall) -> PushLoopResult:
        """SET to every Coordinator, now and every `set_interval_sec`; ends when one is to be forgotten, or at `until`."""
        async with attempt("set") as run:
            answered = dict((run.recall(Answered) or Answered(at={})).at)
            request = set_request(call)
            while True:
                acknowledged = await concurrently(self._set(c, request, call.request_timeout_sec) for c in call.coordinators)
                now = run.now()
                answered |= {c.url: now for c, yes in zip(call.coordinators, acknowledged, strict=True) if yes}
                run.remember(Answered(at=answered))
                forgotten = tuple(
                    c.url for c in call.coordinators if now - max(c.last_answer_at, answered.get(c.url, 0.0)) > FORGET_AFTER_SEC
                )
                if forgotten or (call.until is not None and run.left(call.until) <= 0):
                    return PushLoopResult(forgotten=forgotten, answered=answered)
                await run.pause(call.set_interval_sec)

    async def _set(self, coordinator: CoordinatorRecord, request: RefreshRequest, timeout_sec: float) -> bool:
        """Whether this Coordinator, in this life, acknowledged."""
        addressed = request.model_copy(update={"coordinator_incarnation": coordinator.incarnation})
        answer = await settled(_refresh(self._http, coordinator, addressed, timeout_sec))
        if isinstance(answer, AutotomyError):
            log.log(
                logging.DEBUG if answer.reason == ConflictReason.INCARNATION else logging.WARNING,
                "SET not acknowledged",
                extra={"coordinator": coordinator.url, "why": answer.message},
            )
            return False
        for overtaken in answer.stale:
            log.info("SET overtaken", extra={"coordinator": coordinator.url, "instance": overtaken.id, "known": overtaken.known})
        return True


class ViewPush:
    """One push while its attempt lasts: who has acknowledged is not asked again."""

    def __init__(self, http: httpx.AsyncClient, call: ViewCall, run: Attempt) -> None:
        self._http = http
        self._call = call
        self._run = run
        self._adding = bool(call.ranks)
        self._began_at = run.now()
        self._instance = project(call.topology, call.ranks, call.revision)
        self._done: set[tuple[str, str]] = set()
        self._acknowledged: set[tuple[str, str]] = set()

    async def to_all(self, known: Coordinators) -> ViewResult | None:
        """One round over the Coordinators that are not done; None = not decided yet, ask again."""
        if known.known_revision > self._call.revision:
            return self._unconfirmed(_stale("EventPusher", self._call.revision, known.known_revision))
        if not known.coordinators:
            return self._nobody()
        open_ones = [c for c in known.coordinators if (c.url, c.incarnation) not in self._done]
        answers = await concurrently(settled(self._push(c)) for c in open_ones)
        final: list[PeerRefusal] = []
        waiting: list[PeerRefusal] = []
        for coordinator, answer in zip(open_ones, answers, strict=True):
            self._judge(coordinator, answer, final, waiting)
        if final or (waiting and self._over()):
            return self._unconfirmed(*final, *waiting)
        if waiting:
            return None
        if self._adding and not self._acknowledged:
            return self._nobody()
        return ViewResult(confirmed=True, coordinators=self._urls())

    async def _push(self, coordinator: CoordinatorRecord) -> RefreshOutcome:
        request = RefreshRequest(
            event=RefreshEvent.ADD if self._adding else RefreshEvent.DEL,
            coordinator_incarnation=coordinator.incarnation,
            instances=(self._instance,),
        )
        return await _refresh(self._http, coordinator, request, self._call.request_timeout_sec)

    def _judge(
        self,
        coordinator: CoordinatorRecord,
        answer: RefreshOutcome | AutotomyError,
        final: list[PeerRefusal],
        waiting: list[PeerRefusal],
    ) -> None:
        life = (coordinator.url, coordinator.incarnation)
        match answer:
            case RefreshOutcome(stale=(overtaken, *_)):
                final.append(_stale(coordinator.url, self._call.revision, overtaken.known))
            case RefreshOutcome():
                self._done.add(life)
                self._acknowledged.add(life)
            case PeerRefused(reason=ConflictReason.INCARNATION) if not self._adding:
                self._done.add(life)
            case PeerRefused(reason=ConflictReason.INCARNATION):
                waiting.append(refusal(coordinator.url, answer))
            case PeerSilent(how=Silence.REFUSED_CONNECTION) if self._may_go_without():
                self._done.add(life)
            case Transient():
                waiting.append(refusal(coordinator.url, answer))
            case _:
                final.append(refusal(coordinator.url, answer))

    def _may_go_without(self) -> bool:
        """Whether a Coordinator that refuses connections is waited for no longer."""
        if self._adding and self._acknowledged:
            return self._run.now() - self._began_at >= _SECOND_CHANCE_SEC or self._over()
        return self._over() and not self._adding

    def _over(self) -> bool:
        return self._run.left(self._call.deadline_at) <= 0

    def _nobody(self) -> ViewResult:
        if not self._adding:
            return ViewResult(confirmed=True)
        message = "no Coordinator is known: nobody routes; the first that announces itself takes the view"
        return self._unconfirmed(PeerRefusal(peer="Coordinators", reason=NO_COORDINATOR, message=message))

    def _unconfirmed(self, *refusals: PeerRefusal) -> ViewResult:
        return ViewResult(confirmed=False, coordinators=self._urls(), refusals=refusals)

    def _urls(self) -> tuple[str, ...]:
        return tuple(sorted({url for url, _ in self._acknowledged}))


def set_request(call: PushLoopCall) -> RefreshRequest:
    """The whole view; withdrawn instances are listed too, without endpoints (design §5)."""
    return RefreshRequest(event=RefreshEvent.SET, instances=tuple(known.entry for known in call.views))


async def _refresh(
    http: httpx.AsyncClient, coordinator: CoordinatorRecord, request: RefreshRequest, timeout_sec: float
) -> RefreshOutcome:
    return (await post(http, f"{coordinator.url.rstrip('/')}{REFRESH_PATH}", request, RefreshReply, timeout_sec)).data


def _stale(peer: str, revision: int, known: int) -> PeerRefusal:
    return PeerRefusal(peer=peer, reason=STALE, message=f"revision {revision} was overtaken, {known} is known")
