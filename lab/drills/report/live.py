"""What is told while a drill runs and is not waited for by anybody: the engines' statuses, the client's successes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from lab.drills.record.events import DrillEventKind
from lab.drills.record.traffic import RequestRecord
from lab.drills.script.scene import Scene

_ENGINES_EVERY_SEC = 0.25
_REQUESTS_EVERY_SEC = 1.0


@contextlib.asynccontextmanager
async def follow_engines(scene: Scene) -> AsyncIterator[None]:
    """Tell every change of an engine's status while the context lasts."""
    task = asyncio.create_task(_tell_engines(scene))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _tell_engines(scene: Scene) -> None:
    told: dict[int, str] = {}
    while True:
        for rank, lives in scene.engine_lives().items():
            word = "starting"
            for line in lives[-1].lines:
                match line.event:
                    case "ready":
                        word = "healthy"
                    case "status":
                        word = line.ft_state or line.status or word
                    case "worker_exit" | "exit":
                        word = "dead"
            if told.get(rank) != word:
                told[rank] = word
                scene.say(DrillEventKind.RANK, word, ranks=(rank,))
        await asyncio.sleep(_ENGINES_EVERY_SEC)


async def tell_requests(scene: Scene, records: Sequence[RequestRecord]) -> None:
    """Every second, how many requests ended well and how many did not. Until cancelled."""
    seen = 0
    due_at = time.monotonic()
    while True:
        due_at += _REQUESTS_EVERY_SEC
        await asyncio.sleep(max(0.0, due_at - time.monotonic()))
        ended = records[seen:]
        seen += len(ended)
        ok = sum(record.ok for record in ended)
        scene.say(DrillEventKind.REQUESTS, ok=ok, failed=len(ended) - ok)
