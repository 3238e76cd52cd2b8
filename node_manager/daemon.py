"""The commands over engines' lives: start, restart, stop, and what a NodeManager that was killed goes on with.

The journal leads. A start command is on disk before anything happens because of it; an engine is on disk before it runs
(`launcher`), and marked before it is ended (`leftovers`). So a NodeManager that was killed anywhere goes on from the journal:
it adopts what runs, reports what ended meanwhile, ends leftovers, and starts only ranks that never had an engine under this
start.
"""

import asyncio
import logging
import shutil
from collections.abc import Coroutine
from typing import Any

import httpx

from domain.errors import AutotomyError
from domain.messages.node_manager import NodeManagerReason, StartReply, StartRequest
from domain.pod.fence import Refusal, after_start, old_generation, other_instance, raised
from node_manager.config import NodeManagerConfig
from node_manager.engines import Engines
from node_manager.journal import Journal, JournalError
from node_manager.launcher import Launcher
from node_manager.leftovers import Leftovers
from node_manager.looks import Looks
from node_manager.managed_engine import is_mine, own_endpoints
from node_manager.orphans import orphaned_engines
from node_manager.poller import Poller
from node_manager.reporter import Reporter
from node_manager.transactions import CommandRefused, Transactions
from service.failpoints import failpoint

log = logging.getLogger(__name__)


class Daemon:
    """Owns the process trees. `exit_wanted` is set when a stop command has been carried out."""

    def __init__(
        self,
        config: NodeManagerConfig,
        *,
        incarnation: str,
        journal: Journal,
        engines: Engines,
        transactions: Transactions,
        looks: Looks,
        reporter: Reporter,
        poller: Poller,
        engine_http: httpx.AsyncClient,
    ) -> None:
        self._config = config
        self._incarnation = incarnation
        self._journal = journal
        self._engines = engines
        self._transactions = transactions
        self._leftovers = Leftovers(journal, engines)
        self._launcher = Launcher(
            config,
            journal=journal,
            engines=engines,
            looks=looks,
            reporter=reporter,
            poller=poller,
            engine_http=engine_http,
            background=self._run,
            guard_live=self._guard_live,
        )
        self._transition: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False
        self.exit_wanted = asyncio.Event()

    def recover(self) -> None:
        """Goes on from the journal after a start of this process. Raises `JournalError`."""
        start, standing = self._journal.start, self._journal.standing
        self._engines.assign(start, standing.retired)
        self._take_in_orphans()
        for record in self._journal.engines:
            engine = self._launcher.adopt(record)
            if engine.stopping:
                self._leftovers.add(engine)
                continue
            self._engines.add(engine)
            log.info("engine adopted", extra={"rank": record.rank, "identity": record.identity})
        self._go_on(launch=start is not None)

    async def until_clean(self) -> None:
        """Until no engine is left that must go; each is bounded by its stop grace."""
        await self._leftovers.until_clean()

    def start(self, request: StartRequest) -> StartReply:
        """Takes a start command. Engines come up behind its answer. Raises `CommandRefused`, `JournalError`."""
        if self.stopping:
            raise CommandRefused(Refusal(NodeManagerReason.STOPPING, "this NodeManager is about to exit; start its next life"))
        standing, current = self._journal.standing, self._journal.start
        self._check_instance(request.instance_id)
        if (refusal := old_generation(request.generation, standing.highest_generation)) is not None:
            raise CommandRefused(refusal)
        if current is not None and (current.instance_id, current.generation) == (request.instance_id, request.generation):
            return self._start_reply(request, unchanged=True)
        self._check_startable(request)
        own = {endpoint.id for endpoint in own_endpoints(request.endpoints, self._config.pod_ip, self._config.port)}
        voided = self._transactions.voided_by_start(request.generation)
        new = after_start(standing, request.generation, own=own, dead_committed=request.dead_committed, voided=voided)
        new = new.model_copy(update={"pacing": request.fault_tolerance_config or standing.pacing})
        self._journal.commit(standing=new, start=request, transactions=voided, engines=self._leftovers.records())
        self._engines.assign(request, new.retired)
        self._leftovers.set_aside()
        log.info("start", extra={"instance": request.instance_id, "generation": request.generation, "ranks": self._engines.ranks})
        if not self._leftovers.engines:
            self._launcher.launch_missing()
        self._go_on(launch=True)
        return self._start_reply(request, unchanged=False)

    def restart_engines(self, generation: int | None, instance_id: int | None = None) -> None:
        """New engines under the same start. Raises `CommandRefused`, `JournalError`."""
        standing, start = self._journal.standing, self._journal.start
        self._check_instance(instance_id)
        if (refusal := old_generation(generation, standing.highest_generation)) is not None:
            raise CommandRefused(refusal)
        if start is None or self.stopping:
            raise CommandRefused(Refusal(NodeManagerReason.NOT_STARTED, "there is no start command to restart engines under"))
        if self._transactions.guard_live and standing.guard is not None:
            holder = standing.guard.request_id
            raise CommandRefused(Refusal(NodeManagerReason.GUARD_HELD, f"{holder} owns the Pod", holder=holder))
        self._journal.commit(standing=raised(standing, generation), engines=self._leftovers.records())
        self._leftovers.set_aside()
        log.info("engines restart", extra={"ranks": self._engines.ranks})
        self._go_on(launch=True)

    def abort_restart(self) -> bool:
        """Gives up on starting engines where old ones are still being stopped. False if nothing is under way."""
        if not self._leftovers.engines:
            return False
        self._go_on(launch=False)
        return True

    def stop_engines(self, generation: int | None, instance_id: int | None = None) -> bool:
        """Ends all engines, forgets the start, and waits for another one. True once they are gone.

        Repeated after the start of this generation it changes nothing: the engines that it meant are gone. Raises
        `CommandRefused`, `JournalError`.
        """
        if self.stopping:
            raise CommandRefused(Refusal(NodeManagerReason.STOPPING, "this NodeManager is about to exit; ask its next life"))
        standing, start = self._journal.standing, self._journal.start
        self._check_instance(instance_id)
        if (refusal := old_generation(generation, standing.highest_generation)) is not None:
            raise CommandRefused(refusal)
        if start is None or (generation is not None and start.generation >= generation):
            return not self._leftovers.engines
        self._journal.commit(standing=raised(standing, generation), forget_start=True, engines=self._leftovers.records())
        self._leftovers.set_aside()
        self._engines.assign(None, standing.retired)
        log.info("engines stop", extra={"generation": generation, "engines": len(self._leftovers.engines)})
        self._go_on(launch=False)
        return not self._leftovers.engines

    def stop(self, generation: int | None, instance_id: int | None = None) -> None:
        """Ends all engines, forgets the start, then sets `exit_wanted`. Raises `CommandRefused`.

        Also over a broken journal: what this process knows of is ended all the same.
        """
        if self.stopping:
            return
        self._check_instance(instance_id)
        if self._journal.broken is None:
            standing = self._journal.standing
            if (refusal := old_generation(generation, standing.highest_generation)) is not None:
                raise CommandRefused(refusal)
            self._journal.commit(standing=raised(standing, generation), forget_start=True, engines=self._leftovers.records())
        self.stopping = True
        self._leftovers.set_aside()
        self._engines.assign(None, self._journal.standing.retired if self._journal.broken is None else ())
        log.info("stop", extra={"generation": generation, "engines": len(self._leftovers.engines)})
        self._go_on(launch=False)
        self._run(self._exit_when_done())

    async def run(self) -> None:
        """Finds workers of engines, until cancelled."""
        await self._launcher.watch()

    async def close(self, *, end_engines: bool) -> None:
        """The end of this process: a Pod that is terminated takes its engines along, bounded by their stop grace.

        Their records stay: if this NodeManager comes back, it reports them as gone.
        """
        await self._cancel([self._transition] if self._transition else [])
        everything = [*self._engines.all(), *self._leftovers.engines]
        if end_engines:
            for engine in everything:
                engine.stopping = True
            await asyncio.gather(*(engine.tree.terminate(engine.spec.stop_grace_sec) for engine in everything))
        await self._cancel(list(self._tasks))
        for engine in everything:
            engine.tree.close()

    def _take_in_orphans(self) -> None:
        """Engines of a former life whose journal is gone are ended. Raises `JournalError`."""
        orphans = () if self._journal.engines else orphaned_engines(self._config.pod_ip, self._config.port)
        if orphans:
            told = {"ranks": [record.rank for record in orphans], "identities": [record.identity for record in orphans]}
            log.error("the journal is gone and engines run: nobody knows what they were told, so they are ended", extra=told)
            self._journal.commit(engines=orphans)

    def _go_on(self, *, launch: bool) -> None:
        """Replaces what is under way: end leftovers, then (`launch`) start what is missing and wait until it is ready."""
        before, self._transition = self._transition, self._run(self._bring_about(self._transition, launch=launch))
        if before is not None:
            before.cancel()

    async def _bring_about(self, before: asyncio.Task[None] | None, *, launch: bool) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._leftovers.end_all()
        if launch:
            await failpoint("node-manager.before-launch")
            self._launcher.launch_missing()
            await asyncio.gather(*(self._launcher.until_ready(engine) for engine in self._engines.all() if not engine.ready))

    async def _exit_when_done(self) -> None:
        if self._transition is not None:
            await asyncio.wait([self._transition])
        self.exit_wanted.set()

    def _check_instance(self, instance_id: int | None) -> None:
        """Whose engines run, or are about to, commands this Pod: until it was stopped, or all of them have ended."""
        start = self._engines.start
        runs = bool(self._engines.missing) or any(engine.loss is None for engine in self._engines.all())
        owner = start.instance_id if start is not None and runs else None
        if (refusal := other_instance(instance_id, owner)) is not None:
            raise CommandRefused(refusal)

    def _check_startable(self, request: StartRequest) -> None:
        own = own_endpoints(request.endpoints, self._config.pod_ip, self._config.port)
        if not is_mine(request, self._config.pod_ip, self._config.port):
            here = f"pod_ip {self._config.pod_ip}, port {self._config.port}"
            raise CommandRefused(Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"no endpoint of this start is here: {here}"))
        for local_index, endpoint in enumerate(own):
            if endpoint.id in request.dead_committed:
                continue
            if self._config.engine_for(endpoint.id) is None:
                why = f"the config file describes no engine for rank {endpoint.id}: add an entry to `engines`"
                raise CommandRefused(Refusal(NodeManagerReason.NO_ENGINE_COMMAND, why))
            program = self._launcher.spec(request, endpoint, local_index).command[0]
            if shutil.which(program) is None:
                why = f"engine {endpoint.id}: there is no program {program!r}"
                raise CommandRefused(Refusal(NodeManagerReason.NO_ENGINE_COMMAND, why))

    def _start_reply(self, request: StartRequest, *, unchanged: bool) -> StartReply:
        return StartReply(
            status="unchanged" if unchanged else "started",
            incarnation=self._incarnation,
            engines={str(engine.rank): engine.incarnation for engine in self._engines.all()},
        )

    def _guard_live(self) -> bool:
        try:
            return self._transactions.guard_live
        except JournalError:
            return False

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, AutotomyError):
            log.error("engines: gave up", extra={"why": error.message})
        else:
            log.error("engines: gave up by a bug", exc_info=error)

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
