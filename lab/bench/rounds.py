"""`autotomy bench rounds`: waves of faults, each answered by a round; between them the same rounds without Temporal.

A wave makes one rank of every instance fail in the same moment and ends when all are published again. The bare loop's
round follows each wave, so that both meet the same weather on the machine. When half of each Pod's ranks are gone, the
instances are rebuilt and it goes on.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from domain.errors import Transient
from domain.model import Strict
from domain.topology import Topology
from lab.bench.bare import BareInstance
from lab.bench.cpu import Usage, spent, usage
from lab.bench.figures import BareSample, Sample, Spread, bare_sample, sample, spread, stage_spreads
from lab.bench.site import Shape, Site, open_site

_ROUND_LIMIT_SEC: Final = 180.0
_LOOK_SEC: Final = 0.05
_TELLS_SEC: Final = 30.0


class RoundsFigures(Strict):
    """`temporal_sec`: our share less the bare loop's of the same wave; it includes report, API and decision."""

    control_plane_sec: Spread | None
    bare_loop_sec: Spread | None
    temporal_sec: Spread | None
    ratio: float | None
    """Medians: our share by the bare loop's."""

    ratio_without_poll_waits: float | None
    """The same without the time until a look saw the recovery."""

    in_place_sec: Spread | None
    """From the fault itself to published again."""

    stage_sec: dict[str, Spread]
    bare_stage_sec: dict[str, Spread]
    cpu_sec: dict[str, float]
    """CPU seconds of the stack's processes per round, by kind; polls and heartbeats of the time included."""

    rounds: int
    commands_per_engine: int
    """The most commands that one engine got for one fault: 1."""


class RoundsSetup(Strict):
    ranks: int
    node_managers: int
    instances: int
    waves: int
    poll_sec: float
    recovery_sec: float
    light: bool
    cpus: int
    load_before: float
    load_after: float


class RoundsReport(Strict):
    figures: RoundsFigures
    setup: RoundsSetup


async def bench_rounds(shape: Shape, waves: int, say: Callable[[str], None]) -> RoundsReport:
    """Raises StartFailed, Transient where something does not come in time."""
    load_before = os.getloadavg()[0]
    samples: list[list[Sample]] = []
    bare: list[BareSample] = []
    costs: list[tuple[Usage, Usage]] = []
    say(f"starting: {shape.instances} × {shape.ranks} ranks in {shape.node_managers} Pods")
    async with open_site(shape) as site:
        bench = _Bench(site)
        await bench.begin()
        try:
            for wave in range(waves):
                await bench.make_room()
                before = usage(site.stack)
                samples.append(await bench.wave())
                costs.append((before, usage(site.stack)))
                if site.bare is not None:
                    bare.append(await bench.bare_round())
                ours = spread(one.ours for one in samples[-1])
                say(f"wave {wave + 1} of {waves}: our share {ours.p50 if ours else 0:.3f} s")
        finally:
            await bench.end()
    setup = RoundsSetup(
        ranks=shape.ranks,
        node_managers=shape.node_managers,
        instances=shape.instances,
        waves=waves,
        poll_sec=shape.poll_sec,
        recovery_sec=shape.recovery_sec,
        light=shape.light,
        cpus=os.cpu_count() or 0,
        load_before=round(load_before, 2),
        load_after=round(os.getloadavg()[0], 2),
    )
    return RoundsReport(figures=_figures(samples, bare, costs), setup=setup)


class _Bench:
    """A running benchmark: who is lost next."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._victims: list[int] = list(site.shape.victims())
        self._lost: list[int] = []
        self._bare: BareInstance | None = None
        if site.bare is not None:
            config = site.stack.spec.effective_config()
            self._bare = BareInstance(site.bare, config, site.stack.addresses.coordinators[0].management_url)

    async def begin(self) -> None:
        await self._site.declare_all()
        if self._bare is not None:
            await self._bare.start()

    async def end(self) -> None:
        if self._bare is not None:
            await self._bare.close()

    async def make_room(self) -> None:
        """Rebuilds everything where no rank is left to be lost."""
        if len(self._lost) < len(self._victims):
            return
        self._lost = []
        await asyncio.gather(*(self._site.rebuild(topology) for topology in self._site.declared))
        if self._bare is not None:
            if not self._site.shape.light:
                await self._site.light.reset(self._bare.topology.instance_id)
            await self._bare.restart()

    async def wave(self) -> list[Sample]:
        victim = self._victims[len(self._lost)]
        site = self._site
        left = [rank for rank in site.declared[0].ranks if rank not in (*self._lost, victim)]
        await asyncio.gather(*(site.light.fail(topology.instance_id, victim) for topology in site.declared))
        self._lost.append(victim)
        published = await asyncio.gather(*(site.views.until(t.instance_id, left, _ROUND_LIMIT_SEC) for t in site.declared))
        episodes = await site.light.last_episodes()
        found = []
        for topology, published_at in zip(site.declared, published, strict=True):
            told = await self._told(topology, victim)
            found.append(sample(episodes[topology.instance_id], published_at, told))
        return found

    async def _told(self, topology: Topology, victim: int) -> dict[str, float]:
        """The round's own account of its stages, once the FaultManager has its end."""
        deadline = time.monotonic() + _TELLS_SEC
        while True:
            record = await self._site.record(topology.instance_id, deadline)
            times, lost = record.get("stage_times"), record.get("dead_committed")
            over = record.get("active_strategy") is None and isinstance(lost, list) and victim in lost
            if over and isinstance(times, dict) and "publish" in times:
                return {name: float(seconds) for name, seconds in times.items() if isinstance(seconds, int | float)}
            if time.monotonic() > deadline:
                raise Transient(f"instance {topology.instance_id} does not tell how its round went: {record}")
            await asyncio.sleep(_LOOK_SEC)

    async def bare_round(self) -> BareSample:
        bare, site = self._bare, self._site
        assert bare is not None
        victim = self._lost[-1]
        await site.light.fail(bare.topology.instance_id, victim)
        began_at = time.monotonic()
        report = await bare.round(victim)
        published_at = time.monotonic()
        if not report.serving_published:
            raise Transient(f"the bare loop's round ended {report.outcome}: {report.reason} {report.detail}")
        episodes = await site.light.last_episodes()
        return bare_sample(episodes[bare.topology.instance_id], began_at, published_at, report.stage_times)


def _figures(waves: list[list[Sample]], bare: list[BareSample], costs: list[tuple[Usage, Usage]]) -> RoundsFigures:
    samples = [one for wave in waves for one in wave]
    ours, loop = spread(one.ours for one in samples), spread(one.ours for one in bare)
    pairs = [(one, beside) for wave, beside in zip(waves, bare, strict=False) for one in wave]
    quick, quick_loop = (spread(one.ours - one.seen_late for one in kind) for kind in (samples, bare))
    return RoundsFigures(
        control_plane_sec=ours,
        bare_loop_sec=loop,
        temporal_sec=spread(one.ours - beside.ours for one, beside in pairs),
        ratio=_ratio(ours, loop),
        ratio_without_poll_waits=_ratio(quick, quick_loop),
        in_place_sec=spread(one.whole for one in samples),
        stage_sec=stage_spreads(one.stages for one in samples),
        bare_stage_sec=stage_spreads(one.stages for one in bare),
        cpu_sec=_cpu(costs, len(samples)),
        rounds=len(samples),
        commands_per_engine=max((one.commands_per_engine for one in samples), default=0),
    )


def _ratio(ours: Spread | None, loop: Spread | None) -> float | None:
    return None if ours is None or loop is None or loop.p50 <= 0 else round(ours.p50 / loop.p50, 2)


def _cpu(costs: list[tuple[Usage, Usage]], rounds: int) -> dict[str, float]:
    total: dict[str, float] = {}
    for before, after in costs:
        for kind, seconds in spent(before, after).items():
            total[kind] = total.get(kind, 0.0) + seconds
    return {kind: round(seconds / max(1, rounds), 4) for kind, seconds in total.items()}
