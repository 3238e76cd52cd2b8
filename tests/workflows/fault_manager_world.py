"""A FaultManager on a real Temporal server, in a world that the test plays: NodeManagers, Coordinators and strategies.

The activities are registered under their real names and answer what the test put into `World`; the strategies are
workflows of the real types that run until the test says so. Reports and ends of strategies come in as the real ones do:
by signal.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.fault_manager import FaultManagerActivities
from domain.config import FaultToleranceConfig
from domain.engine import EntrySource, RankEntry
from domain.messages.fault_manager import (
    END_SIGNAL,
    PROGRESS_SIGNAL,
    REPORT_SIGNAL,
    FaultManagerStart,
    FreshLookCall,
    FreshLookResult,
    JournalsCall,
    JournalsResult,
    LookUpCall,
    LookUpResult,
    PaceCall,
    Reported,
    StrategyState,
    WakeCall,
    WakeResult,
    fault_manager_id,
)
from domain.messages.node_manager import PodReport, RankReport
from domain.messages.rebuild import (
    EnginesReadyCall,
    EnginesReadyResult,
    StartNodeManagersCall,
    StartNodeManagersResult,
    StopNodeManagersCall,
    StopNodeManagersResult,
)
from domain.messages.round import CommitRecord, FinalizeCall, FinalizeResult, PeerRefusal, ViewCall, ViewResult
from domain.messages.strategy import (
    ReconfigurationOrder,
    RoundOrder,
    RoundOutcome,
    StepReport,
    StrategyEnd,
    StrategyKind,
    StrategyProgress,
)
from domain.runtime import FtPhase, RuntimeRecord
from domain.topology import Role
from tests.leaving_worker import LeavingWorker
from tests.workflows.factories import committed_by, config, rebuild_end, round_end, topology
from tests.workflows.stand_ins import STAND_INS
from workers.workflow_runner import workflow_runner
from workflows.event_pusher import EventPusher
from workflows.fault_manager import FaultManager
from workflows.instance_registry import InstanceRegistry

PATIENCE_SEC = 45.0
HEALTHY, DEAD, UNHEALTHY = 0, 1, 2


class World:
    """What the activities answer, and what they were asked. One instance, one FaultManager."""

    def __init__(self, client: Client, instance_id: int, settings: FaultToleranceConfig, ranks: int = 4) -> None:
        self.client = client
        self.instance_id = instance_id
        self.config = settings
        self.topology = topology(instance_id, ranks)
        self.task_queue = f"world-{uuid.uuid4().hex[:8]}"
        self.journals = JournalsResult(complete=True)
        self.last_entries: dict[int, RankEntry] = {}
        self.coordinators_confirm = True
        self.finalize_pending = False
        self.finalize_refusal: str | None = None
        self.start_refuses = False
        self.fails: set[str] = set()
        self.search_attributes: tuple[str, ...] = ("InstanceId", "FtPhase", "DeadRanks", "ServingPublished")
        self.found: dict[int, LookUpResult] = {}
        self.calls: list[tuple[str, Any]] = []
        self.rounds: list[RoundOrder] = []
        self.rebuilds: list[ReconfigurationOrder] = []
        self.others: list[tuple[StrategyKind, dict[str, Any]]] = []
        self.sequence = 0

    @property
    def handle(self) -> "WorkflowHandle[Any, Any]":
        return self.client.get_workflow_handle(fault_manager_id(self.instance_id))

    def start(self, state: str | None = None) -> FaultManagerStart:
        return FaultManagerStart(instance_id=self.instance_id, topology=self.topology, config=self.config, state=state)

    async def begin(self) -> None:
        await self.client.start_workflow(
            "FaultManager",
            self.start(),
            id=fault_manager_id(self.instance_id),
            task_queue=self.task_queue,
            task_timeout=timedelta(seconds=2),
            execution_timeout=timedelta(seconds=300),
        )

    async def record(self) -> RuntimeRecord:
        record = await self.handle.query("status", result_type=RuntimeRecord)
        assert isinstance(record, RuntimeRecord)
        return record

    async def until(self, holds: Callable[[RuntimeRecord], object], what: str = "") -> RuntimeRecord:
        """The first record for which `holds` is true. Fails with the last one when patience is over."""
        end = time.monotonic() + PATIENCE_SEC
        while True:
            record = await self.record()
            if holds(record):
                return record
            assert time.monotonic() < end, f"never came: {what}; last record: {record}"
            await asyncio.sleep(0.03)

    async def until_true(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_SEC
        while not holds():
            assert time.monotonic() < end, f"never came: {what}; calls: {self.calls}"
            await asyncio.sleep(0.03)

    async def serve(self) -> RuntimeRecord:
        """Begin, assemble, and serve with all ranks."""
        await self.begin()
        await self.until(lambda r: "not ready" in (r.waiting.reason if r.waiting else ""), "engines started")
        await self.report(dict.fromkeys(self.topology.ranks, HEALTHY))
        return await self.until(lambda r: r.can_serve and r.waiting is None, "serving")

    async def report(self, statuses: dict[int, int], source: EntrySource = EntrySource.ENGINE, engine: str = "old") -> None:
        """Each Pod reports its ranks, as a NodeManager does through the API."""
        for manager, ranks in self.topology.by_manager(statuses).items():
            self.sequence += 1
            reports = tuple(
                RankReport(
                    engine_id=rank,
                    engine_status=statuses[rank],
                    engine_incarnation=f"{engine}-{rank}",
                    sequence=self.sequence,
                    source=source,
                )
                for rank in ranks
            )
            pod = PodReport(
                instance_id=self.instance_id,
                pod_ip=manager.ip,
                node_manager_port=manager.port,
                incarnation="life-1",
                reports=reports,
            )
            await self.signal(REPORT_SIGNAL, {"report": pod.model_dump(mode="json"), "received_at": time.time()})

    async def signal(self, name: str, *values: object) -> None:
        await self.handle.signal(name, args=list(values))

    async def progress(self, order: RoundOrder, step: int, phase: FtPhase) -> None:
        kind = StrategyKind.SCALE_DOWN
        report = StepReport(
            step=step,
            phase=phase,
            detail=f"step {step}",
            request_id=order.request_id,
            pending_ranks=order.pending_ranks,
            at=time.time(),
        )
        progress = StrategyProgress(
            kind=kind,
            instance_id=self.instance_id,
            generation=order.generation,
            workflow_id=kind.workflow_id(self.instance_id, order.generation),
            step=report,
        )
        await self.signal(PROGRESS_SIGNAL, progress)

    async def fail_over(self, ranks: tuple[int, ...] = (1,)) -> RoundOrder:
        """These ranks die, the others notice; the order of the round that follows."""
        before = len(self.rounds)
        alive = (await self.record()).alive_dp_ranks
        await self.report({rank: DEAD if rank in ranks else UNHEALTHY for rank in alive})
        await self.until_true(lambda: len(self.rounds) > before, "a round")
        return self.rounds[-1]

    async def commit(self, order: RoundOrder) -> bool:
        """The round's commit point, as its activity tells it."""
        record = CommitRecord(
            instance_id=self.instance_id,
            generation=order.generation,
            request_id=order.request_id,
            dead_committed=committed_by(order),
            view_revision=order.view_revision + 2,
        )
        end = time.monotonic() + PATIENCE_SEC
        while True:
            try:
                return bool(await self.handle.execute_update("record_commit", record, result_type=bool))
            except RPCError:  # it continued as new just then; the activity repeats it as well
                assert time.monotonic() < end, "no acknowledgement"

    async def end_round(self, order: RoundOrder, outcome: RoundOutcome = RoundOutcome.SUCCEEDED, **changes: Any) -> None:
        """The round reports its end, and its workflow completes."""
        await self.signal(END_SIGNAL, round_end(order, outcome, self.sequence, **changes))
        await self._finish(StrategyKind.SCALE_DOWN, order.generation)

    async def end_rebuild(self, order: ReconfigurationOrder, succeeded: bool = True) -> None:
        await self.signal(END_SIGNAL, rebuild_end(order, succeeded))
        await self._finish(StrategyKind.INSTANCE_RECONFIGURATION, order.generation)

    async def end_other(self, **fields: Any) -> None:
        """The last one of the other strategies ends with a report of these fields."""
        kind, order = self.others[-1]
        report = {"kind": kind, "instance_id": self.instance_id, "generation": order["generation"], **fields}
        workflow_id = kind.workflow_id(self.instance_id, order["generation"])
        await self.signal(END_SIGNAL, StrategyEnd.model_validate({"workflow_id": workflow_id, "report": report}))
        await self._finish(kind, order["generation"])

    async def until_stopped(self, kind: StrategyKind, generation: int) -> None:
        """The stand-in was asked to stop; it has not told its end."""
        handle = self.client.get_workflow_handle(kind.workflow_id(self.instance_id, generation))
        await asyncio.wait_for(handle.result(), PATIENCE_SEC)

    def become_decode(self) -> None:
        """Before `begin`: an instance that only decodes."""
        self.topology = self.topology.model_copy(update={"role": Role.DECODE})

    async def _finish(self, kind: StrategyKind, generation: int) -> None:
        try:
            await self.client.get_workflow_handle(kind.workflow_id(self.instance_id, generation)).signal("stop")
        except RPCError as error:  # it was stopped before
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def history_length(self) -> int:
        return (await self.handle.describe()).history_length

    def note(self, name: str, call: object) -> None:
        self.calls.append((name, call))
        if name in self.fails:
            raise ApplicationError(f"{name} is told to fail", non_retryable=True)

    def asked(self, name: str) -> list[Any]:
        return [call for called, call in self.calls if called == name]

    # The activities, under their real names.

    @activity.defn(name="usable_search_attributes")
    async def usable_search_attributes(self) -> Reported:
        self.note("usable_search_attributes", None)
        return Reported(search_attributes=self.search_attributes)

    @activity.defn(name="read_journals")
    async def read_journals(self, call: JournalsCall) -> JournalsResult:
        self.note("read_journals", call)
        return self.journals

    @activity.defn(name="start_node_managers")
    async def start_node_managers(self, call: StartNodeManagersCall) -> StartNodeManagersResult:
        self.note("start_node_managers", call)
        managers = [str(manager) for manager in call.topology.managers]
        started = managers[:-1] if self.start_refuses else managers
        return StartNodeManagersResult(started=dict.fromkeys(started, "life-1"))

    @activity.defn(name="stop_node_managers")
    async def stop_node_managers(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        self.note("stop_node_managers", call)
        return StopNodeManagersResult(stopped=call.managers)

    @activity.defn(name="await_engines_ready")
    async def await_engines_ready(self, call: EnginesReadyCall) -> EnginesReadyResult:
        self.note("await_engines_ready", call)
        return EnginesReadyResult(waiting={rank: "starting" for question in call.questions for rank in question.ranks})

    @activity.defn(name="fresh_look")
    async def fresh_look(self, call: FreshLookCall) -> FreshLookResult:
        self.note("fresh_look", call)
        return FreshLookResult(last_entries=self.last_entries)

    @activity.defn(name="push_view")
    async def push_view(self, call: ViewCall) -> ViewResult:
        self.note("push_view", call)
        return ViewResult(confirmed=self.coordinators_confirm, coordinators=("http://127.0.0.1:1",))

    @activity.defn(name="finalize")
    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        self.note("finalize", call)
        if self.finalize_refusal is not None:
            said = PeerRefusal(peer=str(call.managers[0]), reason=self.finalize_refusal, message="not this one")
            return FinalizeResult(refusals=(said,))
        return FinalizeResult(pending=call.managers) if self.finalize_pending else FinalizeResult(done=call.managers)

    @activity.defn(name="pace")
    async def pace(self, call: PaceCall) -> None:
        self.note("pace", call)

    @activity.defn(name="look_up_strategy")
    async def look_up_strategy(self, call: LookUpCall) -> LookUpResult:
        self.note("look_up_strategy", call)
        return self.found.get(call.generation, LookUpResult(state=StrategyState.ABSENT))

    # What the stand-in strategies tell.

    @activity.defn(name="wake")
    async def wake(self, call: WakeCall) -> WakeResult:
        self.note("wake", call)
        return WakeResult()

    @activity.defn(name="note_order")
    async def note_order(self, workflow_id: str, order: dict[str, Any]) -> None:
        kind = next(kind for kind in StrategyKind if workflow_id.startswith(f"{kind}-"))
        match kind:
            case StrategyKind.SCALE_DOWN:
                self.rounds.append(RoundOrder.model_validate(order))
            case StrategyKind.INSTANCE_RECONFIGURATION:
                self.rebuilds.append(ReconfigurationOrder.model_validate(order))
            case _:
                self.others.append((kind, order))


def worker_of(
    world: World, *, sandboxed: bool = True, registry: bool = False, more_activities: Sequence[Callable[..., Any]] = ()
) -> Worker:
    """A worker on the world's own task queue. Outside the sandbox a test can change a constant of the workflow."""
    return LeavingWorker(
        world.client,
        task_queue=world.task_queue,
        workflows=[FaultManager, *STAND_INS, *((InstanceRegistry, EventPusher) if registry else ())],
        activities=[
            world.usable_search_attributes,
            world.read_journals,
            world.start_node_managers,
            world.stop_node_managers,
            world.await_engines_ready,
            world.fresh_look,
            world.wake,
            world.push_view,
            world.finalize,
            world.pace,
            world.look_up_strategy,
            world.note_order,
            FaultManagerActivities(world.client, world.task_queue).owned_topology,
            *more_activities,
        ],
        workflow_runner=workflow_runner() if sandboxed else UnsandboxedWorkflowRunner(),
    )


@asynccontextmanager
async def a_world(
    client: Client, settings: FaultToleranceConfig | None = None, *, ranks: int = 4, sandboxed: bool = True
) -> AsyncIterator[World]:
    """A world with its worker; whatever still runs in it is terminated at the end."""
    world = World(client, uuid.uuid4().int % 1_000_000_000, settings or config(), ranks)
    async with worker_of(world, sandboxed=sandboxed):
        yield world
        for workflow_id in [fault_manager_id(world.instance_id), *_strategy_ids(world)]:
            await _terminate(client, workflow_id)


async def _terminate(client: Client, workflow_id: str) -> None:
    try:
        await client.get_workflow_handle(workflow_id).terminate()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def _strategy_ids(world: World) -> list[str]:
    orders: list[tuple[StrategyKind, int]] = [
        *((StrategyKind.SCALE_DOWN, order.generation) for order in world.rounds),
        *((StrategyKind.INSTANCE_RECONFIGURATION, order.generation) for order in world.rebuilds),
        *((kind, order["generation"]) for kind, order in world.others),
    ]
    return [kind.workflow_id(world.instance_id, generation) for kind, generation in orders]
