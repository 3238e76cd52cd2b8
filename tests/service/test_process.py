"""A process starts, is told to stop, and ends with an exit code that means something. Real processes and signals."""

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service.http import bind
from service.stop import Stopped, sleep_unless_stopped, unless_stopped

PROGRAM = """
import asyncio, sys
from service.process import run_process
{body}
sys.exit(run_process("example", main))
"""

WAITS_FOR_EVER = """
from service.stop import unless_stopped
async def main(stop):
    print("up", flush=True)
    await unless_stopped(asyncio.sleep(3600), stop)
"""

WILL_NOT_END = """
async def main(stop):
    print("up", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    await asyncio.sleep(3600)
"""

RUNS_OUT_OF_TIME = """
from service.stop import OutOfTime
async def holds_on():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
async def main(stop):
    held = asyncio.create_task(holds_on())
    print("up", flush=True)
    await stop.wait()
    raise OutOfTime("the peer does not let go")
"""

SERVES = """
from service.http import create_app, serve
from starlette.responses import StreamingResponse
async def main(stop):
    await serve(create_app("x"), "127.0.0.1", {port}, stop=stop, on_ready=lambda url: print("up", flush=True))
"""

HAS_A_BUG = """
async def main(stop):
    raise ZeroDivisionError
"""


REFUSES_IN_TASKS = """
from domain.errors import ConfigError
async def refuse():
    raise ConfigError("x = 1: too small")
async def main(stop):
    async with asyncio.TaskGroup() as group:
        group.create_task(refuse())
        group.create_task(asyncio.sleep(3600))
"""


@asynccontextmanager
async def program(body: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(body=textwrap.dedent(body)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 10)).decode().strip()


async def ended(process: asyncio.subprocess.Process, within_sec: float = 5) -> tuple[int, str]:
    assert process.stderr is not None
    errors = await asyncio.wait_for(process.stderr.read(), within_sec)
    return await asyncio.wait_for(process.wait(), within_sec), errors.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_one_signal_stops_a_process_that_still_waits_for_its_peers(number: signal.Signals) -> None:
    async with program(WAITS_FOR_EVER) as process:
        assert await line(process) == "up"
        process.send_signal(number)
        code, errors = await ended(process)
    assert code == 0
    assert "Traceback" not in errors


async def test_a_second_ctrl_c_ends_a_process_that_hangs_in_its_clean_up() -> None:
    async with program(WILL_NOT_END) as process:
        assert await line(process) == "up"
        process.send_signal(signal.SIGINT)
        assert await line(process) == "stopping"
        process.send_signal(signal.SIGINT)
        code, errors = await ended(process)
    assert code == 130
    assert "Traceback" not in errors


async def test_who_ran_out_of_time_leaves_at_once_and_says_so_with_its_exit_code() -> None:
    """What it could not let go of would hold it for ever; and 0 would say that all was in order."""
    async with program(RUNS_OUT_OF_TIME) as process:
        assert await line(process) == "up"
        process.send_signal(signal.SIGTERM)
        code, errors = await ended(process)
    assert code == 3
    assert "the peer does not let go" in errors
    assert "Traceback" not in errors


async def test_a_server_stops_fast() -> None:
    async with program(SERVES.format(port=0)) as process:
        assert await line(process) == "up"
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, errors = await ended(process)
    assert code == 0
    assert "listening url=http://127.0.0.1:" in errors
    assert time.monotonic() - started < 2


async def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        async with program(SERVES.format(port=port)) as process:
            code, errors = await ended(process)
    assert code == 2
    assert errors.splitlines() == [
        f"example: cannot listen on 127.0.0.1:{port}: another process listens there; stop it, or choose another port with --port"
    ]


async def test_a_bug_is_logged_and_exit_code_1() -> None:
    async with program(HAS_A_BUG) as process:
        code, errors = await ended(process)
    assert code == 1
    assert "ZeroDivisionError" in errors


async def test_a_refusal_in_one_of_several_tasks_is_one_line_and_exit_code_2() -> None:
    async with program(REFUSES_IN_TASKS) as process:
        code, errors = await ended(process)
    assert code == 2
    assert errors.splitlines() == ["example: x = 1: too small"]


@pytest.mark.parametrize(
    ("variable", "value"), [("AUTOTOMY_LOG_LEVEL", "loud"), ("AUTOTOMY_FAILPOINTS", "name=tcp:1"), ("AUTOTOMY_LOG_LEVLE", "INFO")]
)
async def test_a_wrong_environment_is_one_line_and_exit_code_2(variable: str, value: str) -> None:
    async with program(WAITS_FOR_EVER, **{variable: value}) as process:
        code, errors = await ended(process)
    assert code == 2
    assert variable in errors
    assert "Traceback" not in errors


async def test_work_that_ends_first_gives_its_result() -> None:
    assert await unless_stopped(asyncio.sleep(0, "done"), asyncio.Event()) == "done"


async def test_work_is_cancelled_and_awaited_when_stopped() -> None:
    stop, cleaned_up = asyncio.Event(), False

    async def work() -> None:
        nonlocal cleaned_up
        stop.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            cleaned_up = True

    with pytest.raises(Stopped):
        await unless_stopped(work(), stop)
    assert cleaned_up


async def test_the_error_of_the_work_comes_through() -> None:
    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await unless_stopped(fails(), asyncio.Event())


async def test_a_sleep_says_whether_it_was_cut_short() -> None:
    stop = asyncio.Event()
    assert await sleep_unless_stopped(0.01, stop) is False
    stop.set()
    assert await sleep_unless_stopped(3600, stop) is True
