"""A supervised process tree: one engine, its API server at the root, its workers below.

The FT API of an engine does not tell the whole truth about its processes: a worker that is killed may leave a status
that says `unhealthy` or even `healthy` for ever, and an API server may vanish with exit code 0 (contracts §1, 5). So the
tree asks the kernel: each member is watched through a pidfd, and the first loss of any member is told at once, once.

Engines outlive the process that started them. Each gets its own session, so that no signal meant for its NodeManager
reaches it; a restarted NodeManager *adopts* it again by its identity. To leave no moment at which an engine runs and
nobody has written down who it is, it is started behind a gate: the process exists (and has its identity), but the
engine's command only begins after `release`. A NodeManager that dies in between closes the gate for good.

Workers are those processes of the session, or descendants of the root, whose title matches a pattern. A process that
carries the very title of its matching parent is a fork that has not become anybody yet and is not counted.

When the root ends, now or long after a worker did, its owner hears of that too: time to end what it left behind.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from service.process_identity import (
    ProcessIdentity,
    ProcessStat,
    command_line,
    has_ended,
    open_pidfd,
    process_table,
    signal_process,
)

log = logging.getLogger(__name__)

WORKER_TITLE: Final = re.compile(r"VLLM::(EngineCore|Worker)|autotomy-sim-worker")
"""Titles that vLLM's processes give themselves, and the simulator's."""

_GATE: Final = ("/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "engine-gate")
_KILL_LIMIT_SEC: Final = 5.0
_ENDING_CHECK_SEC: Final = 0.02


class MemberRole(StrEnum):
    ENGINE = "engine"  # the root: the API server
    WORKER = "worker"


@dataclass(frozen=True)
class Loss:
    """The first member of a tree that ended: what makes the rank dead, whatever its FT API says.

    `title` is "" if it ended before anybody could read it. `exit_code` is known for the root of a tree that this process
    started; negative is the signal's number.
    """

    role: MemberRole
    identity: ProcessIdentity
    title: str
    exit_code: int | None = None

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f" with {code_text(self.exit_code)}"
        title = f" ({self.title})" if self.title else ""
        return f"{self.role} process {self.identity.pid}{title} ended{code}"


@dataclass
class _Member:
    role: MemberRole
    identity: ProcessIdentity
    title: str
    pidfd: int = field(repr=False)
    alive: bool = True


class ProcessTree:
    """One engine's processes. Lives on the event loop that made it; `close` lets go of the tree without ending it."""

    def __init__(
        self,
        root: ProcessIdentity,
        *,
        on_loss: Callable[[Loss], None],
        on_root_end: Callable[[ProcessIdentity], None],
        worker_title: re.Pattern[str] = WORKER_TITLE,
        child: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.root = root
        self.loss: Loss | None = None
        self._on_loss = on_loss
        self._on_root_end = on_root_end
        self._worker_title = worker_title
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._members: dict[int, _Member] = {}
        self._closed = False

    @classmethod
    def launch(
        cls,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path | None,
        on_loss: Callable[[Loss], None],
        on_root_end: Callable[[ProcessIdentity], None],
        worker_title: re.Pattern[str] = WORKER_TITLE,
    ) -> "ProcessTree":
        """Starts a process in its own session, behind the gate: `argv` begins to run at `release`.

        Its output is appended to `log_path`; None: it goes where this process's own goes. Raises `OSError` if the log
        cannot be opened or no process be made.
        """
        with log_path.open("ab") if log_path is not None else contextlib.nullcontext() as output:
            child = subprocess.Popen(
                [*_GATE, *argv],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
            )
        tree = cls(
            ProcessIdentity.of(child.pid), on_loss=on_loss, on_root_end=on_root_end, worker_title=worker_title, child=child
        )
        tree._watch(MemberRole.ENGINE, tree.root, " ".join(argv))
        return tree

    @classmethod
    def adopt(
        cls,
        root: ProcessIdentity,
        workers: Iterable[ProcessIdentity],
        *,
        on_loss: Callable[[Loss], None],
        on_root_end: Callable[[ProcessIdentity], None],
        worker_title: re.Pattern[str] = WORKER_TITLE,
    ) -> "ProcessTree":
        """Takes over a tree that an earlier life of this process started. `loss` is set at once if any member ended meanwhile."""
        tree = cls(root, on_loss=on_loss, on_root_end=on_root_end, worker_title=worker_title)
        tree._watch(MemberRole.ENGINE, root, command_line(root.pid))
        for worker in workers:
            tree._watch(MemberRole.WORKER, worker, command_line(worker.pid))
        return tree

    def release(self) -> None:
        """Opens the gate: the engine's command begins."""
        gate = self._child.stdin if self._child is not None else None
        assert gate is not None, "only a launched tree has a gate"
        try:
            gate.write(b"go\n")
            gate.close()
        except BrokenPipeError:
            pass  # it ended already; its pidfd says so

    @property
    def workers(self) -> tuple[ProcessIdentity, ...]:
        """Every worker that was ever seen in this tree, ended ones too: a restarted NodeManager must notice those."""
        return tuple(member.identity for member in self._members.values() if member.role is MemberRole.WORKER)

    @property
    def exit_code(self) -> int | None:
        """The root's, once it ended and if this process started it; negative is the signal's number."""
        return self._exit_code()

    def rescan(self, table: Mapping[int, ProcessStat]) -> bool:
        """Looks for workers that are not watched yet in a fresh `process_table()`. True if there were new ones."""
        before = len(self._members)
        for stat in self._tree_in(table):
            if stat.pid in self._members:
                continue
            title = command_line(stat.pid)
            if self._worker_title.search(title) and title != command_line(stat.parent):
                self._watch(MemberRole.WORKER, stat.identity, title)
        return len(self._members) > before

    async def terminate(self, grace_sec: float) -> bool:
        """Ends the whole tree: SIGTERM, up to `grace_sec`, then SIGKILL. True when nothing of it is left.

        Also for a tree whose root has ended: orphaned workers do not stay. Signals go through pidfds only.
        """
        for number, limit_sec in ((signal.SIGTERM, grace_sec), (signal.SIGKILL, _KILL_LIMIT_SEC)):
            if await self._signal_until_gone(number, limit_sec):
                break
        gone = not self._living(process_table())
        if gone:
            self._reap()
        else:
            log.error("processes outlived SIGKILL", extra={"root": str(self.root)})
        return gone

    def close(self) -> None:
        """Stops watching. The processes go on."""
        self._closed = True
        for member in self._members.values():
            self._unwatch(member)
        if self._child is not None:
            if self._child.stdin is not None and not self._child.stdin.closed:
                self._child.stdin.close()
            # Popen would warn that its child still runs; that is the point here.
            if self._child.poll() is None:
                self._child.returncode = 0

    async def _signal_until_gone(self, number: signal.Signals, limit_sec: float) -> bool:
        deadline = time.monotonic() + limit_sec
        signalled: set[ProcessIdentity] = set()
        while living := self._living(process_table()):
            for identity in living:
                if identity not in signalled:
                    signal_process(identity, number)
                    signalled.add(identity)
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_ENDING_CHECK_SEC)
        return True

    def _living(self, table: Mapping[int, ProcessStat]) -> list[ProcessIdentity]:
        found = {stat.identity for stat in self._tree_in(table) if not stat.ended}
        found |= {m.identity for m in self._members.values() if m.alive and not has_ended(m.pidfd)}
        return sorted(found, key=lambda identity: identity.start_ticks)

    def _tree_in(self, table: Mapping[int, ProcessStat]) -> list[ProcessStat]:
        """The tree's processes in a table: of the session, and descendants of members that left it.

        A session's number can be given away once its leader was reaped and no member lives; so the table counts only
        if, after it was read, the leader still has its number or some known member still lives.
        """
        if not self._session_is_ours():
            return []
        known = {pid for pid, member in self._members.items() if table.get(pid) and table[pid].identity == member.identity}
        found = {stat.pid for stat in table.values() if stat.session == self.root.pid} | known
        while below := {s.pid for s in table.values() if s.parent in found} - found:
            found |= below
        return [table[pid] for pid in found if table[pid].start_ticks >= self.root.start_ticks]

    def _session_is_ours(self) -> bool:
        unreaped_child = self._child is not None and self._child.returncode is None
        return unreaped_child or any(self._alive(pid) for pid in self._members)

    def _alive(self, pid: int) -> bool:
        member = self._members.get(pid)
        return member is not None and member.alive and not has_ended(member.pidfd)

    def _watch(self, role: MemberRole, identity: ProcessIdentity, title: str) -> None:
        pidfd = open_pidfd(identity)
        member = _Member(role, identity, title, pidfd if pidfd is not None else -1)
        self._members[identity.pid] = member
        if pidfd is None:
            self._ended(member)
        else:
            self._loop.add_reader(pidfd, self._ended, member)

    def _unwatch(self, member: _Member) -> None:
        if member.pidfd >= 0:
            self._loop.remove_reader(member.pidfd)
            os.close(member.pidfd)
            member.pidfd = -1
        member.alive = False

    def _ended(self, member: _Member) -> None:
        code = self._exit_code() if member.role is MemberRole.ENGINE else None
        self._unwatch(member)
        if self._closed:
            return
        if self.loss is None:
            self.loss = Loss(member.role, member.identity, member.title, code)
            self._loop.call_soon(self._on_loss, self.loss)
        if member.role is MemberRole.ENGINE:
            self._loop.call_soon(self._on_root_end, self.root)

    def _exit_code(self) -> int | None:
        """The child's exit code, without reaping it: while it is a zombie, its pid and session number stay ours."""
        if self._child is None:
            return None
        if self._child.returncode is not None:
            return self._child.returncode
        try:
            result = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def _reap(self) -> None:
        if self._child is not None:
            self._child.poll()


def code_text(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
