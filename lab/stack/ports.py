"""Ports for a whole installation, free now and still free when a process comes back after a crash.

A port that the kernel hands out for `bind(0)` lies in the ephemeral range: while its owner is down for two seconds, any
outgoing connection on the machine may take it. So ports are drawn at random from below that range, probed by binding
them, and *reserved*: for each, the supervisor holds an abstract Unix socket whose name is the port. The kernel allows
one holder, forgets it when the holder dies, and scopes it to the network namespace, exactly as it does ports. Stacks
that run side by side therefore never draw the same port; a stranger who takes one is noticed when the process cannot
listen, and the supervisor plans anew.
"""

import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from domain.errors import Refused

_LOWEST: Final = 10_240
_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_EPHEMERAL_START: Final = 32_768
_ATTEMPTS: Final = 2_000


class NoFreePort(Refused):
    """A port that was asked for is taken, or none is left."""

    default_reason = "PORT_IN_USE"


class PortLease:
    """Ports reserved for one installation, until `close`. `drawn`: the first of each taking, in order.

    `again`: what an earlier lease drew. The same is taken in the same order, whoever listens there: engines that went on are
    where they were.
    """

    def __init__(self, *, seed: int | None = None, again: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._held: dict[int, socket.socket] = {}
        self._again = iter(again) if again is not None else None
        self.drawn: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give all reservations back."""
        for holder in self._held.values():
            holder.close()
        self._held.clear()

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(self._held)

    def take(self) -> int:
        """One free port. Raises NoFreePort."""
        return self.take_block(1)

    def take_block(self, size: int) -> int:
        """The first of `size` consecutive free ports (an engine group's store ports). Raises NoFreePort."""
        if self._again is not None:
            return self._taken_again(size)
        highest = ephemeral_start() - size
        for _ in range(_ATTEMPTS):
            first = self._random.randint(_LOWEST, highest)
            if self._take_all(range(first, first + size)):
                self.drawn.append(first)
                return first
        raise NoFreePort(f"no {size} consecutive free ports between {_LOWEST} and {highest + size}")

    def take_exactly(self, port: int, purpose: str) -> int:
        """This very port, which a person asked for. Raises NoFreePort naming `purpose`."""
        if self._again is not None:
            return self._taken_again(1)
        if not self._take_all(range(port, port + 1)):
            raise NoFreePort(f"port {port} for {purpose} is in use; stop what listens there, or choose another port")
        self.drawn.append(port)
        return port

    def _taken_again(self, size: int) -> int:
        assert self._again is not None
        first = next(self._again, None)
        if first is None or not self._take_all(range(first, first + size), whoever_listens=True):
            raise NoFreePort(
                f"port {first} of the installation before is reserved by another one; stop that with `autotomy down`"
            )
        self.drawn.append(first)
        return first

    def _take_all(self, wanted: range, *, whoever_listens: bool = False) -> bool:
        taken: dict[int, socket.socket] = {}
        for port in wanted:
            free = port not in self._held and (whoever_listens or _bindable(port))
            holder = _reserve(port) if free else None
            if holder is None:
                for other in taken.values():
                    other.close()
                return False
            taken[port] = holder
        self._held |= taken
        return True


def ephemeral_start() -> int:
    """The lowest port that the kernel gives to outgoing connections."""
    try:
        return int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _DEFAULT_EPHEMERAL_START


def _bindable(port: int) -> bool:
    """Nobody listens at `port` on any address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0autotomy-port-{port}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder
