"""A local installation in the hands of a drill, a test, a benchmark or the command line.

    async with Stack.running(StackSpec()) as stack:
        await stack.kill("worker-0", signal.SIGKILL, restart_after_sec=2.0)
        os.kill(stack.engine_worker_pid(1), signal.SIGKILL)
        ...
    # here nothing of it runs any more; if this process had been killed, the supervisor would have seen to that

`running` starts and stops it; `launch` starts one that outlives this process (unless it is told an owner); `attach`
finds one by its run directory. What this object knows, it reads from the run directory and from /proc: it holds no
connection, and any number of them may look at one installation.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

import httpx

from domain.errors import ConfigError, Refused, Transient
from domain.model import Strict
from domain.topology import Topology
from lab.stack import control
from lab.stack.errors import NoStack
from lab.stack.launch import OnEvent, prepare, prepare_to_resume, read_events, resumable, spawn_supervisor, until_ready
from lab.stack.lost import DownReport, refuse_if_lost
from lab.stack.processes import Carrier, carriers, sweep
from lab.stack.readiness import published_ranks
from lab.stack.record import (
    EnginePlace,
    NodeManagerRecord,
    ProcessRecord,
    StackAddresses,
    StackEvent,
    StackRecord,
    StackState,
)
from lab.stack.run_dir import LaunchOrder, RunDir
from lab.stack.spec import StackSpec
from lab.stack.waiting import until_gone
from service.process_identity import ProcessIdentity, identity_of, is_running, own_identity, signal_process

_LOOK_PAUSE_SEC: Final = 0.05
_SUPERVISOR_SPEAKS_SEC: Final = 15.0
_DOWN_LIMIT_SEC: Final = 25.0
_SIMULATOR_WORKER: Final = "autotomy-sim-worker"


class EngineProcesses(Strict):
    """A rank's engine: its API server and its worker, None where that does not run."""

    rank: int
    url: str
    api_pid: int | None
    worker_pid: int | None


class Stack:
    """One installation, running or not any more."""

    def __init__(self, run_dir: RunDir, order: LaunchOrder, *, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.run_dir = run_dir
        self.spec = order.spec
        self.run_id = order.run_id
        self._popen = popen
        self._down: DownReport | None = None

    # --- start and find ------------------------------------------------------------------------------------------

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, spec: StackSpec, *, run_dir: Path | None = None, on_event: OnEvent | None = None
    ) -> AsyncIterator["Stack"]:
        """An installation that serves, for as long as the context lasts, and never longer than this process.

        Without `run_dir` it lives in a temporary directory, which is removed afterwards. `on_event` is told how the
        start goes on. Raises StartFailed, RunDirInUse, ConfigError; then nothing is left running.
        """
        directory = run_dir or Path(tempfile.mkdtemp(prefix="autotomy-"))
        try:
            stack = await cls.launch(spec, directory, owner=own_identity(), ephemeral=run_dir is None, on_event=on_event)
            try:
                yield stack
            finally:
                await asyncio.shield(asyncio.ensure_future(stack.down()))
        finally:
            if run_dir is None:
                shutil.rmtree(directory, ignore_errors=True)

    @classmethod
    async def launch(
        cls,
        spec: StackSpec,
        run_dir: Path,
        *,
        owner: ProcessIdentity | None = None,
        ephemeral: bool = False,
        on_event: OnEvent | None = None,
    ) -> "Stack":
        """Start a supervisor in `run_dir` and return when the installation serves.

        It lives until `down`; with an `owner`, no longer than that process. Cancelled or failed, everything is stopped
        again. Raises StartFailed, RunDirInUse, ConfigError.
        """
        files = RunDir(run_dir)
        order = LaunchOrder(run_id=secrets.token_hex(8), spec=spec, ephemeral=ephemeral)
        lock = prepare(files, order)
        try:
            popen = spawn_supervisor(files, order.run_id, owner, lock)
        finally:
            os.close(lock)
        return await cls._ready(files, order, popen, on_event)

    @classmethod
    async def resume(
        cls, order: LaunchOrder, run_dir: Path, *, owner: ProcessIdentity | None = None, on_event: OnEvent | None = None
    ) -> "Stack":
        """Go on with what ended without being told to, or was kept (`lab.stack.launch.resumable` gives the order).

        The same addresses, databases and journals; engines that still run are taken over. Returns when every process
        answers; whether the instance serves is then what recovery sees to. Raises as `launch`.
        """
        files = RunDir(run_dir)
        lock = prepare_to_resume(files, order)
        try:
            popen = spawn_supervisor(files, order.run_id, owner, lock)
        finally:
            os.close(lock)
        return await cls._ready(files, order, popen, on_event)

    @classmethod
    async def _ready(cls, files: RunDir, order: LaunchOrder, popen: subprocess.Popen[bytes], on_event: OnEvent | None) -> "Stack":
        stack = cls(files, order, popen=popen)
        try:
            await until_ready(popen, files, order, on_event)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(stack.down()))
            raise
        return stack

    @classmethod
    def attach(cls, run_dir: Path) -> "Stack":
        """The installation that runs in `run_dir`. Raises NoStack, which says whether one was there before.

        Raises RecordLost when one runs whose files are missing or garbled.
        """
        files = RunDir(run_dir)
        try:
            record = files.read_record()
        except ConfigError:
            refuse_if_lost(files)
            raise
        if record is None:
            refuse_if_lost(files)
            raise NoStack(f"no stack runs in {run_dir}; start one with `autotomy up`")
        if not is_running(record.supervisor):
            left = len(carriers(record.run_id))
            what = f"{left} processes of it are left; `autotomy down` stops them" if left else "nothing of it is left"
            next_up = "resumes it" if resumable(files) is not None else "starts a new one"
            raise NoStack(f"the stack in {run_dir} is {_gone_because(record)}; {what}; `autotomy up` {next_up}")
        try:
            return cls(files, files.read_order())
        except ConfigError:
            refuse_if_lost(files)
            raise

    # --- look ----------------------------------------------------------------------------------------------------

    @property
    def record(self) -> StackRecord:
        """`stack.json` as it is now."""
        record = self.run_dir.read_record()
        if record is None or record.run_id != self.run_id:
            raise NoStack(f"the stack {self.run_id} has written nothing in {self.run_dir} yet")
        return record

    @property
    def addresses(self) -> StackAddresses:
        """Where everything listens; fixed while the stack lives."""
        addresses = self.record.addresses
        if addresses is None:
            raise NoStack(f"the stack in {self.run_dir} has no addresses yet")
        return addresses

    @property
    def topology(self) -> Topology:
        """What was declared to the Controller."""
        topology = self.record.topology
        if topology is None:
            raise NoStack(f"the stack in {self.run_dir} has no topology yet")
        return topology

    @property
    def logs(self) -> Path:
        return self.run_dir.logs

    def process(self, name: str) -> ProcessRecord:
        """One supervised process. Raises KeyError."""
        for process in self.record.processes:
            if process.name == name:
                return process
        raise KeyError(name)

    def events(self) -> list[StackEvent]:
        """What happened since the start: starts, exits, restarts, signals."""
        return read_events(self.run_dir.events_file)

    def engine(self, rank: int) -> EnginePlace:
        """Where a rank's engine listens. Raises KeyError."""
        for engine in self.addresses.engines:
            if engine.rank == rank:
                return engine
        raise KeyError(rank)

    def node_manager_of(self, rank: int) -> NodeManagerRecord:
        """The NodeManager of a rank. Raises KeyError."""
        for manager in self.addresses.node_managers:
            if rank in manager.ranks:
                return manager
        raise KeyError(rank)

    def engine_logs(self, rank: int) -> list[Path]:
        """The engines' own logs of a rank, one file a life, oldest first."""
        return sorted(Path(self.engine(rank).log_dir).glob(f"engine-{rank}-*.jsonl"), key=_began_at)

    def engine_processes(self, rank: int) -> list[Carrier]:
        """All processes of a rank's engine that run now."""
        name = self.engine(rank).name
        return [carrier for carrier in carriers(self.run_id) if carrier.process == name]

    def engine_api_pid(self, rank: int) -> int:
        """The API server of a rank's engine. Raises ProcessLookupError when it does not run."""
        return self._engine_pid(rank, worker=False)

    def engine_worker_pid(self, rank: int) -> int:
        """The worker of a rank's engine, the one that holds the accelerator. Raises ProcessLookupError."""
        return self._engine_pid(rank, worker=True)

    def engines(self) -> list[EngineProcesses]:
        """The processes of all ranks' engines as they are now."""
        running = carriers(self.run_id)
        return [
            EngineProcesses(
                rank=engine.rank,
                url=engine.url,
                api_pid=_engine_pid(running, engine.name, worker=False),
                worker_pid=_engine_pid(running, engine.name, worker=True),
            )
            for engine in self.addresses.engines
        ]

    def _engine_pid(self, rank: int, *, worker: bool) -> int:
        pid = _engine_pid(self.engine_processes(rank), self.engine(rank).name, worker=worker)
        if pid is not None:
            return pid
        raise ProcessLookupError(f"engine {rank} has no {'worker' if worker else 'API server'} process now")

    def workflow_url(self, workflow_id: str) -> str | None:
        """The Web UI's page of a workflow."""
        return self.addresses.workflow_url(workflow_id)

    def non_default_timers(self) -> dict[str, float]:
        """Durations that differ from production defaults, for reports."""
        return self.spec.non_default_timers()

    async def published_ranks(self, coordinator: int = 0) -> list[int] | None:
        """What a Coordinator routes to for the instance, now; None when it does not know it or does not answer."""
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            url = self.addresses.coordinators[coordinator].management_url
            return await published_ranks(http, url, self.spec.instance_id)

    async def until_published(self, ranks: Sequence[int], within_sec: float) -> None:
        """Return when the first Coordinator routes to exactly `ranks`. Raises Transient when it does not in time."""
        deadline = time.monotonic() + within_sec
        while (now := await self.published_ranks()) != sorted(ranks):
            if time.monotonic() >= deadline:
                raise Transient(f"the Coordinator publishes {now} after {within_sec:g} s, not {sorted(ranks)}")
            await asyncio.sleep(_LOOK_PAUSE_SEC)

    # --- act -----------------------------------------------------------------------------------------------------

    async def kill(
        self,
        name: str,
        number: signal.Signals = signal.SIGKILL,
        *,
        restart_after_sec: float | None = None,
        hold: bool = False,
    ) -> int:
        """Signal a supervised process and return the pid that got it.

        It comes back as Kubernetes would bring it, or after `restart_after_sec`, or with `hold` only after `release`.
        Raises ControlRefused (unknown name, does not run now), SupervisorUnreachable.
        """
        command = control.Kill(name=name, signal=number.name, restart_after_sec=restart_after_sec, hold=hold)
        reply = await control.ask(self.run_dir.path, command)
        assert reply.pid is not None
        return reply.pid

    async def hold(self, name: str) -> None:
        """Do not bring this process back once it has ended. Raises as `kill`."""
        await control.ask(self.run_dir.path, control.Hold(name=name))

    async def release(self, name: str) -> None:
        """Bring it back, at once if it is away. Raises as `kill`."""
        await control.ask(self.run_dir.path, control.Release(name=name))

    async def down(self, *, keep: bool = False) -> DownReport:
        """Stop everything, whatever state it is in; again: the same report. `keep`: it can be resumed."""
        if self._down is None:
            began_at = time.monotonic()
            clean = await self._supervisor_down()
            orphans = await asyncio.to_thread(sweep, self.run_id)
            took_sec = round(time.monotonic() - began_at, 3)
            self._down = DownReport(orphans=tuple(map(str, orphans)), clean=clean, took_sec=took_sec)
            if keep:
                self.run_dir.kept_file.touch()
        return self._down

    async def _supervisor_down(self) -> bool:
        """Ask it, wait for its end; False when it had to be killed or was gone before."""
        identity = self._supervisor()
        if identity is None or not is_running(identity):
            self._reap()
            return False
        with contextlib.suppress(control.SupervisorUnreachable, control.ControlRefused):
            await control.ask(self.run_dir.path, control.Down())
        signal_process(identity, signal.SIGTERM)  # it may not listen yet
        try:
            async with asyncio.timeout(_DOWN_LIMIT_SEC):
                await until_gone(identity)
            return True
        except TimeoutError:
            signal_process(identity, signal.SIGKILL)
            await until_gone(identity)
            return False
        finally:
            self._reap()

    def _supervisor(self) -> ProcessIdentity | None:
        if self._popen is not None:
            return None if self._popen.poll() is not None else identity_of(self._popen.pid)
        try:
            return self.record.supervisor
        except Refused:
            return None

    def _reap(self) -> None:
        if self._popen is not None:
            self._popen.wait()


def _gone_because(record: StackRecord) -> str:
    if record.state is StackState.STOPPED:
        return "stopped" if record.failure is None else f"stopped, because its start failed: {record.failure}"
    return "gone without having been stopped"


def _engine_pid(running: Iterable[Carrier], name: str, *, worker: bool) -> int | None:
    for carrier in running:
        if carrier.process == name and (_SIMULATOR_WORKER in carrier.command) is worker:
            return carrier.pid
    return None


def _began_at(engine_log: Path) -> float:
    """The first line's `mono`; a log without a line yet is the newest."""
    with engine_log.open(encoding="utf-8") as file:
        first = file.readline()
    return float(json.loads(first)["mono"]) if first.endswith("\n") else float("inf")
