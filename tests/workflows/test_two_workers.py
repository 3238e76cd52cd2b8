"""Two workers: one dies or leaves in the middle of a round, and the other goes on in place (acceptance C)."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from domain.messages.strategy import RoundOutcome, RoundReport
from service.one_exchange import one_exchange_client
from service.temporal import ensure_search_attributes
from tests.activities.fake_pods import fast_config, healthy, unhealthy
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, round_report, strategy_worker, strategy_world
from tests.workflows.test_worker_killed import doomed_worker

pytestmark = pytest.mark.verify

BUSY_MACHINE_SEC = 20.0
"""On a quiet one it is 3.5 s: a heartbeat timeout and the sticky queue's second."""


def timed_out(history: WorkflowHistory) -> list[int]:
    """The activities and workflow tasks that somebody was given and did not end: event ids."""
    kinds = (EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)
    return [event.event_id for event in history.events if event.event_type in kinds]


def in_place(world: StrategyWorld, report: RoundReport) -> None:
    assert report.outcome is RoundOutcome.SUCCEEDED, f"{report.reason}: {report.detail}"
    assert [len(pod.applied) for pod in world.instance.pods] == [1, 1]
    assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)


async def test_one_of_two_is_killed_and_the_other_goes_on(temporal_client: Client, temporal_server: str, tmp_path: Path) -> None:
    async with (
        strategy_world(temporal_client, work=False) as world,
        one_exchange_client() as http,
        doomed_worker(temporal_server, world, "worker.look_recovered.before", tmp_path) as first,
    ):
        await world.publish()
        world.instance.kill(1)
        handle = await world.start_round(world.instance.order(1, config=fast_config(execution_deadline_sec=30.0)))
        await eventually(first.hit.is_set, "the first worker stands there")
        attributes = await ensure_search_attributes(temporal_client)
        async with strategy_worker(temporal_client, http, world.task_queue, attributes):
            killed_at = time.monotonic()
            await first.kill()
            report = await round_report(handle)
            took_sec = time.monotonic() - killed_at
    in_place(world, report)
    assert took_sec < BUSY_MACHINE_SEC, f"{took_sec:.1f} s from the kill to the round's end"


async def test_a_worker_that_is_told_to_leave_hands_its_look_over_without_a_timeout(
    temporal_client: Client, temporal_server: str, tmp_path: Path
) -> None:
    log_file = tmp_path / "worker.log"
    async with (
        strategy_world(temporal_client, work=False) as world,
        one_exchange_client() as http,
        doomed_worker(temporal_server, world, "nowhere", tmp_path) as first,
    ):
        await world.publish()
        world.instance.kill(1)
        world.instance.pod_of(2).engines[2] = healthy(2)
        handle = await world.start_round(world.instance.order(1, config=fast_config(execution_deadline_sec=60.0)))
        looks = world.instance.pod_of(2)
        await eventually(lambda: len(looks.bodies("status")) > 2, "the first worker looks again and again")
        attributes = await ensure_search_attributes(temporal_client)
        async with strategy_worker(temporal_client, http, world.task_queue, attributes):
            os.kill(first.process.pid, signal.SIGTERM)
            async with asyncio.timeout(BUSY_MACHINE_SEC):
                code = await first.process.wait()
            assert code == 0, log_file.read_text()[-3000:]
            before = len(looks.bodies("status"))
            await eventually(lambda: len(looks.bodies("status")) > before, "the second worker looks")
            looks.engines[2] = unhealthy(2)
            report = await round_report(handle)
            history = await handle.fetch_history()
    in_place(world, report)
    assert not timed_out(history)
