"""One supervised process: started, watched through a pidfd, and brought back when it goes, as Kubernetes would.

Whatever its exit code, a process that ends comes back: at once the first time, later and later if it keeps ending soon
after its start (0.2 s doubling to 5 s; ten seconds of life clear the count). A driver can interfere: `delay_next`
says how long the next return takes, `hold` keeps it away until `release`.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.stack.record import EventKind, ProcessKind, ProcessRecord, ProcessState
from lab.stack.waiting import until_readable
from service.process_identity import ProcessIdentity, identity_of

_FIRST_PAUSE_SEC: Final = 0.2
_LONGEST_PAUSE_SEC: Final = 5.0
_STABLE_AFTER_SEC: Final = 10.0


@dataclass(frozen=True)
class ProcessPlan:
    """How to start one process. `ready_url` answers 200 when it does its work; `ready_address` merely accepts."""

    name: str
    kind: ProcessKind
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_file: Path
    url: str | None = None
    ready_url: str | None = None
    ready_address: tuple[str, int] | None = None
    pod: str | None = None
    files: Mapping[Path, str] = field(default_factory=dict)
    """Configuration files that must be there before it starts."""


Notify = Callable[[EventKind, "Child", str], None]
OnExit = Callable[["Child", int], Awaitable[None]]


class Child:
    """A process that is kept running until `stop`.

    Args:
        plan: how to start it.
        notify: told of every start, exit, hold and release.
        on_exit: awaited after each exit and before the return (the Pod's other processes go here).
    """

    def __init__(self, plan: ProcessPlan, notify: Notify, on_exit: OnExit) -> None:
        self.plan = plan
        self.state = ProcessState.STARTING
        self.identity: ProcessIdentity | None = None
        self.restarts = 0
        self.last_exit: int | None = None
        self._notify = notify
        self._on_exit = on_exit
        self._soon_deaths = 0
        self._next_delay_sec: float | None = None
        self._stopping = asyncio.Event()
        self._released = asyncio.Event()
        self._released.set()
        self._hurry = asyncio.Event()
        self._ended = asyncio.Event()
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def pid(self) -> int | None:
        return self.identity.pid if self.identity is not None else None

    def record(self) -> ProcessRecord:
        """Its lines in `stack.json`."""
        return ProcessRecord(
            name=self.name,
            kind=self.plan.kind,
            state=self.state,
            pid=self.pid,
            incarnation=str(self.identity) if self.identity is not None else None,
            restarts=self.restarts,
            last_exit=self.last_exit,
            url=self.plan.url,
            log_file=str(self.plan.log_file),
            command=self.plan.command,
        )

    async def keep_running(self) -> None:
        """Start it, and again whenever it ends, until `stop`."""
        while not self._stopping.is_set():
            started_at = time.monotonic()
            pidfd = self._spawn()
            code = await self._exited(pidfd)
            self._hurry.clear()
            self._soon_deaths = 0 if time.monotonic() - started_at >= _STABLE_AFTER_SEC else self._soon_deaths + 1
            self.identity, self.last_exit = None, code
            self._ended.set()
            self.state = ProcessState.BACKING_OFF
            self._notify(EventKind.EXITED, self, _said(code))
            if self._stopping.is_set():
                break
            await self._on_exit(self, code)
            await self._wait_for_return()
            self.restarts += 1
        self.state = ProcessState.STOPPED

    def signal(self, number: int) -> bool:
        """Signal the current life; False between two lives."""
        if self._popen is None or self._popen.returncode is not None:
            return False
        self._popen.send_signal(number)
        return True

    def delay_next(self, seconds: float) -> None:
        """The next return takes this long, whatever happened before."""
        self._next_delay_sec = seconds

    def hold(self) -> None:
        """Once it ends, it stays away until `release`."""
        self._released.clear()
        self._notify(EventKind.HELD, self, "")

    def release(self) -> None:
        """Let it come back; at once, if it is away."""
        self._released.set()
        self._hurry.set()
        self._notify(EventKind.RELEASED, self, "")

    async def stop(self, grace_sec: float) -> None:
        """End it for good: SIGTERM, `grace_sec`, SIGKILL. `keep_running` returns."""
        self._stopping.set()
        self._released.set()
        self._hurry.set()
        if not self.signal(signal.SIGTERM):
            return
        self.signal(signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_sec):
                await self._ended.wait()
        self.signal(signal.SIGKILL)

    def _spawn(self) -> int:
        for path, text in self.plan.files.items():
            path.write_text(text, encoding="utf-8")
        with self.plan.log_file.open("ab") as log:
            self._popen = subprocess.Popen(
                self.plan.command,
                env=dict(self.plan.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pidfd = os.pidfd_open(self._popen.pid)  # a child that we have not waited for: its pid is still its own
        self._ended.clear()
        self.identity = identity_of(self._popen.pid)
        self.state = ProcessState.RUNNING
        self._notify(EventKind.RESTARTED if self.restarts else EventKind.STARTED, self, "")
        return pidfd

    async def _exited(self, pidfd: int) -> int:
        assert self._popen is not None
        try:
            await until_readable(pidfd)
        finally:
            os.close(pidfd)
        return self._popen.wait()

    async def _wait_for_return(self) -> None:
        delay_sec = self._next_delay_sec if self._next_delay_sec is not None else self._back_off_sec()
        self._next_delay_sec = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_sec):
                await self._hurry.wait()
        if not self._released.is_set():
            self.state = ProcessState.HELD
            self._notify(EventKind.HELD, self, "waits to be released")
        await self._released.wait()

    def _back_off_sec(self) -> float:
        if self._soon_deaths == 0:
            return 0.0
        return min(_FIRST_PAUSE_SEC * 2.0 ** (self._soon_deaths - 1), _LONGEST_PAUSE_SEC)


def _said(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
