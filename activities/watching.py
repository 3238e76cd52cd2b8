"""The looping look: sweep, fold, and again, until the watch ends; beside it the guards are kept alive.

What the look knows (the watch, its sweeps, when it began) is one small model that travels with the
heartbeat, so a killed worker costs a sweep, not the wait. The interval grows from 50 ms with the time already waited and
stays at the configured one from then on: a short wait ends at once, a long one is never prolonged by more than a tenth.
"""

import asyncio
import contextlib
import logging
from typing import Annotated, Final

import httpx
from pydantic import Field

from activities.attempt import Attempt, WorkerLeaving, cancel_requested, concurrently, settled
from activities.node_manager_client import NodeManagerClient
from activities.sweep import sweep
from domain.errors import AutotomyError
from domain.messages.node_manager import GuardRequest, NodeManagerReason
from domain.messages.round import PeerRefusal, WatchCall, WatchResult
from domain.model import Strict
from domain.topology import NodeManagerAddress
from domain.watch import Watch, WatchStanding, WatchState
from service.peer import PeerRefused, refusal

log = logging.getLogger(__name__)

_FASTEST_SEC: Final = 0.05
_SHARE_OF_WAIT: Final = 0.1

_LOST: Final = frozenset({NodeManagerReason.GUARD_HELD, NodeManagerReason.OLD_GENERATION, NodeManagerReason.VERDICT_KNOWN})
"""Refusals of a renewal that say the Pod belongs to someone else, or that this round has its verdict."""


class WatchMemory(Strict):
    """Where a look stands. Times are `Attempt.now()` seconds, the same in every attempt."""

    watch: Watch
    observation: WatchStanding = WatchStanding(verdict=WatchState.WAIT, detail="no look was finished")
    sweeps: Annotated[int, Field(ge=0)] = 0
    began_at: float


class Look:
    """One attempt at a look."""

    def __init__(self, http: httpx.AsyncClient, call: WatchCall, run: Attempt) -> None:
        self._http = http
        self._call = call
        self._run = run
        inherited = run.recall(WatchMemory)
        self._memory = inherited or WatchMemory(watch=call.watch, began_at=run.now())
        self._lost: PeerRefusal | None = None
        self._wake = asyncio.Event()
        self._guard = GuardRequest(request_id=call.request_id, lease_sec=call.lease.lease_sec, generation=call.generation)

    async def until_ended(self) -> WatchResult:
        """Sweeps until the verdict, the deadline, a lost guard or a cancellation, and returns the last state."""
        renewing = asyncio.create_task(self._keep_guards(), name="renew guards")
        try:
            while not self._ended(await self._sweep()):
                await self._run.pause(min(self._interval_sec(), max(0.0, self._left())), self._wake)
        except asyncio.CancelledError:
            if not cancel_requested():
                raise
            log.info("look was asked to end", extra={"request_id": self._call.request_id})
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError, WorkerLeaving):
                await renewing
        return WatchResult(
            watch=self._memory.watch,
            observation=self._memory.observation,
            sweeps=self._memory.sweeps,
            lost_guard=self._lost,
        )

    async def _sweep(self) -> WatchStanding:
        answers = await sweep(self._http, self._memory.watch.questions(), self._call.request_timeout_sec)
        watch, observation = self._memory.watch.fold(answers, self._run.now())
        self._memory = self._memory.model_copy(
            update={"watch": watch, "observation": observation, "sweeps": self._memory.sweeps + 1}
        )
        self._run.remember(self._memory)
        return observation

    def _ended(self, observation: WatchStanding) -> bool:
        return observation.verdict is not WatchState.WAIT or self._call.once or self._lost is not None or self._left() <= 0

    def _left(self) -> float:
        return self._run.left(self._call.deadline_at)

    def _interval_sec(self) -> float:
        waited = self._run.now() - self._memory.began_at
        return min(self._call.poll_interval_sec, max(_FASTEST_SEC, _SHARE_OF_WAIT * waited))

    async def _keep_guards(self) -> None:
        """Renews for ever; a later attempt begins with it, because nobody knows how long the one before was gone."""
        if self._run.number == 1:
            await self._run.pause(self._call.lease.renew_every_sec)
        while self._lost is None:
            await concurrently(self._renew(manager) for manager in self._call.lease.managers)
            await self._run.pause(self._call.lease.renew_every_sec)

    async def _renew(self, manager: NodeManagerAddress) -> None:
        client = NodeManagerClient(self._http, manager)
        answer = await settled(client.guard(self._guard, self._call.request_timeout_sec))
        if not isinstance(answer, AutotomyError):
            return
        log.warning("guard not renewed", extra={"node_manager": str(manager), "why": answer.message})
        if isinstance(answer, PeerRefused) and answer.reason in _LOST:
            self._lost = refusal(manager, answer)
            self._wake.set()
