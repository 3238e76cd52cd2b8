"""A group of ranks that step together, as the collectives of an expert-parallel model make them.

Each step, every member sends every other one its *contribution*; the step completes when all have come in. A rank
that has nothing to do contributes too (a dummy batch), because the others' experts are on it. When nobody was busy in
a step, the group falls idle and nothing moves until a rank gets a request: it starts the next step, and the arrival of
its contribution takes the others along. All members see the same contributions, so all decide alike.

Contributions travel as datagrams on purpose: nobody learns of a peer's death from a closed connection, only from the
contribution that does not come within the communication timeout, and only if somebody wanted to step. At most two
small datagrams a peer are ever outstanding, far below what a socket buffers.

A rank that stood still itself (stopped process) for longer than the timeout finds, when it goes on, that its own step
took too long, and reports the same fault, whoever was late.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lab.simulator.store import Address

_WIRE = struct.Struct("!8sIQHB")


class Contribution(NamedTuple):
    """One rank's part in one step of one epoch of one group; `busy` = it has requests of its own."""

    group: bytes
    epoch: int
    step: int
    rank: int
    busy: bool


class CommunicationTimeout(Exception):
    """A step that did not complete in time; `missing` ranks had not contributed (none, if this rank was the late one)."""

    def __init__(self, missing: list[int]) -> None:
        super().__init__(f"no contribution from ranks {missing}")
        self.missing = missing


class Mesh:
    """This rank's socket, and what has come in on it.

    Peers that hear of a completed meeting first may step before this rank knows the group's id or its new epoch, so
    contributions are kept until they are known to be of the past.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._group: bytes | None = None
        self._came_in: dict[tuple[bytes, int, int], dict[int, bool]] = {}
        self._tell: Callable[[], None] | None = None

    def listen(self, host: str) -> None:
        """Take a free port of `host`."""
        self._socket.bind((host, 0))
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    @property
    def address(self) -> Address:
        """Where peers reach this rank."""
        host, port = self._socket.getsockname()
        return host, port

    @property
    def group(self) -> bytes:
        """The instance's id, from the meeting at the start; the same for all epochs."""
        assert self._group is not None
        return self._group

    def belong_to(self, group: bytes) -> None:
        """From now on, ignore other instances (an old process may still send to a reused port)."""
        self._group = group

    def send(self, contribution: Contribution, to: Iterable[Address]) -> None:
        """Tell the others; an unreachable one is no news, only the communication timeout tells that a peer is gone."""
        data = _WIRE.pack(*contribution)
        for address in to:
            with contextlib.suppress(OSError):
                self._socket.sendto(data, address)

    def _receive(self) -> None:
        with contextlib.suppress(OSError):  # nothing more to read
            while True:
                self._take(self._socket.recv(2 * _WIRE.size))

    def _take(self, data: bytes) -> None:
        if len(data) != _WIRE.size:
            return
        group, epoch, step, rank, busy = _WIRE.unpack(data)
        if self._group in (None, group):
            self._came_in.setdefault((group, epoch, step), {})[rank] = bool(busy)
            self.nudge()

    def came_in(self, epoch: int, step: int) -> dict[int, bool]:
        """Rank → busy, for one step."""
        return self._came_in.get((self.group, epoch, step), {})

    def forget_until(self, epoch: int, step: int) -> None:
        """Drop the steps up to this one, earlier epochs and other groups."""
        self._came_in = {key: ranks for key, ranks in self._came_in.items() if key[0] == self._group and key[1:] > (epoch, step)}

    async def until(self, true: Callable[[], bool], timeout_sec: float | None) -> bool:
        """Wait until `true()` holds, looking at each datagram and at each `nudge`; False when the time is over first."""
        if true():
            return True
        happened = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not happened.done() and true():
                happened.set_result(None)

        self._tell = look
        try:
            async with asyncio.timeout(timeout_sec):
                await happened
        except TimeoutError:
            return true()
        finally:
            self._tell = None
        return True

    def nudge(self) -> None:
        """Something other than a datagram has changed."""
        if self._tell is not None:
            self._tell()


class Group:
    """This rank's part in one epoch of the group.

    Args:
        members: rank → address, this rank included.
        busy: whether this rank has requests now.
        detection_sec: the communication timeout of a step.
        step_sec: how long a step takes when everybody is there.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        epoch: int,
        members: dict[int, Address],
        busy: Callable[[], bool],
        detection_sec: float,
        step_sec: float,
    ) -> None:
        self.epoch = epoch
        self.step = 0
        self.members = sorted(members)
        self._mesh = mesh
        self._rank = rank
        self._peers = [address for rank_, address in members.items() if rank_ != rank]
        self._others = frozenset(members) - {rank}
        self._busy = busy
        self._detection_sec = detection_sec
        self._step_sec = step_sec
        self._go_on = False

    async def next_step(self, begin: Callable[[], None]) -> None:
        """Wait until somebody in the group is busy, then take one step together; `begin` is called as it starts.

        Raises:
            CommunicationTimeout: the step did not complete within the communication timeout.
        """
        if not self._go_on:
            await self._mesh.until(self._wanted, None)
        clock = asyncio.get_running_loop().time
        started, step, busy = clock(), self.step + 1, self._busy()
        begin()
        self._mesh.send(Contribution(self._mesh.group, self.epoch, step, self._rank, busy), self._peers)
        await self._mesh.until(lambda: self._others <= self._mesh.came_in(self.epoch, step).keys(), self._detection_sec)
        came_in = self._mesh.came_in(self.epoch, step)
        missing = sorted(self._others - came_in.keys())
        if missing:
            raise CommunicationTimeout(missing)
        await asyncio.sleep(started + self._step_sec - clock())
        if clock() - started > self._detection_sec + self._step_sec:
            raise CommunicationTimeout([])  # this process itself stood still
        self.step = step
        self._go_on = busy or any(came_in[rank] for rank in self._others)
        self._mesh.forget_until(self.epoch, step)

    def _wanted(self) -> bool:
        return self._busy() or bool(self._mesh.came_in(self.epoch, self.step + 1))
