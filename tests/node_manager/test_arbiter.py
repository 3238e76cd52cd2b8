"""A broken Pod that nobody comes for ends itself; a guard freezes that, and nothing else does."""

import os
import signal
from pathlib import Path
from typing import Any

from node_manager.arbiter import Arbiter
from service.process_identity import ProcessIdentity
from tests.engine.fake_engine import FakeEngine
from tests.eventually import eventually
from tests.node_manager.controller import FakeController
from tests.node_manager.pod import running_pod


def test_grace_first_then_so_many_rounds_in_a_row() -> None:
    arbiter = Arbiter(grace_sec=10, rounds=3)
    exits = [arbiter.judge(abnormal=True, frozen=False, now=now) for now in (0, 5, 9, 10, 11, 12)]
    assert exits == [False] * 5 + [True]


def test_a_normal_round_and_a_guard_both_begin_it_anew() -> None:
    for interruption in ({"abnormal": False, "frozen": False}, {"abnormal": True, "frozen": True}):
        arbiter = Arbiter(grace_sec=10, rounds=1)
        assert not arbiter.judge(abnormal=True, frozen=False, now=0)
        assert not arbiter.judge(**interruption, now=11)
        assert not arbiter.judge(abnormal=True, frozen=False, now=12)
        assert not arbiter.judge(abnormal=True, frozen=False, now=21)
        assert arbiter.judge(abnormal=True, frozen=False, now=22)


async def test_a_pod_with_an_ended_engine_exits_once_no_guard_holds_it(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    quick: dict[str, Any] = {"suicide_grace_sec": 0.3, "suicide_rounds": 3, "suicide_interval_sec": 0.05}
    async with running_pod(tmp_path, fakes, controller, **quick) as pod:
        identities = await pod.started(controller)
        assert (await pod.guard("A")).status_code == 200
        os.kill(ProcessIdentity.parse(identities["0"]).pid, signal.SIGKILL)
        await eventually(controller.says(0, 1, "process_exit"), what="the end of engine 0")
        journal = await pod.journal()
        assert journal["guard"]["live"]
        assert not pod.node.daemon.stopping, "guarded"
        await pod.finalize([], "A", commit=False)
        await eventually(pod.node.daemon.exit_wanted.is_set, what="the Pod's own end")


async def test_a_retired_engine_does_not_make_a_pod_broken(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    quick: dict[str, Any] = {"suicide_grace_sec": 0.0, "suicide_rounds": 1, "suicide_interval_sec": 0.02}
    async with running_pod(tmp_path, fakes, controller, **quick) as pod:
        identities = await pod.started(controller)
        await pod.guard("A")
        await pod.finalize([0], "A")
        os.kill(ProcessIdentity.parse(identities["0"]).pid, signal.SIGKILL)
        engine = pod.node.engines.get(0)
        assert engine is not None
        await eventually(lambda: engine.loss is not None, what="the end of engine 0")
        seen = len(controller.heartbeats)
        await eventually(lambda: len(controller.heartbeats) > seen + 3, what="heartbeats after it")
        assert not pod.node.daemon.stopping
