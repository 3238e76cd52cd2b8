"""`python -m node_manager --config FILE`: one Pod's NodeManager, until a stop command or a signal.

SIGTERM and SIGINT end it together with its engines, as a Pod that is terminated does. SIGKILL ends it alone: the engines
go on, and its next life adopts them.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

from domain.errors import ConfigError
from node_manager.app import node_manager_app
from node_manager.config import NodeManagerConfig, load_config
from node_manager.node import NodeManager
from service.http import bind, serve_socket
from service.process import run_process

_STOP_REPLY_GRACE_SEC: Final = 2.0


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 also after a stop command, so that the Pod starts its next life; 2 where it could not start."""
    given = _parser().parse_args(arguments)

    async def run(stop: asyncio.Event) -> None:
        await run_node_manager(_config(given), stop)

    return run_process(f"node-manager {given.advertise_ip or ''}".strip(), run)


async def run_node_manager(config: NodeManagerConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` or a stop command. Raises `ConfigError`, `AddressUnavailable`."""
    try:
        config.log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"log_dir = {config.log_dir}: {error.strerror}") from None
    sock = bind(config.host or config.pod_ip, config.port)
    node = NodeManager(config.model_copy(update={"port": sock.getsockname()[1]}))
    told = asyncio.create_task(_stop_when_told(node, stop))
    try:
        await serve_socket(node_manager_app(node), sock, stop=stop, grace_sec=_STOP_REPLY_GRACE_SEC)
    finally:
        told.cancel()


async def _stop_when_told(node: NodeManager, stop: asyncio.Event) -> None:
    await node.daemon.exit_wanted.wait()
    stop.set()


def _config(given: argparse.Namespace) -> NodeManagerConfig:
    overrides = {
        "host": given.host,
        "port": given.port,
        "controller_url": given.controller_url,
        "journal": given.journal,
        "pod_ip": given.advertise_ip,
        "node_name": given.node_name,
        "node_rank": given.node_rank,
    }
    return load_config(given.config, {key: value for key, value in overrides.items() if value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotomy node-manager", description="Owns one Pod's engines and carries a round's commands to them."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML; the flags below overrule it")
    parser.add_argument("--host", metavar="IP", help="where to listen (default: pod_ip)")
    parser.add_argument("--port", type=int, metavar="N", help="0 takes a free one")
    parser.add_argument("--controller-url", metavar="URL", help="the Controller API that it registers at and reports to")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="one per NodeManager, on the Pod's disk")
    parser.add_argument("--advertise-ip", metavar="IP", help="this Pod's address as the topology names it (pod_ip)")
    parser.add_argument("--node-name", metavar="NAME", help="the node that this Pod runs on: hardware faults are found by it")
    parser.add_argument("--node-rank", type=int, metavar="N", help="this Pod's place in the instance that it registers for")
    return parser


if __name__ == "__main__":
    sys.exit(main())
