"""The worker process of one rank: the one to kill.

It is the rank's member of the group: it makes the tokens, contributes to each step, hosts the store if its rank is the
lowest alive one, and meets the others for a recovery. After a fault it stands still until it is told to recover. It
knows nothing of HTTP or of the FT API's rules; the API server that started it tells it what to do over a socket pair.

It ends with its API server, whichever way that goes: the kernel kills it at the parent's death, and the pair's end of
file says the same. ``python -m lab.simulator`` starts it; its command line is only there to be found by people and drills.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import socket
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass

from lab.simulator import pipe
from lab.simulator.group import CommunicationTimeout, Group, Mesh
from lab.simulator.store import Address, Arrival, Meeting, NotComplete, Store, meet

TITLE = "autotomy-sim-worker"

_PR_SET_PDEATHSIG = 1


@dataclass
class _Request:
    """A request in progress; `credit` is the part of a token that a step has earned but not given."""

    left: int
    credit: float = 0.0


class Worker:
    """One rank in the group; see the module."""

    def __init__(self, settings: pipe.Settings, writer: asyncio.StreamWriter) -> None:
        self._settings = settings
        self._writer = writer
        self._mesh = Mesh()
        self._store = Store()
        self._group: Group | None = None
        self._running: dict[int, _Request] = {}
        self._batch: list[int] = []
        self._steps = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def obey(self, message: pipe.Message) -> None:
        """Do what the API server says; whatever takes time goes on beside."""
        match message:
            case pipe.Generate(request, tokens):
                self._running[request] = _Request(tokens)
                self._mesh.nudge()
            case pipe.Cancel(request):
                self._running.pop(request, None)
            case pipe.Recover():
                self._beside(self._recover(message))
            case pipe.Look():
                group = self._group
                epoch, members = (group.epoch, group.members) if group else (-1, [])
                self._say(pipe.State(epoch, self._steps, len(self._running), members))
            case _:
                raise ValueError(f"not for a worker: {message}")

    def start(self) -> None:
        """Join the group in the background."""
        self._beside(self._join())

    async def _join(self) -> None:
        """Meet all initial ranks at rank 0's store, then step with them."""
        settings = self._settings
        await asyncio.sleep(settings.startup_sec)
        try:
            self._mesh.listen(settings.host)
            if settings.rank == 0:
                await self._store.listen((settings.host, settings.store_port))
            store = (settings.store_host, settings.store_port)
            meeting = await self._meet("start", store, list(range(settings.size)), settings.startup_timeout_sec)
        except (OSError, NotComplete) as error:
            self._say(pipe.Unstartable(str(error)))
            return
        self._mesh.belong_to(bytes.fromhex(meeting.id))
        self._say(pipe.Ready())
        self._beside(self._step_on(meeting, epoch=0))

    async def _recover(self, order: pipe.Recover) -> None:
        """Meet, rebuild, meet again: nobody goes on before everybody has rebuilt."""
        store = (order.store_host, order.store_port)
        timeout_sec = self._settings.store_timeout_sec
        try:
            if order.host_new_store:
                # on the own address: a wrong master address in the order leads the peers to nobody
                await self._store.listen((self._settings.host, order.store_port))
            await self._meet(f"{order.round} begin", store, order.members, timeout_sec)
            await asyncio.sleep(order.recovery_sec)
            meeting = await self._meet(f"{order.round} end", store, order.members, timeout_sec)
        except (OSError, NotComplete) as error:
            self._say(pipe.Recovered(str(error)))
            return
        self._beside(self._step_on(meeting, order.epoch))
        self._say(pipe.Recovered(""))

    async def _meet(self, name: str, store: Address, members: list[int], timeout_sec: float) -> Meeting:
        arrival = Arrival(name, self._settings.rank, members, self._mesh.address)
        return await meet(store, arrival, timeout_sec)

    async def _step_on(self, meeting: Meeting, epoch: int) -> None:
        """Step with the group until a step fails; then everything that was running is lost."""
        settings = self._settings
        self._mesh.forget_until(epoch, 0)
        self._group = group = Group(
            mesh=self._mesh,
            rank=settings.rank,
            epoch=epoch,
            members=meeting.addresses,
            busy=lambda: bool(self._running),
            detection_sec=settings.detection_sec,
            step_sec=settings.step_ms / 1000,
        )
        try:
            while True:
                await group.next_step(self._begin_step)
                self._end_step(epoch)
        except CommunicationTimeout as timeout:
            self._running.clear()
            self._say(pipe.Fault(timeout.missing, group.step + 1))

    def _begin_step(self) -> None:
        self._batch = list(self._running)

    def _end_step(self, epoch: int) -> None:
        self._steps += 1
        for request in self._batch:
            if (running := self._running.get(request)) is None:
                continue  # cancelled meanwhile
            running.credit += self._settings.step_ms / self._settings.token_ms
            count = min(int(running.credit + 1e-9), running.left)
            if count == 0:
                continue
            running.credit -= count
            running.left -= count
            if running.left == 0:
                del self._running[request]
            self._say(pipe.Tokens(request, count, epoch, done=running.left == 0))

    def _say(self, message: pipe.Message) -> None:
        self._writer.write(pipe.encode(message))

    def _beside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            os._exit(1)  # a half-working worker would be worse than a dead one


async def work(connection: socket.socket) -> None:
    """Serve the API server at the other end of `connection` until it is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    settings = pipe.decode(await reader.readline())
    assert isinstance(settings, pipe.Settings)
    worker = Worker(settings, writer)
    worker.start()
    while line := await reader.readline():
        worker.obey(pipe.decode(line))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; end now if that has already happened."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """Entry point; the arguments are the API server's business."""
    parser = argparse.ArgumentParser(prog="python -m lab.simulator.worker", description="Started by `python -m lab.simulator`.")
    parser.add_argument("title", choices=[TITLE])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--of", type=int, required=True, help="ranks at the start")
    parser.add_argument("--api-server-pid", type=int, required=True)
    parser.add_argument("--pipe", type=int, required=True, help="inherited file descriptor of the socket pair")
    given = parser.parse_args()
    _die_with(given.api_server_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the API server ends us
    try:
        asyncio.run(work(socket.socket(fileno=given.pipe)))
    except ConnectionError:
        pass  # the API server is gone in the middle of a word


if __name__ == "__main__":
    main()
