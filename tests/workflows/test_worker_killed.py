"""A worker is killed in the middle of a round; another one goes on, in place, and no engine is called twice (acceptance C)."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from domain.config import FaultToleranceConfig
from domain.messages.strategy import RoundOutcome
from service.failpoints import VARIABLE
from service.one_exchange import one_exchange_client
from service.temporal import ensure_search_attributes
from tests.activities.fake_pods import fast_config
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, round_report, strategy_worker, strategy_world

pytestmark = pytest.mark.verify

ROOT = Path(__file__).parents[2]

EFFECTS = ("guard", "look_apply_ready", "withdraw", "apply", "look_recovered", "verify", "record_commit", "finalize", "publish")
MOST_TELLING = (
    "apply.before",
    "apply.after",
    "look_recovered.before",
    "record_commit.before",
    "finalize.before",
    "finalize.after",
)
OTHERS = [f"{e}.{when}" for e in EFFECTS for when in ("before", "after") if f"{e}.{when}" not in MOST_TELLING]


class Doomed:
    """A worker process that stops at a failpoint."""

    def __init__(self, process: asyncio.subprocess.Process, hit: asyncio.Event) -> None:
        self.process = process
        self.hit = hit

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def doomed_worker(address: str, world: StrategyWorld, failpoint: str, directory: Path) -> AsyncIterator[Doomed]:
    """A worker that stops at this failpoint and is never released."""
    hit, socket = asyncio.Event(), directory / "driver.sock"

    async def on_hit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        hit.set()
        await reader.read()
        writer.close()

    driver = await asyncio.start_unix_server(on_hit, path=str(socket))
    environment = {**os.environ, VARIABLE: f"{failpoint}=unix:{socket}"}
    command = [sys.executable, "-m", "tests.workflows.worker_process", address, world.task_queue]
    with (directory / "worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    doomed = Doomed(process, hit)
    try:
        yield doomed
    finally:
        await doomed.kill()
        driver.close()


async def killed_at(client: Client, address: str, point: str, directory: Path) -> None:
    async with strategy_world(client, work=False) as world:
        async with doomed_worker(address, world, f"worker.{point}", directory) as doomed:
            await world.publish()
            world.instance.kill(1)
            order = world.instance.order(1, config=_patient())
            handle = await world.start_round(order)
            await eventually(doomed.hit.is_set, f"the worker stops at {point}")
            await doomed.kill()
        async with (
            one_exchange_client() as http,
            strategy_worker(client, http, world.task_queue, await ensure_search_attributes(client)),
        ):
            report = await round_report(handle)
            heard = await world.heard()
        assert report.outcome is RoundOutcome.SUCCEEDED, f"{report.reason}: {report.detail}"
        assert report.serving_published
        assert [len(pod.applied) for pod in world.instance.pods] == [1, 1]
        assert [pod.verdicts[order.request_id] for pod in world.instance.pods] == [True, True]
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)
        assert [commit.dead_committed for commit in heard.commits] == [(1,)] * len(heard.commits)
        assert [end.report for end in heard.ends] == [report] * len(heard.ends)
        assert heard.ends


def _patient() -> FaultToleranceConfig:
    return fast_config(
        guard_deadline_sec=15.0,
        execution_deadline_sec=15.0,
        coordinator_deadline_sec=15.0,
        apply_deadline_sec=15.0,
        verify_deadline_sec=15.0,
        finalize_deadline_sec=15.0,
    )


@pytest.mark.parametrize("point", MOST_TELLING)
async def test_the_round_goes_on_in_place(temporal_client: Client, temporal_server: str, point: str, tmp_path: Path) -> None:
    await killed_at(temporal_client, temporal_server, point, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("point", OTHERS)
async def test_the_round_goes_on_in_place_everywhere(
    temporal_client: Client, temporal_server: str, point: str, tmp_path: Path
) -> None:
    await killed_at(temporal_client, temporal_server, point, tmp_path)
