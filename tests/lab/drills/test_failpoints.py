"""The driver holds the first hit until it is released, and nobody longer than that."""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

import pytest

from lab.drills.script.failpoints import FailpointDriver, FailpointNotHit
from service.failpoints import VARIABLE, socket_path

PROCESS = """
import asyncio
from service.failpoints import failpoint
asyncio.run(failpoint("a.place"))
print("went on", flush=True)
"""


async def process_at(driver: FailpointDriver) -> asyncio.subprocess.Process:
    """A real process on its way to the failpoint `a.place`."""
    armed = ",".join(f"{name}=unix:{path}" for name, path in driver.armed("a.place").items())
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROCESS,
        env={VARIABLE: armed, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def test_process_stands_still_until_it_is_released() -> None:
    async with FailpointDriver() as driver:
        driver.hold("a.place")
        process = await process_at(driver)
        hit = await driver.wait_for("a.place", within_sec=20)
        assert hit.pid == process.pid
        assert process.stdout is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.stdout.readline(), timeout=0.2)
        driver.release("a.place")
        assert await asyncio.wait_for(process.stdout.readline(), timeout=10) == b"went on\n"
        assert await asyncio.wait_for(process.wait(), timeout=10) == 0


async def test_killed_process_may_come_again_and_is_not_held_twice() -> None:
    async with FailpointDriver() as driver:
        driver.hold("a.place")
        first = await process_at(driver)
        await driver.wait_for("a.place", within_sec=20)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        second = await process_at(driver)
        assert await asyncio.wait_for(second.wait(), timeout=20) == 0
        assert [hit.pid for _, hit in driver.hits] == [first.pid, second.pid]
        (came, _), (came_again, _) = driver.hits
        assert driver.first_hit_after("a.place", came) == came_again
        assert driver.first_hit_after("a.place", came_again) is driver.first_hit_after("another", 0.0) is None


async def test_end_of_the_driver_releases_everybody() -> None:
    async with FailpointDriver() as driver:
        driver.hold("a.place")
        process = await process_at(driver)
        await driver.wait_for("a.place", within_sec=20)
    assert await asyncio.wait_for(process.wait(), timeout=10) == 0


async def test_waiting_in_vain_says_who_came_instead() -> None:
    async with FailpointDriver() as driver:
        driver.hold("a.place")
        process = await process_at(driver)
        await driver.wait_for("a.place", within_sec=20)
        with pytest.raises(FailpointNotHit, match=r"nobody came to failpoint other within 0.1 s \(came to: a.place\)"):
            await driver.wait_for("other", within_sec=0.1)
    await process.wait()


async def test_nonsense_is_released_at_once() -> None:
    async with FailpointDriver() as driver:
        reader, writer = await asyncio.open_unix_connection(socket_path(driver.socket))
        writer.write(json.dumps(["not", "a", "hit"]).encode() + b"\n")
        assert await asyncio.wait_for(reader.readline(), timeout=5) == b"go\n"
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        assert driver.hits == []


async def test_whoever_comes_before_it_is_to_be_held_goes_on() -> None:
    async with FailpointDriver() as driver:
        early = await process_at(driver)
        assert await asyncio.wait_for(early.wait(), timeout=20) == 0
        driver.hold("a.place")
        late = await process_at(driver)
        assert (await driver.wait_for("a.place", within_sec=20)).pid == late.pid
    await late.wait()
