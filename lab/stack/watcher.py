"""The supervisor's supervisor: it waits for one thing, and then cleans up.

    python -m lab.stack.watcher <identity> <run id>

A SIGKILLed supervisor can clean up nothing, and engines live in sessions of their own. So beside it waits this process
for its end, by pidfd; then it stops everything that carries the run id. In an orderly stop the supervisor ends it last.
Standard library only: it shall cost nothing and fail at nothing.
"""

import sys

from lab.stack.processes import sweep
from service.process_identity import ProcessIdentity, has_ended, pidfd_of


def main(arguments: list[str]) -> int:
    """Wait for the supervisor's end, then sweep. Returns an exit code."""
    supervisor, run_id = ProcessIdentity.parse(arguments[0]), arguments[1]
    with pidfd_of(supervisor) as pidfd:
        while pidfd is not None and not has_ended(pidfd, within_sec=3600):
            pass
    found = sweep(run_id, grace_sec=1.0)
    print(f"the supervisor {supervisor.pid} is gone; stopped {len(found)} processes", file=sys.stderr)
    for carrier in found:
        print(f"  {carrier}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
