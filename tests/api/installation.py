"""The Controller API on a real socket, over a real Temporal namespace of its own, with a worker in the test's process.

NodeManagers and Coordinators are played by `World`; what is under test is the way from HTTP to the workflows and back.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
from google.protobuf.duration_pb2 import Duration
from temporalio import activity
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError

from api.app import controller_app
from api.gateway import Gateway
from domain.config import FaultToleranceConfig
from domain.messages.event_pusher import PushLoopCall, PushLoopResult
from service.settings import Settings
from service.temporal import connect
from tests.listening import listening
from tests.workflows.factories import config, topology
from tests.workflows.fault_manager_world import PATIENCE_SEC, World, worker_of


class Controller:
    """A running API: `url` where it listens, `http` a client of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, timeout=5.0, trust_env=False)

    async def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self.http.request(method, path, json=body) if body is not None else await self.http.request(method, path)

    async def answered(self, method: str, path: str, body: object = None) -> httpx.Response:
        """The answer. As a NodeManager does, it asks again where a busy machine had none in time (503)."""
        end = time.monotonic() + PATIENCE_SEC
        while True:
            reply = await self.call(method, path, body)
            if reply.status_code != 503 or time.monotonic() >= end:
                return reply
            await asyncio.sleep(0.1)

    async def until(self, path: str, holds: Callable[[httpx.Response], object]) -> httpx.Response:
        """The first answer to GET `path` for which `holds` is true."""
        end = time.monotonic() + PATIENCE_SEC
        while True:
            reply = await self.call("GET", path)
            if holds(reply):
                return reply
            assert time.monotonic() < end, f"never came; last: {reply.status_code} {reply.text}"
            await asyncio.sleep(0.05)

    async def record(self, instance_id: int) -> dict[str, Any]:
        reply = await self.call("GET", f"/controller/fault_tolerance/status?instance_id={instance_id}")
        assert reply.status_code == 200, reply.text
        data: dict[str, Any] = reply.json()["data"]
        return data


@asynccontextmanager
async def an_api(settings: ClientConnectConfig, task_queue: str, ft: FaultToleranceConfig) -> AsyncIterator[Controller]:
    """The API process's inside, on a free port."""
    app = controller_app(Settings(fault_tolerance_config=ft, task_queue=task_queue), Gateway(task_queue, settings))
    async with listening(app) as url:
        controller = Controller(url)
        try:
            yield controller
        finally:
            await controller.http.aclose()


async def a_namespace(client: Client, address: str) -> Client:
    """A client of a fresh namespace: `instance-registry` and `event-pusher` are one each a namespace."""
    name = f"api-{uuid.uuid4().hex[:8]}"
    retention = Duration()
    retention.FromTimedelta(timedelta(days=1))
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    )
    own = await connect({"target_host": address, "namespace": name})
    end = time.monotonic() + PATIENCE_SEC
    while True:
        try:
            async for _ in own.list_workflows(page_size=1):
                break
        except RPCError:
            assert time.monotonic() < end, "the namespace never came"
            await asyncio.sleep(0.1)
        else:
            return own


class Installation:
    """A declared instance behind a running API. `world` plays its NodeManagers and the Coordinators."""

    def __init__(self, controller: Controller, world: World, client: Client, settings: ClientConnectConfig) -> None:
        self.controller = controller
        self.world = world
        self.client = client
        self.settings = settings
        self.set_calls: list[PushLoopCall] = []

    @activity.defn(name="push_set_loop")
    async def push_set_loop(self, call: PushLoopCall) -> PushLoopResult:
        """Runs until it is cancelled, as the real one does."""
        self.set_calls.append(call)
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.5)


def declaration(instance_id: int, ranks: int = 4) -> dict[str, Any]:
    """What an operator PUTs."""
    return topology(instance_id, ranks).model_dump(mode="json", exclude={"instance_id"})


@asynccontextmanager
async def an_installation(temporal_client: Client, address: str) -> AsyncIterator[Installation]:
    client = await a_namespace(temporal_client, address)
    world = World(client, 7, config())
    settings: ClientConnectConfig = {"target_host": address, "namespace": client.namespace}
    async with an_api(settings, world.task_queue, world.config) as controller:
        here = Installation(controller, world, client, settings)
        world.search_attributes = ()
        async with worker_of(world, registry=True, more_activities=[here.push_set_loop]):
            await controller.until("/readiness", lambda reply: reply.status_code == 200)
            yield here
