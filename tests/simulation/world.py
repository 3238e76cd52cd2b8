"""One seed's world, played: faults are injected, rounds are run, everything is written down.

`play(seed)` is the whole of it. `Parts` are the pieces that a test may replace by broken ones, to see whether the judge
notices.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from domain.engine import EngineStatus, FtCapability
from domain.errors import AutotomyError
from domain.messages.round import FinalizeCall
from domain.messages.strategy import RoundOrder, RoundOutcome, RoundReport
from domain.pod.records import Verdict
from domain.round.scale_down import RoundPorts, run_round
from domain.runtime import FtPhase, can_serve, resting_phase
from domain.topology import Endpoint, NodeManagerAddress, NodeManagerPlace, ParallelConfig, Topology
from domain.watch import Question
from lab.oracle.observations import Observed, PhaseSeen, RoundSeen, SourceKind, SourceRead
from tests.simulation.clock import now, run_virtually
from tests.simulation.coordinators import FakeCoordinator, Pusher
from tests.simulation.engines import Group
from tests.simulation.network import Wire
from tests.simulation.node_managers import FakeNodeManager
from tests.simulation.ports import SimulatedPorts
from tests.simulation.record import Record
from tests.simulation.scenario import Death, RoundPlan, Scenario, scenario
from tests.simulation.troubles import strike

INSTANCE_ID = 7
ROUTE_EVERY_SEC = 2.0
CONVERGES_WITHIN_SEC = 120.0

LIVES_ON = (Death.MUTE, Death.FALSE_ALARM)
"""Deaths with which no process ends."""


@dataclass(frozen=True)
class Parts:
    """What the world is made of."""

    run_round: Callable[[RoundOrder, RoundPorts], Awaitable[RoundReport]] = run_round
    node_manager: type[FakeNodeManager] = FakeNodeManager
    coordinator: type[FakeCoordinator] = FakeCoordinator
    ports: type[SimulatedPorts] = SimulatedPorts


@dataclass(frozen=True)
class RoundPlayed:
    """One round: what was ordered, what came of it, and which engines it removed that were alive and readable after all."""

    plan: RoundPlan
    order: RoundOrder
    report: RoundReport
    removed_alive: tuple[int, ...]
    members_after: frozenset[int]


@dataclass
class Played:
    """A world that has ended."""

    scenario: Scenario
    observed: Observed
    rounds: list[RoundPlayed]
    timeline: Callable[[], list[str]]
    guards_left: list[str] = field(default_factory=list)
    not_converged: list[str] = field(default_factory=list)
    verdicts: dict[tuple[str, str], bool] = field(default_factory=dict)
    retired: dict[str, set[int]] = field(default_factory=dict)


def play(seed: int, parts: Parts | None = None) -> Played:
    """Plays the world of this seed to its end."""
    return run_virtually(World(scenario(seed), parts if parts is not None else Parts()).play())


class World:
    """Everything that exists in one seed's world."""

    def __init__(self, plan: Scenario, parts: Parts) -> None:
        self.scenario, self.parts = plan, parts
        self.rng = Random(plan.seed + 1)
        self.record = Record()
        self.topology = topology(plan)
        self.config = plan.config.dp_scale_down_config
        self.group = Group(
            plan.dp_size,
            self.record,
            self.rng,
            recovery_sec=plan.recovery_sec,
            store_timeout_sec=plan.store_timeout_sec,
            engine_recovery_timeout_sec=plan.engine_recovery_timeout_sec,
        )
        self.managers = {manager: self._node_manager(manager) for manager in self.topology.managers}
        home = {endpoint.id: f"{endpoint.ip}:{endpoint.business_port}" for endpoint in self.topology.endpoints}
        names = [f"coordinator-{letter}" for letter in "ab"[: plan.coordinators]]
        self.coordinators = tuple(parts.coordinator(name, self.record, home) for name in names)
        self.wire = Wire(plan.network, self.rng)
        self.pusher = Pusher(self.coordinators, self.wire, self.record, self.topology.ranks)
        self.ports = parts.ports(self.managers, self.pusher, self.wire, self.record)
        self.generation = 0
        self.dead_committed: tuple[int, ...] = ()
        self.phase = FtPhase.NORMAL
        self.background: list[asyncio.Task[None]] = []

    async def play(self) -> Played:
        for name, kind in self._sources():
            self.record.saw(SourceRead(at=now(), kind=kind, who=name))
        self.background = [asyncio.ensure_future(self.pusher.keep_setting()), asyncio.ensure_future(self._clients())]
        await self._converge()
        rounds = []
        for plan in self.scenario.rounds:
            if len(self._active()) < 2:
                break
            played = await self._round(plan)
            rounds.append(played)
            if played.report.outcome is not RoundOutcome.SUCCEEDED:
                break  # what follows is a rebuild, or another decision: not the round's business
        not_converged = await self._converge()
        for task in self.background:
            task.cancel()
        await asyncio.sleep(self.config.lease_sec + self.scenario.engine_recovery_timeout_sec + 20.0)
        observed = Observed(
            instance_id=INSTANCE_ID,
            original=frozenset(self.topology.ranks),
            events=self.record.events,
            ended_at=now(),
        )
        return Played(
            scenario=self.scenario,
            observed=observed,
            rounds=rounds,
            timeline=self.record.timeline,
            guards_left=[m.name for m in self.managers.values() if m.holds() is not None],
            not_converged=not_converged,
            verdicts={
                (manager.name, request_id): transaction.verdict is Verdict.COMMITTED
                for manager in self.managers.values()
                for request_id, transaction in manager.journal.transactions.items()
                if transaction.verdict is not None
            },
            retired={manager.name: set(manager.journal.standing.retired) for manager in self.managers.values()},
        )

    async def _round(self, plan: RoundPlan) -> RoundPlayed:
        victims = sorted(self.rng.sample(self._active(), min(plan.pending, len(self._active()) - 1)))
        reported = {rank: self.group.engines[rank].incarnation for rank in victims}
        self._hurt(victims, plan)
        await asyncio.sleep(plan.reported_after_sec)
        order = self._order(victims, reported)
        for event in plan.troubles:
            asyncio.get_running_loop().call_later(event.after_sec, strike, self, event, victims, order)
        began, outages, deaths = now(), self.ports.outages_sec, self.ports.worker_deaths
        report = await self.parts.run_round(order, self.ports)
        self.record.told(f"{report.outcome}: {report.reason} {report.detail}")
        self.record.saw(
            RoundSeen(
                at=began,
                request_id=order.request_id,
                ended_at=now(),
                bound_sec=self.config.round_bound_sec
                + self.ports.outages_sec
                - outages
                + self._last_tries_sec(self.ports.worker_deaths - deaths),
            )
        )
        played = RoundPlayed(
            plan=plan,
            order=order,
            report=report,
            removed_alive=self._removed_alive(order, report),
            members_after=frozenset(self.group.members),
        )
        self.ports.stopping = self.ports.fails_next = False
        self._settle(report)
        if report.pending_finalize:
            await self._finalize_pending(order, report)
        await asyncio.sleep(1.0)
        return played

    def _hurt(self, victims: list[int], plan: RoundPlan) -> None:
        for rank in victims:
            self.record.told(f"rank {rank} dies: {plan.death}")
            self._kill(rank, plan.death, victims)
            self.ports.saw_status(rank, EngineStatus.DEAD, final=plan.death not in LIVES_ON)
        self.group.notice(plan.detection_sec)

    def _kill(self, rank: int, death: Death, victims: list[int]) -> None:
        manager = self.managers[self.topology.manager_of_rank(rank)]
        alone = set(manager.ranks) <= {*victims, *self.dead_committed}
        match death:
            case Death.WORKER:
                self.group.kill_worker(rank)
            case Death.MUTE:
                self.group.hang(rank)
            case Death.POWER if alone:
                manager.lose_power()
            case Death.REBORN:
                self.group.kill_process(rank)
                self.group.replace(rank)
            case Death.FALSE_ALARM:
                self.group.fall_mute(rank, self.rng.uniform(0.0, 6.0))
            case _:
                self.group.kill_process(rank)

    def _order(self, victims: list[int], reported: dict[int, str]) -> RoundOrder:
        self.generation += 1
        noticed = {rank: engine.noticed_at for rank, engine in self.group.engines.items() if rank not in victims}
        return RoundOrder(
            instance_id=INSTANCE_ID,
            generation=self.generation,
            request_id=f"scale-down-{self.generation:032x}",
            pending_ranks=tuple(victims),
            dead_committed=self.dead_committed,
            phase_before=self.phase,
            topology=self.topology,
            config=self.scenario.config,
            published_ranks=self.pusher.known.ranks,
            view_revision=self.pusher.known.revision,
            reported_incarnations=dict(reported),
            first_unhealthy_at={rank: at for rank, at in noticed.items() if at is not None},
        )

    def _settle(self, report: RoundReport) -> None:
        """What the FaultManager makes of the report."""
        match report.outcome:
            case RoundOutcome.SUCCEEDED:
                self.dead_committed, self.phase = report.dead_committed, resting_phase(report.dead_committed)
            case RoundOutcome.ABANDONED:
                self.phase = resting_phase(self.dead_committed)
            case _:
                self.phase = FtPhase.RECONFIGURING
        published = report.serving_published if report.withdrawn else True
        self.record.saw(
            PhaseSeen(
                at=now(),
                asked_at=now(),
                phase=self.phase,
                can_serve=can_serve(self.phase, published),
                serving_published=published,
                dead_committed=frozenset(self.dead_committed),
            )
        )

    async def _finalize_pending(self, order: RoundOrder, report: RoundReport) -> None:
        """The FaultManager's retries."""
        pending = tuple(manager for manager in self.managers if str(manager) in report.pending_finalize)
        by_manager = self.topology.by_manager(set(report.dead_committed) - set(order.dead_committed))
        await self.ports.finalize(
            FinalizeCall(
                request_id=order.request_id,
                generation=order.generation,
                commit=True,
                managers=pending,
                retired=tuple(Question(manager=manager, ranks=ranks) for manager, ranks in by_manager.items()),
                dead_committed=report.dead_committed,
                request_timeout_sec=self.config.request_timeout_sec,
                deadline_at=now() + 3.0,
            )
        )

    async def _converge(self) -> list[str]:
        """Coordinators that do not hold the newest view although they had long enough to hear of it."""
        end = now() + CONVERGES_WITHIN_SEC
        while now() < end:
            behind = [c.name for c in self.coordinators if not c.has_view or c.ranks != self.pusher.known.ranks]
            if not behind:
                return []
            await asyncio.sleep(1.0)
        return behind

    def _removed_alive(self, order: RoundOrder, report: RoundReport) -> tuple[int, ...]:
        """Removed though alive, heard, and its Pod not absent."""
        new = set(report.removed_dp_ranks) - set(order.dead_committed) if report.applied else set()
        return tuple(
            rank
            for rank in sorted(new)
            if self.group.engines[rank].alive
            and not self.group.was_mute_for(rank, self.config.dead_confirm_sec)
            and str(self.topology.manager_of_rank(rank)) not in report.absent_node_managers
        )

    def _last_tries_sec(self, worker_deaths: int) -> float:
        """A step may make one more request at its deadline, and each attempt after a worker's death at least one."""
        return (1 + 2 * worker_deaths) * (self.config.request_timeout_sec + 0.5)

    def _active(self) -> list[int]:
        return [rank for rank in self.topology.ranks if rank not in self.dead_committed]

    async def _clients(self) -> None:
        while True:
            for coordinator in self.coordinators:
                coordinator.route()
            await asyncio.sleep(ROUTE_EVERY_SEC)

    def _node_manager(self, manager: NodeManagerAddress) -> FakeNodeManager:
        return self.parts.node_manager(
            manager,
            self.topology.ranks_of(manager),
            self.group,
            self.record,
            self.rng,
            engine_request_timeout_sec=self.config.engine_request_timeout_sec,
            engine_recovery_timeout_sec=self.scenario.engine_recovery_timeout_sec,
            engine_link_loss=self.scenario.network.lose / 5,
        )

    def _sources(self) -> list[tuple[str, SourceKind]]:
        return [
            *((f"engine/{rank}", SourceKind.ENGINE_LOG) for rank in self.topology.ranks),
            *((str(manager), SourceKind.JOURNAL) for manager in self.managers),
            *((coordinator.name, SourceKind.VIEW_LOG) for coordinator in self.coordinators),
        ]

    async def send(self, manager: FakeNodeManager, request: Callable[[], Awaitable[object]]) -> bool:
        """A stranger's request: whether it was taken."""
        try:
            await self.wire.call(manager, request, self.config.request_timeout_sec)
        except AutotomyError:
            return False
        return True


def topology(plan: Scenario) -> Topology:
    pods = [f"10.0.0.{1 + rank // plan.per_pod}" for rank in range(plan.dp_size)]
    return Topology(
        instance_id=INSTANCE_ID,
        job_name="job",
        model_name="model",
        parallel_config=ParallelConfig(dp_size=plan.dp_size),
        dp_master_port=29500,
        node_managers=tuple(NodeManagerPlace(pod_ip=ip, port=1026) for ip in dict.fromkeys(pods)),
        endpoints=tuple(Endpoint(id=rank, pod_ip=ip, ip=ip, business_port=10000 + rank) for rank, ip in enumerate(pods)),
        ft_capability=FtCapability(
            enabled=True,
            scale_down_supported=True,
            external_lb=True,
            eplb_enabled=True,
            num_redundant_experts=32,
            engine_recovery_timeout_sec=plan.engine_recovery_timeout_sec,
        ),
    )
