"""One run of one column: start, traffic, the kill, the hand, and what was seen."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Final

from domain.errors import AutotomyError, Transient
from domain.model import Strict
from lab.drills.outcome import Completion, Finding, RequestCount
from lab.drills.record.completions import ask_each
from lab.drills.record.engine_log import EngineLife, marks
from lab.drills.record.timeline import Timeline
from lab.drills.record.traffic import RequestRecord
from lab.drills.record.view_log import ViewLine, read_view_log
from lab.drills.record.view_log import marks as view_marks
from lab.drills.supervisor_table.clients import sixteen_clients
from lab.drills.supervisor_table.experiment import RANKS, SURVIVORS, VICTIM, Clock, Column
from lab.drills.supervisor_table.hand import Hand, Kubernetes, Readiness
from lab.drills.supervisor_table.invariants import invariant_checks, observed
from lab.drills.supervisor_table.site import MODEL, Pool, Site, site
from lab.oracle.observations import Observed

_AFTER_EXIT_SEC: Final = 1.5
"""Real seconds for a supervisor to act on a server's exit, whatever the factor."""

_GIVE_UP_SEC: Final = 60.0


class RunReport(Strict):
    """What one run showed. Times are in the experiment's seconds since the kill, measured × factor."""

    column: str
    number: int
    failure: str | None = None
    """Why it did not come to its end; None where it did."""

    kill: str = ""
    state_at_125: str = ""
    serving_ranks_at_125: tuple[int, ...] = ()
    completions_at_125: tuple[Completion, ...] = ()
    detected_at: float | None = None
    """The last survivor's own notice of the fault: no rank serves from here on."""

    not_ready_at: float | None = None
    ready_again_at: float | None = None
    recovered_at: float | None = None
    """The Coordinator had acknowledged the view of three ranks."""

    victim_exited_at: float | None = None
    stopped_at: float | None = None
    stop_reason: str | None = None
    exit_code: int | None = None
    requests: RequestCount = RequestCount()
    requests_after_recovery: RequestCount = RequestCount()
    requests_after_120: RequestCount = RequestCount()
    applies_per_engine: dict[str, int] = {}
    left_behind: tuple[str, ...] = ()
    invariants: tuple[Finding, ...] = ()


class Raw(Strict):
    """What the bundle is written from. `zero`: the kill, `time.monotonic()`."""

    zero: float
    requests: tuple[RequestRecord, ...] = ()
    views: tuple[ViewLine, ...] = ()
    lives: dict[int, EngineLife] = {}


async def run_column(column: Column, number: int, clock: Clock, logs: Path) -> tuple[RunReport, Raw, Timeline]:
    """One run, its logs in the existing directory `logs`; whatever goes wrong is in the report's `failure`."""
    run = _Run(column, number, clock)
    try:
        async with site(logs) as where:
            await run.through(where)
    except AutotomyError as error:
        run.failure = error.message
    return run.report(), run.raw(), run.timeline


class _Run:
    def __init__(self, column: Column, number: int, clock: Clock) -> None:
        self.column, self.number, self.clock = column, number, clock
        self.timeline = Timeline()
        self.failure: str | None = None
        self.zero = time.monotonic()
        self.kill = ""
        self.records: list[RequestRecord] = []
        self.views: tuple[ViewLine, ...] = ()
        self.lives: dict[int, EngineLife] = {}
        self.left: tuple[str, ...] = ()
        self.state = ""
        self.completions: tuple[Completion, ...] = ()
        self.kubernetes: Kubernetes | None = None
        self.hand: Hand | None = None
        self.pool: Pool | None = None

    async def through(self, where: Site) -> None:
        await where.start(self.column, self.clock)
        self.pool = where.pool_a
        self.kubernetes = Kubernetes(where, self.clock, self.timeline)
        self.hand = Hand(where, self.clock, self.timeline, self.kubernetes)
        await self.kubernetes.look()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(_in_background(self.kubernetes.run()))
            self.records = await stack.enter_async_context(sixteen_clients(where.url))
            await asyncio.sleep(self.clock.of(self.clock.kill_at))
            self._kill_worker(where.pool_a)
            if self.column.scale_down:
                await stack.enter_async_context(_in_background(self.hand.scale_down()))
            await self._until(self.clock.sample_at)
            await self._until_stock_would_have_acted(where)
            await self._sample(where)
            await self._until(self.clock.observe_until)
            await self._let_it_end(where)
        self.left = await where.stop()
        self.lives = where.pool_a.lives()
        self.views = tuple(read_view_log(where.view_log))
        self.timeline.extend(marks(line for life in self.lives.values() for line in life.lines))
        self.timeline.extend(view_marks("coordinator", self.views))
        if self.hand.failure is not None:
            raise Transient(self.hand.failure)

    def _kill_worker(self, pool: Pool) -> None:
        pid = next(line.worker_pid for line in pool.lives()[VICTIM].lines if line.worker_pid is not None)
        self.zero = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.kill = f"kill -KILL {pid}"
        self.timeline.add(self.zero, "drill", "inject", f"SIGKILL of the worker process of rank {VICTIM} in pool A ({self.kill})")

    async def _until(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, self.zero + self.clock.of(seconds) - time.monotonic()))

    async def _until_stock_would_have_acted(self, where: Site) -> None:
        """The victim's server has exited and a supervisor has had time to act on it: processes end no faster at factor 10."""
        await where.until("the victim's server exits", lambda: self._victim_exit(where.pool_a) is not None, _GIVE_UP_SEC)
        exited_at = self._victim_exit(where.pool_a) or 0.0
        await asyncio.sleep(max(0.0, exited_at + _AFTER_EXIT_SEC - time.monotonic()))

    @staticmethod
    def _victim_exit(pool: Pool) -> float | None:
        return pool.lives()[VICTIM].ended_at

    async def _let_it_end(self, where: Site) -> None:
        """A pool that stops itself gets the time for it, so that its exit code is its own."""
        pool = where.pool_a
        if pool.stop_reason is not None:
            await where.until("the stopped pool's supervisor ends", lambda: pool.ended_at is not None, _GIVE_UP_SEC)

    async def _sample(self, where: Site) -> None:
        pool = where.pool_a
        alive = pool.ended_at is None and await where.probe(pool, "/health") == 200
        if alive:
            self.completions = await ask_each(pool.rank_urls, MODEL)
        ranks = self._serving
        self.state = f"serving on {len(ranks)} ranks" if ranks else "alive, not serving" if alive else "killed"
        self.timeline.add(time.monotonic(), "pool-a", "sample", self.state)

    @property
    def _serving(self) -> tuple[int, ...]:
        return tuple(answer.rank for answer in self.completions if answer.ok and answer.answered_by == answer.rank)

    def raw(self) -> Raw:
        return Raw(zero=self.zero, requests=tuple(self.records), views=self.views, lives=self.lives)

    def report(self) -> RunReport:
        detected = [self._first(rank, "fault_noticed") for rank in SURVIVORS]
        pod = self.kubernetes.pods["pool-a"] if self.kubernetes is not None else Readiness()
        not_ready_at = pod.first(False, self.zero)
        recovered_at = self.hand.recovered_at if self.hand is not None else None
        after_120 = self.zero + self.clock.of(self.clock.server_gives_up)
        return RunReport(
            column=self.column.name,
            number=self.number,
            failure=self.failure,
            kill=self.kill,
            state_at_125=self.state,
            serving_ranks_at_125=self._serving,
            completions_at_125=self.completions,
            detected_at=self._t(max(at for at in detected if at is not None)) if all(detected) else None,
            not_ready_at=self._t(not_ready_at),
            ready_again_at=self._t(pod.first(True, not_ready_at)) if not_ready_at is not None else None,
            recovered_at=self._t(recovered_at),
            victim_exited_at=self._t(self._first(VICTIM, "exit")),
            stopped_at=self._t(pod.unhealthy_at),
            stop_reason=self.pool.stop_reason if self.pool is not None else None,
            exit_code=self.pool.exit_code if self.pool is not None else None,
            requests=_count(self.records),
            requests_after_recovery=_count([r for r in self.records if recovered_at and r.started_at >= recovered_at]),
            requests_after_120=_count([r for r in self.records if r.ended_at >= after_120]),
            applies_per_engine=self._applies(),
            left_behind=self.left,
            invariants=invariant_checks(self._observed(self.pool, recovered_at)) if self.pool is not None else (),
        )

    def _observed(self, pool: Pool, removed_at: float | None) -> Observed:
        return observed(
            pool.instance_id,
            pool.port,
            self.lives,
            self.views,
            self.records,
            removed_at=removed_at,
            ended_at=time.monotonic(),
        )

    def _applies(self) -> dict[str, int]:
        counts = {rank: sum(line.event == "apply" for line in life.lines) for rank, life in self.lives.items()}
        return {str(rank): counts[rank] for rank in range(RANKS) if counts.get(rank)}

    def _first(self, rank: int, event: str) -> float | None:
        life = self.lives.get(rank)
        return next((line.mono for line in life.lines if line.event == event), None) if life else None

    def _t(self, mono: float | None) -> float | None:
        return None if mono is None else self.clock.published(mono - self.zero)


def _count(records: list[RequestRecord]) -> RequestCount:
    ok = sum(record.ok for record in records)
    return RequestCount(ok=ok, failed=len(records) - ok)


@contextlib.asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
