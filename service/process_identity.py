"""Which process is meant: never a pid alone.

A pid is a number that the kernel gives to somebody else later. A process is named here by boot id, pid and start time,
"<boot id>:<pid>:<start time>", which no two processes of a machine ever share, and it is touched only through a *pidfd*:
a handle that keeps meaning the same process, whatever becomes of its number. Opening one by pid leaves a gap between
the check and the opening, so the start time is read again after opening.

Standard library only: what cleans up after a killed installation is built from this alone (`lab.stack.watcher`).
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TICKS_PER_SEC: Final = os.sysconf("SC_CLK_TCK")
_STAT_BYTES: Final = 4096
"""More than 52 numbers and a name of 64 characters at most ever take."""

_ENDED_STATES: Final = frozenset("ZXx")


@cache
def boot_id() -> str:
    """The kernel's name for this boot; pids, start times and the boot clock mean something only together with it."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class ProcessStat:
    """One line of /proc/<pid>/stat, as far as it matters here; `start_ticks` counts clock ticks since boot."""

    pid: int
    parent: int
    session: int
    state: str
    start_ticks: int

    @property
    def ended(self) -> bool:
        """A zombie has ended, it only waits for its parent to ask."""
        return self.state in _ENDED_STATES

    @property
    def identity(self) -> "ProcessIdentity":
        return ProcessIdentity(boot_id(), self.pid, self.start_ticks)


@dataclass(frozen=True, order=True)
class ProcessIdentity:
    """One process, for ever. Its text form is an engine's *incarnation* (contracts §2)."""

    boot: str
    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"{self.boot}:{self.pid}:{self.start_ticks}"

    @classmethod
    def parse(cls, text: str) -> "ProcessIdentity":
        """Reads the text form. Raises `ValueError` for anything else."""
        boot, pid, start = text.rsplit(":", 2)
        return cls(boot, int(pid), int(start))

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """The process that has this pid now. Raises `ProcessLookupError` if none has."""
        identity = identity_of(pid)
        if identity is None:
            raise ProcessLookupError(pid)
        return identity


def identity_of(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now, None if none has. A zombie still has it."""
    stat = read_stat(pid)
    return stat.identity if stat is not None else None


def own_identity() -> ProcessIdentity:
    """The calling process."""
    return ProcessIdentity.of(os.getpid())


def read_stat(pid: int) -> ProcessStat | None:
    """The stat line of a pid, or None where there is no such process (any more)."""
    fields = _stat_fields(pid)
    if not fields:
        return None
    return ProcessStat(pid=pid, state=fields[0], parent=int(fields[1]), session=int(fields[3]), start_ticks=int(fields[19]))


def cpu_sec(pid: int) -> float:
    """CPU seconds that a process has used, of its own and in the kernel. Raises `ProcessLookupError` if there is none."""
    fields = _stat_fields(pid)
    if not fields:
        raise ProcessLookupError(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SEC


def _stat_fields(pid: int) -> list[str]:
    """What follows the name, which may hold anything: proc(5) counts the first of these as 3. Empty: no such process."""
    try:
        text = _stat_line(pid).decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return text[text.rfind(")") + 2 :].split()


def _stat_line(pid: int) -> bytes:
    """Without a path and a file object for each: a NodeManager looks at every process of its machine once a second."""
    line = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY)
    try:
        return os.read(line, _STAT_BYTES)
    finally:
        os.close(line)


def all_pids() -> list[int]:
    """Of every process that this one can see, as they are listed now."""
    return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]  # noqa: PTH208  only names wanted


def process_table() -> dict[int, ProcessStat]:
    """Every process that this one can see, by pid. One pass over /proc: some ms for a few hundred processes."""
    found = map(read_stat, all_pids())
    return {stat.pid: stat for stat in found if stat is not None}


def command_words(pid: int) -> tuple[str, ...]:
    """The words of the command line; none where there is no such process (any more)."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()
    return tuple(word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0"))


def command_line(pid: int) -> str:
    """The command line (or the title that the process gave itself), "" where there is none."""
    return " ".join(command_words(pid)).strip()


def environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; empty where there is no such process (any more), or where it is not ours to read."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    words = (word.decode(errors="replace").partition("=") for word in raw.split(b"\0"))
    return {name: value for name, equals, value in words if equals}


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process, or None if it has ended. The caller closes it."""
    if identity.boot != boot_id():
        return None
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError:
        return None
    stat = read_stat(identity.pid)
    if stat is None or stat.ended or stat.identity != identity:
        os.close(pidfd)
        return None
    return pidfd


@contextlib.contextmanager
def pidfd_of(identity: ProcessIdentity) -> Iterator[int | None]:
    """`open_pidfd` that closes after itself."""
    pidfd = open_pidfd(identity)
    try:
        yield pidfd
    finally:
        if pidfd is not None:
            os.close(pidfd)


def has_ended(pidfd: int, within_sec: float = 0.0) -> bool:
    """Whether the process behind a pidfd has ended, waiting at most `within_sec` for it; a zombie has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_sec * 1000))


def is_running(identity: ProcessIdentity) -> bool:
    """Whether exactly this process runs; a zombie does not."""
    with pidfd_of(identity) as pidfd:
        return pidfd is not None and not has_ended(pidfd)


def send_signal(pidfd: int, number: int) -> bool:
    """Signals the process behind a pidfd; False where it has ended and was reaped."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def signal_process(identity: ProcessIdentity, number: int) -> bool:
    """Signals exactly this process; False where it has ended."""
    with pidfd_of(identity) as pidfd:
        return pidfd is not None and send_signal(pidfd, number)
