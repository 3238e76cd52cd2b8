"""Who acts from outside: Kubernetes with its readiness probe, and the hand that tells the survivors to shrink.

Neither knows anything that a cluster would not know. Kubernetes asks each Pod's supervisor; endpoints of a Pod that is
not ready are taken out of the router's view, those of a ready one are in it. The hand sends `scale_down` when the
experiment says so, yet not before the survivors have noticed the fault (engines take commands only then), and takes the
removed rank's endpoint out of the view once all survivors are healthy again.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import httpx

from domain.engine import ACCEPTED_HTTP, scale_down_params
from domain.errors import Transient
from lab.drills.record.timeline import Timeline
from lab.drills.supervisor_table.experiment import RANKS, SURVIVORS, VICTIM, Clock
from lab.drills.supervisor_table.site import Pool, Site

_SHORTEST_PERIOD_SEC: Final = 0.1
_LOOK_PAUSE_SEC: Final = 0.05
_WAIT_SEC: Final = 60.0


class Readiness:
    """What Kubernetes has seen of one Pod: (time, ready) at each change, and when `/health` first failed."""

    def __init__(self) -> None:
        self.changes: list[tuple[float, bool]] = []
        self.unhealthy_at: float | None = None

    @property
    def ready(self) -> bool:
        return bool(self.changes) and self.changes[-1][1]

    def first(self, ready: bool, since: float) -> float | None:
        """When it first became (not) ready after `since`."""
        return next((at for at, now in self.changes if at >= since and now is ready), None)


class Kubernetes:
    """Readiness probes and the endpoints that follow from them."""

    def __init__(self, site: Site, clock: Clock, timeline: Timeline) -> None:
        self.pods = {pool.name: Readiness() for pool in site.pools}
        self._removed: dict[str, set[int]] = {pool.name: set() for pool in site.pools}
        self._site = site
        self._timeline = timeline
        self._period_sec = max(_SHORTEST_PERIOD_SEC, clock.of(clock.readiness_period))
        self._publishing = asyncio.Lock()
        self._published: dict[str, tuple[int, ...]] | None = None

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._period_sec)

    async def look(self) -> None:
        """One probe of each Pod, and the view that follows."""
        await asyncio.gather(*(self._probe(pool) for pool in self._site.pools))
        await self.publish()

    async def take_out(self, pool: Pool, rank: int) -> None:
        """This endpoint is not to be routed to any more."""
        self._removed[pool.name].add(rank)
        await self.publish()

    async def publish(self) -> None:
        """Tell the Coordinator, if there is something new to tell."""
        async with self._publishing:
            served = {
                name: tuple(rank for rank in range(RANKS) if rank not in self._removed[name]) if pod.ready else ()
                for name, pod in self.pods.items()
            }
            if served != self._published:
                await self._site.set_view(served)
                self._published = served

    async def _probe(self, pool: Pool) -> None:
        ready, healthy = await asyncio.gather(self._site.probe(pool, "/ready"), self._site.probe(pool, "/health"))
        pod, now = self.pods[pool.name], time.monotonic()
        if pod.ready != (ready == 200):
            pod.changes.append((now, ready == 200))
            self._timeline.add(now, pool.name, "ready", ready == 200)
        if healthy != 200 and pod.unhealthy_at is None:
            pod.unhealthy_at = now
            self._timeline.add(now, pool.name, "health", healthy)


class Hand:
    """Sends one `scale_down` to pool A's survivors. `recovered_at`: the shrunk view was acknowledged."""

    def __init__(self, site: Site, clock: Clock, timeline: Timeline, kubernetes: Kubernetes) -> None:
        self.recovered_at: float | None = None
        self.failure: str | None = None
        self._site = site
        self._clock = clock
        self._timeline = timeline
        self._kubernetes = kubernetes

    async def scale_down(self) -> None:
        """Waits for its time, then acts; what goes wrong is in `failure`."""
        try:
            await asyncio.sleep(self._clock.of(self._clock.scale_down_at))
            await self._until_all("unhealthy")
            await self._apply()
            await self._until_all("healthy")
            await self._kubernetes.take_out(self._site.pool_a, VICTIM)
        except Transient as error:
            self.failure = error.message
            return
        self.recovered_at = time.monotonic()
        self._timeline.add(self.recovered_at, "hand", "recovered", f"view of ranks {list(SURVIVORS)}")

    async def _apply(self) -> None:
        pool = self._site.pool_a
        master = min(SURVIVORS)
        body = {
            "instruction": "scale_down",
            "params": scale_down_params([VICTIM], pool.ip, pool.store_port + master),
            "request_id": "scale-down-by-hand",
        }
        self._timeline.add(time.monotonic(), "hand", "scale_down", f"to ranks {list(SURVIVORS)}")
        replies = await asyncio.gather(*(self._post(pool, rank, body) for rank in SURVIVORS))
        if replies != [ACCEPTED_HTTP] * len(SURVIVORS):
            raise Transient(f"scale_down was answered {replies} by ranks {list(SURVIVORS)}")

    async def _post(self, pool: Pool, rank: int, body: Mapping[str, object]) -> int | None:
        try:
            reply = await self._site.http.post(f"{pool.rank_urls[rank]}/v1/fault_tolerance/apply", json=body)
        except httpx.TransportError:
            return None
        return reply.status_code

    async def _until_all(self, status: str) -> None:
        deadline = time.monotonic() + _WAIT_SEC
        while True:
            seen = await asyncio.gather(*(self._status(rank) for rank in SURVIVORS))
            if all(word == status for word in seen):
                return
            if time.monotonic() >= deadline:
                raise Transient(f"the survivors were {seen} for {_WAIT_SEC:g} s, not {status}")
            await asyncio.sleep(_LOOK_PAUSE_SEC)

    async def _status(self, rank: int) -> str | None:
        try:
            reply = await self._site.http.get(f"{self._site.pool_a.rank_urls[rank]}/v1/fault_tolerance/status")
            entry = reply.json()["engines"][0]
        except (httpx.TransportError, ValueError, LookupError, TypeError):
            return None
        return None if entry.get("ft_state") else str(entry.get("status"))
