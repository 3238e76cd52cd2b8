"""The installation of one run: a Coordinator and two pools, each a supervisor with four simulated ranks.

Everything carries the run's id, so what is left of it can be found and ended; a watcher does that if the drill is killed.
"""

import asyncio
import contextlib
import re
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

from domain.errors import Transient
from domain.messages.coordinator import REFRESH_PATH, RefreshEndpoint, RefreshEvent, RefreshInstance, RefreshRequest
from lab.drills.record.engine_log import EngineLife, read_lives
from lab.drills.supervisor_table.experiment import RANKS, THRESHOLD, Clock, Column, SupervisorRules
from lab.stack.environment import base_environment
from lab.stack.ports import PortLease
from lab.stack.processes import RUN_ID_VARIABLE, carriers, stop_processes, sweep
from service.process_identity import identity_of, own_identity

MODEL: Final = "simulated"
_POD_IPS: Final = {"pool-a": "127.0.0.2", "pool-b": "127.0.0.3"}
_COORDINATOR_IP: Final = "127.0.0.1"
_STOP: Final = re.compile(r"stops everything reason=(\w+)")
_START_SEC: Final = 120.0
_LOOK_PAUSE_SEC: Final = 0.1
_STOP_SEC: Final = 15.0


class Pool:
    """One Pod: a supervisor at `url`, rank r of its servers at `rank_urls[r]`. `ended_at`: `time.monotonic()`."""

    def __init__(self, name: str, instance_id: int, lease: PortLease, logs: Path) -> None:
        self.name = name
        self.instance_id = instance_id
        self.ip = _POD_IPS[name]
        self.port = lease.take_block(RANKS)
        self.store_port = lease.take_block(RANKS)
        self.supervisor_port = lease.take()
        self.logs = logs / name
        self.ended_at: float | None = None
        self.exit_code: int | None = None

    @property
    def url(self) -> str:
        return f"http://{self.ip}:{self.supervisor_port}"

    @property
    def rank_urls(self) -> dict[int, str]:
        return {rank: f"http://{self.ip}:{self.port + rank}" for rank in range(RANKS)}

    def command(self, column: Column, clock: Clock) -> list[str]:
        """The supervisor's command line, the same for both columns but for `--stock-rules`."""
        supervisor = [sys.executable, "-m", "dp_supervisor", "--log-dir", str(self.logs), "--host", self.ip]
        supervisor += ["--data-parallel-size", str(RANKS), "--data-parallel-size-local", str(RANKS), "--port", str(self.port)]
        supervisor += ["--data-parallel-supervisor-port", str(self.supervisor_port), "--data-parallel-multi-port-external-lb"]
        supervisor += ["--dp-supervisor-probe-interval-s", f"{clock.of(clock.probe_interval):g}"]
        supervisor += ["--dp-supervisor-probe-timeout-s", f"{clock.probe_timeout_sec:g}"]
        supervisor += ["--dp-supervisor-probe-failure-threshold", str(THRESHOLD), "--enable-fault-tolerance"]
        if column.rules is SupervisorRules.STOCK:
            supervisor.append("--stock-rules")
        engine = [sys.executable, "-m", "lab.simulator", "--model", MODEL, "--log-dir", str(self.logs)]
        engine += ["--data-parallel-address", self.ip, "--data-parallel-rpc-port", str(self.store_port)]
        engine += ["--detection-sec", f"{clock.of(clock.detection):g}", "--recovery-sec", f"{clock.of(clock.recovery):g}"]
        engine += ["--engine-recovery-timeout-sec", f"{clock.of(clock.server_gives_up):g}", "--step-ms", "100"]
        return [*supervisor, "--", *engine]

    def view(self, ranks: Sequence[int]) -> RefreshInstance:
        """The pool as a Coordinator is told it, serving these ranks; as Motor tells it, without a revision."""
        endpoints = {str(rank): RefreshEndpoint(id=rank, ip=self.ip, business_port=self.port + rank) for rank in sorted(ranks)}
        return RefreshInstance(
            id=self.instance_id, job_name=self.name, model_name=MODEL, endpoints={self.ip: endpoints} if ranks else {}
        )

    @property
    def stop_reason(self) -> str | None:
        """Why the supervisor stopped everything by its own rules, as its log says; None where it did not."""
        log = self.logs.parent / f"{self.name}.log"
        found = _STOP.search(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else None
        return found[1] if found else None

    def lives(self) -> dict[int, EngineLife]:
        """What the ranks have logged so far, by rank."""
        return {rank: own[-1] for rank, own in read_lives(self.logs).items()} if self.logs.exists() else {}


class Site:
    """What runs, and how it is asked."""

    def __init__(self, logs: Path, lease: PortLease) -> None:
        self.run_id = secrets.token_hex(8)
        self.logs = logs
        self.pool_a = Pool("pool-a", 1, lease, logs)
        self.pool_b = Pool("pool-b", 2, lease, logs)
        self.port, self.management_port, self._nobody = lease.take(), lease.take(), lease.take()
        self.view_log = logs / "coordinator-view.jsonl"
        self.http = httpx.AsyncClient(timeout=5.0, trust_env=False)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._waiting: list[asyncio.Task[None]] = []
        self._left: tuple[str, ...] | None = None

    @property
    def pools(self) -> tuple[Pool, Pool]:
        return self.pool_a, self.pool_b

    @property
    def url(self) -> str:
        return f"http://{_COORDINATOR_IP}:{self.port}"

    @property
    def management_url(self) -> str:
        return f"http://{_COORDINATOR_IP}:{self.management_port}"

    async def start(self, column: Column, clock: Clock) -> None:
        """Everything up, nobody routed to yet. Raises `Transient` when it does not come up in time."""
        for pool in self.pools:
            pool.logs.mkdir(parents=True)
            process = self._spawn(pool.name, pool.command(column, clock))
            self._waiting.append(asyncio.create_task(_note_end(pool, process)))
        coordinator = [sys.executable, "-m", "coordinator", "--host", _COORDINATOR_IP, "--port", str(self.port)]
        coordinator += ["--management-port", str(self.management_port), "--view-log", str(self.view_log)]
        coordinator += ["--controller-url", f"http://{_COORDINATOR_IP}:{self._nobody}"]
        self._spawn("coordinator", coordinator)
        for url in (*(f"{pool.url}/ready" for pool in self.pools), f"{self.management_url}/instances"):
            await self._until_answers(url)

    async def set_view(self, served: Mapping[str, Sequence[int]]) -> None:
        """The whole view, by pool name, and its acknowledgement. Raises `Transient`."""
        body = RefreshRequest(event=RefreshEvent.SET, instances=tuple(pool.view(served[pool.name]) for pool in self.pools))
        try:
            reply = await self.http.post(self.management_url + REFRESH_PATH, json=body.model_dump(exclude_none=True))
        except httpx.TransportError as error:
            raise Transient(f"the Coordinator took no view: {error}") from None
        if reply.status_code != 200:
            raise Transient(f"the Coordinator took no view: HTTP {reply.status_code} {reply.text[:200]}")

    async def probe(self, pool: Pool, path: str) -> int | None:
        """What a probe of the pool's supervisor answers; None where nobody does."""
        try:
            return (await self.http.get(pool.url + path)).status_code
        except httpx.TransportError:
            return None

    async def until(self, what: str, condition: Callable[[], bool], within_sec: float) -> None:
        """Raises `Transient` naming `what` when it does not happen in time."""
        deadline = time.monotonic() + within_sec
        while not condition():
            if time.monotonic() >= deadline:
                raise Transient(f"not within {within_sec:g} s: {what}")
            await asyncio.sleep(_LOOK_PAUSE_SEC)

    async def stop(self) -> tuple[str, ...]:
        """Ends everything in order; what was left of it afterwards, ended too. Asked again, the same answer."""
        if self._left is not None:
            return self._left
        identities = [identity_of(process.pid) for process in self._processes]
        running = [identity for identity in identities if identity is not None]
        await asyncio.to_thread(stop_processes, running, grace_sec=_STOP_SEC)
        for process in self._processes:
            await asyncio.to_thread(process.wait)
        await asyncio.gather(*self._waiting)
        self._left = tuple(str(carrier) for carrier in carriers(self.run_id))
        await asyncio.to_thread(sweep, self.run_id)
        await self.http.aclose()
        return self._left

    async def _until_answers(self, url: str) -> None:
        deadline = time.monotonic() + _START_SEC
        while time.monotonic() < deadline:
            if any(pool.ended_at is not None for pool in self.pools):
                raise Transient("a supervisor ended before it was ready; its log says why")
            with contextlib.suppress(httpx.TransportError):
                if (await self.http.get(url)).status_code == 200:
                    return
            await asyncio.sleep(_LOOK_PAUSE_SEC)
        raise Transient(f"{url} did not answer within {_START_SEC:g} s")

    def _spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=base_environment(self.run_id, name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


@contextlib.asynccontextmanager
async def site(logs: Path) -> AsyncIterator[Site]:
    """An installation that does not outlive its block, nor this process, however that ends."""
    with PortLease() as lease:
        made = Site(logs, lease)
        watcher = _watch(made)
        try:
            yield made
        finally:
            await asyncio.shield(asyncio.ensure_future(made.stop()))
            watcher.kill()
            watcher.wait()


def _watch(made: Site) -> subprocess.Popen[bytes]:
    """Ends the installation when this process is killed. It carries no run id: it is no part of what it ends."""
    environment = {name: value for name, value in base_environment(made.run_id, "").items() if name != RUN_ID_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-m", "lab.stack.watcher", str(own_identity()), made.run_id],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _note_end(pool: Pool, process: subprocess.Popen[bytes]) -> None:
    code = await asyncio.to_thread(process.wait)
    pool.ended_at, pool.exit_code = time.monotonic(), code
