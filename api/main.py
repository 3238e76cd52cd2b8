"""The Controller API process: `python -m api`. Stateless but for caches, so several may run behind one address."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from api.app import controller_app
from api.gateway import Gateway
from domain.config import refuse_what_is_not_done
from service.arguments import port
from service.http import bind, serve_socket
from service.loops import Loops
from service.process import run_process
from service.settings import load_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until stopped; the exit codes are in `service.process`."""
    options = _parser().parse_args(arguments)
    return run_process("api", lambda stop: _run(options, stop))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotomy api",
        description="The Controller's HTTP API. Temporal is found by TEMPORAL_ADDRESS and the other TEMPORAL_* variables.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=port, default=1026, help="(%(default)s; 0 = a free one)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration (default: AUTOTOMY_CONFIG)")
    return parser


async def _run(options: argparse.Namespace, stop: asyncio.Event) -> None:
    settings = load_settings(options.config)
    refuse_what_is_not_done(settings.fault_tolerance_config)
    loops = Loops(stop)
    app = controller_app(settings, Gateway(settings.task_queue), loops)
    await serve_socket(app, bind(options.host, options.port), stop=stop)
    loops.raise_if_one_failed()
