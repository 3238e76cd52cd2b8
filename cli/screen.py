"""Where words go: results to stdout, progress and troubles to stderr, so that `--json` leaves stdout to one JSON value."""

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from rich.console import Console

T = TypeVar("T")

_FILE_WIDTH: Final = 160


def results() -> Console:
    """For what was asked for."""
    return _console(stderr=False)


def remarks() -> Console:
    """For progress and troubles."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """A file or a pipe is as wide as it needs to be; a terminal is as wide as it is."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_FILE_WIDTH)


def print_json(value: object) -> None:
    """One JSON value on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; SIGTERM cancels it as Ctrl-C does, so that clean-up happens. Raises KeyboardInterrupt for both."""
    try:
        return asyncio.run(_cancellable(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancellable(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task
