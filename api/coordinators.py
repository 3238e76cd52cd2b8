"""POST /controller/coordinators: a Coordinator says where it is and which life this is (contracts §3).

It is handed on to EventPusher, which sends a SET to one that is new or has no view.
"""

from fastapi import APIRouter, Response

from api.gateway import stamp
from api.state import Api
from domain.messages.controller import CoordinatorAnnouncement
from domain.messages.event_pusher import ANNOUNCE_UPDATE, EVENT_PUSHER_ID, EVENT_PUSHER_WORKFLOW, CoordinatorRecord
from service.http import success


def coordinator_routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["Coordinators"])

    @router.post("/controller/coordinators")
    async def announce(body: CoordinatorAnnouncement) -> Response:
        record = CoordinatorRecord(**body.model_dump(), last_answer_at=stamp())
        await api.gateway.signal_with_start(
            EVENT_PUSHER_WORKFLOW, EVENT_PUSHER_ID, api.event_pusher_start(), ANNOUNCE_UPDATE, record
        )
        api.figures.announcements.inc()
        return success()

    return router
