"""Long-lived tasks that end by themselves end their process, or fail its readiness (`service.loops`)."""

import asyncio

import pytest

from domain.errors import Transient
from service.loops import HEALED_SEC, LoopFailed, Loops, Renewed


async def goes_on() -> None:
    await asyncio.Event().wait()


async def raises() -> None:
    raise ValueError("planted")


async def returns() -> None:
    pass


@pytest.mark.parametrize(("loop", "why"), [(raises, "watch: ValueError: planted"), (returns, "watch: it ended by itself")])
async def test_a_loop_that_ends_stops_its_process_and_says_why(loop, why) -> None:  # type: ignore[no-untyped-def]
    stop = asyncio.Event()
    loops = Loops(stop)
    loops.start("other", goes_on())
    loops.start("watch", loop())
    await asyncio.wait_for(stop.wait(), 5)
    await loops.end()
    with pytest.raises(LoopFailed, match=why):
        loops.raise_if_one_failed()


async def test_a_loop_that_may_end_and_a_stop_are_no_failures() -> None:
    stop = asyncio.Event()
    loops = Loops(stop)
    loops.start("other", goes_on())
    loops.start("once", returns(), may_end=True)
    await asyncio.sleep(0)
    await loops.end()
    assert not stop.is_set()
    loops.raise_if_one_failed()


async def test_the_first_failure_is_the_one_that_is_told() -> None:
    loops = Loops(asyncio.Event())
    loops.start("first", raises())
    loops.start("second", raises())
    await asyncio.sleep(0)
    await loops.end()
    with pytest.raises(LoopFailed, match="first"):
        loops.raise_if_one_failed()


async def test_a_renewed_loop_goes_on_and_readiness_tells_of_its_failure_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.loops.FIRST_PAUSE_SEC", 0.001)
    clock = 0.0
    renewed = Renewed(lambda: clock)
    lives = 0
    lived = asyncio.Event()

    async def fails_twice() -> None:
        nonlocal lives
        lives += 1
        if lives <= 2:
            raise Transient("the peer is away")
        lived.set()
        await goes_on()

    assert renewed.trouble is None
    task = asyncio.create_task(renewed.keep("reporter", fails_twice))
    await asyncio.wait_for(lived.wait(), 5)
    assert lives == 3
    assert renewed.trouble == "reporter: the peer is away"
    clock += HEALED_SEC + 1
    assert renewed.trouble is None
    task.cancel()
    await asyncio.wait([task])
