"""`python -m stack`: the supervisor of one local installation. People use `autotomy up`; this is what it starts."""

import argparse
import asyncio
import sys
from pathlib import Path

from service.process import run_process
from stack.processes import ProcessIdentity
from stack.run_dir import RunDir
from stack.supervisor import Supervisor


def main() -> int:
    """Read the command line and run; exit codes as `service.process`."""
    parser = argparse.ArgumentParser(prog="python -m stack", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="directory with spec.json, written by whoever starts this")
    parser.add_argument(
        "--owner", type=ProcessIdentity.parse, metavar="PID:START_TIME", help="stop everything when this process ends"
    )
    parser.add_argument("--lock", type=int, metavar="FD", help="the directory's lock, inherited (default: take it)")
    given = parser.parse_args()

    async def supervise(stop: asyncio.Event) -> None:
        run_dir = RunDir(given.run_dir)
        await Supervisor(run_dir, run_dir.read_order(), given.owner, lock=given.lock).run(stop)

    return run_process("supervisor", supervise)


if __name__ == "__main__":
    sys.exit(main())
