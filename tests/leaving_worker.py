"""The worker of every test."""

import asyncio
import logging
from typing import Any

from temporalio.worker import Worker

LET_GO_SEC = 20.0
"""The graceful second and what a busy machine makes of it."""

log = logging.getLogger(__name__)


class LeavingWorker(Worker):
    """Leaves as `autotomy worker` does: in order, but not for ever.

    Once in hundreds of runs the SDK's shutdown (temporalio 1.35) did not return, with every activity and task answered.
    """

    async def __aexit__(self, exc_type: type[BaseException] | None, *args: Any) -> None:
        try:
            async with asyncio.timeout(LET_GO_SEC):
                await super().__aexit__(exc_type, *args)
        except TimeoutError:
            log.warning("the SDK's worker does not come to an end; leaving without it", extra={"waited_sec": LET_GO_SEC})
