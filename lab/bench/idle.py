"""`autotomy bench idle`: what an installation costs while nothing happens.

Two questions, each with the shape that answers it. What does one Pod cost, with the feature on and off: real NodeManagers
over played engines, their CPU and how often they ask. What does an idle instance cost the Controller: many light ones, the
worker's memory before and after they were declared, and whether any history grows.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from domain.messages.event_pusher import EVENT_PUSHER_ID
from domain.messages.fault_manager import fault_manager_id
from domain.model import Strict
from lab.bench.cpu import spent, usage
from lab.bench.histories import lengths, temporal_client
from lab.bench.site import Shape, Site, open_site
from lab.stack.record import ProcessKind

_SETTLE_SEC: Final = 5.0
_HOUR_SEC: Final = 3600.0


class PodCost(Strict):
    """Per second, feature on or off."""

    status_polls: float
    node_manager_cpu_share: float
    """CPU seconds per second of one NodeManager."""


class IdleFigures(Strict):
    on: PodCost
    off: PodCost
    fault_manager_events: int
    """By which the history of any FaultManager grew, the most."""

    event_pusher_events_an_hour: float
    worker_mib: float
    """Resident, with all instances idle."""

    worker_mib_per_1000: float
    """Of that, what the instances brought, for a thousand."""

    cpu_share: dict[str, float]
    """CPU seconds per second of the Controller's processes, with all instances idle."""


class IdleSetup(Strict):
    ranks: int
    node_managers: int
    instances: int
    seconds: float
    poll_sec: float
    cpus: int
    load_before: float
    load_after: float


class IdleReport(Strict):
    figures: IdleFigures
    setup: IdleSetup


async def bench_idle(shape: Shape, seconds: float, say: Callable[[str], None]) -> IdleReport:
    """`shape`: of each instance; `shape.instances` light ones are declared. Raises StartFailed, Transient."""
    load_before = os.getloadavg()[0]
    single = shape.model_copy(update={"instances": 1, "light": False, "bare": False})
    say("real NodeManagers, feature on")
    on = await _pod_cost(single, seconds)
    say("real NodeManagers, feature off")
    off = await _pod_cost(single.model_copy(update={"feature": False}), seconds)
    say(f"{shape.instances} light instances")
    async with open_site(shape.model_copy(update={"light": True, "bare": False})) as site:
        figures = await _many(site, seconds, on, off)
    setup = IdleSetup(
        ranks=shape.ranks,
        node_managers=shape.node_managers,
        instances=shape.instances,
        seconds=seconds,
        poll_sec=shape.poll_sec,
        cpus=os.cpu_count() or 0,
        load_before=round(load_before, 2),
        load_after=round(os.getloadavg()[0], 2),
    )
    return IdleReport(figures=figures, setup=setup)


async def _pod_cost(shape: Shape, seconds: float) -> PodCost:
    async with open_site(shape) as site:
        await site.declare_all()
        await asyncio.sleep(_SETTLE_SEC)
        before, polls, began_at = usage(site.stack), await site.light.polls(), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began_at
        cpu = spent(before, usage(site.stack), took * shape.node_managers)
        return PodCost(
            status_polls=round((await site.light.polls() - polls) / took, 2),
            node_manager_cpu_share=cpu[ProcessKind.NODE_MANAGER],
        )


async def _many(site: Site, seconds: float, on: PodCost, off: PodCost) -> IdleFigures:
    count = len(site.declared)
    empty = usage(site.stack).memory_mib[ProcessKind.WORKER]
    await site.declare_all()
    await asyncio.sleep(_SETTLE_SEC)
    client = await temporal_client(site.stack)
    ids = [fault_manager_id(topology.instance_id) for topology in site.declared]
    events, pushed = await lengths(client, ids), await lengths(client, [EVENT_PUSHER_ID])
    before, began_at = usage(site.stack), time.monotonic()
    await asyncio.sleep(seconds)
    took, after = time.monotonic() - began_at, usage(site.stack)
    later, pushed_later = await lengths(client, ids), await lengths(client, [EVENT_PUSHER_ID])
    full = after.memory_mib[ProcessKind.WORKER]
    return IdleFigures(
        on=on,
        off=off,
        fault_manager_events=max(later[one] - events[one] for one in ids),
        event_pusher_events_an_hour=round((pushed_later[EVENT_PUSHER_ID] - pushed[EVENT_PUSHER_ID]) * _HOUR_SEC / took, 1),
        worker_mib=round(full, 1),
        worker_mib_per_1000=round((full - empty) * 1000 / count, 1),
        cpu_share=dict(spent(before, after, took)),
    )
