"""Engines' lives: started once, found again after a restart of the NodeManager, ended as whole trees.

The journal leads. A start command is on disk before anything happens because of it; an engine's identity is on disk
before its command begins (it waits behind a gate, see `engine.process`); an engine that must go is marked `leftover`
before it gets a signal. So a NodeManager that was killed anywhere goes on from the journal: it adopts what runs,
reports what ended meanwhile, ends leftovers, and starts only ranks that never had an engine under this start. **An
engine is never started a second time by itself**: what comes after a death is the Controller's decision.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Final

import httpx

from domain.errors import AutotomyError
from domain.messages.node_manager import NodeManagerReason, StartReply, StartRequest
from domain.pod.fence import Refusal, after_start, old_generation, other_instance, raised
from domain.topology import Endpoint
from engine.client import EngineClient
from engine.process import Loss, ProcessTree
from node_manager.config import EngineSpec, NodeManagerConfig
from node_manager.engines import Engines
from node_manager.journal import EngineRecord, Journal, JournalError
from node_manager.managed_engine import ManagedEngine, compiled_title, is_mine, own_endpoints, placeholder_values
from node_manager.orphans import orphaned_engines, owner_mark
from node_manager.poller import Poller
from node_manager.reporter import Reporter
from node_manager.sightings import Sightings
from node_manager.transactions import CommandRefused, Transactions
from service.failpoints import failpoint
from service.process_identity import ProcessIdentity, process_table

log = logging.getLogger(__name__)

_READY_CHECK_SEC: Final = 0.1
_HEALTH_TIMEOUT_SEC: Final = 2.0
_SCAN_STARTING_SEC: Final = 0.2
_SCAN_RUNNING_SEC: Final = 1.0


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
        sightings: Sightings,
        reporter: Reporter,
        poller: Poller,
        engine_http: httpx.AsyncClient,
    ) -> None:
        self._config = config
        self._incarnation = incarnation
        self._journal = journal
        self._engines = engines
        self._transactions = transactions
        self._sightings = sightings
        self._reporter = reporter
        self._poller = poller
        self._engine_http = engine_http
        self._worker_title = compiled_title(config.worker_title)
        self._leftovers: list[ManagedEngine] = []
        self._clean = asyncio.Event()
        self._clean.set()
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
            engine = self._adopt(record)
            if record.leftover or engine is None:
                continue
            self._engines.add(engine)
            log.info("engine adopted", extra={"rank": record.rank, "identity": record.identity})
        self._go_on(launch=start is not None)

    async def until_clean(self) -> None:
        """Until no engine is left that must go; each is bounded by its stop grace."""
        await self._clean.wait()

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
        self._journal.commit(standing=new, start=request, transactions=voided, engines=self._as_leftovers())
        self._engines.assign(request, new.retired)
        self._set_aside()
        log.info("start", extra={"instance": request.instance_id, "generation": request.generation, "ranks": self._engines.ranks})
        if not self._leftovers:
            self._launch_missing()
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
        self._journal.commit(standing=raised(standing, generation), engines=self._as_leftovers())
        self._set_aside()
        log.info("engines restart", extra={"ranks": self._engines.ranks})
        self._go_on(launch=True)

    def abort_restart(self) -> bool:
        """Gives up on starting engines where old ones are still being stopped. False if nothing is under way."""
        if not self._leftovers:
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
            return not self._leftovers
        self._journal.commit(standing=raised(standing, generation), forget_start=True, engines=self._as_leftovers())
        self._set_aside()
        self._engines.assign(None, standing.retired)
        log.info("engines stop", extra={"generation": generation, "engines": len(self._leftovers)})
        self._go_on(launch=False)
        return not self._leftovers

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
            self._journal.commit(standing=raised(standing, generation), forget_start=True, engines=self._as_leftovers())
        self.stopping = True
        self._set_aside()
        self._engines.assign(None, self._journal.standing.retired if self._journal.broken is None else ())
        log.info("stop", extra={"generation": generation, "engines": len(self._leftovers)})
        self._go_on(launch=False)
        self._run(self._exit_when_done())

    async def run(self) -> None:
        """Finds workers of engines, until cancelled."""
        while True:
            starting = any(not engine.ready and engine.loss is None for engine in self._engines.all())
            await asyncio.sleep(_SCAN_STARTING_SEC if starting else _SCAN_RUNNING_SEC)
            self._scan([engine for engine in self._engines.all() if engine.loss is None])

    async def close(self, *, end_engines: bool) -> None:
        """The end of this process: a Pod that is terminated takes its engines along, bounded by their stop grace.

        Their records stay: if this NodeManager comes back, it reports them as gone.
        """
        await self._cancel([self._transition] if self._transition else [])
        everything = [*self._engines.all(), *self._leftovers]
        if end_engines:
            for engine in everything:
                engine.stopping = True
            await asyncio.gather(*(engine.tree.terminate(engine.spec.stop_grace_sec) for engine in everything))
        await self._cancel(list(self._tasks))
        for engine in everything:
            engine.tree.close()

    # --- one engine ---------------------------------------------------------------------------------------------

    def _launch_missing(self) -> None:
        start = self._engines.start
        assert start is not None
        for local_index, endpoint in self._engines.missing:
            try:
                self._launch(start, endpoint, local_index)
            except OSError as error:
                log.error("engine cannot be started", extra={"rank": endpoint.id, "why": str(error)})

    def _launch(self, start: StartRequest, endpoint: Endpoint, local_index: int) -> None:
        spec = self._spec(start, endpoint, local_index)
        tree = ProcessTree.launch(
            spec.command,
            environment={
                **os.environ,
                **spec.environment,
                **owner_mark(self._config.pod_ip, self._config.port, endpoint.id),
            },
            log_path=self._config.log_dir / f"engine-{endpoint.id}.log",
            on_loss=partial(self._on_loss, endpoint.id),
            on_root_end=partial(self._on_root_end, endpoint.id),
            worker_title=self._worker_title,
        )
        record = EngineRecord(identity=str(tree.root), rank=endpoint.id, generation=start.generation)
        try:
            self._journal.commit(engines=[record])
        except JournalError:
            tree.close()  # the gate closes: the engine never runs
            raise
        self._engines.add(self._managed(record, spec, tree, endpoint))
        tree.release()
        log.info("engine started", extra={"rank": endpoint.id, "identity": record.identity, "command": " ".join(spec.command)})

    def _adopt(self, record: EngineRecord) -> ManagedEngine | None:
        start = self._journal.start
        endpoints = own_endpoints(start.endpoints, self._config.pod_ip, self._config.port) if start else ()
        tree = ProcessTree.adopt(
            ProcessIdentity.parse(record.identity),
            [ProcessIdentity.parse(worker) for worker in record.workers],
            on_loss=partial(self._on_loss, record.rank),
            on_root_end=partial(self._on_root_end, record.rank),
            worker_title=self._worker_title,
        )
        for local_index, endpoint in enumerate(endpoints):
            if endpoint.id == record.rank and start is not None and not record.leftover:
                return self._managed(record, self._spec(start, endpoint, local_index), tree, endpoint)
        leftover = self._managed(record, self._config.engine_for(record.rank) or _NO_SPEC, tree, None)
        leftover.stopping = True
        self._must_go(leftover)
        return None

    def _take_in_orphans(self) -> None:
        """Engines of a former life whose journal is gone are ended. Raises `JournalError`."""
        orphans = () if self._journal.engines else orphaned_engines(self._config.pod_ip, self._config.port)
        if orphans:
            told = {"ranks": [record.rank for record in orphans], "identities": [record.identity for record in orphans]}
            log.error("the journal is gone and engines run: nobody knows what they were told, so they are ended", extra=told)
            self._journal.commit(engines=orphans)

    def _managed(self, record: EngineRecord, spec: EngineSpec, tree: ProcessTree, endpoint: Endpoint | None) -> ManagedEngine:
        url = f"http://{endpoint.ip}:{endpoint.business_port}" if endpoint else ""
        client = EngineClient(record.rank, url, self._engine_http, api_key=spec.api_key)
        return ManagedEngine(rank=record.rank, spec=spec, tree=tree, client=client, record=record)

    def _spec(self, start: StartRequest, endpoint: Endpoint, local_index: int) -> EngineSpec:
        spec = self._config.engine_for(endpoint.id) or _NO_SPEC
        return spec.filled_in(placeholder_values(start, endpoint, local_index, self._config.log_dir))

    def _on_loss(self, rank: int, loss: Loss) -> None:
        """From the kernel: this engine's first process has ended."""
        engine = self._engines.get(rank)
        if engine is None or engine.loss is not loss or engine.stopping:
            return
        if self._engines.is_retired(rank):
            log.info("retired engine's process ended", extra={"rank": rank, "what": str(loss)})
        else:
            log.warning("engine process ended", extra={"rank": rank, "what": str(loss)})
            self._sightings.process_ended(engine)
            self._reporter.flush()

    def _on_root_end(self, rank: int, root: ProcessIdentity) -> None:
        """From the kernel: the API server has ended. Workers that outlived it only hold devices."""
        engine = self._engines.get(rank)
        if engine is not None and engine.tree.root == root and not engine.stopping:
            self._run(self._end_tree(engine))

    async def _end_tree(self, engine: ManagedEngine) -> None:
        if not await engine.tree.terminate(engine.spec.stop_grace_sec):
            log.error("engine cannot be ended", extra={"rank": engine.rank, "identity": engine.incarnation})

    async def _until_ready(self, engine: ManagedEngine) -> None:
        deadline = time.monotonic() + engine.spec.ready_timeout_sec
        while engine.loss is None and not engine.stopping:
            if await engine.client.healthy(_HEALTH_TIMEOUT_SEC):
                self._scan([engine])
                self._remember(engine, ready=True)
                log.info("engine ready", extra={"rank": engine.rank, "workers": len(engine.record.workers)})
                self._poller.wake()
                return
            if time.monotonic() >= deadline and not self._guard_live():
                log.error("engine not ready in time, stopped", extra={"rank": engine.rank, "sec": engine.spec.ready_timeout_sec})
                await self._end_tree(engine)
                return
            await asyncio.sleep(_READY_CHECK_SEC)

    def _scan(self, engines: Iterable[ManagedEngine]) -> None:
        engines = list(engines)
        if not engines:
            return
        table = process_table()
        for engine in engines:
            if engine.tree.rescan(table):
                self._remember(engine, workers=tuple(str(worker) for worker in engine.tree.workers))

    def _remember(self, engine: ManagedEngine, **update: object) -> None:
        engine.record = engine.record.model_copy(update=update)
        try:
            self._journal.commit(engines=[engine.record])
        except JournalError as error:
            log.error("engine goes on unrecorded", extra={"rank": engine.rank, "why": error.message})

    # --- all of them --------------------------------------------------------------------------------------------

    def _go_on(self, *, launch: bool) -> None:
        """Replaces what is under way: end leftovers, then (`launch`) start what is missing and wait until it is ready."""
        before, self._transition = self._transition, self._run(self._bring_about(self._transition, launch=launch))
        if before is not None:
            before.cancel()

    async def _bring_about(self, before: asyncio.Task[None] | None, *, launch: bool) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._end_leftovers()
        if launch:
            await failpoint("node-manager.before-launch")
            self._launch_missing()
            await asyncio.gather(*(self._until_ready(engine) for engine in self._engines.all() if not engine.ready))

    async def _end_leftovers(self) -> None:
        await asyncio.gather(*(self._end(engine) for engine in list(self._leftovers)))

    async def _end(self, engine: ManagedEngine) -> None:
        await self._end_tree(engine)
        engine.tree.close()
        self._leftovers.remove(engine)
        if not self._leftovers:
            self._clean.set()
        try:
            self._journal.commit(gone=[engine.incarnation])
        except JournalError as error:
            log.error("engine ended unrecorded", extra={"rank": engine.rank, "why": error.message})

    async def _exit_when_done(self) -> None:
        if self._transition is not None:
            await asyncio.wait([self._transition])
        self.exit_wanted.set()

    def _as_leftovers(self) -> list[EngineRecord]:
        return [engine.record.model_copy(update={"leftover": True}) for engine in self._engines.all()]

    def _set_aside(self) -> None:
        for engine in self._engines.take_all():
            engine.record = engine.record.model_copy(update={"leftover": True})
            self._must_go(engine)

    def _must_go(self, engine: ManagedEngine) -> None:
        self._leftovers.append(engine)
        self._clean.clear()

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
            program = self._spec(request, endpoint, local_index).command[0]
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


_NO_SPEC: Final = EngineSpec(command=("false",))
"""For an engine that a former configuration described: enough to end it."""
