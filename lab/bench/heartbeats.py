"""`autotomy bench heartbeats`: many Pods of one instance register in the same moment, then live, once a second each.

Registration is news, so it costs history, once. A heartbeat is none: while nothing happens it may cost the API a little CPU
and no history anywhere, however long it lasts. The Pods are played by this process, as in the other benchmarks; what they
send is what a real NodeManager sends, to the real API.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
from pydantic import ValidationError

from domain.errors import Transient
from domain.messages.controller import HeartbeatReply, HeartbeatRequest
from domain.messages.event_pusher import EVENT_PUSHER_ID
from domain.messages.fault_manager import fault_manager_id
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID
from domain.messages.registration import RegisterReply, RegisterRequest
from domain.model import Strict
from domain.topology import NodeManagerAddress, ParallelConfig
from lab.bench.cpu import spent, usage
from lab.bench.figures import Spread, spread
from lab.bench.group import Group
from lab.bench.histories import lengths, temporal_client
from lab.bench.light_pod import LightPod
from lab.bench.site import Shape, ViewLog, loopback
from lab.bench.wire import serve
from lab.stack.client import Stack
from lab.stack.ports import PortLease
from lab.stack.record import ProcessKind
from lab.stack.spec import FIRST_REGISTERED_ID, EngineSpec, StackSpec

INTERVAL_SEC: Final = 1.0
"""`heartbeat_interval_sec`, the default."""

_JOB: Final = "heartbeats"
_SERVES_SEC: Final = 120.0
_SETTLE_SEC: Final = 5.0
_AGAIN_SEC: Final = 0.2
_TIMEOUT_SEC: Final = 5.0
_SAMPLE_SEC: Final = 5.0


class HeartbeatFigures(Strict):
    registered_sec: float
    """From the first registration sent until the last one was answered, all sent at once."""

    serving_sec: float
    """From the same moment until the Coordinator serves every rank."""

    heartbeats: int
    refused: int
    """Heartbeats that were not taken, or not answered in 5 s."""

    latency_sec: Spread | None
    api_cpu_share: float
    """CPU seconds per second, of one core."""

    api_cpu_ms_per_heartbeat: float
    api_mib_before: float
    api_mib_after: float
    api_mib_most: float
    cpu_share: dict[str, float]
    history_growth: dict[str, int]
    """Events that were added while the Pods only lived, by workflow; all of them must be 0 but EventPusher's own looping."""


class HeartbeatSetup(Strict):
    node_managers: int
    ranks_per_pod: int
    seconds: float
    interval_sec: float
    cpus: int
    load_before: float
    load_after: float


class HeartbeatReport(Strict):
    figures: HeartbeatFigures
    setup: HeartbeatSetup


class BeatingPod:
    """A played Pod that registers itself and then beats; `taken`, `refused`, `latencies` count its heartbeats."""

    def __init__(self, pod: LightPod, registration: RegisterRequest, http: httpx.AsyncClient, controller_url: str) -> None:
        self.pod = pod
        self.taken = 0
        self.refused = 0
        self.latencies: list[float] = []
        self._registration = registration
        self._http = http
        self._controller_url = controller_url

    async def register(self, until: float) -> None:
        """Until it is answered. Raises Transient at `until` (monotonic), with the last answer."""
        body = self._registration.model_dump(mode="json")
        while True:
            reply = await self._http.post(f"{self._controller_url}/controller/register", json=body)
            if reply.status_code == httpx.codes.OK:
                RegisterReply.model_validate(reply.json()["data"])
                return
            if time.monotonic() > until:
                raise Transient(f"{self.pod.address} is not registered: HTTP {reply.status_code} {reply.text[:300]}")
            await asyncio.sleep(_AGAIN_SEC)

    async def beat(self, until: float) -> None:
        """Once an interval, until `until` (monotonic); nothing as long as no start command has come."""
        due = time.monotonic() + random.uniform(0.0, INTERVAL_SEC)
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += INTERVAL_SEC
            await self._beat_once()

    async def _beat_once(self) -> None:
        started = self.pod.started
        if started is None:
            return
        content = HeartbeatRequest(
            job_name=started.job_name,
            instance_id=started.instance_id,
            pod_ip=self.pod.address.ip,
            nm_port=self.pod.address.port,
            endpoints={str(rank): "normal" for rank in self.pod.ranks},
        )
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_SEC):
                reply = await self._http.post(
                    f"{self._controller_url}/controller/heartbeat", json=content.model_dump(mode="json")
                )
            reply.raise_for_status()
            HeartbeatReply.model_validate(reply.json()["data"])
        except (httpx.HTTPError, TimeoutError, ValidationError, LookupError):
            self.refused += 1
            return
        self.taken += 1
        self.latencies.append(time.monotonic() - began_at)


async def bench_heartbeats(shape: Shape, seconds: float, say: Callable[[str], None]) -> HeartbeatReport:
    """`shape.ranks` in `shape.node_managers` Pods of one instance. Raises StartFailed, Transient."""
    load_before = os.getloadavg()[0]
    async with Stack.running(_spec(shape)) as stack, _pods(shape, stack) as pods:
        say(f"{len(pods)} Pods × {shape.size} ranks register")
        figures = await _measure(stack, pods, shape, seconds, say)
    setup = HeartbeatSetup(
        node_managers=shape.node_managers,
        ranks_per_pod=shape.size,
        seconds=seconds,
        interval_sec=INTERVAL_SEC,
        cpus=os.cpu_count() or 0,
        load_before=round(load_before, 2),
        load_after=round(os.getloadavg()[0], 2),
    )
    return HeartbeatReport(figures=figures, setup=setup)


async def _measure(
    stack: Stack, pods: Sequence[BeatingPod], shape: Shape, seconds: float, say: Callable[[str], None]
) -> HeartbeatFigures:
    began_at = time.monotonic()
    await asyncio.gather(*(pod.register(began_at + _SERVES_SEC) for pod in pods))
    registered_sec = time.monotonic() - began_at
    views = ViewLog(Path(stack.addresses.coordinators[0].view_log))
    async with _beating(pods, began_at + _SERVES_SEC + _SETTLE_SEC):
        serving_at = await _until_served(stack, views, shape)
        await asyncio.sleep(_SETTLE_SEC)
    say(f"registered in {registered_sec:.2f} s; now {seconds:g} s of heartbeats")
    return await _lives(stack, pods, seconds, registered_sec, serving_at - began_at)


async def _until_served(stack: Stack, views: ViewLog, shape: Shape) -> float:
    """When (monotonic) the Coordinator had every rank. Raises Transient, with what the Controller says instead."""
    try:
        return await views.until(FIRST_REGISTERED_ID, range(shape.ranks), _SERVES_SEC)
    except Transient:
        url = f"{stack.addresses.controller_url}/controller/fault_tolerance/status"
        async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as http:
            record = (await http.get(url, params={"instance_id": FIRST_REGISTERED_ID})).json()["data"]
        words = ", ".join(f"{name} {record.get(name)}" for name in ("phase", "waiting", "last_error", "serving_published"))
        raise Transient(f"not all ranks are served after {_SERVES_SEC:g} s: {words}") from None


async def _lives(
    stack: Stack, pods: Sequence[BeatingPod], seconds: float, registered_sec: float, serving_sec: float
) -> HeartbeatFigures:
    client = await temporal_client(stack)
    watched = (INSTANCE_REGISTRY_ID, fault_manager_id(FIRST_REGISTERED_ID), EVENT_PUSHER_ID)
    for pod in pods:
        pod.taken, pod.refused = 0, 0
        pod.latencies.clear()
    events, before, began_at = await lengths(client, watched), usage(stack), time.monotonic()
    memory = asyncio.create_task(_most_memory(stack))
    await asyncio.gather(*(pod.beat(began_at + seconds) for pod in pods))
    took, after, events_after = time.monotonic() - began_at, usage(stack), await lengths(client, watched)
    memory.cancel()
    most = await memory
    taken = sum(pod.taken for pod in pods)
    cpu = spent(before, after)
    return HeartbeatFigures(
        registered_sec=round(registered_sec, 3),
        serving_sec=round(serving_sec, 3),
        heartbeats=taken,
        refused=sum(pod.refused for pod in pods),
        latency_sec=spread(latency for pod in pods for latency in pod.latencies),
        api_cpu_share=round(cpu[ProcessKind.API] / took, 4),
        api_cpu_ms_per_heartbeat=round(1000 * cpu[ProcessKind.API] / max(1, taken), 3),
        api_mib_before=round(before.memory_mib[ProcessKind.API], 1),
        api_mib_after=round(after.memory_mib[ProcessKind.API], 1),
        api_mib_most=round(max(most, after.memory_mib[ProcessKind.API]), 1),
        cpu_share={kind: round(sec / took, 4) for kind, sec in cpu.items()},
        history_growth={one: events_after[one] - events[one] for one in watched},
    )


async def _most_memory(stack: Stack) -> float:
    """The most that the API was seen to use (MiB), until cancelled."""
    most = 0.0
    try:
        while True:
            most = max(most, usage(stack).memory_mib[ProcessKind.API])
            await asyncio.sleep(_SAMPLE_SEC)
    except asyncio.CancelledError:
        return most


@asynccontextmanager
async def _beating(pods: Sequence[BeatingPod], until: float) -> AsyncIterator[None]:
    """All beat while the context lasts."""
    beating = [asyncio.create_task(pod.beat(until)) for pod in pods]
    try:
        yield
    finally:
        for task in beating:
            task.cancel()
        await asyncio.gather(*beating, return_exceptions=True)


@asynccontextmanager
async def _pods(shape: Shape, stack: Stack) -> AsyncIterator[tuple[BeatingPod, ...]]:
    """All Pods, each listening at a loopback address of its own."""
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with AsyncExitStack() as open_things:
        ports = open_things.enter_context(PortLease())
        port, business_port = ports.take(), ports.take()
        http = await open_things.enter_async_context(httpx.AsyncClient(timeout=60.0, trust_env=False, limits=limits))
        group = Group(FIRST_REGISTERED_ID, tuple(range(shape.ranks)), shape.recovery_sec)
        url = stack.addresses.controller_url
        pods = []
        for index, ranks in enumerate(shape.pods):
            address = NodeManagerAddress(ip=loopback(index), port=port)
            pod = LightPod(address, group, ranks, shape.poll_sec, random.uniform(0, shape.poll_sec), http, url)
            server = await serve(pod, address.ip, port)
            open_things.callback(server.close)
            pods.append(BeatingPod(pod, _registration(shape, index, address, business_port), http, url))

        def tell_all() -> None:
            for one in pods:
                one.pod.engines_changed()

        group.on_change = tell_all
        yield tuple(pods)


def _registration(shape: Shape, index: int, address: NodeManagerAddress, business_port: int) -> RegisterRequest:
    return RegisterRequest(
        job_name=_JOB,
        model_name="light",
        pod_ip=address.ip,
        nm_port=address.port,
        node_name=f"node-{index}",
        node_rank=index,
        nnodes=shape.node_managers,
        business_ports=tuple(business_port + local for local in range(shape.size)),
        parallel_config=ParallelConfig(dp_size=shape.ranks),
        ft_capability=shape.capability(),
        incarnation=f"light:{address}:1",
    )


def _spec(shape: Shape) -> StackSpec:
    """The Controller and a Coordinator. The one Pod that a stack must have stays idle: nobody declares it."""
    return StackSpec(
        name="bench",
        instance_id=FIRST_REGISTERED_ID,
        pods=((0,),),
        declare=False,
        web_ui=False,
        engine=EngineSpec(command=("sleep", "86400")),
        fault_tolerance_config={"dp_scale_down_config": {"poll_interval_sec": shape.poll_sec}},
    )
