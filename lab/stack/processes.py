"""Every process of an installation, found by what it carries and not by what somebody remembers.

All processes of a stack carry `AUTOTOMY_RUN_ID=<id>` in their environment, and children inherit it: an engine in its
own session, whose NodeManager was killed, is found all the same by reading `/proc/*/environ`. That makes "nothing is
left behind" something that can be checked. What is found is known by its `ProcessIdentity`, for a pid alone never is enough
to kill.

Standard library only, and synchronous: the watcher that outlives a SIGKILLed supervisor is built from this and
`service.process_identity` alone.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.process_identity import (
    ProcessIdentity,
    all_pids,
    command_words,
    environment_of,
    has_ended,
    identity_of,
    pidfd_of,
    send_signal,
)

RUN_ID_VARIABLE: Final = "AUTOTOMY_RUN_ID"
RUN_DIR_VARIABLE: Final = "AUTOTOMY_RUN_DIR"
"""The run directory of its stack, links resolved: what finds a process whose stack's files are lost."""

PROCESS_VARIABLE: Final = "AUTOTOMY_PROCESS"
"""The name of a process in its stack: `worker-0`, `node-manager-1`, `engine-3` (its API server and worker alike)."""

ENGINE_PREFIX: Final = "engine-"
"""How the names of engines' processes begin; nothing else's does."""

POD_VARIABLE: Final = "AUTOTOMY_POD"
"""The Pod that a process would live in: a Pod restart takes all that carry its name."""

_CLEAN_LOOKS: Final = 2
_LOOK_PAUSE_SEC: Final = 0.05


@dataclass(frozen=True)
class Carrier:
    """A process that carries a run id: its name in the stack (empty if it has none), its Pod, its command line."""

    identity: ProcessIdentity
    process: str
    pod: str
    command: tuple[str, ...]

    @property
    def pid(self) -> int:
        return self.identity.pid

    def __str__(self) -> str:
        return f"{self.process or 'unnamed'} (pid {self.pid}: {' '.join(self.command)[:120]})"


def carriers(run_id: str) -> list[Carrier]:
    """All running processes that carry `run_id`, but for the calling one; by pid. Zombies carry nothing."""
    found = (_carrier(pid, run_id) for pid in all_pids())
    return sorted((carrier for carrier in found if carrier is not None), key=lambda carrier: carrier.pid)


def _carrier(pid: int, run_id: str) -> Carrier | None:
    if pid == os.getpid():
        return None
    identity, variables = identity_of(pid), environment_of(pid)
    if identity is None or variables.get(RUN_ID_VARIABLE) != run_id:
        return None
    return Carrier(identity, variables.get(PROCESS_VARIABLE, ""), variables.get(POD_VARIABLE, ""), command_words(pid))


def run_ids_in(run_dir: Path) -> frozenset[str]:
    """The run ids of all running processes, but for the calling one, whose stack lives in `run_dir`."""
    wanted = os.path.realpath(run_dir)
    others = (environment_of(pid) for pid in all_pids() if pid != os.getpid())
    found = [variables for variables in others if variables.get(RUN_DIR_VARIABLE) == wanted]
    return frozenset(variables[RUN_ID_VARIABLE] for variables in found if RUN_ID_VARIABLE in variables)


def stop_processes(identities: Iterable[ProcessIdentity], *, grace_sec: float) -> None:
    """SIGTERM, at most `grace_sec` for all of them together, then SIGKILL. A stopped (SIGSTOP) process is woken for it."""
    with contextlib.ExitStack() as stack:
        candidates = [stack.enter_context(pidfd_of(identity)) for identity in identities]
        pidfds = [pidfd for pidfd in candidates if pidfd is not None]
        for pidfd in pidfds:
            send_signal(pidfd, signal.SIGTERM)
            send_signal(pidfd, signal.SIGCONT)
        deadline = time.monotonic() + grace_sec
        for pidfd in pidfds:
            if not has_ended(pidfd, max(0.0, deadline - time.monotonic())):
                send_signal(pidfd, signal.SIGKILL)
        for pidfd in pidfds:
            has_ended(pidfd, 1.0)


def sweep(
    run_id: str,
    *,
    spare: frozenset[int] = frozenset(),
    spared: Callable[[Carrier], bool] = lambda carrier: False,
    pod: str | None = None,
    grace_sec: float = 1.0,
    limit_sec: float = 6.0,
) -> list[Carrier]:
    """Stop everything that carries `run_id` (only in `pod`, if given) and return what was found, each process once.

    Looks again until two looks in a row find nothing, since a process may fork while it is being stopped; gives up after
    `limit_sec`, then `carriers` tells what is still there. Pids in `spare`, what `spared` is true of, and the caller, are left
    alone.
    """
    stopped: dict[ProcessIdentity, Carrier] = {}
    deadline = time.monotonic() + limit_sec
    clean_looks = 0
    while clean_looks < _CLEAN_LOOKS and time.monotonic() < deadline:
        found = [c for c in carriers(run_id) if c.pid not in spare and not spared(c) and (pod is None or c.pod == pod)]
        if not found:
            clean_looks += 1
            time.sleep(_LOOK_PAUSE_SEC)
            continue
        clean_looks = 0
        stop_processes((carrier.identity for carrier in found), grace_sec=grace_sec)
        stopped |= {carrier.identity: carrier for carrier in found}
    return list(stopped.values())
