"""A Pod faked as a whole: its NodeManager's API (contracts §2) over engines that are states of this process.

It answers, guards, refuses and reports like the real one, keeps its journal in memory only (what a round costs a disk is
measured with real NodeManagers), and looks at its engines on a clock of its own: news is seen at its next poll.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Final

import httpx
from pydantic import JsonValue

from domain.engine import EngineStatus, EntrySource, FtState, ProcessState, RankEntry
from domain.messages.controller import MotorStatus
from domain.messages.node_manager import (
    FT_PREFIX,
    ApplyRequest,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
    PodReport,
    ProbeRequest,
    RankReport,
    StartRequest,
    StatusRequest,
    StopRequest,
)
from domain.topology import NodeManagerAddress
from lab.bench.group import Group
from lab.bench.wire import Answer

_FIRST_DELAY_SEC: Final = 0.1
_MAX_DELAY_SEC: Final = 2.0
_NUMBERS: Final = {
    EngineStatus.HEALTHY: MotorStatus.HEALTHY,
    EngineStatus.DEAD: MotorStatus.DEAD,
    EngineStatus.UNHEALTHY: MotorStatus.UNHEALTHY,
}


class Refusal(Exception):
    """A 502 with its reason."""

    def __init__(self, reason: NodeManagerReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Transaction:
    """One request id: its guard, its apply, its verdict."""

    request_id: str
    generation: int | None
    expires_at: float = 0.0
    applied: ApplyRequest | None = None
    verdict: str | None = None
    retired: tuple[int, ...] = ()

    @property
    def open(self) -> bool:
        """Whether it has the Pod: until its verdict, and after an apply also past its lease."""
        return self.verdict is None and (self.applied is not None or self.expires_at > time.monotonic())


@dataclass
class LightPod:
    """One Pod. `controller_url` None: nobody is reported to. `phase_sec`: where its poll clock stands, in [0, poll)."""

    address: NodeManagerAddress
    group: Group
    ranks: tuple[int, ...]
    poll_sec: float
    phase_sec: float
    http: httpx.AsyncClient
    controller_url: str | None
    lives: int = 1
    started: StartRequest | None = None
    highest_generation: int = 0
    lapsed_guards: int = 0
    retired: set[int] = field(default_factory=set)
    dead_committed: tuple[int, ...] = ()
    transactions: dict[str, Transaction] = field(default_factory=dict)
    _sequence: int = 0
    _told: dict[int, tuple[EngineStatus, FtState | None, int]] = field(default_factory=dict)
    _news: dict[int, RankReport] = field(default_factory=dict)
    _poll: asyncio.TimerHandle | None = None
    _reporting: asyncio.Task[None] | None = None

    @property
    def incarnation(self) -> str:
        return f"light:{self.address}:{self.lives}"

    # --- its eyes ------------------------------------------------------------------------------------------------

    def engines_changed(self) -> None:
        """They will be seen at the next tick of this Pod's clock."""
        if self._poll is None and self.started is not None:
            loop = asyncio.get_running_loop()
            wait = self.poll_sec - (time.monotonic() - self.phase_sec) % self.poll_sec
            self._poll = loop.call_later(wait, self._look)

    def _look(self) -> None:
        self._poll = None
        for rank in self.ranks:
            engine = self.group.engines[rank]
            now = (engine.status or EngineStatus.DEAD, engine.ft_state, engine.life)
            if rank in self.retired or self._told.get(rank) == now or not engine.runs:
                continue
            self._sequence += 1
            self._told[rank] = now
            self.group.seen(rank)
            self._news[rank] = self._report(rank)
        if self._news and self.controller_url is not None and self._reporting is None:
            self._reporting = asyncio.create_task(self._deliver(f"{self.controller_url}/controller/report_software_fault"))

    def _report(self, rank: int) -> RankReport:
        entry = self._entry(rank)
        return RankReport(
            engine_id=rank,
            engine_status=int(_NUMBERS[EngineStatus(entry.status)]),
            engine_incarnation=entry.incarnation,
            sequence=entry.sequence,
            source=entry.source,
            exception_message=entry.fault_info,
            ft_state=entry.ft_state,
            last_ft_request_id=entry.last_ft_request_id,
        )

    async def _deliver(self, url: str) -> None:
        delay = _FIRST_DELAY_SEC
        while self._news and self.started is not None:
            sent = dict(self._news)
            report = PodReport(
                instance_id=self.started.instance_id,
                pod_ip=self.address.ip,
                node_manager_port=self.address.port,
                incarnation=self.incarnation,
                reports=tuple(sorted(sent.values(), key=lambda one: one.sequence)),
            )
            try:
                status = (await self.http.post(url, json=report.model_dump(mode="json", exclude_none=True))).status_code
            except httpx.HTTPError:
                status = 503
            if status < 500:
                self._news = {rank: one for rank, one in self._news.items() if sent.get(rank) is not one}
                delay = _FIRST_DELAY_SEC
            else:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY_SEC)
        self._reporting = None

    def _entry(self, rank: int) -> RankEntry:
        engine = self.group.engines[rank]
        status = EngineStatus.RETIRED if rank in self.retired else engine.status
        return RankEntry(
            id=rank,
            status=status or EngineStatus.UNKNOWN,
            fault_info=None if status is EngineStatus.HEALTHY else "RuntimeError",
            ft_state=engine.ft_state,
            last_ft_request_id=engine.request_id,
            ft_error=engine.error,
            source=EntrySource.ENGINE,
            process=ProcessState.RUNNING,
            incarnation=f"light:{self.group.instance_id}-{rank}:{engine.life}",
            sequence=self._sequence,
        )

    # --- its routes ----------------------------------------------------------------------------------------------

    def __call__(self, method: str, path: str, body: bytes) -> Answer:
        try:
            return self._route(method, path, body)
        except Refusal as no:
            return Answer({"code": 502, "message": str(no), "data": {"reason": no.reason}}, 502)

    def _route(self, method: str, path: str, body: bytes) -> Answer:
        match method, path.removeprefix(FT_PREFIX), path:
            case "POST", "/status", _:
                return self._status(StatusRequest.model_validate_json(body))
            case "POST", "/guard", _:
                return self._guard(GuardRequest.model_validate_json(body))
            case "POST", "/apply", _:
                return self._apply(ApplyRequest.model_validate_json(body))
            case "POST", "/finalize", _:
                return self._finalize(FinalizeRequest.model_validate_json(body))
            case "POST", "/probe", _:
                return self._probe(ProbeRequest.model_validate_json(body))
            case "POST", "/pace", _:
                return Answer(json.loads(body))
            case "GET", "/journal", _:
                return self._journal()
            case "POST", _, "/node-manager/start":
                return self._start(StartRequest.model_validate_json(body))
            case "POST", _, "/node-manager/stop":
                return self._stop(StopRequest.model_validate_json(body))
            case "GET", _, "/node-manager/status":
                return Answer({"status": self.started is not None})
            case "GET", _, "/liveness":
                instance = self.started.instance_id if self.started is not None else None
                return Answer({"status": "alive", "incarnation": self.incarnation, "instance_id": instance})
        return Answer({"code": 404, "message": f"no route {method} {path}", "data": {}}, 404)

    def _status(self, request: StatusRequest) -> Answer:
        self._owns(request.endpoint_ids)
        engines: dict[str, JsonValue] = {
            str(rank): self._entry(rank).model_dump(mode="json", exclude_none=True) for rank in request.endpoint_ids
        }
        return Answer({"engines": engines, "node_manager_incarnation": self.incarnation})

    def _guard(self, request: GuardRequest) -> Answer:
        self._not_old(request.generation)
        known = self._transaction(request.request_id, request.generation)
        if known.verdict is not None:
            raise Refusal(NodeManagerReason.VERDICT_KNOWN, f"{request.request_id} is {known.verdict}")
        holder = next((t.request_id for t in self.transactions.values() if t.open and t is not known), None)
        if holder is not None:
            raise Refusal(NodeManagerReason.GUARD_HELD, f"{holder} has this Pod")
        lapsed = 0 < known.expires_at <= time.monotonic()
        self.lapsed_guards += lapsed
        known.expires_at = time.monotonic() + request.lease_sec
        return Answer({"status": "guarded", "expires_in_sec": request.lease_sec, "lapsed": lapsed})

    def _apply(self, request: ApplyRequest) -> Answer:
        self._owns(request.endpoint_ids)
        self._not_old(request.generation)
        known = self.transactions.get(request.request_id)
        if known is None or (known.applied is None and not known.open and known.verdict is None):
            raise Refusal(NodeManagerReason.NOT_GUARDED, f"{request.request_id} has no guard here")
        if known.verdict is not None:
            raise Refusal(NodeManagerReason.VERDICT_KNOWN, f"{request.request_id} is {known.verdict}")
        if known.applied is None:
            if known.expires_at - time.monotonic() < (request.apply_margin_sec or 0.0):
                raise Refusal(NodeManagerReason.LEASE_TOO_SHORT, "renew the guard first")
            known.applied = request
            for rank in request.endpoint_ids:
                self.group.scale_down(rank, frozenset(request.params.removed_dp_ranks), request.request_id)
        elif known.applied != request:
            raise Refusal(NodeManagerReason.BODY_DIFFERS, f"{request.request_id} was applied with another body")
        return Answer({"status": "accepted", "engines": {str(rank): {"http": 202} for rank in request.endpoint_ids}})

    def _finalize(self, request: FinalizeRequest) -> Answer:
        self._not_old(request.generation)
        known = self._transaction(request.request_id, request.generation)
        verdict = "committed" if request.commit else "aborted"
        if known.verdict not in (None, verdict):
            raise Refusal(NodeManagerReason.VERDICT_DIFFERS, f"{request.request_id} is {known.verdict}")
        known.verdict = verdict
        if request.commit:
            known.retired = request.retired_endpoint_ids
            self.retired |= set(request.retired_endpoint_ids)
            self.dead_committed = request.dead_committed or self.dead_committed
        return Answer({"status": verdict})

    def _probe(self, request: ProbeRequest) -> Answer:
        self._owns(request.endpoint_ids)
        engines = self.group.engines
        results: dict[str, JsonValue] = {}
        for rank in request.endpoint_ids:
            ok = engines[rank].status is EngineStatus.HEALTHY
            results[str(rank)] = {"ok": ok, "http": 200 if ok else 503, "finish_reason": "length" if ok else None}
        return Answer({"engines": results})

    def _journal(self) -> Answer:
        transactions: list[JsonValue] = [
            {"request_id": t.request_id, "generation": t.generation, "verdict": t.verdict, "guarded": t.open}
            for t in self.transactions.values()
        ]
        holder = next((t for t in self.transactions.values() if t.open), None)
        guard: JsonValue = None
        if holder is not None:
            guard = {
                "request_id": holder.request_id,
                "generation": holder.generation,
                "expires_in_sec": holder.expires_at - time.monotonic(),
                "live": True,
                "applied": holder.applied is not None,
            }
        retired: list[JsonValue] = [*sorted(self.retired)]
        return Answer(
            {
                "incarnation": self.incarnation,
                "instance_id": self.started.instance_id if self.started is not None else None,
                "highest_generation": self.highest_generation,
                "retired_ranks": retired,
                "dead_committed": list(self.dead_committed),
                "guard": guard,
                "transactions": transactions,
            }
        )

    def _start(self, request: StartRequest) -> Answer:
        self._not_old(request.generation)
        word = "unchanged"
        if self.started is None or request.generation > self.started.generation:
            word = "started"
            self.started = request
            self.retired, self.dead_committed = set(request.dead_committed), request.dead_committed
            self._told.clear()
            self.group.start(tuple(rank for rank in self.ranks if rank not in self.retired))
        self.highest_generation = max(self.highest_generation, request.generation)
        engines: dict[str, JsonValue] = {str(rank): self._entry(rank).incarnation for rank in self.ranks}
        return Answer({"status": word, "incarnation": self.incarnation, "engines": engines})

    def _stop(self, request: StopRequest) -> Answer:
        incarnation = self.incarnation
        if request.incarnation not in (None, incarnation):
            return Answer({"status": "ignored", "incarnation": incarnation})
        self._not_old(request.generation)
        self.group.stop(self.ranks)
        self.started = None
        self._told.clear()
        self._news.clear()
        self.lives += 1
        return Answer({"status": "stopping", "incarnation": incarnation})

    def _transaction(self, request_id: str, generation: int | None) -> Transaction:
        return self.transactions.setdefault(request_id, Transaction(request_id, generation))

    def _owns(self, ranks: tuple[int, ...]) -> None:
        foreign = sorted(set(ranks) - set(self.ranks))
        if foreign or len(set(ranks)) != len(ranks):
            raise Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"ranks {foreign or list(ranks)} are not this Pod's, or twice")

    def _not_old(self, generation: int | None) -> None:
        if generation is not None and generation < self.highest_generation:
            raise Refusal(NodeManagerReason.OLD_GENERATION, f"generation {self.highest_generation} was seen")
        self.highest_generation = max(self.highest_generation, generation or 0)
