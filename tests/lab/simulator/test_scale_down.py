"""Behaviours 1-4, 8 and 10: what a scale_down takes, needs, and leaves."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.lab.simulator.ranks import RECOVERY_SEC, STORE_TIMEOUT_SEC, all_become, apply_all, instance
from tests.listening import free_port

pytestmark = pytest.mark.verify


async def test_command_is_refused_asynchronously_while_healthy(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        answer = await ranks[0].apply("scale_down", removed_dp_ranks=[1])
        assert answer.status_code == 202
        assert await ranks[0].errs() == {
            "id": 0,
            "status": "healthy",
            "last_ft_request_id": "one",
            "ft_error": "[FT] Rejecting scale_down on engine 0: status is HEALTHY",
        }
        assert await ranks[0].text() == "rank 0 epoch 0"


async def test_command_is_refused_asynchronously_while_dead(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        ranks[1].kill_worker()
        await ranks[1].becomes("dead")
        assert (await ranks[1].apply("retry")).status_code == 202
        entry = await ranks[1].errs()
        assert (entry["status"], entry["ft_error"]) == ("dead", "[FT] Rejecting retry on engine 1: status is DEAD")


async def test_success_commits_the_dead_set_keeps_numbers_and_shows_a_plain_entry(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        survivors = await ranks.lose(1)
        await apply_all(survivors, "scale_down", removed_dp_ranks=[1])
        for rank in survivors:
            assert await rank.becomes("healthy") == {"id": rank.number, "status": "healthy"}
            assert await rank.text() == f"rank {rank.number} epoch 1"
            assert (await rank.state())["dead_dp_ranks"] == [1]
            (start,), (end,) = rank.log("recovery_start"), rank.log("recovery_end")
            assert end["mono"] - start["mono"] >= RECOVERY_SEC
            assert (end["ok"], end["error"], end["request_id"], end["removed"]) == (True, None, "one", [1])
            assert [(line["http"], line["params"]) for line in rank.log("apply")] == [(202, {"removed_dp_ranks": [1]})]
        states = [line["ft_state"] for line in survivors[0].log("status")]
        assert states == [None, "recovering", None]


async def test_late_duplicate_after_success_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        survivors = await ranks.lose(1)
        await apply_all(survivors, "scale_down", removed_dp_ranks=[1])
        await all_become(survivors, "healthy")
        await survivors[0].apply("scale_down", removed_dp_ranks=[1])
        entry = await survivors[0].errs()
        assert (entry["status"], entry.get("ft_state")) == ("healthy", None)
        assert entry["ft_error"] == "[FT] Rejecting scale_down on engine 0: status is HEALTHY"
        assert len(survivors[0].log("apply")) == 2
        assert await survivors[0].text() == "rank 0 epoch 1"


async def test_set_that_cannot_be_is_a_terminal_failure(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        (survivor,) = await ranks.lose(1)
        assert (await survivor.apply("scale_down", removed_dp_ranks=[0])).status_code == 202
        entry = await survivor.becomes("unhealthy", "failed")
        assert entry["ft_error"] == "Invalid removed_dp_ranks [0] for engine 0 (dp_rank=0, dead_dp_ranks=[])"
        assert entry["last_ft_request_id"] == "one"
        await survivor.apply("scale_down", "two", removed_dp_ranks=[1])  # terminal: the right words come too late
        await survivor.refuses("two")
        assert (await survivor.entry())["ft_state"] == "failed"


async def test_second_round_needs_a_rank_that_is_new_and_carries_both(tmp_path: Path) -> None:
    async with instance(tmp_path, size=4) as ranks:
        await apply_all(await ranks.lose(1), "scale_down", removed_dp_ranks=[1])
        await all_become([ranks[0], ranks[2], ranks[3]], "healthy")
        ranks[3].kill_worker()
        await ranks[3].becomes("dead")
        await ranks[0].complete()
        await all_become([ranks[0], ranks[2]], "unhealthy")
        await apply_all([ranks[0], ranks[2]], "scale_down", "two", removed_dp_ranks=[1, 3])
        await all_become([ranks[0], ranks[2]], "healthy")
        assert [await rank.text() for rank in (ranks[0], ranks[2])] == ["rank 0 epoch 2", "rank 2 epoch 2"]
        ranks[2].kill_worker()
        await ranks[0].complete()
        await ranks[0].becomes("unhealthy")
        await ranks[0].apply("scale_down", "three", removed_dp_ranks=[1, 3])
        entry = await ranks[0].becomes("unhealthy", "failed")
        assert entry["ft_error"] == "Invalid removed_dp_ranks [1, 3] for engine 0 (dp_rank=0, dead_dp_ranks=[1, 3])"


async def test_recovery_hangs_until_the_store_timeout_unless_all_were_told_the_same(tmp_path: Path) -> None:
    async def check(difference: str) -> None:
        async with instance(tmp_path / difference, size=4) as ranks:
            first, second, third = told = await ranks.lose(1)
            await apply_all([first, second], "scale_down", removed_dp_ranks=[1])
            if difference == "other request id":
                await third.apply("scale_down", "another", removed_dp_ranks=[1])
            elif difference == "other set":
                await third.apply("scale_down", removed_dp_ranks=[1, 2])
            else:
                told = [first, second]
            assert [(await rank.entry())["ft_state"] for rank in told] == ["recovering"] * len(told), "they hang"
            for rank in told:
                entry = await rank.becomes("unhealthy", "failed")
                assert "store timeout" in entry["ft_error"]
                (start,), (end,) = rank.log("recovery_start"), rank.log("recovery_end")
                assert end["mono"] - start["mono"] >= STORE_TIMEOUT_SEC
                assert not end["ok"]

    await asyncio.gather(check("one was not told"), check("other request id"), check("other set"))


async def test_survivor_that_dies_during_recovery_fails_it_for_all(tmp_path: Path) -> None:
    async with instance(tmp_path, size=3, recovery_sec=1.0) as ranks:
        survivors = await ranks.lose(1)
        await apply_all(survivors, "scale_down", removed_dp_ranks=[1])
        await all_become(survivors, "unhealthy", "recovering")
        ranks[2].kill_worker()
        entries = await all_become(survivors, "unhealthy", "failed")
        assert "store timeout" in entries[0]["ft_error"]
        assert entries[1]["ft_error"] == "worker process of engine 2 is gone"


async def test_engine_ignores_a_new_store_port_while_its_store_host_stays(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with instance(tmp_path) as ranks:
            survivors = await ranks.lose(2)
            port = taken.getsockname()[1]
            await apply_all(survivors, "scale_down", removed_dp_ranks=[2], dp_master_ip="127.0.0.1", dp_store_port=port)
            await all_become(survivors, "healthy")
            assert [(await rank.state())["store_rank"] for rank in survivors] == [0, 0]


async def test_removing_the_store_host_needs_a_new_address_also_the_second_time(tmp_path: Path) -> None:
    hosts = ["127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"]
    async with instance(tmp_path, size=4, hosts=hosts) as ranks:
        for lost, removed in enumerate(([0], [0, 1])):
            ranks[lost].kill_worker()
            survivors = list(ranks)[lost + 1 :]
            await survivors[-1].complete()
            await all_become(survivors, "unhealthy")
            host = hosts[lost + 1]
            await apply_all(
                survivors,
                "scale_down",
                f"round {lost}",
                removed_dp_ranks=removed,
                dp_master_ip=host,
                dp_store_port=free_port(host),
            )
            await all_become(survivors, "healthy")
            for rank in survivors:
                assert await rank.text() == f"rank {rank.number} epoch {lost + 1}"
                assert (await rank.state())["store_rank"] == lost + 1


async def test_removing_the_store_host_without_a_new_address_fails(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        survivors = await ranks.lose(0)
        await apply_all(survivors, "scale_down", removed_dp_ranks=[0])
        for entry in await all_become(survivors, "unhealthy", "failed"):
            assert entry["ft_error"] == "dp_store_port and dp_master_ip required when rank 0 is removed"


async def test_new_store_port_that_is_taken_fails_all(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with instance(tmp_path) as ranks:
            survivors = await ranks.lose(0)
            port = taken.getsockname()[1]
            await apply_all(survivors, "scale_down", removed_dp_ranks=[0], dp_master_ip="127.0.0.1", dp_store_port=port)
            entries = await all_become(survivors, "unhealthy", "failed")
            assert "address already in use" in entries[0]["ft_error"]
            assert "store timeout" in entries[1]["ft_error"]


async def test_new_store_at_an_address_that_is_not_the_lowest_survivors_fails_all(tmp_path: Path) -> None:
    async with instance(tmp_path, hosts=["127.0.0.2", "127.0.0.3", "127.0.0.4"]) as ranks:
        survivors = await ranks.lose(0)
        port = free_port("127.0.0.4")
        await apply_all(survivors, "scale_down", removed_dp_ranks=[0], dp_master_ip="127.0.0.4", dp_store_port=port)
        for entry in await all_become(survivors, "unhealthy", "failed"):
            assert "store timeout" in entry["ft_error"]


async def test_too_little_expert_redundancy_is_an_asynchronous_terminal_failure(tmp_path: Path) -> None:
    async with instance(tmp_path, size=4, num_experts=64, num_redundant_experts=16) as ranks:
        survivors = await ranks.lose(1)
        await apply_all(survivors, "scale_down", removed_dp_ranks=[1])
        for entry in await all_become(survivors, "unhealthy", "failed"):
            assert entry["ft_error"] == (
                "scale_down would leave 60 expert slot(s) for 64 logical experts. EPLB redundancy insufficient."
            )
