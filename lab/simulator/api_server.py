"""The process that ``python -m lab.simulator`` starts: one rank's API server.

Its life, as vLLM's: reserve the port (a taken one is an error at once), start the worker, wait until all ranks of the
group have met, open the port, serve, and end for one of these reasons: a signal, a start that cannot succeed, or an
engine that did not recover in time. The end is quick: running requests end with `abort`, the worker goes with us.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from lab.simulator.engine import Engine, Exit
from lab.simulator.event_log import EventLog
from lab.simulator.http_app import http_app
from lab.simulator.options import Options

_LAST_ANSWERS_SEC = 1


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers and its ten ticks a second: an idle rank costs nothing and ends at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.leaving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(options: Options) -> int:
    """Run one rank until it ends; its exit code."""
    try:
        port = _reserve(options.host, options.port)
    except OSError as error:
        print(f"cannot use {options.host}:{options.port}: {error.strerror}", file=sys.stderr)
        return 1
    try:
        log = EventLog(options.log_dir, options.rank)
    except OSError as error:
        print(f"cannot write the log to {options.log_dir}: {error.strerror}", file=sys.stderr)
        port.close()
        return 1
    ending: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    def leave(reason: Exit) -> None:
        if not ending.done():
            ending.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leave, Exit(number.name, 0))
    engine = Engine(options, log, leave)
    _log_start(log, options, port, engine)
    reason = await _live(engine, port, ending)
    log.write("exit", reason=reason.reason, code=reason.code)
    log.close()
    return reason.code


async def _live(engine: Engine, port: socket.socket, ending: asyncio.Future[Exit]) -> Exit:
    loop = asyncio.get_running_loop()
    running = loop.create_task(engine.run())
    running.add_done_callback(lambda task: _broken(task, ending))
    server = _Server(_config(engine))
    serving = loop.create_task(_open_when_ready(engine, server, port))
    serving.add_done_callback(lambda task: _broken(task, ending))
    reason = await ending
    running.cancel()
    engine.close()
    server.leaving.set()
    if engine.ready.is_set():
        await asyncio.wait((serving,), timeout=2 * _LAST_ANSWERS_SEC)
    return reason


async def _open_when_ready(engine: Engine, server: _Server, port: socket.socket) -> None:
    await engine.ready.wait()
    serving = asyncio.get_running_loop().create_task(server.serve([port]))
    listening = asyncio.get_running_loop().create_task(server.listening.wait())
    await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
    if server.listening.is_set():
        engine.log.write("ready", port=port.getsockname()[1])
    await serving


def _config(engine: Engine) -> uvicorn.Config:
    return uvicorn.Config(
        http_app(engine),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        date_header=False,
        timeout_graceful_shutdown=_LAST_ANSWERS_SEC,
    )


def _broken(task: asyncio.Task[None], ending: asyncio.Future[Exit]) -> None:
    """A part of this process that ends by itself is a bug or a taken port; say it, instead of living on as a half."""
    if task.cancelled() or ending.done():
        return
    ending.set_result(Exit(f"internal failure: {task.exception()!r}", 1))


def _reserve(host: str, port: int) -> socket.socket:
    """Bind without listening: connections are refused until the engine is ready."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except BaseException:
        reserved.close()
        raise
    return reserved


def _log_start(log: EventLog, options: Options, port: socket.socket, engine: Engine) -> None:
    log.write(
        "start",
        host=options.host,
        port=port.getsockname()[1],
        size=options.size,
        worker_pid=engine.worker.pid,
        dialect=options.dialect if options.fault_tolerance else None,
        detection_sec=options.detection_sec,
        recovery_sec=options.recovery_sec,
        store_timeout_sec=options.store_timeout_sec,
        engine_recovery_timeout_sec=options.engine_recovery_timeout_sec,
    )
