"""Coordinators that route over the view they were given, and the one pusher that knows its latest revision.

A Coordinator takes a higher revision, ignores a lower one, and routes nothing after a restart until a SET for its new life.
The pusher knows a revision before its first push leaves, so no SET can bring back what was withdrawn.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from domain.errors import Refused, Transient
from domain.messages.round import PeerRefusal, ViewResult
from domain.observations import OutageSeen, RouteSeen, ViewChange, ViewSeen
from tests.simulation.clock import now
from tests.simulation.network import ConnectionRefused, Wire, until
from tests.simulation.record import Record

RETRY_SEC = 0.2
SET_INTERVAL_SEC = 2.0


class FakeCoordinator:
    """One Coordinator: its process, which forgets everything when it restarts."""

    def __init__(self, name: str, record: Record, home: dict[int, str]) -> None:
        self.name = name
        self.up = self.powered = True
        self.tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self.life = 1
        self.has_view = False
        self.revision = 0
        self.ranks: tuple[int, ...] = ()
        self._record, self._home = record, home

    async def refresh(self, change: ViewChange, revision: int, ranks: tuple[int, ...], life: int) -> str:
        """Returns applied, unchanged or stale."""
        if life != self.life:
            raise Refused(f"{self.name} is in life {self.life}", reason="INCARNATION")
        if change is not ViewChange.SET and not self.has_view:
            raise Refused(f"{self.name} waits for a SET", reason="INCARNATION")
        if self.has_view and revision < self.revision:
            return "stale"
        if self.has_view and revision == self.revision:
            if ranks != self.ranks:
                raise Refused(f"revision {revision} has other content", reason="IDENTITY_CONFLICT")
            return "unchanged"
        self.has_view, self.revision, self.ranks = True, revision, ranks
        endpoints = {rank: self._home[rank] for rank in ranks}
        self._record.saw(ViewSeen(at=now(), coordinator=self.name, change=change, revision=revision, endpoints=endpoints))
        return "applied"

    def route(self) -> None:
        """One request to each rank in the view."""
        if self.up and self.has_view:
            for rank in self.ranks:
                self._record.saw(RouteSeen(at=now(), rank=rank, answered_by=rank))

    def restart(self, after_sec: float) -> None:
        if not self.up:
            return
        routing_again_at = now() + after_sec + 3 * SET_INTERVAL_SEC  # up, announced, and a SET taken
        self._record.saw(OutageSeen(at=now(), process=self.name, ended_at=routing_again_at))
        self._record.saw(ViewSeen(at=now(), coordinator=self.name, change=ViewChange.DEL, revision=None, endpoints={}))
        self.up, self.has_view, self.revision, self.ranks = False, False, 0, ()
        self.life += 1
        for task in tuple(self.tasks):
            task.cancel()
        asyncio.get_running_loop().call_later(after_sec, self._up)

    def _up(self) -> None:
        self.up = True


@dataclass
class Known:
    """The newest revision, told before its first push leaves."""

    revision: int
    ranks: tuple[int, ...]


class Pusher:
    """EventPusher and the push activities. `lives` are the Coordinators as they announced themselves."""

    def __init__(self, coordinators: tuple[FakeCoordinator, ...], wire: Wire, record: Record, ranks: tuple[int, ...]) -> None:
        self.coordinators = coordinators
        self.known = Known(1, ranks)
        self.lives: dict[str, int] = {}
        self._wire, self._record = wire, record

    async def keep_setting(self) -> None:
        """Announcements and the periodic SET, for ever."""
        while True:
            for coordinator in self.coordinators:
                if coordinator.up:
                    self.lives[coordinator.name] = coordinator.life
            known = Known(self.known.revision, self.known.ranks)
            await asyncio.gather(*(self._set(coordinator, known) for coordinator in self.coordinators))
            await asyncio.sleep(SET_INTERVAL_SEC)

    async def push(self, revision: int, ranks: tuple[int, ...], timeout_sec: float, deadline_at: float) -> ViewResult:
        """DEL or ADD at every Coordinator, each retried until `deadline_at`."""
        if revision > self.known.revision:
            self.known = Known(revision, ranks)
        change = ViewChange.ADD if ranks else ViewChange.DEL
        refusals = await asyncio.gather(
            *(self._push(c, change, revision, ranks, timeout_sec, deadline_at) for c in self.coordinators)
        )
        failed = tuple(refusal for refusal in refusals if refusal is not None)
        return ViewResult(confirmed=not failed, coordinators=tuple(c.name for c in self.coordinators), refusals=failed)

    async def _push(
        self,
        coordinator: FakeCoordinator,
        change: ViewChange,
        revision: int,
        ranks: tuple[int, ...],
        timeout_sec: float,
        deadline_at: float,
    ) -> PeerRefusal | None:
        while True:
            life = self.lives.get(coordinator.name, 0)
            try:
                await self._wire.call(coordinator, partial(coordinator.refresh, change, revision, ranks, life), timeout_sec)
                return None
            except Refused as error:
                if error.reason == "INCARNATION":
                    return None  # it restarted: it routes nothing until it has announced itself and taken a SET
                return PeerRefusal(peer=coordinator.name, reason=error.reason, message=error.message)
            except Transient as error:
                if await until(deadline_at, RETRY_SEC):
                    continue
                if isinstance(error, ConnectionRefused):
                    return None  # not routing
                return PeerRefusal(peer=coordinator.name, reason=error.reason, message=error.message)

    async def _set(self, coordinator: FakeCoordinator, known: Known) -> None:
        life = self.lives.get(coordinator.name, 0)
        try:
            await self._wire.call(
                coordinator, lambda: coordinator.refresh(ViewChange.SET, known.revision, known.ranks, life), 1.0
            )
        except (Refused, Transient):
            pass
