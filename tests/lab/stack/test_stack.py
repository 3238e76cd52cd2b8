"""A whole installation of real processes: it serves, survives, and leaves nothing behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from lab.stack.client import Stack
from lab.stack.control import ControlRefused
from lab.stack.environment import base_environment
from lab.stack.errors import StartFailed
from lab.stack.launch import prepare
from lab.stack.processes import carriers
from lab.stack.record import EventKind, ProcessState, StackState
from lab.stack.run_dir import LaunchOrder, RunDir, RunDirInUse
from lab.stack.spec import FixedPorts, StackSpec
from service.process_identity import ProcessIdentity, is_running, own_identity
from tests.eventually import eventually

HERE = Path(__file__).parent
SMALL = StackSpec.shaped(2, 1, web_ui=False)
UNDECLARED = SMALL.model_copy(update={"declare": False})


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with Stack.running(StackSpec(web_ui=True), run_dir=tmp_path_factory.mktemp("stack")) as running:
        yield running


async def completion_of(url: str) -> str:
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        body = {"model": "simulated-moe", "prompt": "hello", "max_tokens": 3}
        reply = (await http.post(f"{url}/v1/completions", json=body)).raise_for_status()
        return str(reply.json()["choices"][0]["text"])


async def test_every_rank_is_published_and_answers(stack: Stack) -> None:
    assert await stack.published_ranks() == [0, 1, 2, 3]
    for rank in stack.spec.ranks:
        assert f"rank {rank}" in await completion_of(stack.engine(rank).url)
    assert await completion_of(stack.addresses.coordinator_url)


async def test_the_web_ui_is_there(stack: Stack) -> None:
    assert stack.addresses.web_ui_url is not None
    async with httpx.AsyncClient(timeout=10, trust_env=False, follow_redirects=True) as http:
        reply = await http.get(stack.addresses.web_ui_url)
    assert reply.status_code == 200
    assert stack.workflow_url("scale-down-7-1") == f"{stack.addresses.web_ui_url}/namespaces/default/workflows/scale-down-7-1"


async def test_all_its_processes_carry_the_run_id_and_a_name(stack: Stack) -> None:
    names = {carrier.process for carrier in carriers(stack.run_id)}
    engines = {f"engine-{rank}" for rank in stack.spec.ranks}
    assert names == {process.name for process in stack.record.processes} | engines | {"supervisor", "watcher"}
    ranks = stack.spec.ranks
    pids = {stack.engine_api_pid(rank) for rank in ranks} | {stack.engine_worker_pid(rank) for rank in ranks}
    assert len(pids) == 8
    assert all(stack.engine_logs(rank) for rank in ranks)


async def test_a_killed_worker_comes_back_when_it_was_told_to(stack: Stack) -> None:
    before = stack.process("worker-0").identity
    killed_at = time.monotonic()
    await stack.kill("worker", signal.SIGKILL, restart_after_sec=0.6)
    await eventually(lambda: stack.process("worker-0").identity not in (before, None))
    assert time.monotonic() - killed_at >= 0.6
    assert stack.process("worker-0").last_exit == -signal.SIGKILL


async def test_a_held_process_stays_away_until_released(stack: Stack) -> None:
    await stack.kill("coordinator", hold=True)
    await eventually(lambda: stack.process("coordinator-0").state is ProcessState.HELD)
    with pytest.raises(ControlRefused, match="does not run now"):
        await stack.kill("coordinator")
    await stack.release("coordinator")
    await stack.until_published(stack.spec.ranks, within_sec=20)


async def test_engines_outlive_their_node_manager(stack: Stack) -> None:
    pids = [stack.engine_api_pid(rank) for rank in (0, 1)]
    await stack.kill("node-manager-0")
    await eventually(lambda: stack.process("node-manager-0").restarts > 0 and stack.process("node-manager-0").pid is not None)
    assert [stack.engine_api_pid(rank) for rank in (0, 1)] == pids
    assert await stack.published_ranks() == [0, 1, 2, 3]


async def test_the_temporal_server_comes_back_with_what_it_knew(stack: Stack) -> None:
    await stack.kill("temporal")
    await eventually(lambda: stack.process("temporal").restarts > 0)

    async def serves_again() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
                url = f"{stack.addresses.controller_url}/controller/fault_tolerance/status?instance_id={stack.spec.instance_id}"
                reply = await http.get(url)
                return reply.status_code == 200 and reply.json()["data"]["can_serve"] is True
        return False

    deadline = time.monotonic() + 20
    while not await serves_again():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_an_unknown_name_is_refused_with_those_that_exist(stack: Stack) -> None:
    with pytest.raises(ControlRefused, match="no process 'tabby'; there are: temporal, api, worker-0"):
        await stack.kill("tabby")


async def test_its_directory_takes_no_second_stack(stack: Stack) -> None:
    with pytest.raises(RunDirInUse):
        await Stack.launch(SMALL, stack.run_dir.path)
    assert Stack.attach(stack.run_dir.path).run_id == stack.run_id


async def test_a_second_stack_runs_beside_it_and_leaves_nothing(stack: Stack, tmp_path: Path) -> None:
    async with Stack.running(SMALL, run_dir=tmp_path) as second:
        assert await second.published_ranks() == [0, 1]
        assert await stack.published_ranks() == [0, 1, 2, 3]
    report = await second.down()
    assert (report.orphans, report.clean) == ((), True)
    assert carriers(second.run_id) == []
    record = second.run_dir.read_record()
    assert record is not None
    assert record.state is StackState.STOPPED
    assert {process.state for process in record.processes} == {ProcessState.STOPPED}


async def test_a_start_that_cannot_succeed_says_why_and_leaves_nothing(stack: Stack, tmp_path: Path) -> None:
    taken = int(stack.addresses.controller_url.rpartition(":")[2])
    spec = SMALL.model_copy(update={"ports": FixedPorts(controller=taken)})
    with pytest.raises(StartFailed, match=f"port {taken} for the Controller API is in use"):
        await Stack.launch(spec, tmp_path)
    assert carriers(RunDir(tmp_path).read_order().run_id) == []


async def test_a_process_that_refuses_its_configuration_fails_the_start(tmp_path: Path) -> None:
    spec = SMALL.model_copy(update={"process_env": {"worker": {"AUTOTOMY_LOG_LEVEL": "SHOUT"}}})
    with pytest.raises(StartFailed, match=r"worker-0 ended with exit code 2: .*SHOUT"):
        await Stack.launch(spec, tmp_path)
    assert carriers(RunDir(tmp_path).read_order().run_id) == []


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    launching = asyncio.create_task(Stack.launch(SMALL, tmp_path))
    run_dir = RunDir(tmp_path)
    await eventually(lambda: run_dir.record_file.exists())
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert carriers(run_dir.read_order().run_id) == []


@pytest.mark.parametrize("victim", ["owner", "supervisor"])
async def test_killing_the_owner_or_the_supervisor_leaves_nothing_within_ten_seconds(victim: str) -> None:
    owner = subprocess.Popen(  # noqa: ASYNC220 - it is to be killed, not awaited
        [sys.executable, str(HERE / "own_a_stack.py")], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert owner.stdout is not None
        line = await asyncio.to_thread(owner.stdout.readline)
        run_id, supervisor, directory = line.decode().split()
        assert len(carriers(run_id)) > 6
        pid = owner.pid if victim == "owner" else ProcessIdentity.parse(supervisor).pid
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: carriers(run_id) == [], within_sec=10)
        await eventually(lambda: not is_running(ProcessIdentity.parse(supervisor)), within_sec=1)  # it lets go of memory first
        if victim == "owner":
            await eventually(lambda: not Path(directory).exists(), within_sec=5)
    finally:
        owner.send_signal(signal.SIGINT)
        owner.communicate()


async def test_a_port_that_a_stranger_took_is_planned_around(tmp_path: Path) -> None:
    files, order = RunDir(tmp_path), LaunchOrder(run_id=os.urandom(8).hex(), spec=UNDECLARED)
    os.close(prepare(files, order))
    supervisor = subprocess.Popen(  # noqa: ASYNC220 - `down` waits for it
        [sys.executable, str(HERE / "supervise_after_a_clash.py"), str(tmp_path), str(own_identity())],
        env=base_environment(order.run_id, "supervisor"),
        start_new_session=True,
    )
    stack = Stack(files, order, popen=supervisor)
    try:
        await eventually(lambda: any(event.event is EventKind.READY for event in stack.events()), within_sec=60)
        replanned = [event for event in stack.events() if event.event is EventKind.REPLANNED]
        assert len(replanned) == 1
        assert "coordinator-0" in replanned[0].detail
    finally:
        assert (await stack.down()).orphans == ()
