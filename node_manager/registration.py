"""This Pod registers itself: who it is, by its file; where it belongs, by the Controller's answer (contracts §3).

It asks until a start command holds, backing off while nobody answers, and then only when the Controller no longer knows
the instance. What it learns at once are the ranks that were committed while it was away. Engines it never starts by
itself: `hold` says why they must not be, and the start command comes from the FaultManager.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

import httpx
from pydantic import ValidationError

from domain.messages.registration import RegisterReply, RegisterRequest
from node_manager.waiting import set_within
from service.json_reader import read_peer_json

log = logging.getLogger(__name__)

FIRST_DELAY_SEC: Final = 0.5
MAX_DELAY_SEC: Final = 10.0
_ASSEMBLING_SEC: Final = 5.0
"""How often it asks while other Pods are missing; an assembly that was given up begins anew with these."""

_OK: Final = 200


class Registration:
    """`request` is what this Pod says now; `on_reply` learns; `started`: a start command holds, heartbeats say the rest."""

    def __init__(
        self,
        *,
        http: httpx.AsyncClient,
        controller_url: str,
        timeout_sec: float,
        request: Callable[[], RegisterRequest],
        on_reply: Callable[[RegisterReply], None],
        started: Callable[[], bool],
    ) -> None:
        self._http = http
        self._url = f"{controller_url.rstrip('/')}/controller/register"
        self._timeout_sec = timeout_sec
        self._request = request
        self._on_reply = on_reply
        self._started = started
        self._wanted = asyncio.Event()
        self._obstacle = ""
        self.last: RegisterReply | None = None

    def again(self) -> None:
        """The Controller does not know the instance (any more)."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled."""
        delay_sec = FIRST_DELAY_SEC
        while True:
            self._wanted.clear()
            reply = await self._register()
            if reply is None:
                await set_within(self._wanted, delay_sec * random.uniform(0.5, 1.0))
                delay_sec = min(2 * delay_sec, MAX_DELAY_SEC)
                continue
            delay_sec = FIRST_DELAY_SEC
            self._say(reply)
            self._on_reply(reply)
            self.last = reply
            if self._started():
                await self._wanted.wait()
                await asyncio.sleep(FIRST_DELAY_SEC)
            else:
                await set_within(self._wanted, _ASSEMBLING_SEC if reply.waiting_for else MAX_DELAY_SEC)

    async def _register(self) -> RegisterReply | None:
        try:
            async with asyncio.timeout(self._timeout_sec):
                response = await self._http.post(self._url, json=self._request().model_dump(mode="json"))
            if response.status_code == _OK:
                return RegisterReply.model_validate(read_peer_json(response.content)["data"])
            self._obstructed(f"HTTP {response.status_code}: {response.text[:300]}")
        except (httpx.HTTPError, TimeoutError) as error:
            self._obstructed(f"no answer: {error or type(error).__name__}")
        except (ValidationError, ValueError, LookupError, TypeError) as error:
            self._obstructed(f"an answer that cannot be read: {' '.join(str(error).split())[:200]}")
        return None

    def _obstructed(self, obstacle: str) -> None:
        """Says each obstacle once, however often it is met."""
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            log.warning("not registered yet, trying again", extra={"why": obstacle})

    def _say(self, reply: RegisterReply) -> None:
        self._obstacle = ""
        if reply == self.last:
            return
        if reply.waiting_for:
            log.info("registered, other Pods are missing", extra={"node_ranks": list(reply.waiting_for)})
        elif reply.hold and self._started():
            log.info("registered; what runs here goes on, nothing new may start", extra={"why": reply.hold_reason})
        elif reply.hold:
            log.warning("registered and held: no engine may start here now", extra={"why": reply.hold_reason})
        else:
            log.info("registered", extra={"instance": reply.instance_id, "generation": reply.generation})
