"""The outermost lines of every process: logging, signals, and an exit code that means something.

    if __name__ == "__main__":
        leave(run_process("coordinator", main))        # async def main(stop: asyncio.Event) -> None

| exit code | |
|---|---|
| 0 | did its work, or was asked to stop |
| 2 | could not start: wrong configuration, port in use, peer missing; one line on stderr says what to do |
| 1 | a bug: traceback in the log |
| 3 | was asked to stop, and left before everything was in order: that took too long (`service.stop.OutOfTime`) |
| 130 | second Ctrl-C |
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable

from domain.errors import AutotomyError
from service.failpoints import armed_failpoints
from service.logging import configure_logging
from service.stop import OutOfTime, Stopped, stop_event
from service.variables import refuse_unknown_variables

log = logging.getLogger(__name__)


def run_process(process: str, main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main(stop)` to its end and return the exit code; `stop` is set by SIGTERM and SIGINT."""
    try:
        refuse_unknown_variables()
        configure_logging(process)
        if armed := armed_failpoints():
            log.warning("failpoints armed", extra={"names": ",".join(sorted(armed))})
        _run(main)
    except AutotomyError as error:
        sys.stderr.write(f"{process}: {error}\n")
        return 2
    except (KeyboardInterrupt, Stopped):
        return 0
    except OutOfTime as late:
        log.warning("left before everything was in order", extra={"why": str(late)})
        return 3
    except ExceptionGroup as group:
        meant, bugs = group.split(AutotomyError)
        if bugs is not None or meant is None:
            log.exception("stopped by a bug")
            return 1
        for refusal in meant.exceptions:
            sys.stderr.write(f"{process}: {refusal}\n")
        return 2
    except Exception:
        log.exception("stopped by a bug")
        return 1
    return 0


def _run(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """As `asyncio.run`, which waits for everything that still runs in the loop: that is just what an `OutOfTime` cannot do."""
    runner = asyncio.Runner()
    try:
        runner.run(_with_stop(main))
    except OutOfTime:
        raise
    except BaseException:
        runner.close()
        raise
    runner.close()


async def _with_stop(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    await main(stop_event())
