"""A whole NodeManager in the test's own process: real HTTP, real engine processes; the engines' HTTP side is the test's."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from domain.errors import ConfigError
from domain.messages.node_manager import FT_PREFIX
from node_manager.app import node_manager_app
from node_manager.config import EngineSpec, NodeManagerConfig
from node_manager.node import NodeManager
from service.http import bind, serve_socket
from service.process_identity import ProcessIdentity, open_pidfd
from tests.engine.fake_engine import FakeEngine
from tests.eventually import eventually
from tests.node_manager.controller import FakeController

LIMIT_SEC = 30.0


def alive(identity: str) -> bool:
    pidfd = open_pidfd(ProcessIdentity.parse(identity))
    if pidfd is not None:
        os.close(pidfd)
    return pidfd is not None


@dataclass
class Pod:
    """One NodeManager and its client. `stop` is what SIGTERM would set."""

    node: NodeManager
    http: httpx.AsyncClient
    fakes: dict[int, FakeEngine]
    stop: asyncio.Event
    served: "asyncio.Task[None]"
    extra_endpoints: list[dict[str, Any]] = field(default_factory=list)

    def start_body(self, generation: int = 1, **changes: Any) -> dict[str, Any]:
        port = self.node.config.port
        endpoints = [
            {"id": rank, "pod_ip": "127.0.0.1", "ip": fake.host, "business_port": fake.port, "node_manager_port": port}
            for rank, fake in self.fakes.items()
        ]
        pacing = {
            "enable_dp_scale_down_proxy": True,
            "poll_interval_sec": 0.05,
            "fault_poll_interval_sec": 0.05,
            "engine_request_timeout_sec": 2.0,
        }
        return {
            "job_name": "job",
            "role": "union",
            "instance_id": 7,
            "generation": generation,
            "dead_committed": [],
            "endpoints": endpoints + self.extra_endpoints,
            "master_dp_ip": "127.0.0.1",
            "dp_master_port": 29500,
            "fault_tolerance_config": pacing,
        } | changes

    async def post(self, path: str, body: object) -> httpx.Response:
        return await self.http.post(f"/node-manager/{path}", json=body, timeout=LIMIT_SEC)

    async def ft(self, command: str, body: object) -> httpx.Response:
        return await self.http.post(f"{FT_PREFIX}/{command}", json=body, timeout=LIMIT_SEC)

    async def journal(self) -> dict[str, Any]:
        answer = await self.http.get(f"{FT_PREFIX}/journal")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def start(self, generation: int = 1, **changes: Any) -> dict[str, Any]:
        answer = await self.post("start", self.start_body(generation, **changes))
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def started(self, controller: FakeController, generation: int = 1, **changes: Any) -> dict[str, str]:
        """Started, every rank's first report sent; gives the incarnations."""
        await self.start(generation, **changes)
        retired = changes.get("dead_committed", [])
        wanted = [rank for rank in self.fakes if rank not in retired]

        def all_told() -> bool:
            engines = [self.node.engines.get(rank) for rank in wanted]
            return all(
                engine is not None and (last := controller.last(engine.rank)) and last.engine_incarnation == engine.incarnation
                for engine in engines
            )

        await eventually(all_told, what="first reports")
        return {str(engine.rank): engine.incarnation for engine in self.node.engines.all()}

    async def guard(self, request_id: str = "A", generation: int = 1) -> httpx.Response:
        return await self.ft("guard", {"request_id": request_id, "lease_sec": 85.0, "generation": generation})

    async def apply(self, ranks: list[int], removed: list[int], request_id: str = "A", generation: int = 1) -> httpx.Response:
        params = {"removed_dp_ranks": removed, "dp_master_ip": "127.0.0.1", "dp_master_rank": ranks[0]}
        body = {"endpoint_ids": ranks, "instruction": "scale_down", "params": params, "request_id": request_id}
        return await self.ft("apply", body | {"generation": generation, "apply_margin_sec": 35.0})

    async def finalize(
        self, retired: list[int], request_id: str = "A", generation: int = 1, *, commit: bool = True
    ) -> httpx.Response:
        body = {"request_id": request_id, "commit": commit, "retired_endpoint_ids": retired, "generation": generation}
        return await self.ft("finalize", body | ({"dead_committed": retired} if commit else {}))

    async def entries(self, *ranks: int) -> dict[str, dict[str, Any]]:
        answer = await self.ft("status", {"endpoint_ids": list(ranks)})
        assert answer.status_code == 200, answer.text
        engines: dict[str, dict[str, Any]] = answer.json()["engines"]
        return engines


SLEEPER = ("sleep", "120")
"""A process that lives; what it answers is a FakeEngine's business."""


@contextlib.asynccontextmanager
async def running_pod(
    folder: Path,
    fakes: list[FakeEngine],
    controller: FakeController,
    *,
    port: int = 0,
    fault_tolerance: bool = True,
    **settings: Any,
) -> AsyncIterator[Pod]:
    """A NodeManager over `folder` (its journal stays there), until the block ends or a stop command ends it."""
    sock = bind("127.0.0.1", port)
    defaults: dict[str, Any] = {
        "engines": (EngineSpec(command=SLEEPER, stop_grace_sec=1.0),),
        "heartbeat_interval_sec": 0.05,
        "poll_interval_sec": 0.05,
    }
    (folder / "logs").mkdir(exist_ok=True)
    config = NodeManagerConfig(
        pod_ip="127.0.0.1",
        port=sock.getsockname()[1],
        controller_url=controller.url,
        journal=folder / "journal.sqlite",
        log_dir=folder / "logs",
        **(defaults | settings),
    )
    try:
        node = NodeManager(config)
    except ConfigError:
        sock.close()
        raise
    stop, ready = asyncio.Event(), asyncio.Event()
    served = asyncio.create_task(
        serve_socket(
            node_manager_app(node, fault_tolerance=fault_tolerance),
            sock,
            stop=stop,
            on_ready=lambda _url: ready.set(),
            grace_sec=0.5,
        )
    )
    try:
        await asyncio.wait_for(ready.wait(), LIMIT_SEC)
        async with httpx.AsyncClient(base_url=url_of_config(config), trust_env=False) as http:
            yield Pod(node, http, {fake.rank: fake for fake in fakes}, stop, served)
    finally:
        stop.set()
        await asyncio.wait_for(served, LIMIT_SEC)


def url_of_config(config: NodeManagerConfig) -> str:
    return f"http://{config.pod_ip}:{config.port}"


def reason(answer: httpx.Response) -> str:
    """The refusal's reason; the envelope is checked on the way."""
    body = answer.json()
    assert body["code"] == answer.status_code, body
    assert body["message"]
    return str(body["data"]["reason"])
