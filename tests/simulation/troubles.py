"""What else goes wrong in a round, each trouble as one blow to the world."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from domain.messages.strategy import RoundOrder
from tests.simulation.node_managers import Doom
from tests.simulation.scenario import Event, Trouble

if TYPE_CHECKING:
    from tests.simulation.world import World


def strike(world: "World", event: Event, victims: list[int], order: RoundOrder) -> None:
    """Lets one trouble happen, now."""
    survivors = [rank for rank in sorted(world.group.members) if rank not in victims]
    managers = list(world.managers.values())
    manager = managers[event.which % len(managers)]
    rank = survivors[event.which % len(survivors)] if survivors else None
    world.record.told(f"trouble: {event.trouble} (rank {rank}, {manager.name}, {event.for_sec:.2f} s)")
    match event.trouble:
        case Trouble.NODE_MANAGER_CRASH:
            manager.crash(event.for_sec)
        case Trouble.CRASH_IN_APPLY:
            manager.doom = Doom("apply", event.which % 6, event.for_sec)
        case Trouble.CRASH_IN_FINALIZE:
            manager.doom = Doom("finalize", event.which % 2, event.for_sec)
        case Trouble.WORKER_CRASH:
            world.ports.kill_worker(event.for_sec)
        case Trouble.WORKER_STALL:
            world.ports.stall_worker(event.for_sec)
        case Trouble.COORDINATOR_RESTART:
            world.coordinators[event.which % len(world.coordinators)].restart(event.for_sec)
        case Trouble.RESTART_AT_PUSH:
            coordinator = world.coordinators[event.which % len(world.coordinators)]
            world.ports.before_push = partial(coordinator.restart, min(event.for_sec, 0.05))
        case Trouble.STOP:
            world.ports.stopping = True
        case Trouble.PORT_FAILS:
            world.ports.fails_next = True
        case Trouble.RECOVERY_FAILS:
            world.group.recoveries_fail = True
        case Trouble.COMPETITOR:
            _later(world, _compete(world, event, order, manager_index=event.which % len(managers)))
        case Trouble.STALE_COMMANDS:
            _later(world, _repeat_the_past(world, manager_index=event.which % len(managers)))
        case _ if rank is not None:
            _strike_rank(world, event, rank)


def _strike_rank(world: "World", event: Event, rank: int) -> None:
    engine = world.group.engines[rank]
    match event.trouble:
        case Trouble.LATE_DEATH:
            world.group.kill_worker(rank)
            world.group.notice(1.0)
        case Trouble.SHORT_MUTE:
            world.group.fall_mute(rank, event.for_sec)
        case Trouble.NONSENSE:
            engine.answers_as = rank + 1
            asyncio.get_running_loop().call_later(event.for_sec, setattr, engine, "answers_as", None)
        case Trouble.ENGINE_REFUSES:
            engine.refuses = True
        case Trouble.SURVIVOR_REBORN:
            world.group.kill_process(rank)
            world.group.replace(rank)


async def _compete(world: "World", event: Event, order: RoundOrder, *, manager_index: int) -> None:
    """Another round wants the Pod, as when its ip is reused; later it gives up. Its generation is of another instance's count."""
    manager = list(world.managers.values())[manager_index]
    other = f"scale-down-{event.which:031x}f"
    generation = (order.generation, max(0, order.generation - 1), order.generation + 6)[event.which % 3]
    await world.send(manager, lambda: manager.guard(other, world.config.lease_sec, generation))
    await asyncio.sleep(event.for_sec)
    await world.send(manager, lambda: manager.finalize(other, False, (), (), generation))


async def _repeat_the_past(world: "World", *, manager_index: int) -> None:
    """Commands of a round that was aborted before this one, overtaken by their own verdict."""
    manager, old = list(world.managers.values())[manager_index], "scale-down-of-the-past"
    if await world.send(manager, lambda: manager.finalize(old, False, (), (), 0)):
        await world.send(manager, lambda: manager.guard(old, world.config.lease_sec, 0))
        await world.send(manager, lambda: manager.apply(old, manager.ranks, (0,), 0, 0.0))


def _later(world: "World", coroutine: object) -> None:
    world.background.append(asyncio.ensure_future(coroutine))  # type: ignore[call-overload]
