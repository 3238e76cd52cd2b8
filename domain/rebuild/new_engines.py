"""New engines for an instance: InstanceReconfiguration and EngineRelaunch (design §3).

    withdraw → stop all → start the wanted ranks → all ready → a completion on each → still all ready → publish

| | InstanceReconfiguration | EngineRelaunch |
|---|---|---|
| wanted ranks | all of the topology | original − dead_committed |
| stop | the Pods restart: NodeManagers come back in a new life | engines only, the NodeManagers stay |
| dead_committed | cleared by its success | kept |

Withdrawn first, so that nobody routes to engines that are being stopped; all stopped before any is started, so that no new
engine meets an old group. Every step may be repeated: the stop names the life or the generation that it means, the start
its generation, the pushes their revisions. `reconfiguration_deadline_sec` bounds the whole; each step gets what is left of
it, the stop at most half.

A NodeManager that cannot be reached may still run its engines, and a second group beside them would be worse than none:
that fails, with its reason. **Gone** are only those whose heartbeats were lost before the order, and in a relaunch those
of Pods that hold removed ranks alone; if nobody answers there they count as stopped. What comes back later is fenced: the
new generation ends its engines before anything else.

Between the stop and the publication there is nothing to go back to; a wish to stop ends the current wait, and the instance
stays withdrawn.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from domain.errors import AutotomyError
from domain.messages.rebuild import (
    EnginesReadyCall,
    EnginesReadyResult,
    StartNodeManagersCall,
    StartNodeManagersResult,
    StopNodeManagersCall,
    StopNodeManagersResult,
)
from domain.messages.round import PeerRefusal, ViewResult
from domain.messages.strategy import (
    RebuildOrder,
    RebuildReport,
    ReconfigurationOrder,
    ReconfigurationReason,
    ReconfigurationReport,
    RelaunchOrder,
    RelaunchReport,
    StrategyKind,
)
from domain.runtime import FtPhase
from domain.strategy import StrategyLedger, StrategyPorts, by_rank, listed
from domain.topology import NodeManagerAddress
from domain.watch import questions

_STOP_SHARE: Final = 0.5
"""Of the whole time, what the stop may take."""


class RebuildPorts(StrategyPorts, Protocol):
    """What a rebuild needs of the world beyond what every strategy does. A wait that a stop has ended returns an empty result."""

    async def stop_node_managers(self, call: StopNodeManagersCall) -> StopNodeManagersResult: ...

    async def stop_engines(self, call: StopNodeManagersCall) -> StopNodeManagersResult: ...

    async def start(self, call: StartNodeManagersCall) -> StartNodeManagersResult: ...

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult: ...


async def run_reconfiguration(order: ReconfigurationOrder, ports: RebuildPorts) -> ReconfigurationReport:
    """Rebuilds the whole instance and reports it."""
    steps = _NewEngines(order, ports, StrategyKind.INSTANCE_RECONFIGURATION, stop=ports.stop_node_managers)
    report = await steps.run(ReconfigurationReason.REBUILT)
    return ReconfigurationReport(kind=StrategyKind.INSTANCE_RECONFIGURATION, **dict(report))


async def run_relaunch(order: RelaunchOrder, ports: RebuildPorts) -> RelaunchReport:
    """Gives the ranks that were not removed new engines and reports it."""
    removed = order.dead_committed
    steps = _NewEngines(order, ports, StrategyKind.ENGINE_RELAUNCH, stop=ports.stop_engines, dead_committed=removed)
    report = await steps.run(ReconfigurationReason.RELAUNCHED)
    return RelaunchReport(kind=StrategyKind.ENGINE_RELAUNCH, **dict(report), dead_committed=removed)


class _Stopped(Exception):
    """It ends without success."""

    def __init__(self, reason: ReconfigurationReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class _NewEngines:
    """The steps of both, and what has been learnt in them; what the two differ in are the arguments."""

    def __init__(
        self,
        order: RebuildOrder,
        ports: RebuildPorts,
        kind: StrategyKind,
        *,
        stop: Callable[[StopNodeManagersCall], Awaitable[StopNodeManagersResult]],
        dead_committed: tuple[int, ...] = (),
    ) -> None:
        workflow_id = kind.workflow_id(order.instance_id, order.generation)
        self._ledger = StrategyLedger(order, ports, request_id=workflow_id, view_revision=order.view_revision)
        self._order = order
        self._ports = ports
        self._config = order.config.dp_scale_down_config
        self._stop = stop
        self._dead_committed = dead_committed
        self._wanted = tuple(rank for rank in order.topology.ranks if rank not in dead_committed)
        self._questions = questions(order.topology, self._wanted)
        self._deadline_at = self._ledger.deadline(order.config.reconfiguration_deadline_sec)
        self._published = False
        self._engines: dict[int, str] = {}

    async def run(self, success: ReconfigurationReason) -> RebuildReport:
        """All steps, and what came of them. `success`: the reason of one that succeeds."""
        reason, detail = await self._all_steps(success)
        return RebuildReport(
            instance_id=self._order.instance_id,
            generation=self._order.generation,
            succeeded=reason is success,
            reason=reason,
            detail=detail,
            serving_published=self._published,
            view_revision=self._ledger.view_revision,
            engine_incarnations=self._engines,
            last_entries=self._ledger.last_entries,
            stage_times=self._ledger.stage_times,
        )

    async def _all_steps(self, success: ReconfigurationReason) -> tuple[ReconfigurationReason, str]:
        """How it ended, and why."""
        try:
            if not self._wanted:
                raise _Stopped(ReconfigurationReason.BAD_ORDER, "every rank was removed: there is nobody to start")
            await self._withdraw()
            await self._stop_all()
            await self._start_wanted()
            await self._until_ready()
            await self._verify()
            published = await self._publish()
        except _Stopped as stop:
            return stop.reason, stop.detail
        except AutotomyError as error:
            return ReconfigurationReason.PORT_FAILED, error.message
        self._published = published.confirmed
        return success, "" if published.confirmed else f"the view is not confirmed: {listed(published.refusals)}"

    async def _withdraw(self) -> None:
        self._ledger.view_revision = self._order.view_revision + 1
        self._say(f"withdraw: {self._order.why}")
        deadline_at = min(self._deadline_at, self._ledger.deadline(self._config.coordinator_deadline_sec))
        result = await self._ports.push_view(self._ledger.view_call((), deadline_at))
        self._ledger.stage_done("withdraw")
        if not result.confirmed:
            raise _Stopped(ReconfigurationReason.WITHDRAW_UNCONFIRMED, listed(result.refusals))

    async def _stop_all(self) -> None:
        self._check_stop()
        managers = self._order.topology.managers
        self._say(f"stop the engines of {len(managers)} NodeManagers")
        now = self._ports.now()
        call = StopNodeManagersCall(
            managers=managers,
            may_be_gone=tuple(m for m in managers if m in self._order.lost_node_managers or m in self._emptied),
            generation=self._order.generation,
            request_timeout_sec=self._config.request_timeout_sec,
            deadline_at=now + _STOP_SHARE * max(0.0, self._deadline_at - now),
            instance_id=self._order.instance_id,
        )
        result = await self._stop(call)
        self._check_stop()
        self._ledger.stage_done("stop")
        if result.refusals:
            raise _Stopped(ReconfigurationReason.STOP_REFUSED, listed(result.refusals))
        if result.unreachable:
            raise _Stopped(ReconfigurationReason.STOP_UNREACHABLE, listed(result.unreachable))
        if result.gone:
            self._say(f"count as stopped, nobody answers there: {', '.join(map(str, result.gone))}")

    async def _start_wanted(self) -> None:
        self._say(f"start ranks {_listed(self._wanted)} anew")
        result = await self._ports.start(
            StartNodeManagersCall(
                topology=self._order.topology,
                config=self._order.config,
                generation=self._order.generation,
                dead_committed=self._dead_committed,
                optional=self._emptied,
                deadline_at=self._deadline_at,
            )
        )
        self._check_stop()
        self._engines = {rank: engine for rank, engine in result.engines.items() if rank in self._wanted}
        self._ledger.stage_done("start")
        if result.refusals:
            raise _Stopped(ReconfigurationReason.START_FAILED, listed(result.refusals))

    async def _until_ready(self) -> None:
        self._say("wait until every rank is healthy")
        waiting = await self._look(self._deadline_at)
        self._ledger.stage_done("ready")
        if waiting:
            raise _Stopped(ReconfigurationReason.NOT_READY_IN_TIME, by_rank(waiting))

    async def _verify(self) -> None:
        """One completion on each rank; without the FT routes there is nobody to ask for it.

        Then one more look: a fault that outlived the engines shows once they work together.
        """
        if not (self._config.verify_inference and self._order.config.enable_dp_scale_down_proxy):
            return
        self._say("one completion on each rank")
        result = await self._ports.verify(self._ledger.verify_call(self._questions))
        self._check_stop()
        missing = {rank: result.failed.get(rank, "no answer") for rank in self._wanted if rank not in result.ok}
        if missing:
            raise _Stopped(ReconfigurationReason.VERIFY_FAILED, by_rank(missing))
        waiting = await self._look(self._ports.now())
        self._ledger.stage_done("verify")
        if waiting:
            raise _Stopped(ReconfigurationReason.FAULTS_REMAIN, by_rank(waiting))

    async def _look(self, deadline_at: float) -> dict[int, str]:
        """Which ranks are not ready at the deadline, and why."""
        result = await self._ports.await_ready(
            EnginesReadyCall(
                questions=self._questions,
                started=self._engines,
                poll_interval_sec=self._config.fault_poll_interval_sec,
                request_timeout_sec=self._config.request_timeout_sec,
                deadline_at=deadline_at,
            )
        )
        self._check_stop()
        self._ledger.last_entries.update(result.last_entries)
        known = {rank: entry.incarnation for rank, entry in result.last_entries.items() if entry.incarnation}
        self._engines = {**self._engines, **known}
        return result.waiting

    async def _publish(self) -> ViewResult:
        """Not confirmed is no failure: the engines are new, and the FaultManager goes on pushing."""
        if self._order.isolated:
            why = PeerRefusal(peer="FaultManager", reason="ISOLATED", message="an L3 fault stands, the view stays withdrawn")
            return ViewResult(confirmed=False, refusals=(why,))
        self._ledger.view_revision = self._order.view_revision + 2
        self._say(f"publish ranks {_listed(self._wanted)}")
        try:
            result = await self._ports.push_view(self._ledger.view_call(self._wanted))
        except AutotomyError as error:
            why = PeerRefusal(peer="Coordinators", reason=error.reason, message=error.message)
            result = ViewResult(confirmed=False, refusals=(why,))
        self._ledger.stage_done("publish")
        return result

    @property
    def _emptied(self) -> tuple[NodeManagerAddress, ...]:
        """NodeManagers without a wanted rank, headless members counted with theirs."""
        topology = self._order.topology
        needed = {topology.manager_of(endpoint) for endpoint in topology.endpoints if endpoint.id in self._wanted}
        return tuple(manager for manager in topology.managers if manager not in needed)

    def _check_stop(self) -> None:
        why = self._ports.stop_requested()
        if why is not None:
            raise _Stopped(ReconfigurationReason.CANCELLED, f"stopped: {why}")

    def _say(self, detail: str) -> None:
        self._ledger.say(FtPhase.RECONFIGURING, detail)


def _listed(items: Iterable[object]) -> str:
    return ",".join(str(item) for item in items)
