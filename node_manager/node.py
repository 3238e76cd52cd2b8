"""The parts of a NodeManager, put together, and what they tell about themselves."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx
from prometheus_client import CollectorRegistry, Counter, Gauge

from domain.address import host_port
from domain.engine import EngineStatus, RankEntry
from domain.errors import ConfigError
from domain.messages.controller import HeartbeatRequest
from domain.messages.node_manager import FtPacing
from domain.messages.registration import HoldReason, RegisterReply, RegisterRequest
from node_manager.arbiter import Arbiter
from node_manager.boot_clock import Clock, boot_time
from node_manager.config import NodeManagerConfig
from node_manager.daemon import Daemon
from node_manager.engines import Engines
from node_manager.heartbeat import Heartbeat
from node_manager.journal import Journal, JournalError
from node_manager.looks import Looks
from node_manager.managed_engine import is_mine
from node_manager.poller import Poller
from node_manager.registration import Registration
from node_manager.reporter import Delivery, Reporter
from node_manager.transactions import Transactions
from service.loops import Renewed
from service.metrics import NAMESPACE, new_registry
from service.one_exchange import one_exchange_client
from service.process_identity import own_identity

log = logging.getLogger(__name__)


class NodeManager:
    """One life of a Pod's NodeManager: `incarnation` names it. `config.port` is the port that it really listens at."""

    def __init__(self, config: NodeManagerConfig, *, clock: Clock = boot_time) -> None:
        """Opens the journal. Raises `ConfigError` if another NodeManager has it, or if it is another Pod's."""
        self.config = config
        self.incarnation = str(own_identity())
        self.registry = new_registry()
        self.journal = Journal(config.journal)
        _check_that_it_is_ours(self.journal, config)
        self._controller_http = httpx.AsyncClient(trust_env=False, timeout=config.report_timeout_sec)
        self._engine_http = one_exchange_client()
        self.reporter = Reporter(
            http=self._controller_http,
            controller_url=config.controller_url,
            incarnation=self.incarnation,
            address=self._address,
            timeout_sec=config.report_timeout_sec,
            count=self._counting_reports(),
        )
        self.looks = Looks(
            next_sequence=self.journal.next_sequence,
            on_news=self._on_news,
            dead_after_poll_failures=config.dead_after_poll_failures,
        )
        self.engines = Engines(config, self.looks, self.reporter)
        self.transactions = Transactions(
            self.journal, self.engines, clock=clock, engine_recovery_timeout_sec=config.engine_recovery_timeout_sec
        )
        self.poller = Poller(
            looks=self.looks,
            engines=self.engines.polled,
            flush=self.reporter.flush,
            interval_sec=config.poll_interval_sec,
            timeout_sec=lambda: self.engines.engine_request_timeout_sec,
            on_bug=lambda rank, error: self.loops.note(f"looks at rank {rank}", error),
        )
        self.daemon = Daemon(
            config,
            incarnation=self.incarnation,
            journal=self.journal,
            engines=self.engines,
            transactions=self.transactions,
            looks=self.looks,
            reporter=self.reporter,
            poller=self.poller,
            engine_http=self._engine_http,
        )
        self.heartbeat = Heartbeat(
            http=self._controller_http,
            controller_url=config.controller_url,
            interval_sec=config.heartbeat_interval_sec,
            timeout_sec=config.report_timeout_sec,
            content=self._heartbeat_content,
            on_reply=lambda reply: self._learn(reply.generation, reply.dead_committed, reply.fault_tolerance_config),
            on_unknown=lambda: self.registration.again() if self.registration is not None else None,
        )
        self.registration = self._registering(config)
        self.loops = Renewed()
        self._arbiter = Arbiter(grace_sec=config.suicide_grace_sec, rounds=config.suicide_rounds)
        self._add_gauges(self.registry)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that goes on by itself. Leaving ends it; engines end with it unless `keep_engines` was configured."""
        if self.journal.broken is None:
            self.transactions.recover()
            self.daemon.recover()
            self.pace(self.journal.standing.pacing, reset_interval=True)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "looks at engines": self.poller.run,
            "reports to the Controller": self.reporter.run,
            "search for engines' workers": self.daemon.run,
        }
        if self.registration is not None:
            loops["registration"] = partial(self._register, self.registration)
        if self.config.heartbeat:
            loops["heartbeats"] = self.heartbeat.run
        tasks = [asyncio.create_task(self.loops.keep(name, loop), name=name) for name, loop in loops.items()]
        if self.config.suicide_rounds:
            tasks.append(asyncio.create_task(self.loops.keep("suicide arbitration", self._arbitrate)))
        try:
            yield
        finally:
            await self.transactions.drain(self.engines.engine_request_timeout_sec)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.daemon.close(end_engines=not self.config.keep_engines)
            await self._engine_http.aclose()
            await self._controller_http.aclose()
            self.journal.close()

    def pace(self, pacing: FtPacing | None, *, reset_interval: bool) -> None:
        """What a start command or a heartbeat's reply says about times; only a start resets the pace."""
        if pacing is None:
            return
        self.engines.engine_request_timeout_sec = pacing.engine_request_timeout_sec
        if reset_interval:
            self.poller.set_pace(pacing.poll_interval_sec)

    @property
    def proxy_enabled(self) -> bool:
        """Whether the FT routes exist. Over a broken journal they do, to say so."""
        if self.journal.broken is not None:
            return True
        pacing = self.journal.standing.pacing
        return pacing.enable_dp_scale_down_proxy if pacing else self.config.enable_dp_scale_down_proxy

    def pod_status(self, *, relaxed: bool) -> bool:
        """Strict: every rank that is not retired is ready and healthy. Relaxed: its processes are there; and while a round
        owns the Pod nothing is judged at all, whatever its engines look like."""
        if relaxed and self._guard_live():
            return True
        if self.engines.start is None:
            return relaxed
        held = [self.engines.get(rank) for rank in self.engines.ranks]
        if relaxed:
            return all(engine is not None and engine.loss is None for engine in held)
        return all(
            engine is not None
            and engine.ready
            and engine.loss is None
            and _is_healthy(engine.last_entry.status if engine.last_entry else None)
            for engine in held
        )

    def _guard_live(self) -> bool:
        return self.journal.broken is None and self.transactions.guard_live

    def _on_news(self, entry: RankEntry) -> None:
        """A retired rank is no news, not even by a look that began before it was retired."""
        if not self.engines.is_retired(entry.id):
            self.reporter.add(entry)

    def _address(self) -> tuple[int, str, int] | None:
        instance_id = self.engines.instance_id
        return (instance_id, self.config.pod_ip, self.config.port) if instance_id is not None else None

    def _heartbeat_content(self) -> HeartbeatRequest | None:
        start = self.engines.start
        if start is None:
            return None
        return HeartbeatRequest(
            job_name=start.job_name,
            instance_id=start.instance_id,
            pod_ip=self.config.pod_ip,
            nm_port=self.config.port,
            endpoints={str(rank): self._word(rank) for rank in self.engines.ranks},
        )

    def _word(self, rank: int) -> str:
        engine = self.engines.get(rank)
        if engine is None or engine.loss is not None:
            return "abnormal"
        return "normal" if engine.ready else "initial"

    def _registering(self, config: NodeManagerConfig) -> Registration | None:
        """None: nobody told this Pod which instance it is for, so somebody declares that."""
        pod = config.pod
        if pod is None:
            return None

        def request() -> RegisterRequest:
            broken, start = self.journal.broken is not None, self.engines.start
            return RegisterRequest(
                **pod.model_dump(),
                incarnation=self.incarnation,
                known_generation=0 if broken else self.journal.standing.highest_generation,
                known_instance_id=start.instance_id if start is not None else None,
            )

        return Registration(
            http=self._controller_http,
            controller_url=config.controller_url,
            timeout_sec=config.report_timeout_sec,
            request=request,
            on_reply=self._on_registered,
            started=lambda: self.engines.start is not None,
        )

    async def _register(self, registration: Registration) -> None:
        """Once nothing of a former life is left that must go: what is said of the Pod's engines is true from then on."""
        await self.daemon.until_clean()
        await registration.run()

    def _on_registered(self, reply: RegisterReply) -> None:
        """What the Controller knows of this Pod. Held in a living instance without any engine: its ranks are dead.

        Generation 0 is the answer of a Controller that cannot ask the instance now: that says nothing.
        """
        self.engines.placed = True
        self._learn(reply.generation, reply.dead_committed, reply.fault_tolerance_config)
        if self.engines.start is not None or reply.generation == 0 or self.journal.broken is not None:
            return
        try:
            self.transactions.raise_generation(reply.generation)
        except JournalError as error:
            log.error("registration's reply is not taken", extra={"why": error.message})
            return
        if reply.hold_reason in (HoldReason.GROUP_LIVES, HoldReason.ROUND_RUNS):
            missing = [endpoint for endpoint in reply.endpoints if endpoint.id not in reply.dead_committed]
            known = self.engines.bereft
            self.engines.bereave(reply.instance_id, missing)
            if self.engines.bereft != known:
                log.error(
                    "this Pod came back without its engines", extra={"ranks": self.engines.bereft, "why": reply.hold_reason}
                )
        else:
            self.engines.not_bereft()

    async def _arbitrate(self) -> None:
        while True:
            await asyncio.sleep(self.config.suicide_interval_sec)
            broken = any(engine.loss is not None for rank in self.engines.ranks if (engine := self.engines.get(rank)))
            frozen = self._guard_live() or self.reporter.paused
            if self._arbiter.judge(abnormal=broken, frozen=frozen, now=time.monotonic()):
                log.error("this Pod ends itself, so that the cluster restarts it")
                self.daemon.stop(None)
                await asyncio.Event().wait()  # its end is on its way

    def _learn(self, generation: int, dead_committed: tuple[int, ...], pacing: FtPacing | None) -> None:
        try:
            self.transactions.retire_committed(generation, dead_committed)
            standing = self.journal.standing
            if pacing is not None and pacing != standing.pacing and generation >= standing.highest_generation:
                self.journal.commit(standing=standing.model_copy(update={"pacing": pacing}))
                self.pace(pacing, reset_interval=False)
        except JournalError as error:
            log.error("heartbeat's reply is not taken", extra={"why": error.message})

    def _counting_reports(self) -> "_ReportCounter":
        return _ReportCounter(
            Counter(
                "node_manager_reports", "Reports to the Controller", ["delivery"], namespace=NAMESPACE, registry=self.registry
            )
        )

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"node_manager_{name}", words, namespace=NAMESPACE, registry=registry)

        gauge("guard_live", "1 while a round owns the Pod").set_function(lambda: float(self._guard_live()))
        gauge("journal_broken", "1 if the journal cannot be used").set_function(lambda: float(self.journal.broken is not None))
        gauge("engines_running", "Engines whose processes are all there").set_function(
            lambda: sum(engine.loss is None for engine in self.engines.all())
        )
        gauge("ranks_without_engine", "Ranks that came back without their engines").set_function(lambda: len(self.engines.bereft))
        gauge("reports_waiting", "Ranks whose news the Controller does not have yet").set_function(lambda: self.reporter.waiting)
        gauge("heartbeat_accepted", "1 if the Controller took the last heartbeat").set_function(lambda: self.heartbeat.accepted)
        gauge("heartbeat_ranks", "How many ranks the last heartbeat named").set_function(lambda: self.heartbeat.ranks_named)
        gauge("poll_interval_seconds", "How often engines are looked at").set_function(lambda: self.poller.interval_sec)


def _check_that_it_is_ours(journal: Journal, config: NodeManagerConfig) -> None:
    """A journal under another address would mean engines that nobody looks after: better not to start at all."""
    if journal.broken is not None or journal.start is None or is_mine(journal.start, config.pod_ip, config.port):
        return
    known = sorted({host_port(e.pod_ip, e.node_manager_port or "any port") for e in journal.start.endpoints})
    journal.close()
    raise ConfigError(
        f"journal = {config.journal}: it belongs to a NodeManager of instance {journal.start.instance_id} at one of "
        f"{', '.join(known)}, this one is {host_port(config.pod_ip, config.port)}; "
        "correct pod_ip and port, or give this one its own journal"
    )


class _ReportCounter:
    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def __call__(self, delivery: Delivery) -> None:
        self._counter.labels(delivery.value).inc()


def _is_healthy(status: str | None) -> bool:
    return status in (EngineStatus.HEALTHY.value, None)
