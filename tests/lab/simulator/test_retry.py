"""`retry`: the recovery without a loss, in both dialects."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.lab.simulator.ranks import Ranks, all_become, apply_all, instance

pytestmark = pytest.mark.verify


async def halt_without_a_loss(ranks: Ranks) -> None:
    """A worker stands still for longer than the communication timeout: all become unhealthy, nobody is dead."""
    ranks[1].signal_worker(signal.SIGSTOP)
    request = asyncio.create_task(ranks[0].complete(50))
    await ranks[0].becomes("unhealthy")
    ranks[1].signal_worker(signal.SIGCONT)
    await request
    await all_become(list(ranks), "unhealthy")


async def test_failed_retry_stays_unhealthy_and_may_be_repeated(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        await halt_without_a_loss(ranks)
        await apply_all([ranks[0]], "retry")  # the other one is not told
        assert (await ranks[0].entry())["ft_state"] == "recovering"
        entry = await ranks[0].errs()
        assert (entry["status"], entry.get("ft_state"), entry["last_ft_request_id"]) == ("unhealthy", None, "one")
        assert "store timeout" in entry["ft_error"]
        await apply_all(list(ranks), "retry", "two")
        assert await all_become(list(ranks), "healthy") == [{"id": 0, "status": "healthy"}, {"id": 1, "status": "healthy"}]
        assert await ranks[1].text() == "rank 1 epoch 1"


async def test_retry_fails_while_a_worker_is_gone(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        survivors = await ranks.lose(1)
        await apply_all(survivors, "retry")
        for rank in survivors:
            entry = await rank.errs()
            assert (entry["status"], entry.get("ft_state")) == ("unhealthy", None)
        await apply_all(survivors, "scale_down", "two", removed_dp_ranks=[1])
        await all_become(survivors, "healthy")


async def test_retry_fails_on_a_rank_whose_own_worker_is_gone(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        await halt_without_a_loss(ranks)
        ranks[1].kill_worker()
        await eventually(lambda: bool(ranks[1].log("worker_exit")))
        await apply_all(list(ranks), "retry")
        entry = await ranks[1].errs()
        assert (entry["status"], entry["ft_error"]) == ("unhealthy", "worker process of engine 1 is gone")
        assert "store timeout" in (await ranks[0].errs())["ft_error"]


async def test_legacy_retry_works_though_each_server_makes_its_own_request_id(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2, dialect="legacy") as ranks:
        await halt_without_a_loss(ranks)
        hanging = asyncio.create_task(ranks[1].text())
        answers = [await rank.apply("retry", "mine") for rank in ranks]
        ids = [answer.json()["request_id"] for answer in answers]
        assert len(set(ids)) == 2
        assert "mine" not in ids
        await all_become(list(ranks), "healthy")
        assert await hanging == "rank 1 epoch 1", "a request that hung is served by the recovered group"
        assert not any(line["ft_state"] for rank in ranks for line in rank.log("status")), "legacy has no ft_state"
        assert [rank.log("apply")[0]["request_id"] for rank in ranks] == ids


async def test_legacy_shows_ft_error_and_its_own_request_id_of_a_failed_retry(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2, dialect="legacy") as ranks:
        await halt_without_a_loss(ranks)
        request_id = (await ranks[0].apply("retry")).json()["request_id"]
        entry = await ranks[0].errs()
        assert entry["last_ft_request_id"] == request_id
        assert "ft_state" not in entry
