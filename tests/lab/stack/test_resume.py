"""An installation of which everything was killed goes on where it was; so does one that was kept."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.stack.client import Stack
from lab.stack.launch import resumable
from lab.stack.ports import NoFreePort, PortLease
from lab.stack.processes import ENGINE_PREFIX, Carrier, carriers
from lab.stack.run_dir import RunDir
from lab.stack.spec import StackSpec
from tests.eventually import eventually

pytestmark = pytest.mark.verify

SPEC = StackSpec.shaped(2, 2, web_ui=False)
SERVES_SEC = 60.0


async def everything_dies(stack: Stack, spared: Callable[[Carrier], bool]) -> None:
    """SIGKILL, the supervisor and its watcher first: nobody cleans up, and nobody brings anything back."""
    keepers = ("supervisor", "watcher")
    for carrier in sorted(carriers(stack.run_id), key=lambda one: one.process not in keepers):
        if not spared(carrier):
            os.kill(carrier.pid, signal.SIGKILL)
    assert stack._popen is not None
    stack._popen.wait()
    await eventually(lambda: not [one for one in carriers(stack.run_id) if not spared(one)], what="the end of all processes")


@pytest.mark.parametrize("engines_live", [True, False], ids=["engines-live", "engines-die"])
async def test_all_is_killed_and_the_next_up_goes_on(tmp_path: Path, engines_live: bool) -> None:
    stack = await Stack.launch(SPEC, tmp_path / "run")
    try:
        before = stack.addresses
        engines = {engine.rank: engine.api_pid for engine in stack.engines()}
        await everything_dies(stack, lambda one: engines_live and one.process.startswith(ENGINE_PREFIX))
        order = resumable(stack.run_dir)
        assert order is not None
        stack = await Stack.resume(order, tmp_path / "run")
        assert stack.addresses == before
        await stack.until_published([0, 1], within_sec=SERVES_SEC)
        again = {engine.rank: engine.api_pid for engine in stack.engines()}
        assert (again == engines) is engines_live
    finally:
        report = await stack.down()
    assert report.orphans == ()
    assert resumable(stack.run_dir) is None


async def test_what_was_kept_goes_on_and_what_was_stopped_does_not(tmp_path: Path) -> None:
    stack = await Stack.launch(StackSpec.shaped(1, 1, web_ui=False), tmp_path / "run")
    before = stack.addresses
    await stack.down(keep=True)
    order = resumable(stack.run_dir)
    assert order is not None
    stack = await Stack.resume(order, tmp_path / "run")
    try:
        assert stack.addresses == before
        await stack.until_published([0], within_sec=SERVES_SEC)
    finally:
        await stack.down()
    assert resumable(RunDir(tmp_path / "run")) is None


def test_the_same_ports_are_taken_again_whoever_listens_there() -> None:
    with PortLease() as first:
        drawn = (first.take(), first.take_block(3), first.take())
        assert first.drawn == list(drawn)
    with PortLease(again=drawn) as second:
        assert (second.take(), second.take_block(3), second.take_exactly(drawn[2], "something")) == drawn
        with pytest.raises(NoFreePort):
            second.take()
        with PortLease(again=drawn) as third, pytest.raises(NoFreePort, match="reserved by another"):
            third.take()
