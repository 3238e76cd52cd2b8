"""`python -m lab.stack`: the supervisor of one local installation. People use `autotomy up`; this is what it starts."""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from lab.stack.run_dir import RunDir
from lab.stack.supervisor import Supervisor
from service.leave import leave
from service.process import run_process
from service.process_identity import ProcessIdentity


def main() -> int:
    """Read the command line and run; exit codes as `service.process`."""
    parser = argparse.ArgumentParser(prog="python -m lab.stack", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="directory with spec.json, written by whoever starts this")
    parser.add_argument(
        "--owner", type=ProcessIdentity.parse, metavar="BOOT:PID:START", help="stop everything when this process ends"
    )
    parser.add_argument("--lock", type=int, metavar="FD", help="the directory's lock, inherited (default: take it)")
    parser.add_argument(
        "--last-words",
        action="store_true",
        help="log to stdout; stderr is a pipe to the starter, and gets nothing but why this ended",
    )
    given = parser.parse_args()
    last_words = _log_to_stdout() if given.last_words else None

    async def supervise(stop: asyncio.Event) -> None:
        run_dir = RunDir(given.run_dir)
        try:
            await Supervisor(run_dir, run_dir.read_order(), given.owner, lock=given.lock).run(stop)
        except Exception as error:
            if last_words is not None:
                with contextlib.suppress(OSError):  # the starter has left
                    os.write(last_words, f"{error}\n".encode())
            raise

    return run_process("supervisor", supervise)


def _log_to_stdout() -> int:
    """From now on stderr is stdout. Returns what stderr was, which no child inherits."""
    last_words = os.dup(sys.stderr.fileno())
    os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    return last_words


if __name__ == "__main__":
    leave(main())
