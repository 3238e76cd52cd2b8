"""Orders, entries and a scripted world for the tests of one round.

`ScriptedPorts` plays every port from a script: each step succeeds unless the test says otherwise, and `look` runs the real
folds over scripted sweeps, on a clock that only sweeps move. It records each call, so that a test can say what must not
have been called at all.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

from domain.config import DpScaleDownConfig, FaultToleranceConfig
from domain.engine import EntrySource, FtCapability, ProcessState, RankEntry
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    CommitRecord,
    FinalizeCall,
    FinalizeResult,
    GuardCall,
    GuardResult,
    PeerRefusal,
    StopPodsCall,
    VerifyCall,
    VerifyResult,
    ViewCall,
    ViewResult,
    WatchCall,
    WatchResult,
)
from domain.messages.strategy import RoundOrder, RoundReport, StepReport
from domain.round.scale_down import run_round
from domain.runtime import FtPhase
from domain.topology import Endpoint, NodeManagerAddress, NodeManagerPlace, ParallelConfig, Topology
from domain.watch import Answer, Question, RecoveredWatch, WatchState

REQUEST_ID = "scale-down-" + "0" * 31 + "1"
BEGAN_AT = 1_000.0
CAPABILITY = FtCapability(enabled=True, scale_down_supported=True, external_lb=True, eplb_enabled=True, num_redundant_experts=32)

M = TypeVar("M", bound=BaseModel)
Sweep = Callable[[Question], Answer]


def pod(number: int) -> NodeManagerAddress:
    """The NodeManager of the Pod with this number."""
    return NodeManagerAddress(ip=f"10.0.0.{number + 1}", port=1026)


def topology(
    dp_size: int = 4,
    per_pod: int = 2,
    *,
    capability: FtCapability | None = CAPABILITY,
    headless: Iterable[tuple[int, int]] = (),
) -> Topology:
    """`per_pod` ranks a Pod, in order. `headless`: (rank, Pod number) of members that serve no HTTP, in Pods of their own."""
    ranks = [
        Endpoint(id=rank, pod_ip=pod(rank // per_pod).ip, ip=f"10.1.0.{rank + 1}", business_port=10000 + rank)
        for rank in range(dp_size)
    ]
    members = [
        Endpoint(id=rank, pod_ip=pod(number).ip, ip=pod(number).ip, business_port=10000 + rank, headless=True)
        for rank, number in headless
    ]
    pods = sorted({rank // per_pod for rank in range(dp_size)} | {number for _, number in headless})
    return Topology(
        instance_id=7,
        job_name="job",
        model_name="model",
        parallel_config=ParallelConfig(dp_size=dp_size),
        dp_master_port=29500,
        node_managers=tuple(NodeManagerPlace(pod_ip=pod(number).ip, port=pod(number).port) for number in pods),
        endpoints=(*ranks, *members),
        ft_capability=capability,
    )


def fault_tolerance(scale_down: dict[str, Any] | None = None, **fields: Any) -> FaultToleranceConfig:
    """A configuration with scale-down switched on."""
    return FaultToleranceConfig(
        **{"enable_dp_scale_down": True, **fields}, dp_scale_down_config=DpScaleDownConfig(**(scale_down or {}))
    )


def order(*pending: int, **fields: Any) -> RoundOrder:
    """A round for these ranks of a DP-4 instance with two ranks a Pod, unless `fields` say otherwise."""
    base: dict[str, Any] = {
        "instance_id": 7,
        "generation": 3,
        "request_id": REQUEST_ID,
        "pending_ranks": pending,
        "dead_committed": (),
        "phase_before": FtPhase.NORMAL,
        "topology": topology(),
        "config": fault_tolerance(),
        "published_ranks": (0, 1, 2, 3),
        "view_revision": 10,
        "reported_incarnations": {rank: incarnation(rank) for rank in pending},
    }
    return RoundOrder(**{**base, **fields})


def incarnation(rank: int, life: int = 1) -> str:
    return f"boot:{100 * life + rank}:{life}"


def entry(rank: int, status: str, **fields: Any) -> RankEntry:
    return RankEntry(**{"id": rank, "status": status, "incarnation": incarnation(rank), **fields})


def healthy(rank: int, **fields: Any) -> RankEntry:
    return entry(rank, "healthy", **fields)


def unhealthy(rank: int, **fields: Any) -> RankEntry:
    return entry(rank, "unhealthy", **fields)


def dead(rank: int, **fields: Any) -> RankEntry:
    return entry(rank, "dead", **fields)


def exited(rank: int, **fields: Any) -> RankEntry:
    return entry(rank, "dead", source=EntrySource.PROCESS_EXIT, process=ProcessState.EXITED, **fields)


def mute(rank: int, **fields: Any) -> RankEntry:
    """The process runs, its FT API does not answer."""
    return entry(rank, "unknown", source=EntrySource.POLL_ERROR, **fields)


def sees(
    *entries: RankEntry,
    unreachable: Iterable[NodeManagerAddress] = (),
    nonsense: Iterable[int] = (),
    left_out: Iterable[int] = (),
) -> Sweep:
    """A sweep in which the NodeManagers tell these entries, some do not answer, some engines answer nonsense."""
    told = {entry.id: entry for entry in entries}
    gone, garbled, missing = set(unreachable), set(nonsense), set(left_out)

    def answer(question: Question) -> Answer:
        if question.manager in gone:
            return Answer(question=question, fault="unreachable", detail="timeout")
        if garbled & set(question.ranks):
            return Answer(question=question, fault="protocol", detail="ENGINE_PROTOCOL")
        return Answer(question=question, entries=tuple(told[rank] for rank in question.ranks if rank not in missing))

    return answer


def ready(*dead_ranks: int, dp_size: int = 4) -> Sweep:
    """These ranks are dead, all others wait for an instruction."""
    return sees(*(dead(rank) if rank in dead_ranks else unhealthy(rank) for rank in range(dp_size)))


def recovered(dp_size: int = 4) -> Sweep:
    return sees(*(healthy(rank) for rank in range(dp_size)))


class ScriptedPorts:
    """A world in which every step goes well, but for what the test scripts.

    `before` and `after` are the sweeps of the two waits; the last one is what is seen from then on. A scripted result or
    error replaces a port's success: `script(guard=GuardResult(…))`, `script(apply=Transient("…"))`; several in a list
    come in turn. `stop_at` names the call, or the (0-based) sweep, during which somebody asks the round to stop.
    """

    def __init__(self, before: Iterable[Sweep] = (ready(1),), after: Iterable[Sweep] = (recovered(),)) -> None:
        self.before, self.after = list(before), list(after)
        self.clock = BEGAN_AT
        self.calls: list[tuple[str, BaseModel]] = []
        self.steps: list[StepReport] = []
        self.scripted: dict[str, list[object]] = {}
        self.stop_at: str | None = None
        self.stopping = False
        self.look_results: list[WatchResult] = []
        self.lost_guard: PeerRefusal | None = None

    def script(self, **results: object) -> "ScriptedPorts":
        self.scripted.update({name: list(r) if isinstance(r, list) else [r] for name, r in results.items()})
        return self

    def called(self, name: str) -> list[Any]:
        return [model for called, model in self.calls if called == name]

    @property
    def names(self) -> list[str]:
        """The ports in the order in which they were called, looks in a row as one."""
        found: list[str] = []
        for name, _ in self.calls:
            if found[-1:] != [name]:
                found.append(name)
        return found

    def now(self) -> float:
        return self.clock

    def stop_requested(self) -> str | None:
        return "somebody asks for it" if self.stopping else None

    def progress(self, report: StepReport) -> None:
        self.steps.append(report)

    def stop_pods(self, call: StopPodsCall) -> None:
        self.calls.append(("stop_pods", call))

    async def guard(self, call: GuardCall) -> GuardResult:
        return self._play("guard", call, GuardResult(guarded=(*call.must, *call.may_be_absent)))

    async def look(self, call: WatchCall) -> WatchResult:
        name = "look_recovered" if isinstance(call.watch, RecoveredWatch) else "look_ready"
        script = self.before if name == "look_ready" else self.after
        self.calls.append((name, call))
        self._raise_scripted(name)
        watch, sweeps = call.watch, 0
        while True:
            sweep = script.pop(0) if len(script) > 1 else script[0]
            watch, observation = watch.fold(tuple(sweep(question) for question in watch.questions()), self.clock)
            sweeps += 1
            self._stop_here(name)
            over = call.once or observation.verdict is not WatchState.WAIT or self.stopping or self.lost_guard is not None
            if over or self.clock >= call.deadline_at:
                break
            self.clock = min(self.clock + call.poll_interval_sec, call.deadline_at)
        result = WatchResult(watch=watch, observation=observation, sweeps=sweeps, lost_guard=self.lost_guard)
        self.look_results.append(result)
        return result

    async def pause(self, seconds: float, why: str) -> None:
        assert why
        self.clock += seconds

    async def push_view(self, call: ViewCall) -> ViewResult:
        return self._play("publish" if call.ranks else "withdraw", call, ViewResult(confirmed=True))

    async def apply(self, call: ApplyCall) -> ApplyResult:
        engines = {rank: 202 for group in call.groups for rank in group.ranks}
        return self._play("apply", call, ApplyResult(accepted=True, engines=engines))

    async def verify(self, call: VerifyCall) -> VerifyResult:
        return self._play("verify", call, VerifyResult(ok=tuple(rank for group in call.groups for rank in group.ranks)))

    async def record_commit(self, record: CommitRecord) -> bool:
        self.calls.append(("record_commit", record))
        self._raise_scripted("record_commit")
        self._stop_here("record_commit")
        return bool(self.scripted.get("record_commit", [True]).pop(0)) if self.scripted.get("record_commit") else True

    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        name = "finalize" if call.commit else "abort"
        return self._play(name, call, FinalizeResult(done=call.managers))

    def _play(self, name: str, call: BaseModel, success: M) -> M:
        self.calls.append((name, call))
        self._stop_here(name)
        self._raise_scripted(name)
        results = self.scripted.get(name)
        if not results:
            return success
        result = results.pop(0)
        assert isinstance(result, type(success))
        return result

    def _raise_scripted(self, name: str) -> None:
        results = self.scripted.get(name)
        if results and isinstance(results[0], Exception):
            raise results.pop(0)  # type: ignore[misc]

    def _stop_here(self, name: str) -> None:
        self.stopping = self.stopping or self.stop_at == name


async def played(ports: ScriptedPorts, round_order: RoundOrder | None = None) -> RoundReport:
    """The report of one round in this world; by default for rank 1 of four."""
    return await run_round(round_order if round_order is not None else order(1), ports)


def refusal(reason: str, peer: NodeManagerAddress | None = None) -> PeerRefusal:
    return PeerRefusal(peer=str(peer if peer is not None else pod(0)), reason=reason, message="said no")
