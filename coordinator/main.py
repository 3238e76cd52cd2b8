"""The Coordinator process: two listeners over one view.

Inference (`--port`) is for clients, management (`--management-port`) for the Controller and for probes. The process is
stateless by design: each start is a new life (incarnation) without a view, and it routes nothing until it was sent one.
"""

import argparse
import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from coordinator.announce import announce
from coordinator.figures import Figures
from coordinator.inference import inference_app
from coordinator.management import management_app
from coordinator.routing import Router
from coordinator.state import CoordinatorState, new_incarnation
from coordinator.upstream import Upstream
from coordinator.view import View
from coordinator.view_log import ViewLog
from domain.address import peer_url
from domain.errors import ConfigError
from service.arguments import port, seconds
from service.http import bind, serve_socket, url_of
from service.metrics import new_registry
from service.process import run_process
from service.settings import load_settings

log = logging.getLogger(__name__)

_EVERY_INTERFACE = ("0.0.0.0", "::")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until stopped; the exit codes are in `service.process`."""
    options = _parser().parse_args(arguments)
    return run_process("coordinator", lambda stop: _run(options, stop))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotomy coordinator",
        description="Routes OpenAI requests over the endpoints that the Controller published.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address of both listeners (%(default)s)")
    parser.add_argument("--port", type=port, default=1025, help="OpenAI requests (%(default)s; 0 = a free one)")
    parser.add_argument("--management-port", type=port, default=1026, help="refreshes and probes (%(default)s)")
    parser.add_argument("--controller-url", help="where to announce itself (default: from the configuration)")
    parser.add_argument(
        "--advertise-url", type=_url, metavar="URL", help="management URL as the Controller reaches it (default: as bound)"
    )
    parser.add_argument("--announce-interval", type=seconds, default=10.0, metavar="SEC", help="(%(default)s)")
    parser.add_argument("--connect-timeout", type=seconds, default=2.0, metavar="SEC", help="to an engine (%(default)s)")
    parser.add_argument("--silence-timeout", type=seconds, default=600.0, metavar="SEC", help="between two reads (%(default)s)")
    parser.add_argument("--view-log", type=Path, metavar="FILE", help="append each applied change as a JSON line")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration (default: AUTOTOMY_CONFIG)")
    return parser


def _url(text: str) -> str:
    try:
        return peer_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _new_life(view_log: Path | None) -> tuple[CoordinatorState, CollectorRegistry]:
    router, registry = Router(), new_registry()
    state = CoordinatorState(View(new_incarnation()), router, Figures(registry, router), ViewLog(view_log))
    state.view_log.start(state.view)
    return state, registry


async def _run(options: argparse.Namespace, stop: asyncio.Event) -> None:
    overrides = {"controller_url": options.controller_url} if options.controller_url else {}
    controller_url = load_settings(options.config, overrides).controller_url
    if options.host in _EVERY_INTERFACE and not options.advertise_url:
        raise ConfigError(f"--host {options.host} is no address to call: say with --advertise-url how to reach this")
    inference_socket = bind(options.host, options.port)
    management_socket = bind(options.host, options.management_port, option="--management-port")
    state, registry = _new_life(options.view_log)
    upstream = Upstream(options.connect_timeout, options.silence_timeout)
    advertised = options.advertise_url or url_of(management_socket)

    log.info("started", extra={"incarnation": state.view.incarnation, "advertised": advertised})
    try:
        async with asyncio.TaskGroup() as group:
            inference = inference_app(state.router, upstream, state.figures)
            group.create_task(serve_socket(inference, inference_socket, stop=stop))
            group.create_task(serve_socket(management_app(state, registry), management_socket, stop=stop))
            group.create_task(announce(controller_url, partial(state.announcement, advertised), options.announce_interval, stop))
    finally:
        state.view_log.close()
