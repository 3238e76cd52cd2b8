"""Signs of life to the Controller, and what comes back with them.

A heartbeat names the Pod's ranks without the retired ones. Its reply carries the instance's generation and committed
ranks: a NodeManager that was away when a round committed learns its retired ranks here. A Controller that does not know
the instance is told who this is again (`on_unknown`); one that is not there is no reason for anything.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import httpx
from pydantic import ValidationError

from domain.messages.controller import HeartbeatReply, HeartbeatRequest
from service.json_reader import read_peer_json

log = logging.getLogger(__name__)

_ACCEPTED: Final = 200
_UNAVAILABLE: Final = 503
_UNKNOWN_INSTANCE: Final = "UNKNOWN_INSTANCE"


class Heartbeat:
    """`content` gives the next heartbeat, None while the Pod belongs to no instance; `on_reply` learns.

    `accepted`, `ranks_named`: of the last one.
    """

    def __init__(
        self,
        *,
        http: httpx.AsyncClient,
        controller_url: str,
        interval_sec: float,
        timeout_sec: float,
        content: Callable[[], HeartbeatRequest | None],
        on_reply: Callable[[HeartbeatReply], None],
        on_unknown: Callable[[], None] = lambda: None,
    ) -> None:
        self._http = http
        self._url = f"{controller_url.rstrip('/')}/controller/heartbeat"
        self._interval_sec = interval_sec
        self._timeout_sec = timeout_sec
        self._content = content
        self._on_reply = on_reply
        self._on_unknown = on_unknown
        self._last_words = ""
        self.accepted = False
        self.ranks_named = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            content = self._content()
            if content is not None:
                await self._beat(content)
            await asyncio.sleep(self._interval_sec)

    async def _beat(self, content: HeartbeatRequest) -> None:
        self.accepted = await self._told(content)
        self.ranks_named = len(content.endpoints)

    async def _told(self, content: HeartbeatRequest) -> bool:
        try:
            async with asyncio.timeout(self._timeout_sec):
                response = await self._http.post(self._url, json=content.model_dump(mode="json"))
        except (httpx.HTTPError, TimeoutError) as error:
            self._say(f"no answer: {error or type(error).__name__}")
            return False
        if response.status_code != _ACCEPTED:
            self._say(f"HTTP {response.status_code}: {response.text[:200]}")
            if _says_unknown(response):
                self._on_unknown()
            return False
        try:
            self._on_reply(HeartbeatReply.model_validate(read_peer_json(response.content)["data"]))
        except (ValidationError, ValueError, LookupError, TypeError) as error:
            self._say(f"a reply that cannot be read: {' '.join(str(error).split())[:200]}")
            return False
        self._say("")
        return True

    def _say(self, words: str) -> None:
        """Each state once, not once a second."""
        if words != self._last_words:
            self._last_words = words
            if words:
                log.warning("heartbeat", extra={"answer": words})
            else:
                log.info("heartbeat accepted")


def _says_unknown(response: httpx.Response) -> bool:
    try:
        return response.status_code == _UNAVAILABLE and read_peer_json(response.content)["data"]["reason"] == _UNKNOWN_INSTANCE
    except (ValueError, LookupError, TypeError):
        return False
