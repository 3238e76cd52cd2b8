"""Behaviours 5 and 9, and the life of the two processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from service.process_identity import cpu_sec
from tests.eventually import eventually
from tests.lab.simulator.ranks import Rank, all_become, apply_all, instance, process_runs
from tests.listening import free_port


async def test_worker_killed_while_healthy_is_dead_and_the_api_server_answers_until_its_time_is_over(
    tmp_path: Path,
) -> None:
    async with instance(tmp_path, size=2, engine_recovery_timeout_sec=1.0) as ranks:
        victim = ranks[1]
        victim.kill_worker()
        assert await victim.becomes("dead") == {"id": 1, "status": "dead"}
        assert (await victim.http.get("/health")).status_code == 200
        await victim.ended()
        (died,), (ended,) = victim.log("worker_exit"), victim.log("exit")
        assert 1.0 <= ended["mono"] - died["mono"] < 3.0
        assert "engine_recovery_timeout_sec" in ended["reason"]
        assert ranks[0].process.poll() is None, "the idle survivor has noticed nothing"


async def test_worker_killed_after_the_rank_was_unhealthy_leaves_it_unhealthy(tmp_path: Path) -> None:
    async with instance(tmp_path) as ranks:
        survivors = await ranks.lose(1)
        survivors[1].kill_worker()
        await eventually(lambda: bool(survivors[1].log("worker_exit")))
        assert (await survivors[1].entry())["status"] == "unhealthy"


async def test_engine_core_death_leaves_the_status_healthy_then_the_port_closes_with_exit_code_0(
    tmp_path: Path,
) -> None:
    async with instance(tmp_path, size=2, misbehave="core-death=0.5") as ranks:
        ranks[1].kill_worker()
        await eventually(lambda: bool(ranks[1].log("worker_exit")))
        assert await ranks[1].entry() == {"id": 1, "status": "healthy"}
        assert await ranks[1].ended() == 0
        with pytest.raises(httpx.ConnectError):
            await ranks[1].entry()


async def test_survivor_that_is_not_recovered_in_time_exits_and_an_apply_does_not_extend_it(tmp_path: Path) -> None:
    async with instance(tmp_path, size=3, engine_recovery_timeout_sec=2.0, store_timeout_sec=30) as ranks:
        survivors = await ranks.lose(1)
        await asyncio.sleep(0.8)
        await apply_all(survivors[:1], "scale_down", removed_dp_ranks=[1])  # never complete: the other is not told
        for rank in survivors:
            await rank.ended()
            (noticed,), (ended,) = rank.log("fault_noticed"), rank.log("exit")
            assert 2.0 <= ended["mono"] - noticed["mono"] < 3.5


async def test_recovered_engine_does_not_exit(tmp_path: Path) -> None:
    async with instance(tmp_path, size=3, engine_recovery_timeout_sec=2.0) as ranks:
        survivors = await ranks.lose(1)
        await apply_all(survivors, "scale_down", removed_dp_ranks=[1])
        await all_become(survivors, "healthy")
        await ranks[1].ended()
        (noticed,) = survivors[0].log("fault_noticed")
        await eventually(lambda: time.monotonic() > noticed["mono"] + 2.2)
        assert [await rank.text() for rank in survivors] == ["rank 0 epoch 1", "rank 2 epoch 1"]


async def test_worker_dies_with_its_api_server(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        worker = ranks[0].worker_pid
        assert b"autotomy-sim-worker" in ranks[0].worker_command.split(b"\0")
        ranks[0].process.kill()
        await ranks[0].ended()
        await eventually(lambda: not process_runs(worker), within_sec=2.0)


async def test_stopped_worker_dies_with_its_api_server_too(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2) as ranks:
        for rank, number in zip(ranks, (signal.SIGKILL, signal.SIGTERM), strict=True):
            rank.signal_worker(signal.SIGSTOP)
            rank.process.send_signal(number)
            await rank.ended()
            worker = rank.worker_pid
            await eventually(lambda worker=worker: not process_runs(worker), within_sec=2.0)  # type: ignore[misc]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_signal_ends_both_processes_quickly_even_under_requests(tmp_path: Path, number: signal.Signals) -> None:
    async with instance(tmp_path, size=1) as ranks:
        (rank,) = ranks
        request = asyncio.create_task(rank.complete(100_000))
        await eventually(rank.runs_a_request)
        asked = time.monotonic()
        rank.process.send_signal(number)
        assert await rank.ended() == 0
        assert time.monotonic() - asked < 2.0
        assert not process_runs(rank.worker_pid)
        assert (await request).json()["choices"][0]["finish_reason"] == "abort"
        assert rank.log("exit")[0]["reason"] == number.name


async def test_port_opens_only_when_all_ranks_have_met(tmp_path: Path) -> None:
    port, store = free_port(), free_port()
    flags = ["-dp=2", f"--dp-master-port={store}"]
    first = Rank(0, [*flags, f"--port={port}"], tmp_path)
    ranks = [first]
    try:
        await eventually(lambda: bool(first.log("start")))
        await asyncio.sleep(0.3)  # an observation window
        assert not first.log("ready")
        with pytest.raises(httpx.ConnectError):
            await first.http.get(f"http://127.0.0.1:{port}/health")
        ranks.append(Rank(1, flags, tmp_path))
        await asyncio.gather(*(rank.ready() for rank in ranks))
        assert (await first.http.get("/health")).status_code == 200
    finally:
        for rank in ranks:
            await rank.stop()


async def test_fresh_engine_cannot_join_a_living_group(tmp_path: Path) -> None:
    store = free_port()
    async with instance(tmp_path, size=2, dp_master_port=store) as ranks:
        await apply_all(await ranks.lose(1), "scale_down", removed_dp_ranks=[1])
        await ranks[0].becomes("healthy")
        await ranks[1].stop()
        newcomer = Rank(1, ["-dp=2", f"--dp-master-port={store}", "--startup-timeout-sec=1"], tmp_path)
        try:
            assert await newcomer.ended() == 1
            assert "not all of [0, 1] met" in newcomer.log("exit")[0]["reason"]
            assert await ranks[0].text() == "rank 0 epoch 1"
        finally:
            await newcomer.stop()


async def test_startup_takes_as_long_as_it_is_told(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1, startup_sec=0.5) as ranks:
        assert ranks[0].log("ready")[0]["mono"] - ranks[0].log("start")[0]["mono"] >= 0.5


async def test_fault_without_fault_tolerance_ends_the_engine(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2, no_enable_fault_tolerance=True) as ranks:
        ranks[1].kill_worker()
        assert await ranks[1].ended() == 1
        assert (await ranks[0].complete()).json()["choices"][0]["finish_reason"] == "abort"
        assert await ranks[0].ended() == 1


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    """Start a rank that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "lab.simulator", *flags], capture_output=True, text=True, timeout=20, check=False
    )


async def test_taken_port_and_taken_store_port_are_named_and_end_the_start(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1) as ranks:
        port = ranks[0].log("start")[0]["port"]
        refused = run("--port", str(port), "--log-dir", str(tmp_path / "other"))
        assert refused.returncode == 1
        assert f"cannot use 127.0.0.1:{port}" in refused.stderr
        refused = run("--port", "0", "--dp-master-port", str(port), "--log-dir", str(tmp_path / "other"))
        assert refused.returncode == 1
        assert "address already in use" in refused.stderr
        assert str(port) in refused.stderr


def test_log_directory_that_cannot_be_is_named_and_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = run("--port", "0", "--log-dir", str(tmp_path / "file"))
    assert refused.returncode == 1
    assert f"cannot write the log to {tmp_path / 'file'}" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data-parallel-rank", "3", "-dp", "2"], "--data-parallel-rank 3 is not below --data-parallel-size 2"),
        (["--host", "0.0.0.0"], "own address"),
        (["--detection-sec", "0"], "0 is too short"),
        (["--detection-sec", "soon"], "'soon' is not a number"),
        (["--port", "70000"], "70000 is not within 0..65535"),
        (["--misbehave", "badly"], "no misbehaviour is called 'badly'"),
        (["--misbehave", "slow-apply"], "slow-apply needs a value"),
        (["--misbehave", "slow-apply=long"], "slow-apply takes seconds"),
        (["--misbehave", "wrong-id=3"], "wrong-id takes no value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_flags_are_refused_with_a_sentence(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from lab.simulator.options import parse

    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_help_says_that_this_is_not_vllm() -> None:
    told = run("--help")
    assert told.returncode == 0
    assert "stand-in, not vLLM" in told.stdout
    assert "recovery-fails" in told.stdout


async def test_idle_processes_use_next_to_no_cpu_and_start_cheaply(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1) as ranks:
        pids = [ranks[0].process.pid, ranks[0].worker_pid]
        at_start = [cpu_sec(pid) for pid in pids]
        assert max(at_start) < 0.7
        await asyncio.sleep(1.0)  # an observation window
        assert sum(cpu_sec(pid) for pid in pids) - sum(at_start) < 0.1
