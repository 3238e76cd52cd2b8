"""The rendezvous store: where ranks meet before they start, and again at each recovery.

A meeting has a name (the *round*) and a list of members. It is complete when every member has arrived under exactly
that name with exactly that list; then all of them are told everybody's address at once. Ranks that were told
something else make another round of it, and both wait in vain: this is why a recovery instruction must reach every
survivor with the same set under the same request id.

The lowest alive rank hosts the store in its worker process, so it dies with it. Wire: one JSON line each way, one
connection a meeting; a member that closes its connection has not arrived.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

_RECONNECT_SEC = 0.05
_FIRST_LINE_SEC = 10.0

Address = tuple[str, int]


class Arrival(NamedTuple):
    """One rank's words at the store; `address` is where its peers reach it."""

    round: str
    rank: int
    members: list[int]
    address: Address


class Meeting(NamedTuple):
    """A complete meeting: an id that no other one has, and every member's address."""

    id: str
    addresses: dict[int, Address]


class NotComplete(Exception):
    """Not everybody came in time."""


@dataclass
class _Round:
    arrived: dict[int, Arrival] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class Store:
    """The server side, living as long as its process."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, tuple[int, ...]], _Round] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> None:
        """Open the port.

        Raises:
            OSError: the port is taken, or the address is not this machine's.
        """
        self._server = await asyncio.start_server(self._receive, *address)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_FIRST_LINE_SEC):
                arrival = _arrival(await reader.readline())
            meeting = await self._meet(arrival, reader)
            if meeting is not None:
                writer.write(json.dumps([meeting.id, list(meeting.addresses.items())]).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError, TypeError):
            pass  # not one of ours, or gone: it has not arrived
        finally:
            writer.close()

    async def _meet(self, arrival: Arrival, reader: asyncio.StreamReader) -> Meeting | None:
        key = (arrival.round, tuple(arrival.members))
        meeting = self._rounds.setdefault(key, _Round())
        meeting.arrived[arrival.rank] = arrival
        if set(meeting.arrived) == set(arrival.members):
            del self._rounds[key]  # the same words again make another meeting
            meeting.complete.set()
        if not await _unless_closed(meeting.complete, reader):
            if meeting.arrived.get(arrival.rank) is arrival:
                del meeting.arrived[arrival.rank]
            if not meeting.arrived and self._rounds.get(key) is meeting:
                del self._rounds[key]
            return None
        return Meeting(meeting.id, {rank: one.address for rank, one in meeting.arrived.items()})


async def meet(store: Address, arrival: Arrival, timeout_sec: float) -> Meeting:
    """Arrive at the store and wait for the others; a store that is not there (yet) is tried again until the timeout.

    Raises:
        NotComplete: `timeout_sec` went by.
    """
    try:
        async with asyncio.timeout(timeout_sec):
            while True:
                try:
                    return await _meet_once(store, arrival)
                except (OSError, EOFError):
                    await asyncio.sleep(_RECONNECT_SEC)
    except TimeoutError:
        raise NotComplete(
            f"store timeout: not all of {arrival.members} met at {store[0]}:{store[1]} within {timeout_sec:g} s"
        ) from None


async def _meet_once(store: Address, arrival: Arrival) -> Meeting:
    reader, writer = await asyncio.open_connection(*store)
    try:
        writer.write(json.dumps(arrival).encode() + b"\n")
        line = await reader.readline()
    finally:
        writer.close()
    if not line.endswith(b"\n"):
        raise EOFError("the store closed the connection")
    meeting_id, addresses = json.loads(line)
    return Meeting(meeting_id, {rank: (host, port) for rank, (host, port) in addresses})


def _arrival(line: bytes) -> Arrival:
    round_, rank, members, (host, port) = json.loads(line)
    return Arrival(round_, rank, members, (host, port))


async def _unless_closed(event: asyncio.Event, reader: asyncio.StreamReader) -> bool:
    """Wait for the event; False when the other side hangs up first."""
    happened, closed = asyncio.ensure_future(event.wait()), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((happened, closed), return_when=asyncio.FIRST_COMPLETED)
        return event.is_set()
    finally:
        happened.cancel()
        closed.cancel()
