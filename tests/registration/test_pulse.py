"""Heartbeats that stay away: nobody is called lost who still answers, whoever forgot what."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.client import Client

from api.pulse import Pulse, is_lost
from domain.messages.fault_manager import NODE_MANAGER_BACK_SIGNAL, NODE_MANAGER_LOST_SIGNAL, fault_manager_id
from domain.messages.node_manager import LivenessReply
from domain.registration import RegisteredInstance
from domain.runtime import FtPhase
from service.http import bind
from tests.api.installation import Installation, an_api, an_installation
from tests.eventually import eventually
from tests.listening import listening
from tests.workflows.factories import config, topology

MINE = LivenessReply(status="alive", instance_id=7)
FRESH = LivenessReply.model_validate({"status": "alive", "instance_id": None})
OLD_FORM = LivenessReply(status="alive")


@pytest.mark.parametrize(
    ("answer", "phase", "lost"),
    [
        (None, FtPhase.NORMAL, True),
        (None, FtPhase.RECONFIGURING, True),
        (MINE, FtPhase.NORMAL, False),
        (FRESH, FtPhase.NORMAL, True),
        (FRESH, FtPhase.RECONFIGURING, False),
        (OLD_FORM, FtPhase.NORMAL, False),
    ],
)
def test_lost_is_who_does_not_answer_or_has_forgotten_its_instance(
    answer: LivenessReply | None, phase: FtPhase, lost: bool
) -> None:
    assert is_lost(answer, 7, phase) is lost


def test_silence_counts_from_the_last_word_and_in_a_new_process_from_its_start() -> None:
    clock = [100.0]
    pulse, where = Pulse(lambda: clock[0]), RegisteredInstance.of(topology(7), 1)
    first, second = where.managers
    assert pulse.overdue(where, 30.0) == ()
    clock[0] += 20
    pulse.heard(7, first)
    clock[0] += 20
    assert pulse.overdue(where, 30.0) == (second,)
    assert Pulse(lambda: clock[0]).overdue(where, 30.0) == ()
    pulse.keep_only([])
    assert pulse.overdue(where, 30.0) == ()


def test_the_same_word_is_not_said_twice_in_a_moment() -> None:
    clock = [100.0]
    pulse, manager = Pulse(lambda: clock[0]), topology(7).managers[0]
    assert pulse.may_tell(7, manager, lost=True, again_after_sec=30.0)
    assert pulse.may_tell(7, manager, lost=False, again_after_sec=30.0)
    clock[0] += 29
    assert not pulse.may_tell(7, manager, lost=True, again_after_sec=30.0)
    clock[0] += 1
    assert pulse.may_tell(7, manager, lost=True, again_after_sec=30.0)


@dataclass
class FakeNodeManager:
    """Answers `/liveness`, or is mute."""

    port: int
    instance_id: int | None
    mute: bool = False
    asked: int = 0

    async def liveness(self, _request: Request) -> Response:
        self.asked += 1
        if self.mute:
            return Response(status_code=503)
        return JSONResponse({"status": "alive", "incarnation": "x", "instance_id": self.instance_id})


@contextlib.asynccontextmanager
async def a_node_manager(instance_id: int) -> AsyncIterator[FakeNodeManager]:
    sock = bind("127.0.0.1", 0)
    fake = FakeNodeManager(port=sock.getsockname()[1], instance_id=instance_id)
    app = Starlette(routes=[Route("/liveness", fake.liveness)])
    async with listening(app, sock):
        yield fake


@pytest.fixture(scope="module")
async def here(temporal_client: Client, temporal_server: str) -> AsyncIterator[Installation]:
    async with an_installation(temporal_client, temporal_server) as installation:
        yield installation


async def signals(here: Installation, instance_id: int) -> list[str]:
    handle = here.client.get_workflow_handle(fault_manager_id(instance_id))
    history = await handle.fetch_history()
    names = [event.workflow_execution_signaled_event_attributes.signal_name for event in history.events]
    return [name for name in names if name in (NODE_MANAGER_LOST_SIGNAL, NODE_MANAGER_BACK_SIGNAL)]


async def declared(here: Installation, instance_id: int, port: int, ip: str = "127.0.0.1") -> None:
    body = topology(instance_id, 1).model_dump(mode="json", exclude={"instance_id"})
    body["node_managers"] = [{"pod_ip": ip, "port": port}]
    body["endpoints"] = [{"id": 0, "pod_ip": ip, "ip": ip, "business_port": 10000}]
    reply = await here.controller.call("PUT", f"/controller/instances/{instance_id}", body)
    assert reply.status_code == 200, reply.text


async def test_two_apis_that_never_hear_a_pod_ask_it_and_only_a_mute_one_is_lost(here: Installation) -> None:
    impatient = config(heartbeat_interval_sec=0.1, heartbeat_timeout_sec=0.3)
    async with a_node_manager(71) as fake:
        await declared(here, 71, fake.port)
        async with (
            an_api(here.settings, here.world.task_queue, impatient),
            an_api(here.settings, here.world.task_queue, impatient),
        ):
            await eventually(lambda: fake.asked >= 6, "both APIs ask")
            assert await signals(here, 71) == []
            fake.mute = True
            await eventually(lambda: _lost(here, 71), "the loss is told")


async def test_an_address_that_leads_nowhere_is_that_pods_trouble_alone(here: Installation) -> None:
    impatient = config(heartbeat_interval_sec=0.1, heartbeat_timeout_sec=0.3)
    async with a_node_manager(73) as fake:
        await declared(here, 72, 1026, ip="nowhere.invalid")
        await declared(here, 73, fake.port)
        async with an_api(here.settings, here.world.task_queue, impatient):
            await eventually(lambda: fake.asked >= 3, "the other one is asked again and again")


async def _lost(here: Installation, instance_id: int) -> bool:
    return NODE_MANAGER_LOST_SIGNAL in await signals(here, instance_id)
