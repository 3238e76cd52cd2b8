"""`python -m dp_supervisor [FLAG …] -- COMMAND…`: a Pod's entry point, until a signal or a rule ends it."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from domain.errors import AutotomyError
from dp_supervisor.app import supervisor_app
from dp_supervisor.command_line import parse
from dp_supervisor.options import Options
from dp_supervisor.rules import Stop
from dp_supervisor.supervisor import DpSupervisor
from service.http import bind, serve_socket
from service.one_exchange import one_exchange_client
from service.process import run_process

_EVERY_INTERFACE: Final = "0.0.0.0"
_LAST_ANSWERS_SEC: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 after a signal, 1 where a rule stopped everything, 2 where it could not start."""
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
    except AutotomyError as error:
        print(f"dp-supervisor: {error}", file=sys.stderr)
        return 2
    stopped_for: list[Stop] = []

    async def run(stop: asyncio.Event) -> None:
        verdict = await run_dp_supervisor(options, stop)
        stopped_for.extend([verdict] if verdict is not None else [])

    return run_process("dp-supervisor", run) or len(stopped_for)


async def run_dp_supervisor(options: Options, stop: asyncio.Event) -> Stop | None:
    """Until `stop` or a rule; the rule's verdict. Raises `ConfigError`, `AddressUnavailable`."""
    port = options.data_parallel_supervisor_port
    sock = bind(options.host or _EVERY_INTERFACE, port, option="--data-parallel-supervisor-port", listen=False)
    closed = asyncio.Event()
    async with one_exchange_client() as http:
        try:
            supervisor = DpSupervisor(options, http)
            running = asyncio.create_task(supervisor.run(stop))
            opened = asyncio.create_task(supervisor.group_ready.wait())
            await asyncio.wait({running, opened}, return_when=asyncio.FIRST_COMPLETED)
            opened.cancel()
            if running.done():
                await running
                return supervisor.stopped_for
            serving = asyncio.create_task(
                serve_socket(supervisor_app(supervisor), sock, stop=closed, grace_sec=_LAST_ANSWERS_SEC)
            )
            serving.add_done_callback(lambda _: stop.set())  # without its probes the Pod is blind
            await asyncio.wait({running})
            closed.set()
            await asyncio.gather(running, serving)
        finally:
            sock.close()
    return supervisor.stopped_for


if __name__ == "__main__":
    sys.exit(main())
