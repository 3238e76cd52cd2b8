"""The Pod's engines by rank, and everything that is asked of them.

Which ranks are ours comes with the start command; which of those are retired comes with commits. Both are kept here as
the journal last had them, so that a look at an engine needs no disk.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from domain.engine import ProcessState, RankEntry
from domain.errors import ProtocolError, Refused
from domain.messages.node_manager import EngineApplied, NodeManagerReason, ProbeResult, StartRequest
from domain.pod.fence import Refusal, duplicates
from domain.topology import Endpoint
from engine.client import ApplyAnswer, EngineCommand
from node_manager.config import NodeManagerConfig
from node_manager.looks import Looks, retired_entry
from node_manager.managed_engine import ManagedEngine, own_endpoints
from node_manager.reporter import Reporter
from node_manager.transactions import CommandRefused

_REFUSED: Final = 502
_ASK_AGAIN: Final = 503
"""A Pod that has not learned yet where it belongs can say nothing about its ranks: as if it were not there yet."""


class Engines:
    """`engine_request_timeout_sec` bounds each request to an engine; the start command may bring another one."""

    def __init__(self, config: NodeManagerConfig, looks: Looks, reporter: Reporter) -> None:
        self._config = config
        self._sightings = looks
        self._reporter = reporter
        self._by_rank: dict[int, ManagedEngine] = {}
        self._retired: frozenset[int] = frozenset()
        self._start: StartRequest | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        self._bereft_instance: int | None = None
        self._bereft: dict[int, RankEntry] = {}
        self.placed = config.registration is None
        """Whether it is known where this Pod belongs, or nobody was asked."""

        self.engine_request_timeout_sec = config.engine_request_timeout_sec

    def assign(self, start: StartRequest | None, retired: Collection[int]) -> None:
        """A start command holds (or none): these endpoints are ours, these of them are retired."""
        self._start = start
        self._endpoints = own_endpoints(start.endpoints, self._config.pod_ip, self._config.port) if start else ()
        self._retired = frozenset(retired)
        self.not_bereft()

    def bereave(self, instance_id: int, endpoints: Iterable[Endpoint]) -> None:
        """The instance lives and this Pod has a part in it, but came back without an engine: its ranks are dead.

        Whoever asks is told so, and so is the Controller, once a rank. A start command ends it.
        """
        own = own_endpoints(endpoints, self._config.pod_ip, self._config.port)
        self._bereft_instance = instance_id
        for rank in (endpoint.id for endpoint in own if endpoint.id not in self._retired):
            if rank not in self._bereft:
                self._bereft[rank] = self._sightings.nothing_runs(rank, "its Pod came back without it")
        self._reporter.flush()

    def not_bereft(self) -> None:
        """The instance is formed anew, or is done with these ranks: no engine is missing here."""
        self._reporter.forget(set(self._bereft))
        self._bereft_instance, self._bereft = None, {}

    @property
    def instance_id(self) -> int | None:
        """Whose ranks are told of: the start command's, or of a Pod that came back without its engines."""
        return self._start.instance_id if self._start is not None else self._bereft_instance

    @property
    def bereft(self) -> tuple[int, ...]:
        """Ranks of this Pod that should run, by all that is known, and have no engine."""
        return tuple(sorted(rank for rank in self._bereft if rank not in self._retired))

    @property
    def start(self) -> StartRequest | None:
        return self._start

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ours that are not retired: what heartbeats name."""
        return tuple(endpoint.id for endpoint in self._endpoints if endpoint.id not in self._retired)

    @property
    def missing(self) -> tuple[tuple[int, Endpoint], ...]:
        """(local index, endpoint) of ranks that should have an engine and have none, not even one that ended."""
        return tuple(
            (index, endpoint)
            for index, endpoint in enumerate(self._endpoints)
            if endpoint.id in self.ranks and endpoint.id not in self._by_rank
        )

    @property
    def dp_master_port(self) -> int | None:
        return self._start.dp_master_port if self._start else None

    def all(self) -> tuple[ManagedEngine, ...]:
        return tuple(self._by_rank.values())

    def add(self, engine: ManagedEngine) -> None:
        self._by_rank[engine.rank] = engine

    def take_all(self) -> tuple[ManagedEngine, ...]:
        """Removes all, and what waits to be reported about them: they are to be ended."""
        taken = self.all()
        self._by_rank.clear()
        for engine in taken:
            engine.stopping = True
        self._reporter.forget({engine.rank for engine in taken})
        return taken

    def get(self, rank: int) -> ManagedEngine | None:
        return self._by_rank.get(rank)

    def is_retired(self, rank: int) -> bool:
        return rank in self._retired

    def polled(self) -> Iterable[ManagedEngine]:
        """Those whose FT API is looked at: ready once, process there, not retired."""
        return [
            engine
            for engine in self._by_rank.values()
            if engine.ready and engine.loss is None and not engine.ft_api_absent and engine.rank not in self._retired
        ]

    def own(self, ranks: Collection[int]) -> tuple[int, ...]:
        if self._start is None:
            return tuple(sorted(set(ranks)))
        return tuple(sorted(set(ranks) & {endpoint.id for endpoint in self._endpoints}))

    def retire(self, ranks: Collection[int]) -> None:
        self._retired |= frozenset(ranks)
        self._reporter.forget(set(ranks))

    def unavailable(self, ranks: Collection[int]) -> dict[int, Refusal]:
        found = {rank: self._unavailable(rank) for rank in ranks}
        return {rank: refusal for rank, refusal in found.items() if refusal is not None}

    def _unavailable(self, rank: int) -> Refusal | None:
        if rank in self._retired:
            return Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"rank {rank} is retired")
        if (refusal := self._not_ours(rank)) is not None:
            return refusal
        engine = self._by_rank.get(rank)
        if engine is None or engine.stopping:
            return Refusal(NodeManagerReason.ENGINE_REFUSED, f"engine {rank} is not running")
        if engine.loss is not None:
            return Refusal(NodeManagerReason.ENGINE_REFUSED, f"engine {rank}: {engine.loss}")
        return None

    def _not_ours(self, rank: int) -> Refusal | None:
        if self._start is None:
            return Refusal(NodeManagerReason.NOT_STARTED, f"rank {rank}: no start command has named this Pod's endpoints yet")
        if not self.own([rank]):
            ours = list(self.own(range(self._endpoints[-1].id + 1))) if self._endpoints else []
            return Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"rank {rank} is not of this Pod, which has {ours}")
        return None

    async def apply(self, rank: int, command: EngineCommand) -> ApplyAnswer:
        if (refusal := self._unavailable(rank)) is not None:
            raise Refused(refusal.message, reason=refusal.reason.value)
        return await self._by_rank[rank].client.apply(command, self.engine_request_timeout_sec)

    async def look(self, ranks: Collection[int]) -> dict[str, RankEntry]:
        """Fresh entries, from the engines, all asked at once. Raises `CommandRefused`."""
        self._check_named(ranks)
        answers = await asyncio.gather(*(self._look(rank) for rank in ranks), return_exceptions=True)
        self._reporter.flush()
        entries: dict[str, RankEntry] = {}
        nonsense: dict[int, ProtocolError] = {}
        for rank, answer in zip(ranks, answers, strict=True):
            if isinstance(answer, ProtocolError):
                nonsense[rank] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                entries[str(rank)] = answer
        if nonsense:
            raise CommandRefused(
                Refusal(
                    NodeManagerReason.ENGINE_PROTOCOL,
                    "; ".join(error.message for error in nonsense.values()),
                    engines={str(rank): EngineApplied(http=None, message=error.message) for rank, error in nonsense.items()},
                )
            )
        return entries

    async def _look(self, rank: int) -> RankEntry:
        engine = self._by_rank.get(rank)
        if rank in self._retired:
            return retired_entry(rank, engine)
        if rank in self._bereft:
            return self._bereft[rank]
        if engine is None:
            return RankEntry(id=rank, status="unknown", fault_info="no engine is running", process=ProcessState.EXITED)
        return await self._sightings.look(engine, self.engine_request_timeout_sec)

    async def probe(self, ranks: Collection[int], timeout_sec: float) -> dict[str, ProbeResult]:
        """One completion of one token on each, all at once. Raises `CommandRefused`."""
        self._check_named(ranks)
        results = await asyncio.gather(*(self._probe(rank, timeout_sec) for rank in ranks))
        return {str(rank): result for rank, result in zip(ranks, results, strict=True)}

    async def _probe(self, rank: int, timeout_sec: float) -> ProbeResult:
        if (refusal := self._unavailable(rank)) is not None:
            return ProbeResult(ok=False, detail=refusal.message)
        done = await self._by_rank[rank].client.complete_one_token(timeout_sec)
        return ProbeResult(ok=done.ok, http=done.http, finish_reason=done.finish_reason, detail=done.detail)

    def _check_named(self, ranks: Collection[int]) -> None:
        if twice := duplicates(ranks):
            raise CommandRefused(Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"endpoint_ids names {list(twice)} twice"))
        for rank in ranks:
            refusal = None if rank in self._retired or rank in self._bereft else self._not_ours(rank)
            if refusal is not None:
                raise CommandRefused(refusal, status=_REFUSED if self.placed else _ASK_AGAIN)
