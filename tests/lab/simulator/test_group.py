"""Behaviours 6 and 7: the group steps together, and what a missing rank does to it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.lab.simulator.ranks import DETECTION_SEC, Ranks, all_become, apply_all, instance

pytestmark = pytest.mark.verify


async def steps(ranks: Ranks) -> list[int]:
    return [(await rank.state())["worker"]["steps"] for rank in ranks]


async def test_idle_group_does_not_move_and_one_request_makes_all_ranks_step(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        before = await steps(ranks)
        await asyncio.sleep(0.2)  # an observation window: nothing may happen in it
        assert await steps(ranks) == before == [0, 0, 0]
        assert await ranks[1].text() == "rank 1 epoch 0"

        async def all_alike() -> bool:
            now = await steps(ranks)
            return now[0] > 0 and now.count(now[0]) == 3

        await eventually(all_alike)
        after = await steps(ranks)
        await asyncio.sleep(0.2)
        assert await steps(ranks) == after


async def test_dead_peer_is_not_noticed_without_traffic_and_one_request_makes_all_notice(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        ranks[1].kill_worker()
        await ranks[1].becomes("dead")
        await asyncio.sleep(2 * DETECTION_SEC)  # an observation window
        assert [(await ranks[number].entry())["status"] for number in (0, 2)] == ["healthy", "healthy"]

        asked = time.monotonic()
        answer = await ranks[2].complete()
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
        entries = await all_become([ranks[0], ranks[2]], "unhealthy")
        assert entries[0] == {"id": 0, "status": "unhealthy", "fault_info": "RuntimeError", "mask": [0, 1, 0]}
        for number in (0, 2):
            (noticed,) = ranks[number].log("fault_noticed")
            assert noticed["mono"] - asked >= DETECTION_SEC, "a closed socket must not replace the communication timeout"
            assert noticed["missing"] == [1]


async def test_requests_in_flight_end_with_abort_and_streams_end_early(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        body = {"prompt": "hello", "max_tokens": 100_000, "stream": True}
        async with ranks[0].http.stream("POST", "/v1/completions", json=body) as stream:
            lines = (line async for line in stream.aiter_lines() if line)
            assert "rank 0 epoch 0" in await anext(lines)
            of_victim = asyncio.create_task(ranks[1].complete(100_000))
            of_survivor = asyncio.create_task(ranks[2].complete(100_000))
            await eventually(ranks[1].runs_a_request)
            await eventually(ranks[2].runs_a_request)
            ranks[1].kill_worker()
            for answer in await asyncio.gather(of_victim, of_survivor):
                assert answer.status_code == 200
                assert answer.json()["choices"][0]["finish_reason"] == "abort"
            rest = [line async for line in lines]
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
        assert rest[-1] == "data: [DONE]"


async def test_new_request_to_a_rank_that_is_not_healthy_gets_503_in_v1(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        survivors = await ranks.lose(1)
        for rank in ranks:
            answer = await rank.complete()
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == 503
        streamed = await survivors[0].http.post("/v1/completions", json={"prompt": "x", "stream": True})
        assert streamed.status_code == 503
        assert (await survivors[0].http.get("/health")).status_code == 200


async def test_new_request_to_a_rank_that_is_not_healthy_hangs_in_legacy(tmp_path: Path) -> None:
    async with instance(tmp_path, dialect="legacy") as ranks:
        await ranks.lose(1)
        waiting = [asyncio.create_task(rank.complete()) for rank in ranks]
        done, _ = await asyncio.wait(waiting, timeout=1.0)
        assert not done
        for rank in ranks:
            rank.process.terminate()
        for answer in await asyncio.gather(*waiting):
            assert answer.status_code == 503


async def test_stopped_worker_looks_dead_and_after_going_on_all_can_retry(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        running = asyncio.create_task(ranks[0].complete(100_000))
        await eventually(ranks[0].runs_a_request)
        ranks[1].signal_worker(signal.SIGSTOP)
        await all_become([ranks[0], ranks[2]], "unhealthy")
        assert (await ranks[1].entry())["status"] == "healthy", "it stands still, so it pushed nothing"
        await running
        ranks[1].signal_worker(signal.SIGCONT)
        await ranks[1].becomes("unhealthy")
        await apply_all(ranks, "retry")
        await all_become(ranks, "healthy")
        assert [await rank.text() for rank in ranks] == [f"rank {number} epoch 1" for number in range(3)]


async def test_short_stop_is_no_fault(tmp_path: Path) -> None:
    async with instance(tmp_path, detection_sec=5) as ranks:
        ranks[1].signal_worker(signal.SIGSTOP)
        request = asyncio.create_task(ranks[0].complete())
        done, _ = await asyncio.wait([request], timeout=0.5)
        assert not done, "the group waits for the stopped rank"
        ranks[1].signal_worker(signal.SIGCONT)
        assert (await request).json()["choices"][0]["finish_reason"] == "length"
        assert [(await rank.entry())["status"] for rank in ranks] == ["healthy"] * 3


async def test_stopped_api_server_is_mute_while_its_engine_works_on(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        ranks[1].process.send_signal(signal.SIGSTOP)
        ends = time.monotonic() + 2 * DETECTION_SEC
        while time.monotonic() < ends:
            assert await ranks[0].text() == "rank 0 epoch 0"
        ranks[1].process.send_signal(signal.SIGCONT)
        assert await ranks[1].text() == "rank 1 epoch 0"
        assert not any(rank.log("fault_noticed") for rank in ranks)


async def test_client_that_goes_away_leaves_the_group_idle(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        for stream in (False, True):
            body = {"prompt": "x", "max_tokens": 100_000, "stream": stream}
            gone = asyncio.create_task(ranks[0].http.post("/v1/completions", json=body))
            await eventually(ranks[0].runs_a_request)
            gone.cancel()

            async def idle() -> bool:
                return not await ranks[0].runs_a_request()

            await eventually(idle)
        assert await ranks[1].text() == "rank 1 epoch 0"
