"""Every process of an installation, found by what it carries and not by what somebody remembers.

All processes of a stack carry `AUTOTOMY_RUN_ID=<id>` in their environment, and children inherit it: an engine in its
own session, whose NodeManager was killed, is found all the same by reading `/proc/*/environ`. That makes "nothing is
left behind" something that can be checked. A pid alone never is enough to kill: pids are reused, so a process is opened
as a pidfd, looked at again, and only then signalled through it.

Standard library only, and synchronous: the watcher that outlives a SIGKILLed supervisor is built from this alone.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN_ID_VARIABLE: Final = "AUTOTOMY_RUN_ID"
RUN_DIR_VARIABLE: Final = "AUTOTOMY_RUN_DIR"
"""The run directory of its stack, links resolved: what finds a process whose stack's files are lost."""

PROCESS_VARIABLE: Final = "AUTOTOMY_PROCESS"
"""The name of a process in its stack: `worker-0`, `node-manager-1`, `engine-3` (its API server and worker alike)."""

ENGINE_PREFIX: Final = "engine-"
"""How the names of engines' processes begin; nothing else's does."""

POD_VARIABLE: Final = "AUTOTOMY_POD"
"""The Pod that a process would live in: a Pod restart takes all that carry its name."""

_PROC: Final = Path("/proc")
_START_TIME_FIELD: Final = 19  # of what follows the command name in /proc/<pid>/stat; proc(5) counts it as 22
_CLEAN_LOOKS: Final = 2
_LOOK_PAUSE_SEC: Final = 0.05


@dataclass(frozen=True, order=True)
class ProcessIdentity:
    """A process and no other that later gets its pid. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_time}"

    @classmethod
    def parse(cls, text: str) -> "ProcessIdentity":
        """Reads `pid:start_time`. Raises ValueError."""
        pid, _, start_time = text.partition(":")
        return cls(int(pid), int(start_time))


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


def identity_of(pid: int) -> ProcessIdentity | None:
    """The process that has `pid` now; None if there is none. A zombie still counts."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return ProcessIdentity(pid, int(fields[_START_TIME_FIELD]))


def own_identity() -> ProcessIdentity:
    """This process."""
    found = identity_of(os.getpid())
    assert found is not None
    return found


@contextlib.contextmanager
def opened(identity: ProcessIdentity) -> Iterator[int | None]:
    """A pidfd of exactly that process, or None if it is gone. Valid for signals even after the pid was reused."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield pidfd if identity_of(identity.pid) == identity else None
    finally:
        os.close(pidfd)


def has_exited(pidfd: int, within_sec: float = 0.0) -> bool:
    """Whether the process behind `pidfd` has exited, waiting at most `within_sec` for it."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(within_sec * 1000))


def is_running(identity: ProcessIdentity) -> bool:
    """Whether exactly that process runs; a zombie does not."""
    with opened(identity) as pidfd:
        return pidfd is not None and not has_exited(pidfd)


def send(identity: ProcessIdentity, number: int) -> bool:
    """Signal exactly that process; False if it is gone."""
    with opened(identity) as pidfd:
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        return True


def carriers(run_id: str) -> list[Carrier]:
    """All running processes that carry `run_id`, but for the calling one; by pid. Zombies carry nothing."""
    wanted = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = (_carrier(int(entry.name), wanted) for entry in _PROC.iterdir() if entry.name.isdigit())
    return sorted((carrier for carrier in found if carrier is not None), key=lambda carrier: carrier.pid)


def _carrier(pid: int, wanted: bytes) -> Carrier | None:
    if pid == os.getpid():
        return None
    identity = identity_of(pid)
    try:
        variables = _variables(pid)
        command = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    if identity is None or wanted not in variables:
        return None
    named = dict(variable.decode(errors="replace").partition("=")[::2] for variable in variables)
    words = tuple(word.decode(errors="replace") for word in command)
    return Carrier(identity, named.get(PROCESS_VARIABLE, ""), named.get(POD_VARIABLE, ""), words)


def run_ids_in(run_dir: Path) -> frozenset[str]:
    """The run ids of all running processes, but for the calling one, whose stack lives in `run_dir`."""
    wanted = f"{RUN_DIR_VARIABLE}={os.path.realpath(run_dir)}".encode()
    prefix = f"{RUN_ID_VARIABLE}=".encode()
    found: set[str] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            variables = _variables(int(entry.name))
            if wanted in variables:
                found |= {word.removeprefix(prefix).decode() for word in variables if word.startswith(prefix)}
    return frozenset(found)


def _variables(pid: int) -> list[bytes]:
    return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")


def stop_processes(identities: Iterable[ProcessIdentity], *, grace_sec: float) -> None:
    """SIGTERM, at most `grace_sec` for all of them together, then SIGKILL. A stopped (SIGSTOP) process is woken for it."""
    with contextlib.ExitStack() as stack:
        candidates = [stack.enter_context(opened(identity)) for identity in identities]
        pidfds = [pidfd for pidfd in candidates if pidfd is not None]
        for pidfd in pidfds:
            _signal(pidfd, signal.SIGTERM)
            _signal(pidfd, signal.SIGCONT)
        deadline = time.monotonic() + grace_sec
        for pidfd in pidfds:
            if not has_exited(pidfd, max(0.0, deadline - time.monotonic())):
                _signal(pidfd, signal.SIGKILL)
        for pidfd in pidfds:
            has_exited(pidfd, 1.0)


def _signal(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


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
