"""The network between the controller and everybody else: it loses, repeats, delays and reorders.

A request is a coroutine of the receiver's. It runs as a task of the receiver, whatever becomes of the caller: a client that
gives up or crashes changes nothing. A receiver that is down refuses the connection; one without power swallows it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, TypeVar

from domain.errors import AutotomyError, Transient
from tests.simulation.clock import now
from tests.simulation.scenario import Network

T = TypeVar("T")


class Unanswered(Transient):
    """A timeout: the request or the reply was lost, or the receiver thinks on."""


class ConnectionRefused(Transient):
    """Nobody listens there: the request was not read."""


class Receiver(Protocol):
    """A process that takes requests."""

    name: str
    up: bool
    powered: bool
    tasks: dict[asyncio.Task[None], None]


class Wire:
    """One network. `call` raises `Transient` where it ends without the receiver's word."""

    def __init__(self, network: Network, rng: Random) -> None:
        self.network = network
        self._rng = rng

    async def call(self, receiver: Receiver, request: Callable[[], Awaitable[T]], timeout_sec: float) -> T:
        """One request and its reply, within `timeout_sec`."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T | AutotomyError] = loop.create_future()
        for _ in range(self._copies()):
            loop.call_later(self._delay(), self._deliver, receiver, request, reply)
        timer = loop.call_later(timeout_sec, _settle, reply, Unanswered(f"{receiver.name} did not answer in {timeout_sec:g} s"))
        try:
            answer = await reply
        finally:
            timer.cancel()
        if isinstance(answer, AutotomyError):
            raise answer
        return answer

    def _copies(self) -> int:
        lost = self._rng.random() < self.network.lose
        repeated = self._rng.random() < self.network.duplicate
        return (0 if lost else 1) + (1 if repeated else 0)

    def _delay(self) -> float:
        return self.network.delay_sec * self._rng.random() ** 3 + 0.0005

    def _deliver(
        self, receiver: Receiver, request: Callable[[], Awaitable[T]], reply: "asyncio.Future[T | AutotomyError]"
    ) -> None:
        if not receiver.powered:
            return
        if not receiver.up:
            _settle(reply, ConnectionRefused(f"{receiver.name} refuses the connection"))
            return
        task = asyncio.get_running_loop().create_task(self._serve(receiver, request, reply))
        receiver.tasks[task] = None
        task.add_done_callback(receiver.tasks.pop)

    async def _serve(
        self, receiver: Receiver, request: Callable[[], Awaitable[T]], reply: "asyncio.Future[T | AutotomyError]"
    ) -> None:
        answer: T | AutotomyError
        try:
            answer = await request()
        except AutotomyError as error:
            answer = error
        except asyncio.CancelledError:
            _settle(reply, Unanswered(f"{receiver.name} broke the connection"))
            raise
        if self._rng.random() >= self.network.lose:
            asyncio.get_running_loop().call_later(self._delay(), _settle, reply, answer)


def _settle(reply: "asyncio.Future[T | AutotomyError]", answer: T | AutotomyError) -> None:
    if not reply.done():
        reply.set_result(answer)


async def until(deadline_at: float, pause_sec: float) -> bool:
    """Waits a little before another attempt; False where there is no time for one."""
    if now() + pause_sec >= deadline_at:
        return False
    await asyncio.sleep(pause_sec)
    return True
