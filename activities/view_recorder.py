"""Telling EventPusher of view revisions: many at a time, as they come.

A workflow takes ten updates at once; Temporal refuses more, and whoever was refused asks again later and later. When a
switch takes a rank from each of a hundred instances, each round withdraws and publishes through this one workflow, so the
views of all of this worker's activities travel together: while one update is under way, what comes in gathers for the next.
A view alone waits for nobody.

An update that fails fails for all in it, and each asks again by itself: EventPusher takes a revision twice as well as once.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from temporalio.client import Client

from activities.temporal_calls import update_with_start
from domain.errors import Transient
from domain.messages.event_pusher import (
    EVENT_PUSHER_ID,
    RECORD_VIEWS_UPDATE,
    Coordinators,
    KnownView,
    RecordedViews,
    ViewRecord,
    ViewsRecord,
)
from domain.receivers import event_pusher
from domain.serving import known_view

AT_ONCE: Final = 64
"""Views in one update: 0.3 MB with 320 ranks each, of the 2 MB that Temporal takes."""

_TIMEOUT_SEC: Final = 5.0

Tell = Callable[[ViewsRecord], Awaitable[RecordedViews]]


@dataclass(frozen=True, eq=False)
class _Waiting:
    instance_id: int
    view: KnownView
    told: asyncio.Future[Coordinators]


class ViewRecorder:
    """One per worker. `tell` hands one update to EventPusher."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._waiting: list[_Waiting] = []
        self._sender: asyncio.Task[None] | None = None

    @classmethod
    def over(cls, client: Client, task_queue: str) -> "ViewRecorder":
        """Over Temporal; EventPusher is started on `task_queue` where it is gone."""

        async def tell(views: ViewsRecord) -> RecordedViews:
            return await update_with_start(
                client,
                task_queue,
                event_pusher(),
                RECORD_VIEWS_UPDATE,
                views,
                RecordedViews,
                timeout_sec=_TIMEOUT_SEC,
            )

        return cls(tell)

    async def record(self, record: ViewRecord, timeout_sec: float) -> Coordinators:
        """EventPusher knows this revision, or a higher one; who must hear of it. Raises Transient, Refused."""
        told: asyncio.Future[Coordinators] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(instance_id=record.topology.instance_id, view=known_view(record), told=told)
        self._waiting.append(waiting)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="record views")
        try:
            async with asyncio.timeout(timeout_sec):
                return await told
        except TimeoutError:
            message = f"{EVENT_PUSHER_ID} did not answer {RECORD_VIEWS_UPDATE} in {timeout_sec:g} s"
            raise Transient(message, reason="NO_ANSWER") from None
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            try:
                recorded = await self._tell(_newest(batch))
            except Exception as error:  # whatever it is, it is each asker's to judge
                for one in batch:
                    _settle(one.told, error)
            else:
                for one in batch:
                    known = recorded.revisions[one.instance_id]
                    _settle(one.told, Coordinators(coordinators=recorded.coordinators, known_revision=known))


def _newest(batch: list[_Waiting]) -> ViewsRecord:
    """Each instance's highest revision in the batch."""
    views: dict[int, KnownView] = {}
    for one in sorted(batch, key=lambda one: one.view.revision):
        views[one.instance_id] = one.view
    return ViewsRecord(views=views)


def _settle(told: "asyncio.Future[Coordinators]", outcome: Coordinators | Exception) -> None:
    """Whoever asked may have left: then nobody hears it."""
    if told.done():
        return
    if isinstance(outcome, Exception):
        told.set_exception(outcome)
    else:
        told.set_result(outcome)
