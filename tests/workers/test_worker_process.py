"""The worker as a process: it waits for its server, says whether it polls, starts the singletons and stops in order."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowExecutionStatus
from temporalio.service import RPCError

from domain.config import FaultToleranceConfig
from domain.messages.event_pusher import EVENT_PUSHER_ID, EventPusherState
from domain.messages.fault_manager import FAULT_MANAGER_WORKFLOW, FaultManagerStart
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCES_QUERY
from domain.registration import RegistryState
from service.temporal import server_command
from tests.eventually import eventually
from tests.listening import free_port
from tests.workflows.factories import topology

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    def __init__(self, process: Process, log: Path, health_port: int) -> None:
        self.process = process
        self.health = f"http://127.0.0.1:{health_port}"
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text()

    async def readiness(self) -> int:
        """HTTP status; 0 where nobody listens."""
        try:
            async with httpx.AsyncClient(timeout=5) as http:
                return (await http.get(f"{self.health}/readiness")).status_code
        except httpx.TransportError:
            return 0

    async def ready(self) -> bool:
        return await self.readiness() == 200

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 10)


@asynccontextmanager
async def worker_process(
    address: str, directory: Path, *arguments: str, queue: str = "", **environment: str
) -> AsyncIterator[WorkerProcess]:
    port = free_port()
    log = directory / f"worker-{port}.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "AUTOTOMY_"))}
    told = {"TEMPORAL_ADDRESS": address, "AUTOTOMY_TASK_QUEUE": queue or f"queue-{uuid.uuid4().hex}", **environment}
    command = [sys.executable, "-m", "workers", "--health-port", str(port), *arguments]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, env={**clean, **told}, cwd=ROOT, stdout=out, stderr=out)
    try:
        yield WorkerProcess(process, log, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def end_singletons(client: Client) -> None:
    for workflow_id in (EVENT_PUSHER_ID, INSTANCE_REGISTRY_ID):
        with contextlib.suppress(RPCError):
            await client.get_workflow_handle(workflow_id).terminate("end of a test's world")


@pytest.fixture
async def no_singletons(temporal_client: Client) -> AsyncIterator[None]:
    await end_singletons(temporal_client)
    yield
    await end_singletons(temporal_client)


@pytest.mark.usefixtures("no_singletons")
async def test_it_polls_starts_the_singletons_and_stops_in_order(
    temporal_client: Client, temporal_server: str, tmp_path: Path
) -> None:
    async with worker_process(temporal_server, tmp_path) as worker:
        await eventually(worker.ready, "it is ready")

        async def running() -> bool:
            with contextlib.suppress(RPCError):
                handles = [temporal_client.get_workflow_handle(i) for i in (EVENT_PUSHER_ID, INSTANCE_REGISTRY_ID)]
                return {(await handle.describe()).status for handle in handles} == {WorkflowExecutionStatus.RUNNING}
            return False

        await eventually(running, "the singletons run")
        assert await worker.stop() == 0


@pytest.mark.usefixtures("no_singletons")
async def test_another_configuration_is_told(temporal_client: Client, temporal_server: str, tmp_path: Path) -> None:
    queue = f"queue-{uuid.uuid4().hex}"
    handle = temporal_client.get_workflow_handle(EVENT_PUSHER_ID)

    async def interval() -> float:
        with contextlib.suppress(RPCError, RPCTimeoutOrCancelledError):
            state = await handle.query("state", rpc_timeout=timedelta(seconds=1))
            return EventPusherState.model_validate(state).set_interval_sec
        return 0.0

    async def is_default() -> bool:
        return await interval() == 5.0

    async def is_seven() -> bool:
        return await interval() == 7.0

    async with worker_process(temporal_server, tmp_path, queue=queue) as first:
        await eventually(first.ready, "it is ready")
        await eventually(is_default, "EventPusher runs")
        other = {"AUTOTOMY_FAULT_TOLERANCE_CONFIG__SET_INTERVAL_SEC": "7"}
        async with worker_process(temporal_server, tmp_path, queue=queue, **other):
            await eventually(is_seven, "EventPusher has the new interval")


@pytest.mark.usefixtures("no_singletons")
async def test_a_terminated_registry_is_started_with_what_it_knew_and_a_forgotten_one_with_what_faultmanagers_know(
    temporal_client: Client, temporal_server: str, tmp_path: Path
) -> None:
    declared = topology(71)
    start = FaultManagerStart(instance_id=71, topology=declared, config=FaultToleranceConfig())
    manager = await temporal_client.start_workflow(
        FAULT_MANAGER_WORKFLOW, start, id=f"fault-manager-{uuid.uuid4().hex}", task_queue=f"nobody-{uuid.uuid4().hex}"
    )
    queue = f"queue-{uuid.uuid4().hex}"

    async def known() -> list[int]:
        with contextlib.suppress(RPCError, RPCTimeoutOrCancelledError):
            registry = temporal_client.get_workflow_handle(INSTANCE_REGISTRY_ID)
            view = await registry.query(INSTANCES_QUERY, rpc_timeout=timedelta(seconds=1))
            return [one.instance_id for one in RegistryState.model_validate(view).instances]
        return []

    async def knows_it() -> bool:
        return 71 in await known()

    try:
        async with worker_process(temporal_server, tmp_path, queue=queue):
            await eventually(knows_it, "the new registry has the FaultManager's instance")
        await manager.terminate("what the registry itself remembers is next")
        await end_singletons(temporal_client)
        async with worker_process(temporal_server, tmp_path, queue=queue):
            await eventually(knows_it, "the next registry has the former one's instance")
    finally:
        with contextlib.suppress(RPCError):
            await manager.terminate("end of the test")


async def test_without_a_server_it_says_which_address_and_keeps_trying(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    async with worker_process(nowhere, tmp_path) as worker:
        await eventually(lambda: nowhere in worker.said, "it names the address")
        assert worker.process.returncode is None
        assert await worker.stop() == 0


@asynccontextmanager
async def server_of_its_own(directory: Path) -> AsyncIterator[tuple[str, Process]]:
    """One that the test may do anything to: its address and its process."""
    port = free_port()
    command = server_command(directory / "t.db", "127.0.0.1", port, None)
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.kill()
        await server.wait()


async def test_a_server_that_goes_away_makes_it_unready(tmp_path: Path) -> None:
    async with server_of_its_own(tmp_path) as (address, server), worker_process(address, tmp_path) as worker:
        await eventually(worker.ready, "it is ready")
        server.kill()
        await server.wait()

        async def unready() -> bool:
            return await worker.readiness() == 503

        await eventually(unready, "it is not ready any more")
        code = await worker.stop()
        assert code == (3 if "did not end within 5 s" in worker.said else 0)  # the SDK may or may not let go of such a server


async def test_a_worker_whose_server_stands_still_leaves_in_time_and_its_exit_code_tells(tmp_path: Path) -> None:
    """Its polls are open and get no answer: the SDK waits for them for ever."""
    async with server_of_its_own(tmp_path) as (address, server), worker_process(address, tmp_path) as worker:
        await eventually(worker.ready, "it is ready")
        server.send_signal(signal.SIGSTOP)
        assert await worker.stop() == 3
        assert "did not end within 5 s" in worker.said
        assert "Traceback" not in worker.said


async def test_a_wrong_configuration_is_one_clear_line(temporal_server: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("fault_tolerance_config:\n  heartbeat_timeout_sec: 0.5\n")
    async with worker_process(temporal_server, tmp_path, "--config", str(config)) as worker:
        assert await asyncio.wait_for(worker.process.wait(), 15) == 2
        assert "heartbeat_timeout_sec=0.5" in worker.said
        assert "Traceback" not in worker.said


async def test_a_taken_health_port_is_one_clear_line(temporal_server: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = ("--health-port", str(taken.getsockname()[1]))
        async with worker_process(temporal_server, tmp_path, *arguments) as worker:
            assert await asyncio.wait_for(worker.process.wait(), 15) == 2
            assert "--health-port" in worker.said
            assert "Traceback" not in worker.said


@pytest.mark.usefixtures("no_singletons")
async def test_temporals_figures_are_served(temporal_server: str, tmp_path: Path) -> None:
    port = free_port()
    async with worker_process(temporal_server, tmp_path, "--metrics-port", str(port)) as worker:
        await eventually(worker.ready, "it is ready")
        async with httpx.AsyncClient(timeout=5) as http:
            assert "temporal_" in (await http.get(f"http://127.0.0.1:{port}/metrics")).text
