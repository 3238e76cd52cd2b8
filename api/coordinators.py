"""POST /controller/coordinators: a Coordinator says where it is and which life this is (contracts §3).

It is handed on to EventPusher, which sends a SET to one that is new or has no view, and forgets one from which nothing is
heard. A Coordinator that EventPusher knows and reaches has nothing to add: its word is checked by a query, which leaves no
trace, and an idle hour adds nothing to the history.
"""

from typing import Final

from fastapi import APIRouter, Response

from api.errors import ApiReason
from api.gateway import WorkflowUnknown, stamp
from api.state import Api
from domain.messages.controller import CoordinatorAnnouncement
from domain.messages.event_pusher import (
    ANNOUNCE_UPDATE,
    COORDINATORS_QUERY,
    EVENT_PUSHER_ID,
    CoordinatorRecord,
    Coordinators,
)
from domain.receivers import event_pusher
from service.http import HttpError, success

REACHED_SEC: Final = 20.0
"""A Coordinator that took a push so lately is reached: SET comes every few seconds, and it is forgotten after 60 s."""


def coordinator_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["Coordinators"])

    @router.post("/controller/coordinators")
    async def announce(body: CoordinatorAnnouncement) -> Response:
        if not await _reached(api, body):
            record = CoordinatorRecord(url=body.url, incarnation=body.incarnation, has_view=body.has_view, last_answer_at=stamp())
            await api.gateway.signal_with_start(event_pusher(api.config), ANNOUNCE_UPDATE, record)
        api.figures.announcements.inc()
        return success()

    return router


async def _reached(api: Api, body: CoordinatorAnnouncement) -> bool:
    """Whether EventPusher pushes to this very life. Raises HttpError 503 without a Temporal server."""
    pushed = body.last_push_sec_ago
    if not body.has_view or pushed is None or pushed > REACHED_SEC:
        return False
    try:
        known = await api.gateway.query(EVENT_PUSHER_ID, COORDINATORS_QUERY, Coordinators, open_only=True)
    except WorkflowUnknown:
        return False
    except HttpError as error:
        if error.reason == ApiReason.TEMPORAL_UNAVAILABLE:
            raise
        return False
    return any((one.url, one.incarnation) == (body.url, body.incarnation) for one in known.coordinators)
