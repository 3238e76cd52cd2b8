"""A storm of signals while a round runs and the FaultManager continues as new again and again (acceptance D 17).

Twenty NodeManagers report at once, every tenth report twice, and in the middle of it the round tells its progress, its commit
and its end. Three counts that know nothing of each other must be equal: what the clients were acknowledged, what the
server wrote into the histories of all runs, and what the FaultManager took. Whether a report was *understood* is seen by
the sequence that stands at the end for each rank; a report that came twice, or late, must start nothing.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

import workflows.fault_manager
from domain.engine import EntrySource
from domain.messages.fault_manager import REPORT_SIGNAL
from domain.messages.node_manager import PodReport, RankReport
from domain.runtime import FtPhase, RuntimeRecord
from tests.workflows.factories import topology
from tests.workflows.fault_manager_world import DEAD, HEALTHY, UNHEALTHY, World, a_world

pytestmark = pytest.mark.verify

SENDERS = 20
VICTIM = 1
FIRST_SEQUENCE = 100
"""Above whatever the world itself has reported before the storm."""


STORM_LIMIT_SEC = 240.0
PATIENCE_SEC = 120.0


@dataclass
class Sender:
    """One NodeManager with one rank: `reports` different reports in their order, every tenth of them once more, late.

    In the first half the rank is unhealthy (the victim: dead), in the second it has recovered. `look` is between both: what
    the round saw last.
    """

    world: World
    rank: int
    reports: int
    acknowledged: Counter[int] = field(default_factory=Counter)

    @property
    def look(self) -> int:
        return FIRST_SEQUENCE + self.reports // 2

    @property
    def last(self) -> int:
        return FIRST_SEQUENCE + self.reports

    async def send_all(self, half_way: asyncio.Semaphore) -> None:
        for number in range(self.reports):
            sequence = FIRST_SEQUENCE + number + (number >= self.reports // 2)  # leaves `look` out
            await self._send(sequence)
            if number % 9 == 8:
                await self._send(sequence - 1 if sequence - 1 != self.look else sequence)  # the one before, once more
            if number == self.reports // 2:
                half_way.release()

    async def _send(self, sequence: int) -> None:
        manager = self.world.topology.manager_of_rank(self.rank)
        fault = DEAD if self.rank == VICTIM else UNHEALTHY
        report = RankReport(
            engine_id=self.rank,
            engine_status=fault if sequence < self.look or self.rank == VICTIM else HEALTHY,
            engine_incarnation=f"old-{self.rank}",
            sequence=sequence,
            source=EntrySource.ENGINE,
        )
        pod = PodReport(
            instance_id=self.world.instance_id,
            pod_ip=manager.ip,
            node_manager_port=manager.port,
            incarnation="life-1",
            reports=(report,),
        )
        await _delivered(self.world, REPORT_SIGNAL, {"report": pod.model_dump(mode="json"), "received_at": time.time()})
        self.acknowledged[sequence] += 1


async def _delivered(world: World, name: str, value: object) -> None:
    """Signalled and acknowledged. A server that is busy says so and has taken nothing: it is asked again, as the API does."""
    end = time.monotonic() + 60
    while True:
        try:
            return await world.signal(name, value)
        except RPCError as error:
            if error.status is not RPCStatusCode.RESOURCE_EXHAUSTED or time.monotonic() > end:
                raise
            await asyncio.sleep(0.05)


async def _signals_in_histories(world: World) -> list[int]:
    """How many signals each run of the FaultManager received, by the server's own histories, the newest run last."""
    runs: list[int] = []
    run_id: str | None = (await world.handle.describe()).run_id
    while run_id:
        history = await world.client.get_workflow_handle(world.handle.id, run_id=run_id).fetch_history()
        runs.append(sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED for event in history.events))
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return runs[::-1]


async def _once_taken(world: World, signals: int) -> RuntimeRecord:
    """The record when so many signals were taken and the instance serves. While its workflow task fails (the server refused
    to continue as new because a signal came meanwhile, or the machine is too busy) there is no answer: asked again."""
    end = time.monotonic() + PATIENCE_SEC
    said: object = None
    while time.monotonic() < end:
        try:
            said = record = await world.record()
            if record.signals_taken >= signals and record.can_serve:
                return record
        except RPCError as error:
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
            said = error
        await asyncio.sleep(0.1)
    raise AssertionError(f"not {signals} signals taken within {PATIENCE_SEC:.0f} s; at last: {said}")


async def _storm(client: Client, signals: int, runs_at_least: int, *, sandboxed: bool) -> None:
    """`signals` reports by 20 senders, a tenth of them repeated ones, over at least `runs_at_least` runs."""
    async with a_world(client, ranks=SENDERS, sandboxed=sandboxed) as world:
        world.topology = topology(world.instance_id, SENDERS, per_pod=1)
        await world.serve()
        order = await world.fail_over((VICTIM,))
        before = (await world.record()).signals_taken
        ranks = world.topology.ranks
        senders = [Sender(world, rank, signals * 9 // 10 // SENDERS) for rank in ranks]
        half_way = asyncio.Semaphore(0)
        began = time.monotonic()
        async with asyncio.timeout(STORM_LIMIT_SEC), asyncio.TaskGroup() as storm:
            for sender in senders:
                storm.create_task(sender.send_all(half_way))
            for step, phase in enumerate((FtPhase.DECIDING, FtPhase.SCALING_DOWN, FtPhase.POST_SCALE_CLEANUP), start=1):
                await world.progress(order, step, phase)
            for _ in range(SENDERS // 2):
                await half_way.acquire()
            assert await world.commit(order)
            world.sequence = senders[0].look
            await world.end_round(order)
        sent_after = time.monotonic() - began

        expected = before + signals + 4  # three steps of the round, and its end
        record = await _once_taken(world, expected)
        took = time.monotonic() - began
        acknowledged = sum(sum(sender.acknowledged.values()) for sender in senders)
        runs = await _signals_in_histories(world)
        print(
            f"\nsignals {acknowledged}, sent in {sent_after:.1f} s, all taken after {took:.1f} s;"
            f" continue-as-new {len(runs) - 1}; signals in each run {runs}; taken by the FaultManager {record.signals_taken}"
        )
        assert acknowledged == signals
        assert sum(count - 1 for sender in senders for count in sender.acknowledged.values()) == signals // 10
        assert (record.signals_taken, sum(runs)) == (expected, expected)
        assert len(runs) >= runs_at_least
        assert (record.phase, record.dead_committed) == (FtPhase.SCALED_DOWN_RUNNING, (VICTIM,))
        newest = {rank: record.engine_statuses[str(rank)].sequence for rank in ranks if rank != VICTIM}
        assert newest == {sender.rank: sender.last for sender in senders if sender.rank != VICTIM}
        assert (len(world.rounds), world.rebuilds, world.others) == (1, [], [])
        assert record.rejected_signals == ()


async def test_no_signal_is_lost_or_counted_twice_while_it_continues_as_new(
    temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows.fault_manager, "CONTINUE_AS_NEW_AT_EVENTS", 150)
    await _storm(temporal_client, 600, runs_at_least=3, sandboxed=False)


@pytest.mark.soak
async def test_nine_thousand_signals_through_several_continue_as_new(temporal_client: Client) -> None:
    await _storm(temporal_client, 9_000, runs_at_least=4, sandboxed=True)
