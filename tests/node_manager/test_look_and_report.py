"""What a NodeManager sees of its engines, and what the Controller hears of it."""

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from node_manager.config import EngineSpec
from node_manager.managed_engine import ManagedEngine
from service.process_identity import ProcessIdentity
from tests.engine.fake_engine import FakeEngine, serving
from tests.eventually import eventually
from tests.listening import free_port
from tests.node_manager.controller import DEAD, HEALTHY, UNHEALTHY, FakeController, controller_serving
from tests.node_manager.pod import Pod, alive, reason, running_pod


def kill(identity: str, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(ProcessIdentity.parse(identity).pid, number)


def last_seen_is(pod: Pod, rank: int, status: str) -> bool:
    engine = pod.node.engines.get(rank)
    return engine is not None and engine.last_entry is not None and engine.last_entry.status == status


def has_mute_polls(engine: ManagedEngine, count: int) -> bool:
    return engine.mute_polls == count


async def test_first_sight_of_healthy_engines_is_reported_with_their_incarnations(pod: Pod, controller: FakeController) -> None:
    incarnations = await pod.started(controller)
    for rank in (0, 1):
        (first,) = controller.told(rank)
        assert (first.engine_status, first.engine_incarnation) == (HEALTHY, incarnations[str(rank)])
    report = controller.reports[0]
    assert (report.instance_id, report.pod_ip, report.node_manager_port) == (7, "127.0.0.1", pod.node.config.port)
    assert report.incarnation == pod.node.incarnation


async def test_changes_of_one_poll_leave_as_one_report_and_nothing_is_repeated(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    await pod.ft("pace", {"poll_interval_sec": 30.0})
    before = len(controller.reports)
    fakes[0].entry = {"status": "unhealthy", "fault_info": "RuntimeError", "mask": [0, 1]}
    fakes[1].entry = {"status": "dead"}
    await pod.ft("pace", {"poll_interval_sec": 0.05})
    await eventually(controller.says(1, DEAD))
    asked = fakes[0].statuses_asked
    await eventually(lambda: fakes[0].statuses_asked > asked + 3)
    (report,) = controller.reports[before:]
    assert [one.engine_id for one in report.reports] == [0, 1]
    assert [one.engine_status for one in report.reports] == [UNHEALTHY, DEAD]
    assert report.reports[0].sequence < report.reports[1].sequence
    assert (report.reports[0].exception_message, report.reports[0].mask) == ("RuntimeError", (0, 1))


async def test_a_new_episode_is_reported_again(pod: Pod, controller: FakeController, fakes: list[FakeEngine]) -> None:
    await pod.started(controller)
    for status, number in (("unhealthy", UNHEALTHY), ("healthy", HEALTHY), ("unhealthy", UNHEALTHY)):
        fakes[0].entry = {"status": status}
        await eventually(controller.says(0, number))
    assert [one.engine_status for one in controller.told(0)] == [HEALTHY, UNHEALTHY, HEALTHY, UNHEALTHY]
    sequences = [one.sequence for one in controller.told(0)]
    assert sequences == sorted(set(sequences))


async def test_ft_state_is_news_too(pod: Pod, controller: FakeController, fakes: list[FakeEngine]) -> None:
    await pod.started(controller)
    fakes[0].entry = {"status": "unhealthy", "ft_state": "failed", "ft_error": "no", "last_ft_request_id": "A"}
    await eventually(controller.says(0, UNHEALTHY))
    last = controller.last(0)
    assert last is not None
    assert (last.ft_state, last.ft_error, last.last_ft_request_id) == ("failed", "no", "A")


@pytest.mark.parametrize(
    ("code", "body"),
    [(500, None), (404, None), (200, "{nonsense"), (200, {"schema_version": 1, "engines": [{"id": 9, "status": "dead"}]})],
)
async def test_nonsense_is_a_protocol_error_never_a_death(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine], code: int, body: object
) -> None:
    await pod.started(controller)
    fakes[1].status_code, fakes[1].status_body = code, body
    await eventually(controller.says(1, UNHEALTHY, "protocol_error"))
    refused = await pod.ft("status", {"endpoint_ids": [0, 1]})
    assert (refused.status_code, reason(refused)) == (502, "ENGINE_PROTOCOL")
    assert list(refused.json()["data"]["engines"]) == ["1"]
    fakes[1].status_code, fakes[1].status_body = 200, None
    await eventually(controller.says(1, HEALTHY))
    assert DEAD not in [one.engine_status for one in controller.told(1)]


async def test_silence_is_evidence_of_death_for_the_poller_and_unknown_for_a_round(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    fakes[1].status_delay_sec = 60.0
    pod.node.engines.engine_request_timeout_sec = 0.2
    await eventually(controller.says(1, DEAD, "poll_error"))
    entry = (await pod.entries(1))["1"]
    assert (entry["status"], entry["source"], entry["process"]) == ("unknown", "poll_error", "running")
    fakes[1].status_delay_sec = 0.0
    await eventually(controller.says(1, HEALTHY))


async def test_dead_after_poll_failures_is_counted_in_a_row(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async with running_pod(tmp_path, fakes, controller, dead_after_poll_failures=3, engine_request_timeout_sec=0.1) as pod:
        await pod.started(controller, fault_tolerance_config=None)
        await pod.ft("pace", {"poll_interval_sec": 30.0})
        fakes[1].status_delay_sec = 60.0
        engine = pod.node.engines.get(1)
        assert engine is not None
        for failures in (1, 2):
            pod.node.poller.wake()
            await eventually(partial(has_mute_polls, engine, failures))
        assert not controller.says(1, DEAD, "poll_error")()
        pod.node.poller.wake()
        await eventually(controller.says(1, DEAD, "poll_error"))


async def test_process_exit_is_told_at_once_and_overrules_an_engine_that_says_healthy(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    incarnations = await pod.started(controller)
    await pod.ft("pace", {"poll_interval_sec": 30.0})
    began = time.monotonic()
    kill(incarnations["1"])
    await eventually(controller.says(1, DEAD, "process_exit"))
    assert time.monotonic() - began < 5.0  # no poll came by: the next one is 30 s away
    last = controller.last(1)
    assert last is not None
    assert "SIGKILL" in (last.exception_message or "")
    entry = (await pod.entries(0, 1))["1"]
    assert (entry["status"], entry["source"], entry["process"]) == ("dead", "process_exit", "exited")
    assert entry["incarnation"] == incarnations["1"]
    assert fakes[1].entry == {}  # its FT API still says healthy


async def test_exit_code_0_is_a_fault(tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]) -> None:
    quitter = EngineSpec(rank=1, command=("sh", "-c", "sleep 0.5; exit 0"))
    async with running_pod(tmp_path, fakes, controller, engines=(EngineSpec(command=("sleep", "60")), quitter)) as pod:
        await pod.start()
        await eventually(controller.says(1, DEAD, "process_exit"))
        last = controller.last(1)
        assert last is not None
        assert "exit code 0" in (last.exception_message or "")


async def test_worker_exit_is_told_though_the_api_server_lives(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    script = "bash -c 'exec -a autotomy-sim-worker sleep 60' & sleep 60"
    engine = EngineSpec(command=("bash", "-c", script), stop_grace_sec=0.2)
    async with running_pod(tmp_path, fakes, controller, engines=(engine,)) as pod:
        await pod.started(controller)
        held = pod.node.engines.get(0)
        assert held is not None
        await eventually(lambda: held.record.workers, what="worker found")
        kill(held.record.workers[0])
        await eventually(controller.says(0, DEAD, "process_exit"))
        assert alive(held.incarnation)


async def test_engine_without_ft_api_is_left_to_process_supervision(tmp_path: Path, controller: FakeController) -> None:
    async with serving(FakeEngine(rank=0, dialect="off")) as fake, running_pod(tmp_path, [fake], controller) as pod:
        engines = (await pod.start())["engines"]
        engine = pod.node.engines.get(0)
        assert engine is not None
        await eventually(lambda: engine.ft_api_absent)
        assert controller.told(0) == []
        kill(engines["0"])
        await eventually(controller.says(0, DEAD, "process_exit"))


async def test_the_pace_is_kept_and_a_mute_engine_delays_nobody(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    fakes[1].status_delay_sec = 60.0
    pod.node.engines.engine_request_timeout_sec = 30.0
    await pod.ft("pace", {"poll_interval_sec": 0.25})
    asked = fakes[0].statuses_asked
    await eventually(lambda: fakes[0].statuses_asked > asked)
    began, asked = time.monotonic(), fakes[0].statuses_asked
    await eventually(lambda: fakes[0].statuses_asked >= asked + 5)
    assert 1.0 <= time.monotonic() - began < 3.0, "five times 0.25 s, and one poll may have been late"
    fakes[0].entry = {"status": "unhealthy"}
    began = time.monotonic()
    await eventually(controller.says(0, UNHEALTHY))
    assert time.monotonic() - began < 3.0
    fakes[1].status_delay_sec = 0.0


async def test_a_fresh_look_that_shows_something_new_is_numbered_and_reported(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    await pod.ft("pace", {"poll_interval_sec": 30.0})
    await asyncio.sleep(0)
    seen = (await pod.entries(0))["0"]
    assert (await pod.entries(0))["0"]["sequence"] == seen["sequence"]
    fakes[0].entry = {"status": "unhealthy"}
    fresh = (await pod.entries(0))["0"]
    assert fresh["sequence"] > seen["sequence"]
    await eventually(controller.says(0, UNHEALTHY))
    last = controller.last(0)
    assert last is not None
    assert last.sequence == fresh["sequence"]


async def test_a_look_that_began_earlier_never_overwrites_a_later_one(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    engine, polled = pod.node.engines.get(0), fakes[0].statuses_asked
    await pod.ft("pace", {"poll_interval_sec": 30.0})
    await eventually(
        lambda: fakes[0].statuses_asked > polled and engine and not engine.looking, what="the poll that a new pace begins with"
    )
    asked = fakes[0].statuses_asked
    fakes[0].status_delay_sec = 1.5
    early = asyncio.create_task(pod.entries(0))
    await eventually(lambda: fakes[0].statuses_asked > asked)
    fakes[0].status_delay_sec, fakes[0].entry = 0.0, {"status": "unhealthy"}
    late = (await pod.entries(0))["0"]
    assert not early.done()
    assert late["status"] == "unhealthy"
    assert (await early)["0"] == late
    await eventually(controller.says(0, UNHEALTHY))
    assert [one.engine_status for one in controller.told(0)] == [HEALTHY, UNHEALTHY]


async def test_a_process_that_ends_during_a_look_overrules_its_answer(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    incarnations = await pod.started(controller)
    asked = fakes[0].statuses_asked
    fakes[0].status_delay_sec = 0.3
    looking = asyncio.create_task(pod.entries(0))
    await eventually(lambda: fakes[0].statuses_asked > asked)
    kill(incarnations["0"])
    entry = (await looking)["0"]
    assert (entry["status"], entry["source"]) == ("dead", "process_exit")


async def test_reports_wait_for_the_controller_newest_state_first_kept(tmp_path: Path, fakes: list[FakeEngine]) -> None:
    port = free_port()
    away = FakeController(url=f"http://127.0.0.1:{port}")
    async with running_pod(tmp_path, fakes, away) as pod:
        await pod.start()
        await eventually(lambda: pod.node.reporter.waiting == 2)
        for status in ("unhealthy", "dead"):
            fakes[0].entry = {"status": status}
            await eventually(partial(last_seen_is, pod, 0, status))
        async with controller_serving(FakeController(), port) as back:
            await eventually(back.says(0, DEAD))
            await eventually(back.says(1, HEALTHY))
            assert [one.engine_status for one in back.told(0)] == [DEAD]
            await eventually(lambda: pod.node.reporter.waiting == 0)
            pod.stop.set()
            await pod.served


async def test_503_is_tried_again_and_other_4xx_is_not(pod: Pod, controller: FakeController, fakes: list[FakeEngine]) -> None:
    controller.report_codes = [503, 503]
    await pod.started(controller)
    assert controller.turned_away == 2
    controller.report_codes = [409]
    fakes[0].entry = {"status": "unhealthy"}
    await eventually(lambda: controller.turned_away == 3)
    await eventually(lambda: pod.node.reporter.waiting == 0)
    fakes[0].entry = {"status": "dead"}
    await eventually(controller.says(0, DEAD))
    assert [one.engine_status for one in controller.told(0)] == [HEALTHY, DEAD]


async def test_heartbeats_name_the_ranks_and_tolerate_any_answer(pod: Pod, controller: FakeController) -> None:
    await pod.started(controller)
    before = len(controller.heartbeats)
    await eventually(lambda: len(controller.heartbeats) > before + 2)
    last = controller.heartbeats[-1]
    assert (last.endpoints, last.instance_id, last.nm_port) == ({"0": "normal", "1": "normal"}, 7, pod.node.config.port)


async def test_ranks_committed_elsewhere_are_learnt_from_the_heartbeats_reply(pod: Pod, controller: FakeController) -> None:
    await pod.started(controller, generation=3)
    controller.heartbeat_reply = {"generation": 2, "dead_committed": [0]}
    before = len(controller.heartbeats)
    await eventually(lambda: len(controller.heartbeats) > before + 2)
    assert (await pod.journal())["retired_ranks"] == []
    controller.heartbeat_reply = {"generation": 3, "dead_committed": [1]}
    await eventually(lambda: controller.heartbeats[-1].endpoints == {"0": "normal"})
    assert (await pod.journal())["retired_ranks"] == [1]
    assert (await pod.entries(1))["1"]["status"] == "retired"
