"""A Coordinator makes itself known: it is nobody's configuration, it says where it is, which life this is, what it has.

Said at start and every `interval_sec`, more often while there is no view, since without one nothing is routed. The reply
does not matter: the view comes as a push. A Controller that does not answer is told about once, not every time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import httpx

from domain.messages.controller import CoordinatorAnnouncement
from service.stop import sleep_unless_stopped

log = logging.getLogger(__name__)

WITHOUT_VIEW_SEC: Final = 0.5
_TIMEOUT_SEC: Final = 5.0
_PATH: Final = "/controller/coordinators"


async def announce(
    controller_url: str, announcement: Callable[[], CoordinatorAnnouncement], interval_sec: float, stop: asyncio.Event
) -> None:
    """Announce until `stop` is set; `announcement` is asked anew each time."""
    trouble: str | None = None
    async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as client:
        while not stop.is_set():
            said = announcement()
            now = await _say(client, controller_url.rstrip("/") + _PATH, said)
            if now != trouble:
                _tell(controller_url, now)
                trouble = now
            pause_sec = interval_sec if said.has_view and now is None else min(interval_sec, WITHOUT_VIEW_SEC)
            await sleep_unless_stopped(pause_sec, stop)


async def _say(client: httpx.AsyncClient, url: str, announcement: CoordinatorAnnouncement) -> str | None:
    """What is in the way; None where the Controller took it."""
    try:
        reply = await client.post(url, json=announcement.model_dump())
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    return None if reply.is_success else f"HTTP {reply.status_code}: {reply.text[:200]}"


def _tell(controller_url: str, trouble: str | None) -> None:
    if trouble is None:
        log.info("announced to the Controller", extra={"controller": controller_url})
    else:
        log.warning(
            "the Controller does not take the announcement; trying again",
            extra={"controller": controller_url, "why": trouble},
        )
