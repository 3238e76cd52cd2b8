"""The supervisor as a process, over simulated ranks that really form a group, shrink, give up and exit."""

import asyncio
import os
import signal
from pathlib import Path

from tests.dp_supervisor.pod import Pod, pod_running
from tests.eventually import eventually

FT = ("--enable-fault-tolerance",)
GIVES_UP_SEC = "4"


async def lose_a_worker(pod: Pod, rank: int) -> None:
    """Under traffic, so that the peers notice."""
    pod.kill_worker(rank)
    survivors = [other for other in range(pod.ranks) if other != rank]
    await asyncio.gather(*(pod.request(other) for other in survivors))

    async def all_unhealthy() -> bool:
        looks = {state["rank"]: state["look"] for state in (await pod.status())["ranks"]}
        return all(looks[other] == "recovering" for other in survivors) and looks[rank] == "dead"

    await eventually(all_unhealthy, within_sec=30)


async def test_a_group_that_recovers_in_place_is_kept_and_its_readiness_tells_the_truth(tmp_path: Path) -> None:
    engine = ("--engine-recovery-timeout-sec", GIVES_UP_SEC)
    async with pod_running(tmp_path, 3, rules=FT, engine=engine) as pod:
        assert [await pod.answer(path) for path in ("/ready", "/readyz", "/health")] == [200, 200, 200]
        await lose_a_worker(pod, 1)
        assert [await pod.answer(path) for path in ("/ready", "/readyz", "/health")] == [503, 503, 200]

        await pod.scale_down([1], survivors=[0, 2])
        await eventually(lambda: is_answer(pod, "/ready", 200), within_sec=30)

        await eventually(lambda: bool(pod.engine_log(1, "exit")), within_sec=30)
        assert pod.engine_log(1, "exit")[0]["reason"].startswith("not recovered within")
        await eventually(lambda: is_removed(pod, [1]), within_sec=30)
        assert [await pod.answer(path) for path in ("/ready", "/readyz", "/health")] == [200, 200, 200]
        assert pod.process is not None
        pod.process.terminate()
        assert await pod.exit_code() == 0
        assert pod.left == []
        assert not pod.engine_log(0, "exit")[0]["code"], "the survivors ended by SIGTERM, not by themselves"


async def test_stock_rules_stop_a_recovered_group_when_the_victims_server_exits(tmp_path: Path) -> None:
    engine = ("--enable-fault-tolerance", "--engine-recovery-timeout-sec", GIVES_UP_SEC)
    patient = ("--stock-rules", "--dp-supervisor-probe-failure-threshold", "100")  # its port closes before its process ends
    async with pod_running(tmp_path, 3, rules=patient, engine=engine) as pod:
        pod.kill_worker(1)
        await asyncio.gather(pod.request(0), pod.request(2))
        await eventually(lambda: all(pod.engine_log(rank, "fault_noticed") for rank in (0, 2)), within_sec=30)
        assert await pod.answer("/ready") == 200, "stock readiness does not see that the group is halted"
        await pod.scale_down([1], survivors=[0, 2])
        assert await pod.exit_code() == 1
        assert "reason=SERVER_EXITED ranks=(1,)" in pod.log.replace('"', "")
        assert all(line["ok"] for rank in (0, 2) for line in pod.engine_log(rank, "recovery_end"))
        assert pod.left == []


async def test_everything_stops_once_no_rank_serves_or_recovers(tmp_path: Path) -> None:
    async with pod_running(tmp_path, 2, rules=FT, engine=("--engine-recovery-timeout-sec", "2")) as pod:
        await lose_a_worker(pod, 0)
        assert await pod.exit_code() == 1
        assert "reason=NO_RANK_SERVES ranks=(0, 1)" in pod.log.replace('"', "")
        assert "keeps serving, a server exited rank=0" in pod.log
        assert pod.left == []


async def test_a_status_that_cannot_be_read_is_a_failed_look_and_removes_nobody(tmp_path: Path) -> None:
    async with pod_running(tmp_path, 2, rules=FT, engine=("--engine-recovery-timeout-sec", "60")) as pod:
        await pod.http.post(f"{pod.url(1)}/simulator/misbehave", json={"knobs": "garbage-json"})
        await eventually(lambda: is_look(pod, 1, "wrong"), within_sec=30)
        assert await pod.answer("/ready") == 200
        assert (await pod.status())["standing"]["removed"] == []
        await pod.http.post(f"{pod.url(0)}/simulator/misbehave", json={"knobs": "status-500"})
        assert await pod.exit_code() == 1
        assert "reason=NO_RANK_SERVES" in pod.log
        assert pod.left == []


async def test_stock_rules_bear_a_mute_server_for_less_than_the_threshold(tmp_path: Path) -> None:
    timing = ("--dp-supervisor-probe-timeout-s", "0.5", "--dp-supervisor-probe-failure-threshold", "4")
    async with pod_running(tmp_path, 2, rules=timing) as pod:
        server = (await pod.status())["ranks"][1]["pid"]
        os.kill(server, signal.SIGSTOP)
        await eventually(lambda: is_look(pod, 1, "silent"), within_sec=30)
        assert await pod.answer("/health") == 200
        os.kill(server, signal.SIGCONT)
        await eventually(lambda: is_look(pod, 1, "healthy"), within_sec=30)
        os.kill(server, signal.SIGSTOP)
        assert await pod.exit_code() == 1
        assert "reason=NO_ANSWER" in pod.log
        assert pod.left == [], "a stopped process is killed too"


async def test_a_server_that_cannot_start_ends_all(tmp_path: Path) -> None:
    async with pod_running(tmp_path, 2, rules=FT, engine=("--no-such-flag",), ready=False) as pod:
        assert await pod.exit_code() == 1
        assert "reason=EXITED_BEFORE_READY" in pod.log
        assert await pod.answer("/health") is None
        assert pod.left == []


async def test_probes_open_when_all_are_ready_and_sigterm_before_is_clean(tmp_path: Path) -> None:
    async with pod_running(tmp_path, 2, rules=FT, engine=("--startup-sec", "60"), ready=False) as pod:
        await eventually(lambda: all(pod.engine_log(rank, "start") for rank in range(2)), within_sec=30)
        assert await pod.answer("/health") is None
        assert pod.process is not None
        pod.process.terminate()
        assert await pod.exit_code() == 0
        assert pod.left == []


async def test_refusal_names_flag_and_value_and_nothing_is_started(tmp_path: Path) -> None:
    async with pod_running(tmp_path, 2, rules=("--data-parallel-start-rank", "1"), ready=False) as pod:
        assert await pod.exit_code() == 2
        assert "ranks 1..2 would be started here, --data-parallel-size 2 has ranks 0..1" in pod.log
        assert not pod.engine_log(1, "start")


async def is_answer(pod: Pod, path: str, wanted: int) -> bool:
    return await pod.answer(path) == wanted


async def is_removed(pod: Pod, ranks: list[int]) -> bool:
    return bool((await pod.status())["standing"]["removed"] == ranks)


async def is_look(pod: Pod, rank: int, look: str) -> bool:
    return bool((await pod.status())["ranks"][rank]["look"] == look)
