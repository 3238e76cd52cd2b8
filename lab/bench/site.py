"""What a benchmark runs against: a stack, the process that plays engines, and the instances in both.

The instances come in two kinds of the same shape. The *declared* ones belong to the Controller. The *bare* one stands
beside them, on Pods of its own, unknown to the Controller: the bare loop commands it in the same minutes on the same
machine. With real NodeManagers the stack starts their processes for both kinds; their engines are a sleeping process each,
for the process's sake, and an address of the light process, for the FT API's.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from pydantic import JsonValue, TypeAdapter

from domain.engine import Dialect, FtCapability
from domain.errors import Transient
from domain.messages.controller import InstanceDeclaration
from domain.model import Strict, Tolerant
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Topology
from lab.bench.group import Episode
from lab.bench.light import LightInstance, LightOrder
from lab.stack.client import Stack
from lab.stack.environment import base_environment
from lab.stack.ports import PortLease
from lab.stack.spec import EngineSpec, StackSpec

BARE_ID: Final = 999_999
FIRST_ID: Final = 1
_MODEL: Final = "light"
_SERVES_SEC: Final = 300.0
_LOOK_SEC: Final = 0.02
_AGAIN_SEC: Final = 0.2
_AT_ONCE: Final = 8
"""Declarations at a time: a workflow takes ten updates at once."""

_EPISODES: Final = TypeAdapter(list[Episode])


class Shape(Strict):
    """What is measured: `instances` of `ranks` in `node_managers` Pods. `light`: NodeManagers are played, too."""

    ranks: int = 8
    node_managers: int = 2
    instances: int = 1
    poll_sec: float = 0.25
    recovery_sec: float = 0.1
    light: bool = False
    bare: bool = True
    feature: bool = True
    """`enable_dp_scale_down`."""

    @property
    def size(self) -> int:
        return self.ranks // self.node_managers

    @property
    def pods(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(range(first, first + self.size)) for first in range(0, self.ranks, self.size))

    def victims(self) -> tuple[int, ...]:
        """Ranks to lose one after the other before the group is rebuilt: half of each Pod, no Pod emptied, never rank 0."""
        half = max(1, self.size // 2)
        return tuple(ranks[-1 - offset] for offset in range(half) for ranks in self.pods if ranks[-1 - offset] != 0)

    def capability(self) -> FtCapability:
        return FtCapability(
            enabled=True,
            scale_down_supported=True,
            retry_supported=True,
            external_lb=True,
            eplb_enabled=True,
            num_redundant_experts=1_000_000,
            dialect=Dialect.V1,
        )


class ViewLine(Tolerant):
    """One line of the Coordinator's view log; `mono` is `time.monotonic()`."""

    mono: float
    event: str
    instance: int | None = None
    revision: int | None = None
    ranks: tuple[int, ...] | None = None
    outcome: str = ""


class ViewLog:
    """Follows the Coordinator's log of what it serves: `latest` and `changes` by instance."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.latest: dict[int, ViewLine] = {}

    def read(self) -> None:
        """Takes in what was written since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + 1 if whole else 0
        for text in whole.splitlines():
            line = ViewLine.model_validate_json(text)
            if line.instance is not None and line.outcome == "applied" and line.ranks is not None:
                self.latest[line.instance] = line

    async def until(self, instance_id: int, ranks: Sequence[int], within_sec: float) -> float:
        """When (monotonic) the Coordinator took over exactly these ranks. Raises Transient where it does not in time."""
        try:
            async with asyncio.timeout(within_sec):
                while True:
                    line = self.latest.get(instance_id)
                    if line is not None and sorted(line.ranks or ()) == sorted(ranks):
                        return line.mono
                    await asyncio.sleep(_LOOK_SEC)
                    self.read()
        except TimeoutError:
            now = self.latest.get(instance_id)
            raise Transient(
                f"instance {instance_id}: ranks {now.ranks if now else None} are published after {within_sec:g} s, "
                f"not {list(ranks)}"
            ) from None


class LightClient:
    """The light process's control API."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def fail(self, instance_id: int, rank: int) -> float:
        """Makes the rank fail now; when that was (monotonic)."""
        reply = await self._http.post(f"{self._url}/fault", json={"instance_id": instance_id, "rank": rank})
        reply.raise_for_status()
        return Episode.model_validate(reply.json()).injected_at

    async def reset(self, instance_id: int) -> None:
        (await self._http.post(f"{self._url}/reset", json={"instance_id": instance_id})).raise_for_status()

    async def polls(self) -> int:
        return int((await self._http.get(f"{self._url}/polls")).json()["polls"])

    async def last_episodes(self) -> dict[int, Episode]:
        """The newest episode of each instance."""
        body = (await self._http.get(f"{self._url}/episodes")).json()
        return {episode.instance_id: episode for episode in _EPISODES.validate_python(body["episodes"])}


@dataclass
class Site:
    """Everything that runs for a benchmark."""

    shape: Shape
    stack: Stack
    light: LightClient
    views: ViewLog
    http: httpx.AsyncClient
    declared: tuple[Topology, ...]
    bare: Topology | None

    async def declare_all(self) -> None:
        """Declares every instance and returns when all are served. Raises Transient where that takes over five minutes."""
        for batch in (self.declared[i : i + _AT_ONCE] for i in range(0, len(self.declared), _AT_ONCE)):
            await asyncio.gather(*(self._declare(topology) for topology in batch))
            await asyncio.gather(*(self.views.until(t.instance_id, t.ranks, _SERVES_SEC) for t in batch))

    async def _declare(self, topology: Topology) -> None:
        declaration = InstanceDeclaration.model_validate(topology.model_dump(exclude={"instance_id"}))
        url = f"{self.stack.addresses.controller_url}/controller/instances/{topology.instance_id}"
        await self._asked("PUT", url, declaration.model_dump(mode="json"))

    async def _asked(self, method: str, url: str, body: JsonValue) -> None:
        """Repeated while the Controller is too busy (503). Raises Transient, with its words, where it does not take it."""
        deadline = time.monotonic() + _SERVES_SEC
        while True:
            reply = await self.http.request(method, url, json=body)
            if reply.status_code == httpx.codes.OK:
                return
            if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise Transient(f"{method} {url}: HTTP {reply.status_code} {reply.text[:300]}")
            await asyncio.sleep(_AGAIN_SEC)

    async def rebuild(self, topology: Topology) -> None:
        """All ranks again: the engines are fresh, the Controller rebuilds the instance."""
        if not self.shape.light:
            await self.light.reset(topology.instance_id)
        url = f"{self.stack.addresses.controller_url}/controller/instances/{topology.instance_id}/reconfigure"
        await self._asked("POST", url, {"force": True, "why": "benchmark"})
        await self.views.until(topology.instance_id, topology.ranks, _SERVES_SEC)

    async def record(self, instance_id: int, deadline: float) -> dict[str, JsonValue]:
        """The FT runtime record of an instance; asked again until `deadline` (monotonic) while the Controller is too busy."""
        url = f"{self.stack.addresses.controller_url}/controller/fault_tolerance/status"
        while True:
            reply = await self.http.get(url, params={"instance_id": instance_id})
            if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                break
            await asyncio.sleep(_AGAIN_SEC)
        reply.raise_for_status()
        record: dict[str, JsonValue] = reply.json()["data"]
        return record


@contextlib.asynccontextmanager
async def open_site(shape: Shape) -> AsyncIterator[Site]:
    """Starts everything, stops everything. Raises StartFailed, Transient."""
    with PortLease() as ports, tempfile.TemporaryDirectory(prefix="autotomy-bench-") as directory:
        async with Stack.running(_spec(shape)) as stack:
            declared, bare = _light_topologies(shape, ports) if shape.light else _stack_topologies(shape, stack, ports)
            instances = [LightInstance(topology=topology) for topology in declared]
            if bare is not None:
                instances.append(LightInstance(topology=bare, reports=False))
            order = LightOrder(
                instances=tuple(instances),
                pods=shape.light,
                poll_sec=shape.poll_sec,
                recovery_sec=shape.recovery_sec,
                controller_url=stack.addresses.controller_url,
            )
            async with _light_process(order, stack.run_id, Path(directory)) as url:
                limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
                async with httpx.AsyncClient(timeout=60.0, trust_env=False, limits=limits) as http:
                    views = ViewLog(Path(stack.addresses.coordinators[0].view_log))
                    yield Site(shape, stack, LightClient(http, url), views, http, declared, bare)


@contextlib.asynccontextmanager
async def _light_process(order: LightOrder, run_id: str, directory: Path) -> AsyncIterator[str]:
    """The light process's control URL. It ends with the context."""
    path = directory / "light.json"
    path.write_text(order.model_dump_json(), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lab.bench.light", str(path)),
        stdout=asyncio.subprocess.PIPE,
        env=base_environment(run_id, "light"),
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60.0):
            line = await process.stdout.readline()
        if not line:
            raise Transient(f"the light process ended with exit code {await process.wait()}")
        yield str(json.loads(line)["control_url"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _spec(shape: Shape) -> StackSpec:
    config: dict[str, JsonValue] = {
        "enable_dp_scale_down": shape.feature,
        "dp_scale_down_config": {"poll_interval_sec": shape.poll_sec, "fault_poll_interval_sec": shape.poll_sec},
    }
    pods: tuple[tuple[int, ...], ...] = ((0,),)
    if not shape.light:
        beside = tuple(tuple(rank + shape.ranks for rank in ranks) for ranks in shape.pods) if shape.bare else ()
        pods = (*shape.pods, *beside)
    return StackSpec(
        name="bench",
        pods=pods,
        declare=False,
        web_ui=False,
        engine=EngineSpec(command=("sleep", "86400")),
        fault_tolerance_config=config,
        start_deadline_sec=60.0 + 3.0 * len(pods),
    )


def _stack_topologies(shape: Shape, stack: Stack, ports: PortLease) -> tuple[tuple[Topology, ...], Topology | None]:
    """The stack's Pods in order: the declared instance's, then the bare one's, each with ranks from 0."""
    managers, engines = stack.addresses.node_managers, {engine.rank: engine for engine in stack.addresses.engines}

    def of(instance_id: int, offset: int) -> Topology:
        own = managers[offset : offset + shape.node_managers]
        first = offset * shape.size
        endpoints = tuple(
            Endpoint(
                id=rank - first,
                pod_ip=manager.address.ip,
                ip=manager.address.ip,
                business_port=int(engines[rank].url.rpartition(":")[2]),
                node_manager_port=manager.address.port,
            )
            for manager in own
            for rank in manager.ranks
        )
        places = tuple(
            NodeManagerPlace(pod_ip=m.address.ip, port=m.address.port, node_name=f"node-{offset + index}")
            for index, m in enumerate(own)
        )
        return _topology(shape, instance_id, places, endpoints, ports)

    return (of(FIRST_ID, 0),), of(BARE_ID, shape.node_managers) if shape.bare else None


def _light_topologies(shape: Shape, ports: PortLease) -> tuple[tuple[Topology, ...], Topology | None]:
    """Every Pod has a loopback address of its own, all with the same port."""
    port, engine_port = ports.take(), ports.take()

    def of(instance_id: int, index: int) -> Topology:
        ips = [loopback(index * shape.node_managers + pod) for pod in range(shape.node_managers)]
        endpoints = tuple(
            Endpoint(id=rank, pod_ip=ip, ip=ip, business_port=engine_port + local, node_manager_port=port)
            for ip, ranks in zip(ips, shape.pods, strict=True)
            for local, rank in enumerate(ranks)
        )
        places = tuple(NodeManagerPlace(pod_ip=ip, port=port, node_name=f"node-{ip}") for ip in ips)
        return _topology(shape, instance_id, places, endpoints, ports)

    declared = tuple(of(FIRST_ID + index, index) for index in range(shape.instances))
    return declared, of(BARE_ID, shape.instances) if shape.bare else None


def loopback(index: int) -> str:
    """A loopback address of its own for the Pod of this number."""
    return f"127.{1 + index // 62_500}.{index // 250 % 250}.{index % 250 + 2}"


def _topology(
    shape: Shape,
    instance_id: int,
    places: tuple[NodeManagerPlace, ...],
    endpoints: tuple[Endpoint, ...],
    ports: PortLease,
) -> Topology:
    return Topology(
        instance_id=instance_id,
        job_name=f"bench-{instance_id}",
        model_name=_MODEL,
        parallel_config=ParallelConfig(dp_size=shape.ranks),
        dp_master_port=ports.take_block(min(shape.ranks, 64)) if not shape.light else 29_500,
        node_managers=places,
        endpoints=endpoints,
        ft_capability=shape.capability(),
    )
