"""Engines brought up: started once behind a gate, or found again after a restart of the NodeManager, and known until they end.

An engine's identity is on disk before its command begins: it waits behind a gate (`engine.process`) until the journal has it,
so a NodeManager that was killed anywhere finds every engine that runs. **An engine is never started a second time by
itself**: what comes after a death is the Controller's decision.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

import httpx

from domain.messages.node_manager import StartRequest
from domain.topology import Endpoint
from engine.client import EngineClient
from engine.process import Loss, ProcessTree
from node_manager.config import EngineSpec, NodeManagerConfig
from node_manager.engines import Engines
from node_manager.journal import EngineRecord, Journal, JournalError
from node_manager.leftovers import end_tree
from node_manager.looks import Looks
from node_manager.managed_engine import ManagedEngine, compiled_title, own_endpoints, placeholder_values
from node_manager.orphans import owner_mark
from node_manager.poller import Poller
from node_manager.reporter import Reporter
from service.process_identity import ProcessIdentity, process_table

log = logging.getLogger(__name__)

_READY_CHECK_SEC: Final = 0.1
_HEALTH_TIMEOUT_SEC: Final = 2.0
_SCAN_STARTING_SEC: Final = 0.2
_SCAN_RUNNING_SEC: Final = 1.0


class Launcher:
    """Brings engines up and tells of their ends. `background`: runs what nobody waits for; `guard_live`: a round has the Pod."""

    def __init__(
        self,
        config: NodeManagerConfig,
        *,
        journal: Journal,
        engines: Engines,
        looks: Looks,
        reporter: Reporter,
        poller: Poller,
        engine_http: httpx.AsyncClient,
        background: Callable[[Coroutine[Any, Any, None]], object],
        guard_live: Callable[[], bool],
    ) -> None:
        self._config = config
        self._journal = journal
        self._engines = engines
        self._sightings = looks
        self._reporter = reporter
        self._poller = poller
        self._engine_http = engine_http
        self._background = background
        self._guard_live = guard_live
        self._worker_title = compiled_title(config.worker_title)

    async def watch(self) -> None:
        """Finds workers of engines, until cancelled."""
        while True:
            starting = any(not engine.ready and engine.loss is None for engine in self._engines.all())
            await asyncio.sleep(_SCAN_STARTING_SEC if starting else _SCAN_RUNNING_SEC)
            self._scan([engine for engine in self._engines.all() if engine.loss is None])

    def launch_missing(self) -> None:
        """Starts every rank that never had an engine under this start."""
        start = self._engines.start
        assert start is not None
        for local_index, endpoint in self._engines.missing:
            try:
                self._launch(start, endpoint, local_index)
            except OSError as error:
                log.error("engine cannot be started", extra={"rank": endpoint.id, "why": str(error)})

    def _launch(self, start: StartRequest, endpoint: Endpoint, local_index: int) -> None:
        spec = self.spec(start, endpoint, local_index)
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

    def adopt(self, record: EngineRecord) -> ManagedEngine:
        """The engine that a former life of this NodeManager launched. One that has no place any more is `stopping`."""
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
                return self._managed(record, self.spec(start, endpoint, local_index), tree, endpoint)
        leftover = self._managed(record, self._config.engine_for(record.rank) or _NO_SPEC, tree, None)
        leftover.stopping = True
        return leftover

    def spec(self, start: StartRequest, endpoint: Endpoint, local_index: int) -> EngineSpec:
        """How the engine of this rank is started, with the start's values filled in."""
        spec = self._config.engine_for(endpoint.id) or _NO_SPEC
        return spec.filled_in(placeholder_values(start, endpoint, local_index, self._config.log_dir))

    async def until_ready(self, engine: ManagedEngine) -> None:
        """Until it answers, or must go, or its time is over: then it is ended, unless a round has the Pod."""
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
                await end_tree(engine)
                return
            await asyncio.sleep(_READY_CHECK_SEC)

    def _managed(self, record: EngineRecord, spec: EngineSpec, tree: ProcessTree, endpoint: Endpoint | None) -> ManagedEngine:
        url = endpoint.url if endpoint else ""
        client = EngineClient(record.rank, url, self._engine_http, api_key=spec.api_key)
        return ManagedEngine(rank=record.rank, spec=spec, tree=tree, client=client, record=record)

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
            self._background(end_tree(engine))

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


_NO_SPEC: Final = EngineSpec(command=("false",))
"""For an engine that a former configuration described: enough to end it."""
