"""A recovery as its logs would show it, written out by hand: the ground on which checks are tested.

Four ranks in two Pods; rank 1's worker is killed at 100.0; rank 0, 2 and 3 notice at 102.0; one round shrinks the group
and publishes at 104.0. `evidence()` is what a drill would have collected; tests change one thing in it.
"""

from dataclasses import replace

from domain.engine import EngineStatus
from domain.messages.coordinator import CoordinatorView, PublishedEndpoint, PublishedInstance
from domain.messages.node_manager import JournalReply, TransactionRecord
from domain.messages.strategy import RoundOutcome, RoundReason, RoundReport, StrategyKind
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Topology
from lab.drills.check import Check
from lab.drills.drill import Drill, End, in_place, local_spec
from lab.drills.judge.processes import kept_pods
from lab.drills.judge.serving import repeated_set
from lab.drills.outcome import Completion
from lab.drills.record.engine_log import EngineLife, EngineLine
from lab.drills.record.entry_log import LoggedEntry
from lab.drills.record.evidence import Evidence
from lab.drills.record.histories import Replay
from lab.drills.record.traffic import Failure, RequestRecord
from lab.drills.record.view_log import ViewLine
from lab.oracle.observations import (
    CommitSeen,
    Event,
    GenerationSeen,
    GuardGone,
    GuardSeen,
    PhaseSeen,
    SourceKind,
    SourceRead,
    VerdictSeen,
)
from lab.stack.record import EventKind, StackEvent

ROUND = "scale-down-" + "0" * 32
RANKS = (0, 1, 2, 3)
SURVIVORS = (0, 2, 3)
MANAGERS = ("node-manager-0", "node-manager-1")
PROCESSES = (*MANAGERS, "temporal", "worker-0", "api", "coordinator-0")


async def nothing(_scene: object) -> None:
    """The script of a drill that is only judged."""


def drill(end: End | None = None, *checks: Check, traffic: bool = True, undisturbed: tuple[int, ...] = ()) -> Drill:
    """One that is only judged; without an end the recorded recovery is what it expects."""
    if end is None:
        end, checks = in_place((1,)), (kept_pods(*MANAGERS), repeated_set())
    return Drill(
        name="recorded",
        summary="as written",
        spec=local_spec("recorded"),
        act=nothing,
        end=end,
        checks=checks,
        traffic=traffic,
        undisturbed=undisturbed,
    )


def topology() -> Topology:
    return Topology(
        instance_id=7,
        job_name="job",
        model_name="m",
        parallel_config=ParallelConfig(dp_size=4),
        dp_master_port=29500,
        node_managers=tuple(NodeManagerPlace(pod_ip=f"127.0.0.{pod}", port=1026) for pod in (2, 3)),
        endpoints=tuple(
            Endpoint(id=rank, pod_ip=f"127.0.0.{2 + rank // 2}", ip=f"127.0.0.{2 + rank // 2}", business_port=10000 + rank)
            for rank in RANKS
        ),
    )


def apply_line(rank: int, at: float = 103.0, **changes: object) -> EngineLine:
    params = {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.2", "dp_store_port": 29500}
    told = {"instruction": "scale_down", "params": params, "request_id": ROUND, "http": 202}
    return EngineLine.model_validate({"mono": at, "event": "apply", "rank": rank, **told, **changes})


def survivor(rank: int) -> EngineLife:
    """Noticed the fault, was told once, recovered within a second."""
    line = {"rank": rank, "request_id": ROUND, "instruction": "scale_down"}
    lines = [
        {"rank": rank, "mono": 10.0, "event": "start", "port": 10000 + rank},
        {"rank": rank, "mono": 12.0, "event": "ready", "port": 10000 + rank},
        {"rank": rank, "mono": 12.5, "event": "identity", "ids": [rank]},
        {"rank": rank, "mono": 102.0, "event": "status", "status": "unhealthy"},
        apply_line(rank).model_dump(),
        {**line, "mono": 103.01, "event": "recovery_start"},
        {**line, "mono": 103.9, "event": "recovery_end", "ok": True, "removed": [1]},
        {"rank": rank, "mono": 103.9, "event": "status", "status": "healthy"},
    ]
    return EngineLife(rank=rank, file=f"engine-{rank}-1.jsonl", lines=tuple(map(EngineLine.model_validate, lines)))


def victim(rank: int = 1) -> EngineLife:
    lines = [
        {"rank": rank, "mono": 10.0, "event": "start", "port": 10000 + rank},
        {"rank": rank, "mono": 12.0, "event": "ready", "port": 10000 + rank},
        {"rank": rank, "mono": 100.01, "event": "worker_exit", "code": -9},
        {"rank": rank, "mono": 100.01, "event": "status", "status": "dead"},
    ]
    return EngineLife(rank=rank, file=f"engine-{rank}-1.jsonl", lines=tuple(map(EngineLine.model_validate, lines)))


def with_line(life: EngineLife, line: EngineLine) -> EngineLife:
    return life.model_copy(update={"lines": (*life.lines, line)})


def view_lines() -> list[ViewLine]:
    def line(mono: float, event: str, revision: int | None, ranks: tuple[int, ...], outcome: str = "applied") -> ViewLine:
        return ViewLine(mono=mono, event=event, incarnation="a", instance=7, revision=revision, ranks=ranks, outcome=outcome)

    return [
        line(5.0, "start", None, (), "started"),
        line(15.0, "set", 1, RANKS),
        line(102.8, "del", 2, ()),
        line(104.2, "add", 3, SURVIVORS),
    ]


def polled() -> list[Event]:
    happened: list[Event] = [
        PhaseSeen(at=90.0, asked_at=89.9, phase="NORMAL", can_serve=True, serving_published=True),
        PhaseSeen(at=103.2, asked_at=103.1, phase="SCALING_DOWN", can_serve=False, serving_published=False),
        PhaseSeen(
            at=106.0,
            asked_at=105.9,
            phase="SCALED_DOWN_RUNNING",
            can_serve=True,
            serving_published=True,
            dead_committed=frozenset({1}),
        ),
        CommitSeen(at=104.1, request_id=ROUND, ranks=frozenset({1})),
    ]
    for manager in MANAGERS:
        happened += [
            SourceRead(at=110.0, kind=SourceKind.JOURNAL, who=manager),
            GenerationSeen(at=50.0, receiver=manager, generation=0),
            GenerationSeen(at=102.6, receiver=manager, generation=1),
            GuardSeen(at=102.6, manager=manager, request_id=ROUND, expires_at=187.6),
            VerdictSeen(at=104.1, manager=manager, request_id=ROUND, committed=True),
            GuardGone(at=104.1, manager=manager, request_id=ROUND),
        ]
    return happened


def request(number: int, started_at: float, rank: int, *, ok: bool = True) -> RequestRecord:
    return RequestRecord(
        number=number,
        kind="chat",
        streamed=False,
        started_at=started_at,
        ended_at=started_at + 0.1,
        ok=ok,
        why=None if ok else Failure.HTTP_STATUS,
        http=200 if ok else 503,
        rank=rank if ok else None,
        answered_by=rank if ok else None,
        finish_reason="length" if ok else None,
    )


def requests() -> list[RequestRecord]:
    before = [request(number, 95.0 + number, rank) for number, rank in enumerate(RANKS)]
    during = [request(10, 101.0, 0, ok=False), request(11, 103.5, 2, ok=False)]
    after = [request(20 + rank, 105.0 + rank, rank) for rank in SURVIVORS]
    return [*before, *during, *after]


def journal(manager: str, dead: tuple[int, ...] = (1,)) -> JournalReply:
    transaction = TransactionRecord(request_id=ROUND, generation=1, guarded=True, verdict="committed")
    return JournalReply(
        incarnation=manager,
        instance_id=7,
        highest_generation=1,
        retired_ranks=dead,
        dead_committed=dead,
        guard=None,
        transactions=(transaction,),
    )


def coordinator_view(ranks: tuple[int, ...] = SURVIVORS) -> CoordinatorView:
    pods: dict[str, dict[str, PublishedEndpoint]] = {}
    for rank in ranks:
        ip = f"127.0.0.{2 + rank // 2}"
        pods.setdefault(ip, {})[str(rank)] = PublishedEndpoint(id=rank, ip=ip, business_port=10000 + rank)
    return CoordinatorView(incarnation="a", has_view=True, instances=(PublishedInstance(id=7, revision=3, endpoints=pods),))


def report() -> RoundReport:
    return RoundReport(
        kind=StrategyKind.SCALE_DOWN,
        instance_id=7,
        generation=1,
        request_id=ROUND,
        outcome=RoundOutcome.SUCCEEDED,
        reason=RoundReason.COMMITTED,
        committed=True,
        dead_committed=(1,),
        removed_dp_ranks=(1,),
        survivors=SURVIVORS,
        stage_times={
            "guard": 0.1,
            "apply_ready": 0.2,
            "withdraw": 0.05,
            "apply": 0.04,
            "recover": 0.95,
            "verify": 0.06,
            "finalize": 0.05,
            "publish": 0.04,
        },
    )


def completion(rank: int, answered_by: int | None = None) -> Completion:
    named = rank if answered_by is None else answered_by
    return Completion(rank=rank, ok=True, answered_by=named, text=f"rank {named} epoch 1")


def happened(at: float, event: EventKind, name: str, detail: str = "") -> StackEvent:
    return StackEvent(mono=at, time="", event=event, name=name, detail=detail)


def started() -> list[StackEvent]:
    return [happened(1.0, EventKind.STARTED, name) for name in PROCESSES]


def killed(name: str, at: float, back_at: float) -> list[StackEvent]:
    """The drill's SIGKILL of one of our processes, and its return."""
    return [
        happened(at, EventKind.SIGNALLED, name, "SIGKILL"),
        happened(at + 0.01, EventKind.EXITED, name, "SIGKILL"),
        happened(back_at, EventKind.RESTARTED, name),
    ]


def stopped(name: str, at: float, until: float) -> list[StackEvent]:
    return [happened(at, EventKind.SIGNALLED, name, "SIGSTOP"), happened(until, EventKind.SIGNALLED, name, "SIGCONT")]


def evidence(**changes: object) -> Evidence:
    """The recorded recovery, with fields replaced."""
    entries = [
        LoggedEntry(at=100.2, manager=MANAGERS[0], rank=1, status=EngineStatus.DEAD, ft_state=None, source="engine"),
        *(
            LoggedEntry(at=102.1, manager=MANAGERS[rank // 2], rank=rank, status="unhealthy", ft_state=None, source="engine")
            for rank in SURVIVORS
        ),
    ]
    whole = Evidence(
        spec=local_spec("recorded"),
        topology=topology(),
        injections=(100.0,),
        ended_at=110.0,
        lives={rank: [victim() if rank == 1 else survivor(rank)] for rank in RANKS},
        view_lines={"coordinator-0": view_lines()},
        entries=entries,
        polled=polled(),
        journals={manager: journal(manager) for manager in MANAGERS},
        views={"coordinator-0": coordinator_view()},
        requests=requests(),
        stack_events=started(),
        reports=[report()],
        completions=[completion(rank) for rank in SURVIVORS],
        unchanged_refreshes={"coordinator-0": 2.0},
        workflows=["fault-manager-7.json"],
        replay=Replay(tasks=40),
        orphans=(),
        killed=frozenset(),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]
