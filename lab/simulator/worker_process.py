"""The API server's hold on its worker: start it, talk to it, notice its death, end it.

Death is told by the kernel (end of file on the pair, then the pidfd), so a SIGKILL is known within a millisecond, and
after everything that the worker had said before; a stopped worker (SIGSTOP) is not dead and shows nothing here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable

from lab.simulator import pipe
from lab.simulator.worker import TITLE

_GRACE_SEC = 0.5


class WorkerProcess:
    """A running worker.

    Args:
        settings: its first message.
        hear: called with each message that it sends.
        gone: called once with its return code (negative = signal) when it has ended.
    """

    def __init__(self, settings: pipe.Settings, hear: Callable[[pipe.Message], None], gone: Callable[[int], None]) -> None:
        self._settings = settings
        self._hear = hear
        self._gone = gone
        self._mine, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "lab.simulator.worker", TITLE, "--rank", str(settings.rank)]
            command += ["--of", str(settings.size), "--api-server-pid", str(os.getpid()), "--pipe", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def attach(self) -> None:
        """Begin to talk and to watch."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._mine)
        loop = asyncio.get_running_loop()
        self._listening = loop.create_task(self._listen(reader))
        self._listening.add_done_callback(self._heard_all)
        self.say(self._settings)

    def say(self, message: pipe.Message) -> None:
        """Send; what is said to a dead worker is lost."""
        if self._writer is not None and self.alive:
            self._writer.write(pipe.encode(message))

    def end(self) -> None:
        """End it and wait: it goes by itself when the pair closes, unless it is stopped."""
        if self._listening is not None:
            self._listening.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self._mine.close()
        asyncio.get_running_loop().remove_reader(self._pidfd)
        try:
            self._process.wait(_GRACE_SEC)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._pidfd)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                if line.endswith(b"\n"):  # else killed in the middle of a word
                    self._hear(pipe.decode(line))
        except ConnectionError:
            pass

    def _heard_all(self, listening: asyncio.Task[None]) -> None:
        if listening.cancelled():
            return
        if (error := listening.exception()) is not None:
            traceback.print_exception(error)
            self._process.kill()  # it speaks nonsense: a bug, and no rank to go on with
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._gone(self._process.wait())
