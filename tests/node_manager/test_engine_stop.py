"""`engine-restart {"action": "stop"}`: the engines end, the NodeManager stays, and a start comes next (EngineRelaunch)."""

import asyncio
import time
from pathlib import Path
from typing import Any

from tests.engine.fake_engine import FakeEngine
from tests.node_manager.controller import DEAD, FakeController
from tests.node_manager.pod import LIMIT_SEC, Pod, alive, reason, running_pod


async def stop(pod: Pod, generation: int) -> Any:
    return await pod.post("engine-restart", {"action": "stop", "generation": generation})


async def until_stopped(pod: Pod, generation: int) -> None:
    """Asks until the engines are gone, as the Controller does."""
    deadline = time.monotonic() + LIMIT_SEC
    while (await stop(pod, generation)).json()["status"] != "stopped":
        assert time.monotonic() < deadline, "the engines are still there"
        await asyncio.sleep(0.02)


async def test_engines_end_unreported_and_the_same_generation_can_be_started(pod: Pod, controller: FakeController) -> None:
    old = await pod.started(controller, generation=1)
    told = sum(len(report.reports) for report in controller.reports)
    await until_stopped(pod, 2)
    assert not any(alive(identity) for identity in old.values())
    journal = await pod.journal()
    assert (journal["engines"], journal["highest_generation"]) == ({}, 2)
    new = await pod.started(controller, generation=2, dead_committed=[1])
    assert set(new) == {"0"}
    assert new["0"] not in old.values()
    assert DEAD not in [one.engine_status for report in controller.reports[told:] for one in report.reports]


async def test_a_late_stop_leaves_the_engines_of_its_own_generation_alone(pod: Pod, controller: FakeController) -> None:
    await pod.started(controller, generation=1)
    await until_stopped(pod, 2)
    new = await pod.started(controller, generation=2)
    assert (await stop(pod, 2)).json()["status"] == "stopped"
    assert reason(await stop(pod, 1)) == "OLD_GENERATION"
    assert all(alive(identity) for identity in new.values())


async def test_a_pod_without_engines_has_nothing_to_stop(pod: Pod) -> None:
    assert (await stop(pod, 3)).json()["status"] == "stopped"


async def test_a_node_manager_that_dies_meanwhile_starts_nothing_by_itself(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async with running_pod(tmp_path, fakes, controller) as pod:
        await pod.started(controller, generation=1)
        await until_stopped(pod, 2)
    async with running_pod(tmp_path, fakes, controller) as pod:
        assert (await pod.journal())["engines"] == {}
        assert (await stop(pod, 2)).json()["status"] == "stopped"
        assert reason(await pod.post("start", pod.start_body(1))) == "OLD_GENERATION"
        await pod.started(controller, generation=2)
