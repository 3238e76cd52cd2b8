"""An event loop with virtual time: nothing waits, the clock jumps to the next timer.

asyncio asks its selector to sleep until the next timer is due; this selector moves the clock instead. A world in which
nobody waits for anything any more would sleep for ever: that is an error here.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH_SEC = 1_000_000.0
"""Where virtual time begins: large enough that nobody mistakes a time for a duration."""


class StandstillError(RuntimeError):
    """Nothing is due any more, and the world has not ended."""


class _JumpingSelector(selectors.BaseSelector):
    """Never waits and never sees I/O: asked to sleep, it moves the clock."""

    def __init__(self) -> None:
        self.now = EPOCH_SEC
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """asyncio registers its own wake-up pipe, by number, and nobody else anything."""
        self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return self._keys[fileobj]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StandstillError("every task waits for something that never comes")
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Any:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on virtual time."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end in a loop of its own; whatever still runs then is cancelled."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()
