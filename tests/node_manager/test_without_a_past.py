"""A NodeManager that comes back without its journal, or a Pod without its engines: it fails closed, and says so at once."""

from pathlib import Path
from typing import Any

import pytest

from node_manager.config import RegistrationSpec
from tests.engine.fake_engine import FakeEngine
from tests.eventually import eventually
from tests.listening import free_port
from tests.node_manager.controller import DEAD, HEALTHY, FakeController
from tests.node_manager.pod import Pod, alive, reason, running_pod

SPEC = RegistrationSpec.model_validate(
    {"job_name": "job", "model_name": "model", "nnodes": 2, "parallel_config": {"dp_size": 4}, "business_ports": [10000, 10001]}
)
GROUP_LIVES = {"generation": 5, "hold": True, "hold_reason": "GROUP_LIVES"}


def endpoints(port: int) -> list[dict[str, Any]]:
    """Ranks 0 and 1 are this Pod's."""
    mine = {"pod_ip": "127.0.0.1", "ip": "127.0.0.1", "node_manager_port": port}
    other = {"pod_ip": "127.0.0.9", "ip": "127.0.0.9", "node_manager_port": port}
    return [{"id": rank, "business_port": 10000 + rank, **(mine if rank < 2 else other)} for rank in range(4)]


async def test_a_new_pod_in_a_living_group_reports_its_ranks_dead_and_says_so_to_whoever_asks(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    port = free_port()
    controller.register_reply = GROUP_LIVES | {"endpoints": endpoints(port)}
    async with running_pod(tmp_path, fakes, controller, port=port, registration=SPEC) as pod:
        for rank in (0, 1):
            await eventually(controller.says(rank, DEAD, "process_exit"), what="the death of its ranks")
        assert (controller.reports[-1].instance_id, controller.last(2)) == (7, None)
        entries = await pod.entries(0, 1)
        assert {(entry["status"], entry["process"], entry["source"]) for entry in entries.values()} == {
            ("dead", "exited", "process_exit")
        }
        assert reason(await pod.ft("status", {"endpoint_ids": [2]})) == "NOT_STARTED"
        assert "autotomy_node_manager_ranks_without_engine 2.0" in (await pod.http.get("/metrics")).text
        before = len(controller.reports)
        pod.node.registration.again()  # type: ignore[union-attr]
        known = len(controller.registrations)
        await eventually(lambda: len(controller.registrations) > known, what="another registration")
        assert len(controller.reports) == before, "said once"


async def test_what_a_round_removed_meanwhile_is_not_reported_and_answered_as_retired(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    port = free_port()
    controller.register_reply = GROUP_LIVES | {"endpoints": endpoints(port), "dead_committed": [1]}
    async with running_pod(tmp_path, fakes, controller, port=port, registration=SPEC) as pod:
        await eventually(controller.says(0, DEAD, "process_exit"), what="the death of rank 0")
        assert controller.last(1) is None
        entries = await pod.entries(0, 1)
        assert [entries[rank]["status"] for rank in ("0", "1")] == ["dead", "retired"]
        assert reason(await pod.guard("late", generation=4)) == "OLD_GENERATION"
        assert (await pod.guard("A", generation=6)).status_code == 200
        assert reason(await pod.apply([0], [3], "A", generation=6)) == "NOT_STARTED"
        assert (await pod.finalize([0, 1], "A", generation=6)).json() == {"status": "committed"}
        assert (await pod.entries(0))["0"]["status"] == "retired"


@pytest.mark.parametrize("reply", [{"generation": 5}, {"generation": 0, "hold": True, "hold_reason": "GROUP_LIVES"}])
async def test_nothing_is_reported_where_a_start_is_to_come_or_nobody_could_be_asked(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine], reply: dict[str, Any]
) -> None:
    port = free_port()
    controller.register_reply = reply | {"endpoints": endpoints(port)}
    async with running_pod(tmp_path, fakes, controller, port=port, registration=SPEC) as pod:
        await eventually(lambda: pod.node.engines.placed, what="its place")
        assert pod.node.engines.bereft == ()
        assert reason(await pod.ft("status", {"endpoint_ids": [0]})) == "NOT_STARTED"
        assert controller.reports == []


async def test_a_start_command_ends_it(tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]) -> None:
    port = free_port()
    controller.register_reply = GROUP_LIVES | {"endpoints": endpoints(port)}
    async with running_pod(tmp_path, fakes, controller, port=port, registration=SPEC) as pod:
        await eventually(controller.says(1, DEAD, "process_exit"), what="the death of its ranks")
        await pod.started(controller, generation=6)
        assert pod.node.engines.bereft == ()
        await eventually(controller.says(1, HEALTHY), what="the new engine")


async def test_a_pod_that_does_not_know_yet_where_it_belongs_is_as_good_as_not_there(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    controller.register_codes = [503] * 1000
    async with running_pod(tmp_path, fakes, controller, registration=SPEC) as pod:
        answer = await pod.ft("status", {"endpoint_ids": [0]})
        assert (answer.status_code, reason(answer)) == (503, "NOT_STARTED")


def forget_everything(folder: Path) -> None:
    for file in folder.glob("journal.sqlite*"):
        file.unlink()


async def left_behind(folder: Path, fakes: list[FakeEngine], controller: FakeController, port: int) -> dict[str, str]:
    """Engines that run, and no journal."""
    async with running_pod(folder, fakes, controller, port=port, keep_engines=True) as pod:
        engines = await pod.started(controller)
    forget_everything(folder)
    assert all(alive(identity) for identity in engines.values())
    return engines


async def until_gone(pod: Pod, engines: dict[str, str]) -> None:
    await eventually(lambda: not any(alive(identity) for identity in engines.values()), what="the end of forgotten engines")
    await eventually(lambda: pod.node.journal.engines == (), what="their records' end")


async def test_engines_whose_journal_is_gone_are_ended_and_then_reported_dead(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    port = free_port()
    engines = await left_behind(tmp_path, fakes, controller, port)
    controller.register_reply = GROUP_LIVES | {"endpoints": endpoints(port)}
    async with running_pod(tmp_path, fakes, controller, port=port, registration=SPEC) as pod:
        await eventually(lambda: controller.registrations, what="a registration")
        assert not any(alive(identity) for identity in engines.values()), "it says who it is once that is true"
        await until_gone(pod, engines)
        for rank in (0, 1):
            await eventually(controller.says(rank, DEAD, "process_exit"), what="the death of its ranks")


async def test_engines_of_another_node_manager_are_left_alone(
    tmp_path: Path, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    ports = free_port(), free_port()
    (tmp_path / "mine").mkdir()
    (tmp_path / "other").mkdir()
    async with running_pod(tmp_path / "other", fakes, controller, port=ports[1]) as other:
        engines = await other.started(controller)
        mine = await left_behind(tmp_path / "mine", fakes, controller, ports[0])
        async with running_pod(tmp_path / "mine", fakes, controller, port=ports[0]) as pod:
            await until_gone(pod, mine)
        assert all(alive(identity) for identity in engines.values())
