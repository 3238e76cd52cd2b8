"""`python -m coordinator`: a real process that announces itself, is told a view, dies and begins anew."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from domain.messages.controller import CoordinatorAnnouncement
from service.http import bind, create_app, success
from tests.coordinator.factories import body
from tests.coordinator.harness import Engine, engines, served
from tests.eventually import eventually
from tests.listening import listening


@dataclass
class Controller:
    """Takes announcements."""

    url: str = ""
    announcements: list[CoordinatorAnnouncement] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = create_app("controller")

        @app.post("/controller/coordinators")
        async def announce(announcement: CoordinatorAnnouncement) -> object:
            self.announcements.append(announcement)
            return success()

        return app


@dataclass
class Process:
    """A Coordinator process and where it listens, as its log says."""

    process: asyncio.subprocess.Process
    inference: str
    management: str
    log: list[str]


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    made = Controller()
    async with listening(made.app()) as made.url:
        yield made


@pytest.fixture
async def four() -> AsyncIterator[list[Engine]]:
    async with engines(4) as made:
        yield made


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "coordinator", "--port", "0", "--management-port", "0", *arguments,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "AUTOTOMY_LOG_LEVEL": "INFO"},
    )  # fmt: skip
    log: list[str] = []
    reading = asyncio.create_task(_read(process, log))
    try:
        await eventually(lambda: len(_urls(log)) == 2, f"both listeners: {log}", within_sec=60)
        advertised = next(m.group(1) for line in log if (m := re.search(r"advertised=(\S+)", line)))
        inference = next(url for url in _urls(log) if url != advertised)
        yield Process(process, inference, advertised, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line.decode().rstrip())


def _urls(log: list[str]) -> list[str]:
    return [match.group(1) for line in log if (match := re.search(r"listening url=(\S+)", line))]


async def test_it_announces_itself_until_it_has_a_view_and_then_serves(
    controller: Controller, four: list[Engine], tmp_path: Path
) -> None:
    arguments = ("--controller-url", controller.url, "--view-log", str(tmp_path / "views.jsonl"))
    async with started(*arguments, "--announce-interval", "0.2") as first, httpx.AsyncClient() as client:
        await eventually(lambda: len(controller.announcements) >= 2, "repeated while it has no view")
        said = controller.announcements[0]
        assert (said.url, said.has_view) == (first.management, False)
        push = body("set", served(four, 1, 0, 2), incarnation=said.incarnation)
        assert (await client.post(f"{said.url}/instances/refresh", json=push)).status_code == 200
        await eventually(lambda: controller.announcements[-1].has_view, "announced with a view")
        reply = await client.post(f"{first.inference}/v1/completions", json={"prompt": "x"})
        assert reply.json()["choices"][0]["text"] == f"rank {reply.headers['x-autotomy-rank']}"
        first.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.process.wait(), 5) == 0
    assert not any("Traceback" in line for line in first.log)
    lines = [json.loads(line) for line in (tmp_path / "views.jsonl").read_text().splitlines()]
    assert [(line["event"], line["ranks"]) for line in lines] == [("start", []), ("set", [0, 2])]


async def test_after_a_crash_it_is_another_life_which_refuses_pushes_for_the_former(
    controller: Controller, four: list[Engine]
) -> None:
    async with started("--controller-url", controller.url), httpx.AsyncClient():
        await eventually(lambda: bool(controller.announcements), "first life announced")
    former = controller.announcements[-1].incarnation
    async with started("--controller-url", controller.url) as second, httpx.AsyncClient() as client:
        await eventually(lambda: controller.announcements[-1].incarnation != former, "second life announced")
        late = body("add", served(four, 9, 0, 1, 2, 3), incarnation=former)
        reply = await client.post(f"{second.management}/instances/refresh", json=late)
        assert (reply.status_code, reply.json()["reason"]) == (409, "INCARNATION")
        reply = await client.post(f"{second.inference}/v1/completions", json={"prompt": "x"})
        assert reply.status_code == 503
        assert "retry-after" in reply.headers
        assert (await client.get(f"{second.management}/instances")).json()["instances"] == []


async def test_a_stop_does_not_wait_for_open_streams(controller: Controller, four: list[Engine]) -> None:
    async with started("--controller-url", controller.url) as running, httpx.AsyncClient() as client:
        await eventually(lambda: bool(controller.announcements), "announced")
        push = body("set", served(four, 1, 0), incarnation=controller.announcements[-1].incarnation)
        await client.post(f"{running.management}/instances/refresh", json=push)
        asked = {"prompt": "x", "stream": True, "max_tokens": 9}
        async with client.stream("POST", f"{running.inference}/v1/completions", json=asked):
            running.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(running.process.wait(), 6) == 0
    assert not any("Traceback" in line for line in running.log)


async def test_without_a_controller_it_keeps_trying_and_says_so_once(controller: Controller) -> None:
    with bind("127.0.0.1", 0) as nobody:
        port = nobody.getsockname()[1]
    async with started("--controller-url", f"http://127.0.0.1:{port}") as running:
        await eventually(lambda: any(f"127.0.0.1:{port}" in line for line in running.log[-1:]), "said which address")
        late = Controller()
        async with listening(late.app(), bind("127.0.0.1", port)):
            await eventually(lambda: bool(late.announcements), "announced when it came up")
        complaints = [line for line in running.log if "does not take the announcement" in line]
        assert len(complaints) == 1
        running.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(running.process.wait(), 5) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "99999"), "is no port"),
        (("--announce-interval", "0"), "is no time in seconds"),
        (("--host", "0.0.0.0"), "--advertise-url"),
        (("--controller-url", "nowhere"), "controller_url = 'nowhere'"),
        (("--view-log", "/nonexistent/views.jsonl"), "No such file"),
    ],
)
async def test_wrong_options_are_one_clear_error(arguments: tuple[str, ...], said: str) -> None:
    code, errors = await ended("--port", "0", "--management-port", "0", *arguments)
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors


async def test_a_port_in_use_is_one_clear_error_that_names_the_option() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        code, errors = await ended("--port", "0", "--management-port", port)
    assert code == 2
    assert errors.count("\n") == 1
    assert f"127.0.0.1:{port}" in errors
    assert "--management-port" in errors


async def ended(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "coordinator", *arguments, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return process.returncode, errors.decode()
