"""Engines' lives under one NodeManager: start, newer start, stop, restart, and the fences around them."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from domain.errors import ConfigError
from domain.messages.node_manager import StartRequest
from node_manager.config import EngineSpec
from node_manager.journal import Journal
from service.process_identity import ProcessIdentity
from tests.engine.fake_engine import FakeEngine
from tests.eventually import eventually
from tests.listening import free_port
from tests.node_manager.controller import DEAD, HEALTHY, FakeController
from tests.node_manager.pod import SLEEPER, Pod, alive, reason, running_pod


async def test_repeated_start_changes_nothing(pod: Pod, controller: FakeController) -> None:
    first = await pod.start()
    again = await pod.start()
    assert (first["status"], again["status"]) == ("started", "unchanged")
    assert first["engines"] == again["engines"]
    assert set(first["engines"]) == {"0", "1"}


async def test_older_start_is_refused(pod: Pod, controller: FakeController) -> None:
    engines = await pod.started(controller, generation=5)
    refused = await pod.post("start", pod.start_body(4))
    assert (refused.status_code, reason(refused)) == (502, "OLD_GENERATION")
    assert all(alive(identity) for identity in engines.values())


async def test_newer_start_ends_the_old_engines_first_and_the_new_ones_are_reported(pod: Pod, controller: FakeController) -> None:
    old = await pod.started(controller, generation=1)
    new = await pod.started(controller, generation=2)
    assert set(old.values()).isdisjoint(new.values())
    assert not any(alive(identity) for identity in old.values())
    assert DEAD not in [one.engine_status for rank in (0, 1) for one in controller.told(rank)]
    assert (await pod.journal())["engines"] == new


async def test_newer_start_ends_what_a_round_of_an_older_generation_had_open(pod: Pod, controller: FakeController) -> None:
    await pod.started(controller, generation=1)
    await pod.guard("A", 1)
    await pod.apply([0], [1], "A", 1)
    await pod.started(controller, generation=2)
    assert reason(await pod.guard("A", 1)) == "VERDICT_KNOWN"
    assert reason(await pod.finalize([1], "A", 1)) == "VERDICT_DIFFERS"
    assert reason(await pod.finalize([1], "B", 1)) == "STALE"
    assert reason(await pod.guard("C", 1)) == "OLD_GENERATION"
    assert reason(await pod.post("stop", {"generation": 1})) == "OLD_GENERATION"
    assert (await pod.guard("D", 2)).status_code == 200
    assert (await pod.journal())["retired_ranks"] == []


async def test_committed_ranks_of_a_start_are_not_started_and_count_as_retired(pod: Pod, controller: FakeController) -> None:
    engines = await pod.started(controller, dead_committed=[1])
    assert set(engines) == {"0"}
    assert (await pod.entries(1))["1"]["status"] == "retired"
    engines = await pod.started(controller, generation=2)
    assert set(engines) == {"0", "1"}


async def test_stop_ends_engines_then_the_process_and_the_next_life_is_idle_but_remembers(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async with running_pod(tmp_path, fakes, controller) as pod:
        engines = await pod.started(controller, generation=3)
        await pod.finalize([], "A", 3, commit=False)
        ignored = await pod.post("stop", {"generation": 4, "incarnation": "somebody:1:2"})
        assert ignored.json()["status"] == "ignored"
        stopping = await pod.post("stop", {"generation": 4, "incarnation": pod.node.incarnation})
        assert stopping.json()["status"] == "stopping"
        await eventually(pod.node.daemon.exit_wanted.is_set)
        assert not any(alive(identity) for identity in engines.values())
        assert reason(await pod.post("start", pod.start_body(5))) == "STOPPING"
    told = sum(len(report.reports) for report in controller.reports)
    async with running_pod(tmp_path, fakes, controller) as pod:
        journal = await pod.journal()
        assert (journal["highest_generation"], journal["engines"], journal["instance_id"]) == (4, {}, None)
        assert reason(await pod.guard("A", 4)) == "VERDICT_KNOWN"
        assert reason(await pod.post("start", pod.start_body(3))) == "OLD_GENERATION"
        await pod.started(controller, generation=4)
    assert DEAD not in [one.engine_status for report in controller.reports[told:] for one in report.reports]


async def test_engine_restart_makes_new_incarnations_unless_a_round_owns_the_pod(pod: Pod, controller: FakeController) -> None:
    assert reason(await pod.post("engine-restart", {"action": "restart"})) == "NOT_STARTED"
    old = await pod.started(controller)
    await pod.guard()
    refused = await pod.post("engine-restart", {"action": "restart"})
    assert (reason(refused), refused.json()["data"]["holder"]) == ("GUARD_HELD", "A")
    await pod.finalize([], commit=False)
    assert (await pod.post("engine-restart", {"action": "restart", "generation": 1})).json()["status"] == "restarting"

    def renewed() -> bool:
        last = [controller.last(rank) for rank in (0, 1)]
        return all(one and one.engine_status == HEALTHY and one.engine_incarnation not in old.values() for one in last)

    await eventually(renewed)
    assert not any(alive(identity) for identity in old.values())
    assert (await pod.post("engine-restart", {"action": "abort"})).json()["status"] == "unchanged"


async def test_engine_restart_can_be_given_up_while_old_engines_are_being_stopped(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    deaf = EngineSpec(command=("bash", "-c", "trap '' TERM; while true; do sleep 0.2; done"), stop_grace_sec=1.5)
    async with running_pod(tmp_path, fakes, controller, engines=(deaf,)) as pod:
        old = await pod.started(controller)
        await pod.post("engine-restart", {"action": "restart"})
        assert (await pod.post("engine-restart", {"action": "abort"})).json()["status"] == "aborted"
        await eventually(lambda: not any(alive(identity) for identity in old.values()))
        await eventually(lambda: not pod.node.journal.engines)
        assert (await pod.http.get("/node-manager/status")).json() == {"status": False}


async def test_engine_that_is_not_ready_in_time_is_stopped_and_reported(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    fakes[1].health_code = 503
    spec = EngineSpec(command=SLEEPER, ready_timeout_sec=0.5, stop_grace_sec=0.5)
    async with running_pod(tmp_path, fakes, controller, engines=(spec,)) as pod:
        engines = (await pod.start())["engines"]
        await eventually(controller.says(1, DEAD, "process_exit"))
        assert (alive(engines["0"]), alive(engines["1"])) == (True, False)


async def test_a_start_that_cannot_be_carried_out_is_refused_whole(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    for spec in (EngineSpec(rank=0, command=SLEEPER), EngineSpec(command=("no-such-program",))):
        async with running_pod(tmp_path, fakes, controller, engines=(spec,)) as pod:
            refused = await pod.post("start", pod.start_body())
            assert reason(refused) == "NO_ENGINE_COMMAND"
            assert (await pod.journal())["highest_generation"] == 0
            elsewhere = pod.start_body()
            for endpoint in elsewhere["endpoints"]:
                endpoint["pod_ip"] = "127.9.9.9"
            assert reason(await pod.post("start", elsewhere)) == "UNMANAGED_ENDPOINT"


async def test_two_node_managers_on_one_ip_take_their_own_endpoints(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with running_pod(tmp_path / "a", fakes[:1], controller) as a, running_pod(tmp_path / "b", fakes[1:], controller) as b:
        endpoints = a.start_body()["endpoints"] + b.start_body()["endpoints"]
        for pod, rank in ((a, "0"), (b, "1")):
            assert set((await pod.start(endpoints=endpoints))["engines"]) == {rank}


async def test_an_engine_at_an_ipv6_address_is_asked_there(pod: Pod) -> None:
    endpoints = [{**endpoint, "ip": "::1"} for endpoint in pod.start_body()["endpoints"]]
    await pod.start(endpoints=endpoints)
    for endpoint in endpoints:
        engine = pod.node.engines.get(endpoint["id"])
        assert engine is not None
        assert httpx.URL(engine.client.base_url).host == "::1"
        assert engine.client.base_url == f"http://[::1]:{endpoint['business_port']}"


async def test_status_is_strict_about_health_and_relaxed_about_processes(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async def status() -> tuple[bool, bool]:
        strict = (await pod.http.get("/node-manager/status")).json()["status"]
        relaxed = (await pod.http.get("/node-manager/status", params={"relaxed": "true"})).json()["status"]
        return strict, relaxed

    assert await status() == (False, True)
    await pod.started(controller)
    assert await status() == (True, True)
    fakes[0].entry = {"status": "unhealthy"}
    await eventually(controller.says(0, 2))
    assert await status() == (False, True)
    engine = pod.node.engines.get(1)
    assert engine is not None
    await engine.tree.terminate(1.0)
    await eventually(lambda: engine.loss)
    assert await status() == (False, False)
    await pod.guard()
    assert await status() == (False, True)  # a guard freezes every judgement of the Pod


@pytest.mark.parametrize(("keep", "left"), [(False, False), (True, True)])
async def test_end_of_the_process_takes_engines_along_unless_told_otherwise(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine], keep: bool, left: bool
) -> None:
    port = free_port()
    async with running_pod(tmp_path, fakes, controller, port=port, keep_engines=keep) as pod:
        engines = await pod.started(controller)
    assert [alive(identity) for identity in engines.values()] == [left, left]
    before = len(controller.reports)
    async with running_pod(tmp_path, fakes, controller, port=port) as pod:
        await eventually(controller.says(0, HEALTHY) if keep else controller.says(0, DEAD, "process_exit"))
        await eventually(lambda: len({one.engine_id for r in controller.reports[before:] for one in r.reports}) == 2)
        assert {rank: engine["incarnation"] for rank, engine in (await pod.entries(0, 1)).items()} == engines


async def test_a_journal_of_another_address_is_refused_before_anything_is_touched(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    port = free_port()
    async with running_pod(tmp_path, fakes, controller, port=port, keep_engines=True) as pod:
        engines = await pod.started(controller)
    with pytest.raises(ConfigError, match="belongs to a NodeManager of instance 7"):
        async with running_pod(tmp_path, fakes, controller):
            pass
    assert all(alive(identity) for identity in engines.values())
    async with running_pod(tmp_path, fakes, controller, port=port):
        pass
    assert not any(alive(identity) for identity in engines.values())


WITH_WORKER = EngineSpec(
    command=("bash", "-c", "bash -c 'exec -a autotomy-sim-worker sleep 120' & exec sleep 120"), stop_grace_sec=0.5
)


async def test_api_server_that_follows_its_worker_later_is_no_second_fault_and_leaves_no_orphan(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    two_workers = 'for n in 1 2; do bash -c "exec -a autotomy-sim-worker-$n sleep 120" & done; exec sleep 120'
    spec = EngineSpec(command=("bash", "-c", two_workers), stop_grace_sec=0.5)
    async with running_pod(tmp_path, fakes[:1], controller, engines=(spec,)) as pod:
        await pod.started(controller)
        engine = pod.node.engines.get(0)
        assert engine is not None
        await eventually(lambda: len(engine.record.workers) == 2)
        first, second = engine.record.workers
        end_process(first)
        await eventually(controller.says(0, DEAD, "process_exit"))
        told = len(controller.told(0))
        end_process(engine.incarnation)
        await eventually(lambda: not alive(second), what="the orphan ended")
        assert len(controller.told(0)) == told


async def test_retired_engine_may_end_without_a_word(tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]) -> None:
    async with running_pod(tmp_path, fakes, controller, engines=(WITH_WORKER,)) as pod:
        await pod.started(controller)
        await pod.guard()
        await pod.finalize([1])
        engine = pod.node.engines.get(1)
        assert engine is not None
        told = len(controller.told(1))
        assert alive(engine.incarnation)  # it was left alone
        end_process(engine.incarnation)
        await eventually(lambda: engine.loss)
        await eventually(lambda: not any(alive(worker) for worker in engine.record.workers))
        assert len(controller.told(1)) == told
        assert (await pod.entries(1))["1"]["status"] == "retired"
        assert (await pod.http.get("/node-manager/status")).json() == {"status": True}


async def test_a_stop_that_was_cut_short_is_finished_by_the_next_life(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    port = free_port()
    async with running_pod(tmp_path, fakes, controller, port=port, keep_engines=True) as pod:
        engines = await pod.started(controller)
    journal = Journal(tmp_path / "journal.sqlite")
    journal.commit(forget_start=True, engines=[record.model_copy(update={"leftover": True}) for record in journal.engines])
    journal.close()
    told = len(controller.reports)
    async with running_pod(tmp_path, fakes, controller, port=port) as pod:
        await eventually(lambda: not any(alive(identity) for identity in engines.values()))
        await eventually(lambda: not pod.node.journal.engines)
        assert len(controller.reports) == told


async def test_a_start_that_was_cut_short_is_finished_by_the_next_life(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    """The process died after it had recorded the start, before it had an engine: none ran yet, so it is no restart."""
    port = free_port()
    async with running_pod(tmp_path, fakes, controller, port=port) as pod:
        body = StartRequest.model_validate(pod.start_body(3))
    journal = Journal(tmp_path / "journal.sqlite")
    journal.commit(standing=journal.standing.model_copy(update={"highest_generation": 3}), start=body)
    journal.close()
    async with running_pod(tmp_path, fakes, controller, port=port):
        for rank in (0, 1):
            await eventually(controller.says(rank, HEALTHY))


def end_process(identity: str) -> None:
    os.kill(ProcessIdentity.parse(identity).pid, signal.SIGKILL)
