"""A failpoint stops where the driver wants it, and never for good."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from domain.errors import ConfigError
from service import failpoints
from service.failpoints import RELEASE, armed_failpoints, failpoint, parse_failpoints


class Driver:
    """The other side of the protocol, as small as it gets."""

    def __init__(self) -> None:
        self.hits: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.release = asyncio.Event()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits.put_nowait(json.loads(await reader.readline()))
        await self.release.wait()
        writer.write(RELEASE)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def driver_at(path: Path) -> AsyncIterator[Driver]:
    driver = Driver()
    async with await asyncio.start_unix_server(driver.serve_one, path):
        yield driver


@pytest.fixture(autouse=True)
def _fresh_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AUTOTOMY_FAILPOINTS", raising=False)
    armed_failpoints.cache_clear()
    yield
    armed_failpoints.cache_clear()


def arm(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("AUTOTOMY_FAILPOINTS", f"here=unix:{path}")
    armed_failpoints.cache_clear()


async def test_an_armed_failpoint_tells_the_driver_and_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm(monkeypatch, tmp_path / "s")
    async with driver_at(tmp_path / "s") as driver:
        held = asyncio.create_task(failpoint("here"))
        hit = await asyncio.wait_for(driver.hits.get(), 5)
        assert hit == {"name": "here", "pid": os.getpid(), "process": hit["process"]}
        assert not held.done()
        driver.release.set()
        await asyncio.wait_for(held, 5)


async def test_other_names_and_unarmed_processes_do_not_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    await asyncio.wait_for(failpoint("here"), 1)
    arm(monkeypatch, tmp_path / "s")
    async with driver_at(tmp_path / "s") as driver:
        await asyncio.wait_for(failpoint("elsewhere"), 1)
        assert driver.hits.empty()


async def test_a_driver_that_is_not_there_releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm(monkeypatch, tmp_path / "absent")
    await asyncio.wait_for(failpoint("here"), 1)


async def test_a_driver_that_dies_releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm(monkeypatch, tmp_path / "s")

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_unix_server(hang_up, tmp_path / "s"):
        await asyncio.wait_for(failpoint("here"), 5)


async def test_time_releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm(monkeypatch, tmp_path / "s")
    monkeypatch.setattr(failpoints, "HOLD_LIMIT_SEC", 0.05)
    async with driver_at(tmp_path / "s") as driver:
        await asyncio.wait_for(failpoint("here"), 5)
        driver.release.set()


def test_several_names_are_read() -> None:
    assert parse_failpoints(" a=unix:/x , b.c=unix:/y ,") == {"a": "/x", "b.c": "/y"}


@pytest.mark.parametrize("text", ["a", "a=", "=unix:/x", "a=unix:", "a=tcp:1"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="AUTOTOMY_FAILPOINTS"):
        parse_failpoints(text)
