"""The Controller worker process: connects to Temporal, however long that takes, and works until it is told to stop."""

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import Worker

from domain.config import config_warnings, refuse_what_is_not_done
from domain.errors import Refused
from service.arguments import port
from service.http import bind, serve_socket
from service.one_exchange import one_exchange_client
from service.process import run_process
from service.settings import load_settings
from service.stop import OutOfTime, unless_stopped
from service.temporal import connect, ensure_search_attributes
from workers.controller_worker import controller_worker
from workers.health import health_app
from workers.singletons import keep_singletons

log = logging.getLogger(__name__)

_LET_GO_SEC: Final = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until stopped; the exit codes are in `service.process`."""
    options = _parser().parse_args(arguments)
    return run_process("worker", lambda stop: _run(options, stop))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotomy worker",
        description="Runs the Controller's workflows and activities. Temporal's address comes from TEMPORAL_ADDRESS.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration (default: AUTOTOMY_CONFIG)")
    parser.add_argument("--host", default="127.0.0.1", help="address of the two listeners (%(default)s)")
    parser.add_argument("--health-port", type=port, metavar="PORT", help="/liveness and /readiness (default: none)")
    parser.add_argument("--metrics-port", type=port, metavar="PORT", help="Prometheus figures, Temporal's too (default: none)")
    parser.add_argument("--build-id", metavar="ID", help="version of this worker; it gets tasks once that is current (none)")
    return parser


async def _run(options: argparse.Namespace, stop: asyncio.Event) -> None:
    settings = load_settings(options.config)
    refuse_what_is_not_done(settings.fault_tolerance_config)
    for warning in config_warnings(settings.fault_tolerance_config):
        log.warning("configuration: %s", warning)
    health = None if options.health_port is None else bind(options.host, options.health_port, option="--health-port")
    identity = f"worker@{socket.gethostname()}:{os.getpid()}"
    runtime = _runtime(options)
    try:
        client = await unless_stopped(connect(runtime=runtime, identity=identity), stop)
        search_attributes = await unless_stopped(ensure_search_attributes(client), stop)
        async with one_exchange_client() as http:
            worker = controller_worker(client, http, settings.task_queue, search_attributes, identity, options.build_id)
            app = health_app(client, worker, settings.task_queue, identity)
            serving = None if health is None else asyncio.create_task(serve_socket(app, health, stop=stop), name="health")
            await _work(worker, keep_singletons(client, settings.task_queue, settings.fault_tolerance_config), stop)
            if serving is not None:
                await serving
    finally:
        if health is not None:
            health.close()


def _runtime(options: argparse.Namespace) -> Runtime | None:
    """Temporal's own figures, where they are wanted; None is its default runtime."""
    if options.metrics_port is None:
        return None
    address = f"{options.host}:{options.metrics_port}"
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=address)))
    except (RuntimeError, ValueError) as error:
        raise Refused(f"metrics cannot be served at {address} (--metrics-port): {error}", reason="ADDRESS_UNAVAILABLE") from None


async def _work(worker: Worker, chores: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Poll until `stop` is set, then let go of everything in order. Raises what ended the worker by itself, OutOfTime."""
    working = asyncio.create_task(worker.run(), name="worker")
    starting = asyncio.create_task(chores, name="singletons")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        starting.cancel()
        late = await _let_go(worker, {working, starting})
    if working.done():
        await working
    if late:
        raise OutOfTime(f"{', '.join(late)} did not end within {_LET_GO_SEC:g} s, as when the Temporal server does not answer")
    if not starting.cancelled():
        await starting


async def _let_go(worker: Worker, tasks: set[asyncio.Task[None]]) -> list[str]:
    """Shut down in order, but not for ever: the SDK waits long for a server that is away, and has nothing to lose there.

    Returns the names of what did not end.
    """
    shutting_down = asyncio.create_task(worker.shutdown(), name="shutdown")
    _, late = await asyncio.wait({shutting_down, *tasks}, timeout=_LET_GO_SEC)
    return sorted(task.get_name() for task in late)
