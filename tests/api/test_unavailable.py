"""What the API says while Temporal or every worker is away, and that it recovers by itself."""

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig

import api.cache
from api.gateway import Gateway
from domain.messages.instance_registry import (
    REMOVE_UPDATE,
    RegistryReply,
    RemoveCall,
)
from domain.receivers import instance_registry
from domain.registration import RegistryState
from service.http import HttpError
from service.temporal import connect, server_command
from tests.api.installation import Controller, a_namespace, an_api, declaration
from tests.listening import free_port
from tests.workflows.factories import config
from tests.workflows.fault_manager_world import PATIENCE_SEC, World, worker_of

SOON_SEC = 3.0
"""The API's own bounds add up to two seconds (`api.gateway`); the rest is what a busy machine adds."""

REPORT = "/controller/report_software_fault"
DEAD_RANK = {"instance_id": 7, "pod_ip": "127.0.0.2", "engine_id": 1, "engine_status": 1}
STATUS = "/controller/fault_tolerance/status?instance_id=7"

CALLS = [
    ("GET", "/readiness", None),
    ("GET", "/controller/fault_tolerance/status", None),
    ("PUT", "/controller/instances/7", declaration(7)),
    ("POST", REPORT, DEAD_RANK),
]


async def says_503(controller: Controller, method: str, path: str, body: object, reason: str) -> str:
    began = time.monotonic()
    reply = await controller.call(method, path, body)
    assert time.monotonic() - began < SOON_SEC, f"{path} took {time.monotonic() - began:.1f} s"
    assert (reply.status_code, reply.json()["data"]["reason"]) == (503, reason), reply.text
    message: str = reply.json()["message"]
    return message


@pytest.fixture
async def without_temporal() -> AsyncIterator[tuple[Controller, int]]:
    port = free_port()
    async with an_api({"target_host": f"127.0.0.1:{port}", "namespace": "default"}, "nobody", config()) as controller:
        yield controller, port


async def test_without_temporal_every_call_says_so_and_where(without_temporal: tuple[Controller, int]) -> None:
    controller, port = without_temporal
    for method, path, body in CALLS:
        assert f"127.0.0.1:{port}" in await says_503(controller, method, path, body, "TEMPORAL_UNAVAILABLE")
    for path in ("/startup", "/liveness", "/metrics"):
        assert (await controller.call("GET", path)).status_code == 200


@contextmanager
def a_server(port: int, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(server_command(directory / "t.db", "127.0.0.1", port, None), stdout=log, stderr=log)
        try:
            yield server
        finally:
            server.kill()
            server.wait(10)


async def test_it_recovers_by_itself_when_temporal_comes(without_temporal: tuple[Controller, int], tmp_path: Path) -> None:
    controller, port = without_temporal
    await says_503(controller, "GET", "/readiness", None, "TEMPORAL_UNAVAILABLE")
    with a_server(port, tmp_path):
        await controller.until("/readiness", lambda reply: reply.json()["data"]["reason"] == "NO_WORKER")
    await controller.until("/readiness", lambda reply: reply.json()["data"]["reason"] == "TEMPORAL_UNAVAILABLE")


async def test_without_a_polling_worker_every_call_says_so(temporal_client: Client, temporal_server: str) -> None:
    client = await a_namespace(temporal_client, temporal_server)
    world = World(client, 7, config())
    settings = {"target_host": temporal_server, "namespace": client.namespace}
    async with an_api(settings, world.task_queue, config()) as controller:  # type: ignore[arg-type]
        await controller.until("/readiness", lambda reply: world.task_queue in reply.json()["message"])  # the registry is there
        for method, path, body in CALLS:
            assert world.task_queue in await says_503(controller, method, path, body, "NO_WORKER")
        async with worker_of(world, registry=True):
            await controller.until("/readiness", lambda reply: reply.status_code == 200)
        assert world.task_queue in await says_503(controller, "GET", "/readiness", None, "NO_WORKER")


async def test_an_update_that_nobody_takes_is_a_503_and_no_bug(temporal_client: Client, temporal_server: str) -> None:
    client = await a_namespace(temporal_client, temporal_server)
    gateway = Gateway("nobody-polls-here", {"target_host": temporal_server, "namespace": client.namespace})
    await gateway.connect()
    call = RemoveCall(instance_id=7, reason="test")
    for _ in range(2):
        with pytest.raises(HttpError) as refused:
            await gateway.update_with_start(instance_registry(RegistryState()), REMOVE_UPDATE, call, RegistryReply)
        assert (refused.value.status, refused.value.reason) == (503, "NO_WORKER")


KNOWN_CALLS = [
    ("POST", "/controller/instances/7/republish", None),
    ("GET", "/controller/instances/7/plan?dead=1", None),
    ("GET", STATUS, None),
]
"""Of an instance that the API has in its memory."""


async def test_what_it_remembers_does_not_make_it_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory that is renewed must leave the call that follows its time, be it the worker that is silent or the server."""
    monkeypatch.setattr(api.cache, "DECLARATIONS_FRESH_SEC", 0.0)
    monkeypatch.setattr(api.cache, "RECORD_FRESH_SEC", 0.0)
    port = free_port()
    settings: ClientConnectConfig = {"target_host": f"127.0.0.1:{port}", "namespace": "default"}
    with a_server(port, tmp_path) as server:
        world = World(await asyncio.wait_for(connect(settings), PATIENCE_SEC), 7, config())
        async with an_api(settings, world.task_queue, config()) as controller:
            async with worker_of(world, registry=True):
                await controller.until("/readiness", lambda reply: reply.status_code == 200)
                assert (await controller.call("PUT", "/controller/instances/7", declaration(7))).status_code == 200
                await controller.until(STATUS, lambda reply: reply.status_code == 200)
                assert (await controller.call("POST", REPORT, DEAD_RANK)).status_code == 200
            for method, path, body in KNOWN_CALLS:
                await says_503(controller, method, path, body, "NO_WORKER")
            began = time.monotonic()
            taken = await controller.call("POST", REPORT, DEAD_RANK)
            assert (taken.status_code, time.monotonic() - began < SOON_SEC) == (200, True), "its FaultManager's history has it"
            server.send_signal(signal.SIGSTOP)
            for method, path, body in [*KNOWN_CALLS, ("POST", REPORT, DEAD_RANK)]:
                await says_503(controller, method, path, body, "TEMPORAL_UNAVAILABLE")
