"""A Pod faked as a whole: its NodeManager's API (contracts §2) over engines that are states of this process.

It answers and reports like the real one, grants and refuses by the same rules (`domain.pod.fence`), keeps its journal in memory
only (what a round costs a disk is measured with real NodeManagers), and looks at its engines on a clock of its own: news is
seen at its next poll.
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
    EngineApplied,
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
from domain.pod.fence import (
    Begin,
    Fences,
    Refusal,
    Repeated,
    after_calls,
    after_guard,
    after_intent,
    after_start,
    after_verdict,
    decide_apply,
    decide_finalize,
    decide_guard,
    duplicates,
    old_generation,
    other_instance,
    raised,
    taken_over,
    voided_by_start,
)
from domain.pod.records import BootTime, CallEnd, PodStanding, Transaction
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


class Refused(Exception):
    """A 502 with its reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


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
    engine_recovery_timeout_sec: float = 120.0
    lives: int = 1
    started: StartRequest | None = None
    lapsed_guards: int = 0
    standing: PodStanding = field(default_factory=PodStanding)
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
            if rank in self.standing.retired or self._told.get(rank) == now or not engine.runs:
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
        status = EngineStatus.RETIRED if rank in self.standing.retired else engine.status
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
        except Refused as no:
            return Answer({"code": 502, "message": str(no), "data": {"reason": no.refusal.reason}}, 502)

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
        granted = decide_guard(request, self._fences(request.request_id), _now())
        if isinstance(granted, Refusal):
            raise Refused(granted)
        displaced = self.transactions.get(granted.displaced) if granted.displaced is not None else None
        ended = [taken_over(displaced, granted)] if displaced is not None else []
        self.lapsed_guards += granted.lapsed
        self._write(after_guard(self.standing, granted), granted.transaction, *ended)
        return Answer({"status": "guarded", "expires_in_sec": request.lease_sec, "lapsed": granted.lapsed})

    def _apply(self, request: ApplyRequest) -> Answer:
        """The engines are states of this process: a call of one has its answer at once, and it is always 202."""
        self._named_once(request.endpoint_ids)
        ledger, gone = self._fences(request.request_id), self._unavailable(request.endpoint_ids)
        decision = decide_apply(request, ledger, _now(), in_flight=False, unavailable=gone)
        if isinstance(decision, Refusal):
            raise Refused(decision)
        if isinstance(decision, Begin):
            self._write(after_intent(self.standing, decision), decision.transaction)
            self._call_engines(request, decision.transaction)
        return Answer({"status": "accepted", "engines": {str(rank): {"http": 202} for rank in request.endpoint_ids}})

    def _call_engines(self, request: ApplyRequest, transaction: Transaction) -> None:
        for rank in request.endpoint_ids:
            self.group.scale_down(rank, frozenset(request.params.removed_dp_ranks), request.request_id)
        assert transaction.apply is not None
        ends = dict.fromkeys(request.endpoint_ids, CallEnd.ACCEPTED)
        engines = dict.fromkeys(request.endpoint_ids, EngineApplied(http=202))
        record = after_calls(transaction.apply, ends, engines, "")
        self._write(self.standing, transaction.model_copy(update={"apply": record}))

    def _finalize(self, request: FinalizeRequest) -> Answer:
        decision = decide_finalize(request, self._fences(request.request_id))
        if isinstance(decision, Refusal):
            raise Refused(decision)
        if isinstance(decision, Repeated):
            return Answer({"status": decision.verdict.value})
        dead = request.dead_committed or ()
        if decision.retire:
            leaving = {*request.retired_endpoint_ids, *self.standing.dead_committed, *dead}
            decision = decision.retiring([rank for rank in self.ranks if rank in leaving])
        self._write(after_verdict(self.standing, decision, dead_committed=dead), decision.transaction)
        return Answer({"status": "committed" if request.commit else "aborted"})

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
            {"request_id": t.request_id, "generation": t.generation, "verdict": t.verdict, "guarded": t.guarded}
            for t in self.transactions.values()
        ]
        holder, now = self.standing.guard, _now()
        guard: JsonValue = None
        if holder is not None:
            guard = {
                "request_id": holder.request_id,
                "generation": holder.generation,
                "expires_in_sec": holder.remaining_sec(now),
                "live": holder.live(now, self.engine_recovery_timeout_sec),
                "applied": holder.applied_at is not None,
            }
        return Answer(
            {
                "incarnation": self.incarnation,
                "instance_id": self.started.instance_id if self.started is not None else None,
                "highest_generation": self.standing.highest_generation,
                "retired_ranks": list(self.standing.retired),
                "dead_committed": list(self.standing.dead_committed),
                "guard": guard,
                "transactions": transactions,
            }
        )

    def _start(self, request: StartRequest) -> Answer:
        self._check(other_instance(request.instance_id, self._owner()))
        self._check(old_generation(request.generation, self.standing.highest_generation))
        now = self.started
        unchanged = now is not None and (now.instance_id, now.generation) == (request.instance_id, request.generation)
        if not unchanged:
            self.started = request
            voided = voided_by_start(self.transactions.values(), request.generation)
            dead = request.dead_committed
            standing = after_start(self.standing, request.generation, own=self.ranks, dead_committed=dead, voided=voided)
            self._write(standing, *voided)
            self._told.clear()
            self.group.start(tuple(rank for rank in self.ranks if rank not in standing.retired))
        engines: dict[str, JsonValue] = {str(rank): self._entry(rank).incarnation for rank in self.ranks}
        return Answer({"status": "unchanged" if unchanged else "started", "incarnation": self.incarnation, "engines": engines})

    def _stop(self, request: StopRequest) -> Answer:
        incarnation = self.incarnation
        if request.incarnation not in (None, incarnation):
            return Answer({"status": "ignored", "incarnation": incarnation})
        self._check(other_instance(request.instance_id, self._owner()))
        self._check(old_generation(request.generation, self.standing.highest_generation))
        self._write(raised(self.standing, request.generation))
        self.group.stop(self.ranks)
        self.started = None
        self._told.clear()
        self._news.clear()
        self.lives += 1
        return Answer({"status": "stopping", "incarnation": incarnation})

    def _fences(self, request_id: str) -> Fences:
        return Fences.of(self.standing, self.transactions.get(request_id), self.engine_recovery_timeout_sec)

    def _write(self, standing: PodStanding, *transactions: Transaction) -> None:
        self.standing = standing
        self.transactions |= {transaction.request_id: transaction for transaction in transactions}

    def _owner(self) -> int | None:
        return self.started.instance_id if self.started is not None else None

    def _check(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise Refused(refusal)

    def _unavailable(self, ranks: tuple[int, ...]) -> dict[int, Refusal]:
        """Ranks of which it has no engine to call: another Pod's, and those that left the group."""
        own = set(self.ranks) - set(self.standing.retired)
        why = NodeManagerReason.UNMANAGED_ENDPOINT
        return {rank: Refusal(why, f"rank {rank} is not of this Pod, or is retired") for rank in ranks if rank not in own}

    def _owns(self, ranks: tuple[int, ...]) -> None:
        self._named_once(ranks)
        if foreign := sorted(set(ranks) - set(self.ranks)):
            raise Refused(Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"ranks {foreign} are not this Pod's"))

    def _named_once(self, ranks: tuple[int, ...]) -> None:
        if twice := duplicates(ranks):
            raise Refused(Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"ranks {list(twice)} are named twice"))


def _now() -> BootTime:
    """Its machine is never started anew."""
    return BootTime(boot="light", sec=time.monotonic())
