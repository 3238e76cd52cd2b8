"""A NodeManager that registers itself, and one that does not need the feature: what the Controller gets to see."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.errors import ConfigError
from node_manager.config import NodeManagerConfig, RegistrationSpec, load_config
from tests.engine.fake_engine import FakeEngine
from tests.eventually import eventually
from tests.node_manager.controller import HEALTHY, FakeController, controller_serving
from tests.node_manager.pod import reason, running_pod

SPEC = {"job_name": "job", "model_name": "model", "nnodes": 2, "parallel_config": {"dp_size": 4}}


def spec(**changes: Any) -> RegistrationSpec:
    return RegistrationSpec.model_validate(SPEC | changes)


async def test_it_asks_until_it_is_answered_says_who_it_is_and_heartbeats_once_started(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    controller.register_codes = [503, 503]
    async with running_pod(tmp_path, fakes, controller, registration=spec(node_rank=0), node_name="n1") as pod:
        await eventually(lambda: len(controller.registrations) >= 3, what="a third attempt")
        said = controller.registrations[0]
        assert (said.job_name, said.node_rank, said.ranks, said.business_ports) == ("job", 0, (0, 1), (10000, 10001))
        assert (said.nm_port, said.node_name, said.known_generation) == (pod.node.config.port, "n1", 0)
        assert said.incarnation == pod.node.incarnation
        assert controller.heartbeats == []
        await pod.started(controller)
        await eventually(lambda: controller.heartbeats, what="heartbeats")


async def test_a_controller_that_forgot_the_instance_is_told_again_with_what_is_known(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async with running_pod(tmp_path, fakes, controller, registration=spec()) as pod:
        await pod.started(controller, generation=4)
        known = len(controller.registrations)
        await eventually(lambda: len(controller.registrations) > known, what="a registration after the 503")
        said = controller.registrations[-1]
        assert (said.known_generation, said.known_instance_id) == (4, 7)


async def test_ranks_that_were_committed_meanwhile_are_learnt_from_the_answer(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async with running_pod(tmp_path, fakes, controller) as pod:
        await pod.started(controller, generation=3)
        port = pod.node.config.port
    controller.register_reply = {"generation": 5, "dead_committed": [1], "hold": True, "hold_reason": "GROUP_LIVES"}
    async with running_pod(tmp_path, fakes, controller, port=port, registration=spec()) as pod:
        await eventually(lambda: pod.node.engines.is_retired(1), what="rank 1 retired")
        assert controller.registrations[-1].known_generation == 3
        assert (await pod.journal())["retired_ranks"] == [1]


async def test_hold_starts_nothing_and_stops_nothing(tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]) -> None:
    controller.register_reply = {"generation": 5, "hold": True, "hold_reason": "GROUP_LIVES"}
    async with running_pod(tmp_path, fakes, controller, registration=spec()) as pod:
        await eventually(lambda: controller.registrations, what="a registration")
        assert pod.node.engines.all() == ()
        assert (await pod.http.get("/liveness")).json()["instance_id"] is None
        await pod.started(controller, generation=6)
        assert (await pod.http.get("/liveness")).json()["instance_id"] == 7


async def test_a_pod_with_only_a_headless_endpoint_is_guarded_and_finalized_and_runs_no_engine(
    tmp_path: Path, controller: FakeController
) -> None:
    async with running_pod(tmp_path, [], controller) as pod:
        headless = {"id": 0, "pod_ip": "127.0.0.1", "ip": "127.0.0.1", "business_port": 1, "headless": True}
        reply = await pod.start(endpoints=[headless | {"node_manager_port": pod.node.config.port}])
        assert reply["engines"] == {}
        assert (await pod.guard("A")).status_code == 200
        assert (await pod.finalize([], "A")).json()["status"] == "committed"
        assert reason(await pod.ft("status", {"endpoint_ids": [0]})) == "UNMANAGED_ENDPOINT"
        await eventually(lambda: controller.heartbeats, what="heartbeats")
        assert controller.heartbeats[-1].endpoints == {}


async def test_prestop_keeps_reports_back_until_the_pod_stays_after_all(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    async with running_pod(tmp_path, fakes, controller) as pod:
        await pod.started(controller)
        assert (await pod.post("pause", {})).json()["status"] == "paused"
        assert (await pod.http.get("/readiness")).status_code == 503
        before = len(controller.reports)
        fakes[0].entry = {"status": "unhealthy"}
        engine = pod.node.engines.get(0)
        assert engine is not None
        await eventually(lambda: engine.last_entry is not None and engine.last_entry.status == "unhealthy", what="the look")
        beats = len(controller.heartbeats)
        await eventually(lambda: len(controller.heartbeats) > beats + 1, what="heartbeats go on")
        assert len(controller.reports) == before
        assert (await pod.post("resume", {})).json()["status"] == "running"
        await eventually(controller.says(0, 2), what="the report that waited")
        assert (await pod.http.get("/readiness")).status_code == 200


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"nnodes": 3}, "evenly"),
        ({"node_rank": 2}, "node_rank"),
        ({"business_ports": [1, 2, 3]}, "business_ports"),
    ],
)
def test_a_registration_that_cannot_be_is_an_error_of_the_file(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"pod_ip: a\njournal: j\nlog_dir: l\nregistration: {SPEC | changes}")
    with pytest.raises(ConfigError, match=word):
        load_config(file, {})


def test_the_place_in_the_instance_comes_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"pod_ip: a\njournal: j\nlog_dir: l\nregistration: {SPEC}")
    pod = load_config(file, {"node_rank": 1}).pod
    assert pod is not None
    assert (pod.ranks, pod.business_ports) == ((2, 3), (10002, 10003))
    file.write_text("pod_ip: a\njournal: j\nlog_dir: l")
    with pytest.raises(ConfigError, match="registration"):
        load_config(file, {"node_rank": 1})


def test_examples_load_and_say_what_their_engines_can_do() -> None:
    examples = Path(__file__).parents[2] / "deploy" / "examples"
    simulated = load_config(examples / "node-manager-simulated.yaml", {})
    real = load_config(examples / "node-manager-vllm.yaml", {"node_rank": 1, "pod_ip": "10.0.0.2"})
    assert _local_ranks(simulated) == (0, 1, 2, 3)
    assert _local_ranks(real) == (8, 9, 10, 11, 12, 13, 14, 15)
    assert simulated.pod is not None
    assert real.pod is not None
    assert simulated.pod.ft_capability is not None
    assert real.pod.ft_capability is not None
    assert simulated.pod.ft_capability.scale_down_supported
    assert real.pod.ft_capability.enabled
    assert not real.pod.ft_capability.scale_down_supported, "released vLLM has retry only"
    assert real.pod.ft_capability.num_redundant_experts == 32


def _local_ranks(config: NodeManagerConfig) -> tuple[int, ...]:
    assert config.pod is not None
    return config.pod.ranks


OFF = {
    "enable_dp_scale_down_proxy": False,
    "poll_interval_sec": 0.05,
    "fault_poll_interval_sec": 0.05,
    "engine_request_timeout_sec": 2.0,
}
FT_ROUTES = ("status", "guard", "apply", "finalize", "probe", "pace")


async def test_off_means_off_request_by_request(tmp_path: Path, fakes: list[FakeEngine], controller: FakeController) -> None:
    """The same requests to a NodeManager whose feature is off and to one that was built without it."""
    async with controller_serving(FakeController()) as other:
        for folder in ("off", "without"):
            (tmp_path / folder).mkdir()
        async with (
            running_pod(tmp_path / "off", fakes, controller, enable_dp_scale_down_proxy=False) as off,
            running_pod(tmp_path / "without", fakes, other, fault_tolerance=False) as without,
        ):
            answers = []
            for pod in (off, without):
                answers.append(await asyncio.wait_for(_conversation(pod), 60))
            assert answers[0] == answers[1]
            for told in (controller, other):
                for rank in (0, 1):
                    await eventually(partial(told.last, rank), what="reports")
                await eventually(partial(len, told.heartbeats), what="heartbeats")
            for rank in (0, 1):
                mine, theirs = controller.last(rank), other.last(rank)
                assert mine is not None
                assert theirs is not None
                assert (mine.engine_status, mine.source) == (theirs.engine_status, theirs.source) == (HEALTHY, "engine")
            assert controller.heartbeats[-1].endpoints.keys() == other.heartbeats[-1].endpoints.keys()


async def _conversation(pod: Any) -> list[tuple[str, int, Any]]:
    """Every route, with and without sense; what differs by nature (lives, ports) is left out."""
    said: list[tuple[str, int, Any]] = []

    def note(name: str, answer: httpx.Response) -> None:
        body = answer.json() if name.startswith("life") else None
        if isinstance(body, dict):
            body = {key: value for key, value in body.items() if key not in ("incarnation", "engines")}
        said.append((name, answer.status_code, body))

    for command in FT_ROUTES:
        note(f"ft {command}", await pod.ft(command, {}))
        note(f"ft {command} again", await pod.http.post(f"/node-manager/fault-tolerance/{command}", content=b"{nonsense"))
    note("ft journal", await pod.http.get("/node-manager/fault-tolerance/journal"))
    note("life start", await pod.post("start", pod.start_body(1, fault_tolerance_config=OFF)))
    note("life start again", await pod.post("start", pod.start_body(1, fault_tolerance_config=OFF)))
    note("life status", await pod.http.get("/node-manager/status?relaxed=true"))
    note("life liveness", await pod.http.get("/liveness"))
    note("life readiness", await pod.http.get("/readiness"))
    note("life old stop", await pod.post("stop", {"incarnation": "another"}))
    note("life abort", await pod.post("engine-restart", {"action": "abort"}))
    note("ft guard with sense", await pod.guard("A"))
    note("metrics", await pod.http.get("/metrics"))
    return said
