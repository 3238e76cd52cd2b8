"""What the API says while Temporal or every worker is away, and that it recovers by itself."""

import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from api.gateway import Gateway
from domain.messages.instance_registry import (
    INSTANCE_REGISTRY_ID,
    INSTANCE_REGISTRY_WORKFLOW,
    REMOVE_UPDATE,
    RegistryReply,
    RegistryStart,
    RemoveCall,
)
from service.http import HttpError
from service.temporal import server_command
from tests.api.installation import Controller, a_namespace, an_api, declaration
from tests.listening import free_port
from tests.workflows.factories import config
from tests.workflows.fault_manager_world import World, worker_of

CALLS = [
    ("GET", "/readiness", None),
    ("GET", "/controller/fault_tolerance/status", None),
    ("PUT", "/controller/instances/7", declaration(7)),
    (
        "POST",
        "/controller/report_software_fault",
        {"instance_id": 7, "pod_ip": "127.0.0.2", "engine_id": 1, "engine_status": 1},
    ),
]


async def says_503(controller: Controller, method: str, path: str, body: object, reason: str) -> str:
    began = time.monotonic()
    reply = await controller.call(method, path, body)
    assert time.monotonic() - began < 2.0, f"{path} took {time.monotonic() - began:.1f} s"
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
def a_server(port: int, directory: Path) -> Iterator[None]:
    with (directory / "server.log").open("wb") as log:
        server = subprocess.Popen(server_command(directory / "t.db", "127.0.0.1", port, None), stdout=log, stderr=log)
        try:
            yield
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
            await gateway.update_with_start(
                INSTANCE_REGISTRY_WORKFLOW, INSTANCE_REGISTRY_ID, RegistryStart(), REMOVE_UPDATE, call, RegistryReply
            )
        assert (refused.value.status, refused.value.reason) == (503, "NO_WORKER")
