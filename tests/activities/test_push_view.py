"""When a push of the view counts, row by row of the table in `activities.coordinator`, with real Coordinators' rules."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel

from activities.attempt import Attempt, attempt
from activities.coordinator import ViewPush, set_request
from domain.messages.coordinator import RefreshEvent, RefreshRequest
from domain.messages.event_pusher import CoordinatorRecord, Coordinators, PushLoopCall, ViewRecord
from domain.messages.round import ViewCall, ViewResult
from domain.serving import known_view, project
from domain.topology import Topology
from service.one_exchange import one_exchange_client
from tests.activities.attempts import run, within
from tests.activities.fake_coordinators import FakeCoordinator, fake_coordinator
from tests.activities.fake_pods import fake_instance

ADD, DEL = (0, 2, 3), ()


class Push(BaseModel):
    """One `push_view` without its EventPusher: who is known is told here, at each turn anew."""

    call: ViewCall
    turns: list[Coordinators]


async def push(
    topology: Topology, ranks: tuple[int, ...], *turns: list[CoordinatorRecord], within_sec: float = 0.6
) -> ViewResult:
    call = ViewCall(topology=topology, revision=5, ranks=ranks, request_timeout_sec=0.4, deadline_at=within(within_sec))

    async def pushing(wanted: Push) -> ViewResult:
        async with attempt("push") as running, one_exchange_client() as http:
            return await _until_decided(ViewPush(http, wanted.call, running), wanted.turns, running)

    known = [Coordinators(coordinators=tuple(turn)) for turn in turns]
    return await run(pushing, Push(call=call, turns=known))


async def _until_decided(pushed: ViewPush, turns: list[Coordinators], running: Attempt) -> ViewResult:
    while True:
        result = await pushed.to_all(turns[0])
        if result is not None:
            return result
        turns[:] = turns[1:] or turns
        await running.pause(0.1)


def tell(coordinator: FakeCoordinator, topology: Topology, revision: int, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    """A SET for its present life: it routes."""
    instances = (project(topology, ranks, revision),)
    coordinator.state.apply(
        RefreshRequest(event=RefreshEvent.SET, coordinator_incarnation=coordinator.incarnation, instances=instances)
    )


@asynccontextmanager
async def mute_server() -> AsyncIterator[str]:
    """Takes connections and says nothing."""

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_every_coordinator_acknowledges() -> None:
    async with fake_instance() as instance, fake_coordinator() as first, fake_coordinator() as second:
        topology = instance.topology()
        for coordinator in (first, second):
            tell(coordinator, topology, 1)
        result = await push(topology, DEL, [first.record(), second.record()])
        assert result == ViewResult(confirmed=True, coordinators=tuple(sorted((first.url, second.url))))
        assert first.ranks(instance.instance_id) == second.ranks(instance.instance_id) == ()
        again = await push(topology, DEL, [first.record(), second.record()])
        assert again.confirmed


async def test_a_higher_known_revision_is_stale() -> None:
    async with fake_instance() as instance, fake_coordinator() as coordinator:
        tell(coordinator, instance.topology(), 9)
        for ranks in (ADD, DEL):
            result = await push(instance.topology(), ranks, [coordinator.record()])
            assert (result.confirmed, [one.reason for one in result.refusals]) == (False, ["STALE"])
        assert coordinator.ranks(instance.instance_id) == (0, 1, 2, 3)


async def test_for_a_del_another_life_routes_nothing() -> None:
    async with fake_instance() as instance, fake_coordinator() as coordinator:
        before = coordinator.record()
        await coordinator.vanish()
        await coordinator.listen()
        assert (await push(instance.topology(), DEL, [before])).confirmed


async def test_an_add_is_told_to_the_new_life() -> None:
    async with fake_instance() as instance, fake_coordinator() as coordinator:
        before = coordinator.record()
        await coordinator.vanish()
        await coordinator.listen()
        result = await push(instance.topology(), ADD, [before], [before], [coordinator.record()], within_sec=5.0)
        assert result == ViewResult(confirmed=True, coordinators=(coordinator.url,))
        assert coordinator.ranks(instance.instance_id) == ADD


async def test_an_add_whose_coordinator_stays_in_another_life_is_not_confirmed() -> None:
    async with fake_instance() as instance, fake_coordinator() as coordinator:
        before = coordinator.record()
        await coordinator.vanish()
        await coordinator.listen()
        result = await push(instance.topology(), ADD, [before])
        assert (result.confirmed, [one.reason for one in result.refusals]) == (False, ["INCARNATION"])


async def test_a_del_waits_for_refused_connections_until_the_deadline_and_counts_them() -> None:
    async with fake_instance() as instance, fake_coordinator() as coordinator:
        gone = coordinator.record()
        await coordinator.vanish()
        began = time.monotonic()
        assert (await push(instance.topology(), DEL, [gone])).confirmed
        assert time.monotonic() - began >= 0.5


async def test_a_del_asks_a_coordinator_that_comes_back_in_time() -> None:
    async with fake_instance() as instance, fake_coordinator() as coordinator:
        gone = coordinator.record()
        await coordinator.vanish()
        pushing = asyncio.create_task(push(instance.topology(), DEL, [gone], within_sec=10.0))
        await asyncio.sleep(0)
        await coordinator.listen()
        assert (await asyncio.wait_for(pushing, 5)).confirmed  # another life, long before the deadline


async def test_an_add_goes_on_without_a_coordinator_that_refuses_connections() -> None:
    async with fake_instance() as instance, fake_coordinator() as there, fake_coordinator() as gone:
        both = [there.record(), gone.record()]
        await gone.vanish()
        result = await push(instance.topology(), ADD, both, within_sec=10.0)
        assert result == ViewResult(confirmed=True, coordinators=(there.url,))


async def test_an_add_that_nobody_acknowledged_is_not_confirmed() -> None:
    async with fake_instance() as instance, fake_coordinator() as gone:
        record = gone.record()
        await gone.vanish()
        result = await push(instance.topology(), ADD, [record])
        assert (result.confirmed, [one.reason for one in result.refusals]) == (False, ["REFUSED_CONNECTION"])


@pytest.mark.parametrize("ranks", [ADD, DEL], ids=["ADD", "DEL"])
async def test_a_coordinator_that_does_not_answer_confirms_nothing(ranks: tuple[int, ...]) -> None:
    async with fake_instance() as instance, fake_coordinator() as there, mute_server() as url:
        mute = CoordinatorRecord(url=url, incarnation="x", has_view=True, last_answer_at=time.time())
        result = await push(instance.topology(), ranks, [there.record(), mute])
        assert not result.confirmed
        assert (url, "NO_ANSWER") in [(one.peer, one.reason) for one in result.refusals]


async def test_without_any_coordinator_a_del_holds_and_an_add_serves_nobody() -> None:
    async with fake_instance() as instance:
        assert await push(instance.topology(), DEL, []) == ViewResult(confirmed=True)
        result = await push(instance.topology(), ADD, [])
        assert (result.confirmed, [one.reason for one in result.refusals]) == (False, ["NO_COORDINATOR"])


async def test_an_unusable_address_is_named() -> None:
    async with fake_instance() as instance:
        record = CoordinatorRecord(url="http://127.0.0.1:bad", incarnation="x", has_view=True, last_answer_at=0.0)
        result = await push(instance.topology(), DEL, [record])
        assert [one.reason for one in result.refusals] == ["BAD_URL"]


async def test_set_lists_withdrawn_instances_without_endpoints() -> None:
    async with fake_instance() as instance:
        view = ViewRecord(topology=instance.topology(), revision=4, ranks=())
        request = set_request(PushLoopCall(coordinators=(), views=(known_view(view),), set_interval_sec=1.0))
        assert [(one.id, one.revision, one.endpoints) for one in request.instances] == [(instance.instance_id, 4, {})]
