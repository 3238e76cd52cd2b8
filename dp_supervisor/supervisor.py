"""The supervisor's life: start all, wait until all are ready, sweep until a rule or a signal says stop, stop all.

What a sweep means is decided in `dp_supervisor.rules`; here it is made to happen. A server that exits is known at once
from the kernel. Under the stock rules that ends the pause between two sweeps; under the fault-tolerant ones the next
sweep is early enough, and only what the dead server left behind is ended right away.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import httpx

from domain.errors import ConfigError
from dp_supervisor.options import Options
from dp_supervisor.rank_server import RankServer
from dp_supervisor.rules import Rules, ServerState, Standing, Stop, StopReason, after_sweep, before_ready
from dp_supervisor.server_command import plan_servers
from engine.client import EngineClient
from service.process_identity import process_table
from service.stop import Stopped, unless_stopped

log = logging.getLogger(__name__)

KILL_AFTER_SEC: Final = 5.0
"""After `shutdown_timeout`: what still runs is killed, as vLLM's supervisor does."""

_STARTING_SWEEP_SEC: Final = 1.0


class DpSupervisor:
    """One Pod's servers. `ready` and `healthy` are what its HTTP answers; `stopped_for` the rule that ended it, if one did."""

    def __init__(self, options: Options, http: httpx.AsyncClient) -> None:
        """Plans only; `run` starts. Raises `ConfigError` where the plan cannot be."""
        self.options = options
        self.servers: tuple[RankServer, ...] = ()
        self.group_ready = asyncio.Event()
        self._http = http
        self._plans = plan_servers(options)
        self._standing = Standing(ready=False)
        self._stopping = False
        self._exit_seen = asyncio.Event()
        self._cleaning: set[asyncio.Task[bool]] = set()

    @property
    def ready(self) -> bool:
        """Whether requests should come here."""
        return self._standing.ready and not self._stopping

    @property
    def healthy(self) -> bool:
        """Whether this Pod is alive: from the first readiness until everything is being stopped."""
        return self.group_ready.is_set() and not self._stopping

    @property
    def standing(self) -> Standing:
        return self._standing

    @property
    def stopped_for(self) -> Stop | None:
        return self._standing.stop

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set or a rule ends it; nothing of the servers is left then. Raises `ConfigError`."""
        try:
            with contextlib.suppress(Stopped):
                await unless_stopped(self._live(), stop)
        finally:
            await self._end_all()

    async def _live(self) -> None:
        self._start_all()
        failure = await self._until_ready()
        if failure is not None:
            self._standing = Standing(ready=False, stop=failure)
            return
        self._standing = Standing()
        self.group_ready.set()
        log.info("group ready", extra={"ranks": [server.rank for server in self.servers], "rules": self.options.rules})
        while self._standing.stop is None:
            await self._sweep()
            if self._standing.stop is None:
                await self._pause()

    def _start_all(self) -> None:
        log_dir = self.options.log_dir
        try:
            if log_dir is not None:
                log_dir.mkdir(parents=True, exist_ok=True)
            api_key = self.options.api_key or os.environ.get("VLLM_API_KEY")
            for plan in self._plans:
                client = EngineClient(plan.rank, plan.url, self._http, api_key=api_key)
                self.servers += (RankServer(plan, client, log_dir=log_dir, on_exit=self._on_exit),)
        except OSError as error:
            raise ConfigError(f"the servers cannot be started: {error}") from None

    async def _until_ready(self) -> Stop | None:
        """All answered `/health` with 200: None. Else why that will not be."""
        deadline = time.monotonic() + self.options.startup_timeout_s
        pause_sec = min(_STARTING_SWEEP_SEC, self.options.dp_supervisor_probe_interval_s)
        while True:
            looks = await self._look(Rules.STOCK)
            if (stop := before_ready(looks)) is not None:
                return stop
            missing = tuple(rank for rank, look in looks.items() if look is not ServerState.HEALTHY)
            if not missing:
                return None
            if time.monotonic() >= deadline:
                return Stop(reason=StopReason.NOT_READY_IN_TIME, ranks=missing)
            await self._wait_for_exit(pause_sec)

    async def _sweep(self) -> None:
        before = self._standing
        looks = await self._look(self.options.rules)
        self._standing = after_sweep(self.options.rules, before, looks, self.options.dp_supervisor_probe_failure_threshold)
        self._tell_changes(before, self._standing)

    async def _look(self, rules: Rules) -> Mapping[int, ServerState]:
        self._look_at_processes()
        timeout_sec = self.options.dp_supervisor_probe_timeout_s
        looks = await asyncio.gather(*(server.look_by(rules, timeout_sec) for server in self.servers))
        return {server.rank: look for server, look in zip(self.servers, looks, strict=True)}

    def _look_at_processes(self) -> None:
        """Finds the servers' workers, and collects ended processes that became ours because their parent ended.

        The latter is what PID 1 of a Pod is for; nobody else does it.
        """
        table = process_table()
        for server in self.servers:
            server.find_workers(table)
        own = {server.pid for server in self.servers}
        for stat in table.values():
            if stat.parent == os.getpid() and stat.ended and stat.pid not in own:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(stat.pid, os.WNOHANG)

    async def _pause(self) -> None:
        interval_sec = self.options.dp_supervisor_probe_interval_s
        if self.options.rules is Rules.STOCK:
            await self._wait_for_exit(interval_sec)
        else:
            await asyncio.sleep(interval_sec)

    async def _wait_for_exit(self, limit_sec: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_sec):  # wait_for would swallow a cancel that meets the exit
                await self._exit_seen.wait()

    def _tell_changes(self, before: Standing, now: Standing) -> None:
        for rank in sorted(set(now.removed) - set(before.removed)):
            log.warning("keeps serving, a server exited", extra={"rank": rank, "removed": now.removed})
        if now.ready != before.ready:
            log.log(logging.INFO if now.ready else logging.WARNING, "readiness", extra={"ready": now.ready})
        if now.idle_sweeps:
            limit = self.options.dp_supervisor_probe_failure_threshold
            log.warning("no rank serves or recovers", extra={"sweeps": now.idle_sweeps, "limit": limit})

    def _on_exit(self, server: RankServer) -> None:
        self._exit_seen.set()
        if not self._stopping:
            self._run(server.end(KILL_AFTER_SEC))  # workers that outlived it only hold devices

    def _run(self, work: Coroutine[Any, Any, bool]) -> None:
        task = asyncio.create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def _end_all(self) -> None:
        self._stopping = True
        stop = self._standing.stop
        if stop is not None:
            log.error("stops everything", extra={"reason": stop.reason, "ranks": stop.ranks, "why": self.explanation()})
        log.info("ending the servers", extra={"ranks": [server.rank for server in self.servers]})
        self._look_at_processes()
        grace_sec = self.options.shutdown_timeout + KILL_AFTER_SEC
        await asyncio.gather(*(server.end(grace_sec) for server in self.servers), *self._cleaning)
        for server in self.servers:
            server.close()

    def explanation(self) -> str:
        """What was last seen of the ranks that the stop is about, in words."""
        about = self.stopped_for.ranks if self.stopped_for is not None else ()
        return "; ".join(f"rank {server.rank}: {server.why or server.look}" for server in self.servers if server.rank in about)
