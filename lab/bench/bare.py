"""The same `run_round` without Temporal: the bare loop that a round is compared with.

Its ports are the very activities, called in this process: the same fan-outs, the same HTTP client, the same judgement of
answers. What is missing is what Temporal brings: nothing here would survive a kill.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import uuid4

import httpx
from temporalio.testing import ActivityEnvironment

from activities.attempt import attempt
from activities.coordinator import ViewPush
from activities.node_manager import NodeManagerActivities
from activities.node_manager_client import NodeManagerClient
from domain.config import FaultToleranceConfig
from domain.errors import AutotomyError, Transient
from domain.messages.coordinator import INSTANCES_PATH, CoordinatorView
from domain.messages.event_pusher import CoordinatorRecord, Coordinators
from domain.messages.node_manager import FtPacing, StartRequest, StatusRequest, StopRequest
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    CommitRecord,
    FinalizeCall,
    FinalizeResult,
    GuardCall,
    GuardResult,
    StopPodsCall,
    VerifyCall,
    VerifyResult,
    ViewCall,
    ViewResult,
    WatchCall,
    WatchResult,
)
from domain.messages.strategy import RoundOrder, RoundReport, StepReport
from domain.round.scale_down import run_round
from domain.runtime import FtPhase
from domain.topology import Topology
from service.one_exchange import one_exchange_client
from service.peer import get

A = TypeVar("A")
T = TypeVar("T")

_TIMEOUT_SEC: Final = 5.0
_READY_SEC: Final = 120.0
_LOOK_SEC: Final = 0.1


class BarePorts:
    """`domain.round.scale_down.RoundPorts` over HTTP, in this process."""

    def __init__(self, http: httpx.AsyncClient, coordinators: Coordinators) -> None:
        self._http = http
        self._managers = NodeManagerActivities(http)
        self._coordinators = coordinators

    def now(self) -> float:
        return time.time()

    def stop_requested(self) -> str | None:
        return None

    def progress(self, report: StepReport) -> None:
        """Nobody to tell."""

    def stop_pods(self, call: StopPodsCall) -> None:
        """Not part of what is compared."""

    async def record_commit(self, record: CommitRecord) -> bool:
        return True

    async def guard(self, call: GuardCall) -> GuardResult:
        return await _run(self._managers.guard, call)

    async def look(self, call: WatchCall) -> WatchResult:
        return await _run(self._managers.look, call)

    async def apply(self, call: ApplyCall) -> ApplyResult:
        return await _run(self._managers.apply, call)

    async def verify(self, call: VerifyCall) -> VerifyResult:
        return await _run(self._managers.verify, call)

    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        return await _run(self._managers.finalize, call)

    async def pause(self, seconds: float, why: str) -> None:
        await asyncio.sleep(seconds)

    async def push_view(self, call: ViewCall) -> ViewResult:
        return await _run(self._push, call)

    async def _push(self, call: ViewCall) -> ViewResult:
        async with attempt("publish" if call.ranks else "withdraw") as run:
            result = await ViewPush(self._http, call, run).to_all(self._coordinators)
            return result or ViewResult(confirmed=False)


async def _run(activity: Callable[[A], Coroutine[Any, Any, T]], call: A) -> T:
    """An activity's body outside a worker; its clock starts now."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, started_time=datetime.now(UTC))
    result: T = await environment.run(activity, call)
    return result


class BareInstance:
    """The instance that no Controller knows: rounds, and fresh engines, by hand."""

    def __init__(self, topology: Topology, config: FaultToleranceConfig, management_url: str) -> None:
        self.topology = topology
        self.removed: tuple[int, ...] = ()
        self._config = config
        self._management_url = management_url
        self._http = one_exchange_client()
        self._generation = 0
        self._revision = 0
        self._lives: dict[str, str] = {}

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.topology.ranks if rank not in self.removed)

    async def start(self) -> None:
        """Fresh engines behind every NodeManager. Raises Transient where they are not healthy in time."""
        self._generation += 1
        self.removed = ()
        await asyncio.gather(*(self._start(client) for client in self._clients()))
        await self.until_healthy()

    async def restart(self) -> None:
        """Stops everything, waits for the NodeManagers' next lives, and starts again."""
        clients = self._clients()
        stopped = await asyncio.gather(*(c.stop(StopRequest(generation=self._generation), _TIMEOUT_SEC) for c in clients))
        for client, reply in zip(clients, stopped, strict=True):
            await _until(lambda c=client, old=reply.incarnation: _lives_again(c, old))  # type: ignore[misc]
        await self.start()

    async def until_healthy(self) -> None:
        await _until(self._all_healthy)

    async def round(self, victim: int) -> RoundReport:
        """One round, as the FaultManager would order it at this moment."""
        view = await get(self._http, f"{self._management_url}{INSTANCES_PATH}", CoordinatorView, _TIMEOUT_SEC)
        known = CoordinatorRecord(
            url=self._management_url, incarnation=view.incarnation, has_view=True, last_answer_at=time.time()
        )
        self._generation += 1
        order = RoundOrder(
            instance_id=self.topology.instance_id,
            generation=self._generation,
            request_id=f"bare-{uuid4().hex}",
            pending_ranks=(victim,),
            dead_committed=self.removed,
            phase_before=FtPhase.SCALED_DOWN_RUNNING if self.removed else FtPhase.NORMAL,
            topology=self.topology,
            config=self._config,
            published_ranks=self.active,
            view_revision=self._revision,
        )
        report = await run_round(order, BarePorts(self._http, Coordinators(coordinators=(known,))))
        self._revision = report.view_revision
        self.removed = report.dead_committed
        return report

    async def close(self) -> None:
        await self._http.aclose()

    def _clients(self) -> list[NodeManagerClient]:
        return [NodeManagerClient(self._http, manager) for manager in self.topology.managers]

    async def _start(self, client: NodeManagerClient) -> None:
        config = self._config.dp_scale_down_config
        request = StartRequest(
            job_name=self.topology.job_name,
            role=self.topology.role,
            instance_id=self.topology.instance_id,
            generation=self._generation,
            endpoints=self.topology.endpoints,
            master_dp_ip=self.topology.endpoint(0).ip,
            dp_master_port=self.topology.dp_master_port,
            fault_tolerance_config=FtPacing(
                enable_dp_scale_down_proxy=True,
                poll_interval_sec=config.poll_interval_sec,
                fault_poll_interval_sec=config.fault_poll_interval_sec,
                engine_request_timeout_sec=config.engine_request_timeout_sec,
            ),
        )
        await client.start(request, 30.0)

    async def _all_healthy(self) -> bool:
        for manager in self.topology.managers:
            ranks = tuple(rank for rank in self.topology.ranks_of(manager) if rank in self.active)
            reply = await NodeManagerClient(self._http, manager).status(StatusRequest(endpoint_ids=ranks), _TIMEOUT_SEC)
            if any(entry.status != "healthy" for entry in reply.entries().values()):
                return False
        return True


async def _lives_again(client: NodeManagerClient, old: str) -> bool:
    return (await client.liveness(_TIMEOUT_SEC)).incarnation != old


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Raises Transient where it does not come true in two minutes; an AutotomyError in between is "not yet"."""
    why = "not yet"
    try:
        async with asyncio.timeout(_READY_SEC):
            while True:
                try:
                    if await condition():
                        return
                except AutotomyError as error:
                    why = error.message
                await asyncio.sleep(_LOOK_SEC)
    except TimeoutError:
        raise Transient(f"the bare instance is not ready after {_READY_SEC:g} s: {why}") from None
