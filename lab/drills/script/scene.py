"""What a drill's script has in its hands while it runs: injections, and waiting for what can be seen from outside.

Waiting is bounded and says, when it is in vain, what was seen instead. Nothing is waited for by the Controller's own
word: views come from the Coordinators, committed ranks from the NodeManagers' journals, engines from their logs.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import httpx

from domain.engine import EngineStatus
from domain.messages.node_manager import FT_PREFIX
from domain.runtime import FtPhase
from lab.drills.outcome import Injection, StopAsked
from lab.drills.record.engine_log import EngineLife, applies, read_lives
from lab.drills.record.entry_log import read_entries
from lab.drills.record.events import DrillEvent, DrillEventKind, OnDrillEvent
from lab.drills.record.observer import NotSeen, Observer
from lab.drills.record.repeated_sets import unchanged_refreshes
from lab.drills.record.timeline import Timeline
from lab.drills.script.failpoints import FailpointDriver
from lab.stack.client import Stack
from lab.stack.record import ProcessState

_LOOK_PAUSE_SEC = 0.1
_FOREIGN_LEASE_SEC = 60.0
HEARTBEAT_METRIC = "autotomy_node_manager_heartbeat"


class Scene:
    """One run of a drill. `injected` are the injections with their `time.monotonic()`; `episodes` when each began."""

    def __init__(
        self, stack: Stack, observer: Observer, timeline: Timeline, failpoints: FailpointDriver, on_event: OnDrillEvent
    ) -> None:
        self.stack = stack
        self.observer = observer
        self.failpoints = failpoints
        self.injected: list[tuple[float, Injection]] = []
        self.episodes: list[float] = []
        self.killed: set[str] = set()
        self.unchanged_refreshes: dict[str, float] = {}
        self.stops_asked: dict[str, tuple[StopAsked, ...]] = {}
        self.late_sec: dict[str, float | None] = {}
        self._timeline = timeline
        self._on_event = on_event

    @property
    def zero(self) -> float | None:
        """When the first injection was; None before it."""
        return self.injected[0][0] if self.injected else None

    def say(self, kind: DrillEventKind, text: str = "", *, ranks: Sequence[int] = (), ok: int = 0, failed: int = 0) -> None:
        """Tell whoever watches."""
        mono = time.monotonic()
        t = None if self.zero is None else mono - self.zero
        self._on_event(DrillEvent(kind=kind, mono=mono, t=t, text=text, ranks=tuple(ranks), ok=ok, failed=failed))

    def step(self, text: str) -> None:
        """The script moves on."""
        self._timeline.add(time.monotonic(), "drill", "step", text)
        self.say(DrillEventKind.STEP, text)

    # --- injections ----------------------------------------------------------------------------------------------

    def kill_workers(self, *ranks: int, begins_episode: bool = True) -> None:
        """SIGKILL the worker processes of these ranks, as an accelerator fault would: their API servers live on."""
        pids = [self.stack.engine_worker_pid(rank) for rank in ranks]
        at = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        words = "rank" if len(ranks) == 1 else "ranks"
        what = f"SIGKILL of the worker process of {words} {', '.join(map(str, ranks))}"
        self.record_injection(at, what, "kill -KILL " + " ".join(map(str, pids)), ranks, begins_episode=begins_episode)

    async def kill_process(self, name: str, *, restart_after_sec: float) -> None:
        """SIGKILL one of our own processes; it comes back after `restart_after_sec`."""
        at = time.monotonic()
        pid = await self.stack.kill(name, signal.SIGKILL, restart_after_sec=restart_after_sec)
        self.killed.add(name)
        self.record_injection(
            at, f"SIGKILL of {name}, back {restart_after_sec:g} s later", f"kill -KILL {pid}", (), begins_episode=False
        )

    @contextlib.asynccontextmanager
    async def process_away(self, name: str) -> AsyncIterator[None]:
        """SIGKILL one of our own processes, and keep it away while the context lasts; afterwards it runs again."""
        at = time.monotonic()
        pid = await self.stack.kill(name, signal.SIGKILL, hold=True)
        self.killed.add(name)
        self.record_injection(at, f"SIGKILL of {name}, which stays away", f"kill -KILL {pid}", (), begins_episode=False)
        await self.until(f"{name} is away", lambda: self.stack.process(name).state is not ProcessState.RUNNING, 10.0)
        try:
            yield
        finally:
            await self.stack.release(name)
        await self.until_running(name)
        self.step(f"{name} is back after {time.monotonic() - at:.1f} s")

    @contextlib.asynccontextmanager
    async def stopped_process(self, name: str) -> AsyncIterator[None]:
        """SIGSTOP one of our own processes while the context lasts."""
        at = time.monotonic()
        pid = await self.stack.kill(name, signal.SIGSTOP)
        self.record_injection(at, f"SIGSTOP of {name}", f"kill -STOP {pid}", (), begins_episode=False)
        try:
            yield
        finally:
            await self.stack.kill(name, signal.SIGCONT)
            self.step(f"{name} goes on after {time.monotonic() - at:.1f} s")

    async def until_heartbeat_taken(self, manager: str, ranks: int, within_sec: float = 15.0) -> None:
        """A Pod's NodeManager says that its last heartbeat named so many ranks, and that the Controller took it."""
        url = next(place.url for place in self.stack.addresses.node_managers if place.name == manager)
        wanted = {f"{HEARTBEAT_METRIC}_ranks {ranks:.1f}", f"{HEARTBEAT_METRIC}_accepted 1.0"}
        deadline = time.monotonic() + within_sec
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            while not wanted <= await _metrics(http, url):
                if time.monotonic() >= deadline:
                    raise NotSeen(f"no heartbeat of {manager} with {ranks} ranks was taken within {within_sec:g} s")
                await asyncio.sleep(_LOOK_PAUSE_SEC)
        self.step(f"a heartbeat of {manager} with {ranks} ranks was taken")

    async def take_pod(self, manager: str, request_id: str, within_sec: float) -> None:
        """Guard a Pod in the name of another round, as soon as its NodeManager allows that."""
        url = next(place.url for place in self.stack.addresses.node_managers if place.name == manager)
        self.step(f"another round wants {manager}")
        deadline = time.monotonic() + within_sec
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            while True:
                body = {"request_id": request_id, "lease_sec": _FOREIGN_LEASE_SEC}
                answer = await http.post(f"{url}{FT_PREFIX}/guard", json=body)
                if answer.status_code == httpx.codes.OK:
                    break
                if time.monotonic() >= deadline:
                    raise NotSeen(f"{manager} still refuses another round after {within_sec:g} s: {answer.text}")
                await asyncio.sleep(_LOOK_PAUSE_SEC)
        self.step(f"{manager} belongs to {request_id}")

    async def give_pod_back(self, manager: str, request_id: str) -> None:
        """The other round aborts."""
        url = next(place.url for place in self.stack.addresses.node_managers if place.name == manager)
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
            body = {"request_id": request_id, "commit": False, "retired_endpoint_ids": []}
            answer = await http.post(f"{url}{FT_PREFIX}/finalize", json=body)
        self.step(f"{request_id} gives {manager} back: {answer.text}")

    def record_injection(self, at: float, what: str, command: str, ranks: Iterable[int], *, begins_episode: bool) -> None:
        """Something was done to the installation, at this `time.monotonic()`; an episode begins where it is to be answered."""
        targets = tuple(ranks)
        if begins_episode:
            self.episodes.append(at)
        zero = self.zero if self.zero is not None else at
        self.injected.append((at, Injection(at=round(at - zero, 4), what=what, command=command, target_ranks=targets)))
        self._timeline.add(at, "drill", "inject", what)
        self.say(DrillEventKind.INJECTED, what, ranks=targets)

    # --- waiting -------------------------------------------------------------------------------------------------

    async def until_shrunk(self, removed: Sequence[int], within_sec: float = 60.0) -> None:
        """Every NodeManager has exactly `removed` as gone for good, and every Coordinator serves exactly the others."""
        serving = sorted(set(self.stack.spec.ranks) - set(removed))
        self.step(f"waiting until ranks {serving} serve without {sorted(removed)}")
        await self.observer.until(
            f"ranks {serving} published and {sorted(removed)} committed everywhere",
            lambda seen: seen.publishes(serving) and seen.committed(removed),
            within_sec,
        )

    async def until_settled(self, within_sec: float = 60.0) -> None:
        """The Controller, asked anew, serves, has no strategy under way and owes no verdict; requests are answered."""
        since = time.monotonic()

        def settled() -> bool:
            record, seen = self.observer.record, self.observer.record_asked_at
            idle = record is not None and not record.active_strategy and not record.pending_finalize
            return record is not None and idle and record.can_serve and seen > since

        await self.until("the instance serves and nothing is under way", settled, within_sec)

    async def until_phase(self, phase: FtPhase, within_sec: float) -> None:
        """The status says so."""
        await self.until(
            f"phase {phase}", lambda: self.observer.record is not None and self.observer.record.phase is phase, within_sec
        )

    async def until_others_accepted(self, standing: str, within_sec: float = 10.0) -> None:
        """All NodeManagers with survivors, except the one that stands in its apply, have written down that it was accepted."""

        def accepted() -> bool:
            mine = [t for t in self.observer.journals[standing].transactions if t.instruction and not t.apply_outcome]
            if not mine:
                return False
            survivors = set(self.stack.spec.ranks) - set(mine[-1].removed_dp_ranks)
            others = [m.name for m in self.stack.addresses.node_managers if m.name != standing and survivors & set(m.ranks)]
            return all(
                any(
                    t.request_id == mine[-1].request_id and t.apply_outcome == "accepted"
                    for t in self.observer.journals[name].transactions
                )
                for name in others
            )

        await self.until(f"every NodeManager but {standing} has accepted", accepted, within_sec)

    async def until_rebuilt(self, lives: int = 2, within_sec: float = 150.0) -> None:
        """Every rank has begun its `lives`-th life, is ready, and every Coordinator serves all of them."""
        ranks = self.stack.spec.ranks
        self.step("waiting until all ranks serve with new engines")

        def renewed() -> bool:
            own = self.engine_lives()
            return all(len(own.get(rank, [])) >= lives and own[rank][-1].ready_at is not None for rank in ranks)

        await self.until("every rank ready in a new life", renewed, within_sec)
        await self.observer.until(
            f"ranks {list(ranks)} published, nothing committed",
            lambda seen: seen.publishes(ranks) and seen.committed(()),
            within_sec,
        )

    async def until_status(self, ranks: Iterable[int], status: EngineStatus, within_sec: float = 30.0) -> None:
        """The engines of these ranks have logged this status last."""
        wanted = set(ranks)
        await self.until(
            f"ranks {sorted(wanted)} {status}",
            lambda: all(_last_status(self.engine_lives().get(rank, [])) == status for rank in wanted),
            within_sec,
        )

    async def until_status_seen(self, rank: int, status: EngineStatus, within_sec: float = 15.0) -> None:
        """The NodeManager of this rank has this status of it, by its own log: a round's next look will show it."""
        manager = self.stack.node_manager_of(rank)

        def seen() -> bool:
            own = [s for s in read_entries(manager.name, Path(manager.log_file)) if s.rank == rank]
            return bool(own) and own[-1].status == status

        await self.until(f"{manager.name} sees rank {rank} {status}", seen, within_sec)

    async def until_running(self, name: str, within_sec: float = 30.0) -> None:
        """A process that was killed runs again."""
        await self.until(f"{name} runs again", lambda: self.stack.process(name).state is ProcessState.RUNNING, within_sec)

    def process_of(self, pid: int) -> str:
        """The name of our process with this pid. Raises ProcessLookupError."""
        for process in self.stack.record.processes:
            if process.pid == pid:
                return process.name
        raise ProcessLookupError(f"pid {pid} is none of the installation's own processes")

    def commands(self) -> int:
        """How many commands have reached engines so far."""
        return len(applies(self.engine_lives()))

    async def until_applied(self, count: int = 1, within_sec: float = 60.0) -> None:
        """At least `count` commands have reached engines."""
        await self.until(f"{count} commands at engines", lambda: self.commands() >= count, within_sec)

    async def until(self, what: str, holds: Callable[[], bool | Awaitable[bool]], within_sec: float) -> None:
        """Wait for something. Raises NotSeen."""
        deadline = time.monotonic() + within_sec
        while not (found if isinstance(found := holds(), bool) else await found):
            if time.monotonic() >= deadline:
                raise NotSeen(f"not seen within {within_sec:g} s: {what}; {self.observer.describe()}")
            await asyncio.sleep(_LOOK_PAUSE_SEC)

    async def linger_for_sets(self, seconds: float) -> None:
        """Let time pass, and count the SETs that come meanwhile and change nothing."""
        coordinators = {place.name: place.management_url for place in self.stack.addresses.coordinators}
        before = await unchanged_refreshes(coordinators)
        await self.linger(seconds)
        for name, count in (await unchanged_refreshes(coordinators)).items():
            self.unchanged_refreshes[name] = self.unchanged_refreshes.get(name, 0.0) + count - before[name]

    async def linger(self, seconds: float) -> None:
        """Let time pass: traffic goes on, and what should not happen has its chance to."""
        await asyncio.sleep(seconds)

    def engine_lives(self) -> dict[int, list[EngineLife]]:
        """What the engines have logged so far."""
        return read_lives(Path(self.stack.run_dir.engine_logs))


async def _metrics(http: httpx.AsyncClient, url: str) -> set[str]:
    """The lines of a process's metrics; none while it starts."""
    try:
        return set((await http.get(f"{url}/metrics")).text.splitlines())
    except httpx.TransportError:
        return set()


def _last_status(lives: Sequence[EngineLife]) -> str | None:
    lines = [line.status for life in lives[-1:] for line in life.lines if line.event == "status"]
    return lines[-1] if lines else None
