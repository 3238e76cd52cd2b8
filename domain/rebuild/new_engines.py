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

from collections.abc import Iterable
from typing import Final, Protocol

from domain.engine import RankEntry
from domain.errors import AutotomyError
from domain.messages.rebuild import (
    EnginesReadyCall,
    EnginesReadyResult,
    StartNodeManagersCall,
    StartNodeManagersResult,
    StopNodeManagersCall,
    StopNodeManagersResult,
)
from domain.messages.round import PeerRefusal, VerifyCall, VerifyResult, ViewCall, ViewResult
from domain.messages.strategy import (
    RebuildOrder,
    RebuildReport,
    ReconfigurationOrder,
    ReconfigurationReason,
    ReconfigurationReport,
    RelaunchOrder,
    RelaunchReport,
    StepReport,
    StrategyKind,
)
from domain.runtime import FtPhase
from domain.topology import NodeManagerAddress
from domain.watch import Question

_STOP_SHARE: Final = 0.5
"""Of the whole time, what the stop may take."""


class RebuildPorts(Protocol):
    """What a rebuild needs of the world. A wait that is ended by a wish to stop returns an empty result."""

    def now(self) -> float:
        """Seconds since the epoch by this world's clock."""

    def stop_requested(self) -> str | None:
        """Why somebody wants this to end; None: nobody does."""

    def progress(self, report: StepReport) -> None:
        """Tell the FaultManager; not awaited, may arrive late or never."""

    async def push_view(self, call: ViewCall) -> ViewResult: ...

    async def stop_node_managers(self, call: StopNodeManagersCall) -> StopNodeManagersResult: ...

    async def stop_engines(self, call: StopNodeManagersCall) -> StopNodeManagersResult: ...

    async def start(self, call: StartNodeManagersCall) -> StartNodeManagersResult: ...

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult: ...

    async def verify(self, call: VerifyCall) -> VerifyResult: ...


async def run_reconfiguration(order: ReconfigurationOrder, ports: RebuildPorts) -> ReconfigurationReport:
    """Rebuilds the whole instance and reports it."""
    report = await _Rebuild(order, ports, dead_committed=()).run(ReconfigurationReason.REBUILT)
    return ReconfigurationReport(kind=StrategyKind.INSTANCE_RECONFIGURATION, **dict(report))


async def run_relaunch(order: RelaunchOrder, ports: RebuildPorts) -> RelaunchReport:
    """Gives the ranks that were not removed new engines and reports it."""
    report = await _Rebuild(order, ports, dead_committed=order.dead_committed).run(ReconfigurationReason.RELAUNCHED)
    return RelaunchReport(kind=StrategyKind.ENGINE_RELAUNCH, **dict(report), dead_committed=order.dead_committed)


class _Stopped(Exception):
    """It ends without success."""

    def __init__(self, reason: ReconfigurationReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class _Rebuild:
    """The steps, and what has been learnt in them."""

    def __init__(self, order: RebuildOrder, ports: RebuildPorts, *, dead_committed: tuple[int, ...]) -> None:
        self._revision = order.view_revision
        self._published = False
        self._engines: dict[int, str] = {}
        self._looked: dict[int, RankEntry] = {}
        self._stage_times: dict[str, float] = {}
        self._order = order
        self._ports = ports
        self._config = order.config.dp_scale_down_config
        self._dead_committed = dead_committed
        self._wanted = tuple(rank for rank in order.topology.ranks if rank not in dead_committed)
        self._deadline_at = ports.now() + order.config.reconfiguration_deadline_sec
        self._stage_began = ports.now()
        self._steps = 0

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
            view_revision=self._revision,
            engine_incarnations=self._engines,
            looked=self._looked,
            stage_times=self._stage_times,
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
        return success, "" if published.confirmed else f"the view is not confirmed: {_told(published.refusals)}"

    async def _withdraw(self) -> None:
        self._revision = self._order.view_revision + 1
        self._say(f"withdraw: {self._order.why}")
        deadline_at = min(self._deadline_at, self._ports.now() + self._config.coordinator_deadline_sec)
        result = await self._ports.push_view(self._view((), deadline_at))
        self._stage_done("withdraw")
        if not result.confirmed:
            raise _Stopped(ReconfigurationReason.WITHDRAW_UNCONFIRMED, _told(result.refusals))

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
        pods_restart = isinstance(self._order, ReconfigurationOrder)
        stop = self._ports.stop_node_managers if pods_restart else self._ports.stop_engines
        result = await stop(call)
        self._check_stop()
        self._stage_done("stop")
        if result.refusals:
            raise _Stopped(ReconfigurationReason.STOP_REFUSED, _told(result.refusals))
        if result.unreachable:
            raise _Stopped(ReconfigurationReason.STOP_UNREACHABLE, _told(result.unreachable))
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
        self._stage_done("start")
        if result.refusals:
            raise _Stopped(ReconfigurationReason.START_FAILED, _told(result.refusals))

    async def _until_ready(self) -> None:
        self._say("wait until every rank is healthy")
        waiting = await self._look(self._deadline_at)
        self._stage_done("ready")
        if waiting:
            raise _Stopped(ReconfigurationReason.NOT_READY_IN_TIME, _by_rank(waiting))

    async def _verify(self) -> None:
        """One completion on each rank; without the FT routes there is nobody to ask for it.

        Then one more look: a fault that outlived the engines shows once they work together.
        """
        if not (self._config.verify_inference and self._order.config.enable_dp_scale_down_proxy):
            return
        self._say("one completion on each rank")
        result = await self._ports.verify(
            VerifyCall(
                groups=self._questions,
                request_timeout_sec=self._config.request_timeout_sec,
                deadline_at=self._ports.now() + self._config.verify_deadline_sec,
            )
        )
        self._check_stop()
        missing = {rank: result.failed.get(rank, "no answer") for rank in self._wanted if rank not in result.ok}
        if missing:
            raise _Stopped(ReconfigurationReason.VERIFY_FAILED, _by_rank(missing))
        waiting = await self._look(self._ports.now())
        self._stage_done("verify")
        if waiting:
            raise _Stopped(ReconfigurationReason.FAULTS_REMAIN, _by_rank(waiting))

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
        self._looked.update(result.looked)
        known = {rank: entry.incarnation for rank, entry in result.looked.items() if entry.incarnation}
        self._engines = {**self._engines, **known}
        return result.waiting

    async def _publish(self) -> ViewResult:
        """Not confirmed is no failure: the engines are new, and the FaultManager goes on pushing."""
        if self._order.isolated:
            why = PeerRefusal(peer="FaultManager", reason="ISOLATED", message="an L3 fault stands, the view stays withdrawn")
            return ViewResult(confirmed=False, refusals=(why,))
        self._revision = self._order.view_revision + 2
        self._say(f"publish ranks {_listed(self._wanted)}")
        try:
            call = self._view(self._wanted, self._ports.now() + self._config.coordinator_deadline_sec)
            result = await self._ports.push_view(call)
        except AutotomyError as error:
            why = PeerRefusal(peer="Coordinators", reason=error.reason, message=error.message)
            result = ViewResult(confirmed=False, refusals=(why,))
        self._stage_done("publish")
        return result

    @property
    def _questions(self) -> tuple[Question, ...]:
        by_manager = self._order.topology.by_manager(self._wanted)
        return tuple(Question(manager=manager, ranks=ranks) for manager, ranks in by_manager.items())

    @property
    def _emptied(self) -> tuple[NodeManagerAddress, ...]:
        """NodeManagers without a wanted rank, headless members counted with theirs."""
        topology = self._order.topology
        needed = {topology.manager_of(endpoint) for endpoint in topology.endpoints if endpoint.id in self._wanted}
        return tuple(manager for manager in topology.managers if manager not in needed)

    def _view(self, ranks: tuple[int, ...], deadline_at: float) -> ViewCall:
        return ViewCall(
            topology=self._order.topology,
            revision=self._revision,
            ranks=ranks,
            request_timeout_sec=self._config.request_timeout_sec,
            deadline_at=deadline_at,
        )

    def _check_stop(self) -> None:
        why = self._ports.stop_requested()
        if why is not None:
            raise _Stopped(ReconfigurationReason.CANCELLED, f"stopped: {why}")

    def _say(self, detail: str) -> None:
        self._steps += 1
        order = self._order
        rebuild = isinstance(order, ReconfigurationOrder)
        kind = StrategyKind.INSTANCE_RECONFIGURATION if rebuild else StrategyKind.ENGINE_RELAUNCH
        self._ports.progress(
            StepReport(
                step=self._steps,
                phase=FtPhase.RECONFIGURING,
                detail=detail,
                request_id=kind.workflow_id(order.instance_id, order.generation),
                pending_ranks=(),
                at=self._ports.now(),
            )
        )

    def _stage_done(self, name: str) -> None:
        at = self._ports.now()
        self._stage_times[name] = round(at - self._stage_began, 6)
        self._stage_began = at


def _by_rank(reasons: dict[int, str]) -> str:
    return "; ".join(f"rank {rank}: {why}" for rank, why in sorted(reasons.items()))


def _listed(items: Iterable[object]) -> str:
    return ",".join(str(item) for item in items)


def _told(refusals: tuple[PeerRefusal, ...]) -> str:
    return "; ".join(f"{refusal.peer}: {refusal.reason} ({refusal.message})" for refusal in refusals)
