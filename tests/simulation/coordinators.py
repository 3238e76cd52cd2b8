"""Coordinators that route over the view they were given, and the one pusher that knows its latest revision.

A Coordinator takes a higher revision, ignores a lower one, and routes nothing after a restart until a SET for its new life.
The pusher knows a revision before its first push leaves, so no SET can bring back what was withdrawn.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from domain.errors import Refused, Transient
from domain.messages.round import PeerRefusal, ViewResult
from lab.oracle.observations import OutageSeen, RouteSeen, ViewChange, ViewSeen
from tests.simulation.clock import now
from tests.simulation.network import ConnectionRefused, Wire, until
from tests.simulation.record import Record

RETRY_SEC = 0.2
SET_INTERVAL_SEC = 2.0

_ACKNOWLEDGED, _AWAY = "acknowledged", "away"


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
        self.announce: Callable[[FakeCoordinator], None] = lambda _: None
        self._away_since: float | None = None
        self._record, self._home = record, home

    async def refresh(self, change: ViewChange, revision: int, ranks: tuple[int, ...], life: int) -> str:
        """Returns applied, unchanged or stale. What it is told before its first SET counts, but only a SET opens routing."""
        if life != self.life:
            raise Refused(f"{self.name} is in life {self.life}", reason="INCARNATION")
        if revision == self.revision and ranks != self.ranks:
            raise Refused(f"revision {revision} has other content", reason="IDENTITY_CONFLICT")
        newer, older = revision > self.revision, revision < self.revision
        if newer:
            self.revision, self.ranks = revision, ranks
        opens = change is ViewChange.SET and not self.has_view
        if opens:
            self.has_view = True
            self._end_outage()
        if self.has_view and (newer or opens):
            self._show(change)
        return "applied" if newer else "stale" if older else "unchanged"

    def _show(self, change: ViewChange) -> None:
        endpoints = {rank: self._home[rank] for rank in self.ranks}
        self._record.saw(ViewSeen(at=now(), coordinator=self.name, change=change, revision=self.revision, endpoints=endpoints))

    def _end_outage(self) -> None:
        """It was away until it routes again: up, announced, and a SET taken."""
        if self._away_since is not None:
            self._record.saw(OutageSeen(at=self._away_since, process=self.name, ended_at=now()))
            self._away_since = None

    def route(self) -> None:
        """One request to each rank in the view."""
        if self.up and self.has_view:
            for rank in self.ranks:
                self._record.saw(RouteSeen(at=now(), rank=rank, answered_by=rank))

    def restart(self, after_sec: float) -> None:
        if not self.up:
            return
        self._away_since = now() if self._away_since is None else self._away_since
        self._record.saw(ViewSeen(at=now(), coordinator=self.name, change=ViewChange.DEL, revision=None, endpoints={}))
        self.up, self.has_view, self.revision, self.ranks = False, False, 0, ()
        self.life += 1
        for task in tuple(self.tasks):
            task.cancel()
        asyncio.get_running_loop().call_later(after_sec, self._up)

    def _up(self) -> None:
        self.up = True
        self.announce(self)


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
        self._answers: list[asyncio.Task[None]] = []
        for coordinator in coordinators:
            coordinator.announce = self._announced

    def _announced(self, coordinator: FakeCoordinator) -> None:
        """A Coordinator without a view gets a SET at once, for the life that it named."""
        self.lives[coordinator.name] = coordinator.life
        known = Known(self.known.revision, self.known.ranks)
        self._answers.append(asyncio.ensure_future(self._set(coordinator, known)))

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
        told = await asyncio.gather(
            *(self._push(c, change, revision, ranks, timeout_sec, deadline_at) for c in self.coordinators)
        )
        refusals = tuple(answer for answer in told if isinstance(answer, PeerRefusal))
        enough = change is ViewChange.DEL or _ACKNOWLEDGED in told
        names = tuple(coordinator.name for coordinator in self.coordinators)
        return ViewResult(confirmed=not refusals and enough, coordinators=names, refusals=refusals)

    async def _push(
        self,
        coordinator: FakeCoordinator,
        change: ViewChange,
        revision: int,
        ranks: tuple[int, ...],
        timeout_sec: float,
        deadline_at: float,
    ) -> PeerRefusal | str:
        """Until it acknowledged, or surely routes nothing; what it said where neither could be learnt."""
        while True:
            life = self.lives.get(coordinator.name, 0)
            try:
                took = await self._wire.call(
                    coordinator, partial(coordinator.refresh, change, revision, ranks, life), timeout_sec
                )
            except (Refused, Transient) as error:
                restarted = error.reason == "INCARNATION"  # it must announce itself and take a SET before it routes
                if restarted and change is ViewChange.DEL:
                    return _AWAY
                if (restarted or isinstance(error, Transient)) and await until(deadline_at, RETRY_SEC):
                    continue
                if isinstance(error, ConnectionRefused):
                    return _AWAY
                return PeerRefusal(peer=coordinator.name, reason=error.reason, message=error.message)
            if took == "stale":
                return PeerRefusal(peer=coordinator.name, reason="STALE", message="a newer revision is known")
            return _ACKNOWLEDGED

    async def _set(self, coordinator: FakeCoordinator, known: Known) -> None:
        life = self.lives.get(coordinator.name, 0)
        try:
            await self._wire.call(
                coordinator, lambda: coordinator.refresh(ViewChange.SET, known.revision, known.ranks, life), 1.0
            )
        except (Refused, Transient):
            pass
