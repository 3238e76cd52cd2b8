"""The FT routes over HTTP: a whole transaction, its refusals, and what is answered when there is nothing to command."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from tests.engine.fake_engine import FakeEngine, serving
from tests.eventually import eventually
from tests.node_manager.controller import FakeController
from tests.node_manager.pod import Pod, alive, reason, running_pod

FT_COMMANDS = ["status", "guard", "apply", "finalize", "probe", "pace"]


async def test_a_whole_transaction(pod: Pod, controller: FakeController, fakes: list[FakeEngine]) -> None:
    await pod.started(controller)
    guarded = await pod.guard()
    assert guarded.status_code == 200
    assert 80 < guarded.json()["expires_in_sec"] <= 85
    applied = await pod.apply([0], [1])
    assert applied.json() == {"status": "accepted", "engines": {"0": {"http": 202, "message": "queued"}}}
    assert fakes[0].applies == [
        {
            "instruction": "scale_down",
            "params": {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_store_port": 29500},
            "request_id": "A",
        }
    ]
    assert (await pod.finalize([1])).json() == {"status": "committed"}
    journal = await pod.journal()
    assert (journal["retired_ranks"], journal["dead_committed"], journal["guard"]) == ([1], [1], None)
    (transaction,) = journal["transactions"]
    assert (transaction["apply_outcome"], transaction["verdict"], transaction["removed_dp_ranks"]) == (
        "accepted",
        "committed",
        [1],
    )


async def test_a_retired_rank_is_never_admitted_again(pod: Pod, controller: FakeController, fakes: list[FakeEngine]) -> None:
    await pod.started(controller)
    await pod.guard()
    await pod.finalize([1])
    told = len(controller.told(1))
    fakes[1].entry = {"status": "dead"}
    await eventually(lambda: controller.heartbeats and controller.heartbeats[-1].endpoints == {"0": "normal"})
    fakes[1].entry = {"status": "healthy"}
    asked = fakes[1].statuses_asked
    entries = await pod.entries(0, 1)
    assert (entries["0"]["status"], entries["1"]["status"]) == ("healthy", "retired")
    assert fakes[1].statuses_asked == asked
    assert len(controller.told(1)) == told
    assert reason(await pod.apply([1], [0], "B")) == "UNMANAGED_ENDPOINT"
    assert (await pod.http.get("/node-manager/status")).json() == {"status": True}


async def test_a_look_that_ends_after_its_rank_was_retired_reports_nothing(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    engine, told = pod.node.engines.get(1), len(controller.told(1))
    assert engine is not None
    await pod.guard()
    fakes[1].status_delay_sec, fakes[1].entry, asked = 1.0, {"status": "dead"}, fakes[1].statuses_asked
    await eventually(lambda: fakes[1].statuses_asked > asked, "a look that takes its time")
    await pod.finalize([1])
    await eventually(lambda: not engine.looking, "its end")
    assert engine.last_entry is not None
    assert engine.last_entry.status == "dead", "it was seen"
    beats = len(controller.heartbeats)
    await eventually(lambda: len(controller.heartbeats) > beats + 3, "time for a report")
    assert len(controller.told(1)) == told


async def test_a_collective_that_answers_only_when_all_were_called(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    barrier = asyncio.Barrier(2)
    for fake in fakes:
        fake.apply_barrier = barrier
    await pod.guard()
    assert (await pod.apply([0, 1], [2])).status_code == 200
    assert [len(fake.applies) for fake in fakes] == [1, 1]


async def test_engine_that_refuses_is_named_and_not_called_again(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    fakes[1].apply_code = 200
    await pod.guard()
    for _ in range(2):
        refused = await pod.apply([0, 1], [2])
        assert (refused.status_code, reason(refused)) == (502, "ENGINE_REFUSED")
        engines = refused.json()["data"]["engines"]
        assert (engines["0"]["http"], engines["1"]["http"]) == (202, 200)
    assert [len(fake.applies) for fake in fakes] == [1, 1]


async def test_client_that_hangs_up_in_the_middle_changes_nothing(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    await pod.started(controller)
    fakes[0].apply_delay_sec = 0.5
    await pod.guard()
    with contextlib.suppress(httpx.HTTPError):
        async with httpx.AsyncClient(base_url=str(pod.http.base_url), trust_env=False, timeout=0.2) as impatient:
            pod_of_impatient = Pod(pod.node, impatient, pod.fakes, pod.stop, pod.served)
            params = {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_master_rank": 0}
            body = {"endpoint_ids": [0], "instruction": "scale_down", "params": params, "request_id": "A", "generation": 1}
            await pod_of_impatient.http.post("/node-manager/fault-tolerance/apply", json=body)
    assert (await pod.apply([0], [1])).status_code == 200
    assert len(fakes[0].applies) == 1


async def test_engine_whose_process_ended_is_not_applied(tmp_path: Path, controller: FakeController) -> None:
    async with serving(FakeEngine(rank=0)) as fake, running_pod(tmp_path, [fake], controller) as pod:
        await pod.started(controller)
        engine = pod.node.engines.get(0)
        assert engine is not None
        await engine.tree.terminate(1.0)
        await eventually(lambda: engine.loss)
        await pod.guard()
        refused = await pod.apply([0], [1])
        assert reason(refused) == "ENGINE_REFUSED"
        assert "ended" in refused.json()["data"]["engines"]["0"]["message"]
        assert fake.applies == []


async def test_probe_is_one_completion_on_each(pod: Pod, controller: FakeController, fakes: list[FakeEngine]) -> None:
    await pod.started(controller)
    fakes[1].finish_reason = "abort"
    engines = (await pod.ft("probe", {"endpoint_ids": [0, 1], "timeout_sec": 5.0})).json()["engines"]
    assert (engines["0"]["ok"], engines["0"]["finish_reason"]) == (True, "length")
    assert (engines["1"]["ok"], engines["1"]["http"]) == (False, 200)


async def test_second_round_is_refused_and_the_first_goes_on(pod: Pod, controller: FakeController) -> None:
    await pod.started(controller)
    await pod.guard("A", 1)
    refused = await pod.guard("B", 2)
    assert (refused.status_code, reason(refused), refused.json()["data"]["holder"]) == (502, "GUARD_HELD", "A")
    assert (await pod.apply([0], [1], "A", 1)).status_code == 200
    assert (await pod.finalize([1], "A", 1)).status_code == 200


async def test_before_a_start_there_is_nothing_to_command_but_verdicts_are_taken(pod: Pod) -> None:
    assert reason(await pod.ft("status", {"endpoint_ids": [0]})) == "NOT_STARTED"
    assert reason(await pod.ft("probe", {"endpoint_ids": [0], "timeout_sec": 1.0})) == "NOT_STARTED"
    assert (await pod.guard()).status_code == 200
    assert reason(await pod.apply([0], [1])) == "NOT_STARTED"
    assert (await pod.finalize([1])).json() == {"status": "committed"}
    assert (await pod.entries(1))["1"]["status"] == "retired"


@pytest.mark.parametrize("ids", [[0, 0], [5]])
async def test_unmanaged_and_duplicate_ids_are_refused(pod: Pod, controller: FakeController, ids: list[int]) -> None:
    await pod.started(controller)
    assert reason(await pod.ft("status", {"endpoint_ids": ids})) == "UNMANAGED_ENDPOINT"


@pytest.mark.parametrize("command", FT_COMMANDS)
async def test_switched_off_the_routes_are_not_there_whatever_the_body(
    tmp_path: Path, controller: FakeController, command: str
) -> None:
    async with running_pod(tmp_path, [], controller, enable_dp_scale_down_proxy=False) as pod:
        answer = await pod.http.post(f"/node-manager/fault-tolerance/{command}", content=b"{nonsense")
        assert (answer.status_code, reason(answer)) == (404, "DISABLED")
        assert (await pod.http.get("/node-manager/fault-tolerance/journal")).status_code == 404
        assert (await pod.http.get("/readiness")).status_code == 200


@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("guard", {"request_id": "A", "lease_sec": 0}),
        ("guard", {"request_id": "A", "lease_sec": 3601}),
        ("guard", {"request_id": "A", "lease_sec": True}),
        ("guard", {"request_id": "", "lease_sec": 5}),
        ("guard", {"request_id": "A", "lease_sec": 5, "more": 1}),
        ("status", {"endpoint_ids": [True]}),
        ("status", {"endpoint_ids": []}),
        ("finalize", {"request_id": "A", "commit": 1, "retired_endpoint_ids": []}),
        ("apply", {"endpoint_ids": [0], "instruction": "explode", "params": {}, "request_id": "A"}),
        ("pace", {"poll_interval_sec": -1}),
        ("probe", {"endpoint_ids": [0]}),
    ],
)
async def test_malformed_bodies_are_400_and_name_the_field(pod: Pod, command: str, body: object) -> None:
    answer = await pod.ft(command, body)
    assert answer.status_code == 400
    assert reason(answer) == "INVALID"
    assert answer.json()["data"]["errors"]


async def test_broken_journal_refuses_every_command_and_says_so(tmp_path: Path, controller: FakeController) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"")
    async with running_pod(tmp_path, [], controller) as pod:
        ready = await pod.http.get("/readiness")
        assert (ready.status_code, reason(ready)) == (503, "JOURNAL")
        assert (await pod.http.get("/liveness")).status_code == 200
        assert reason(await pod.guard()) == "JOURNAL"
        assert reason(await pod.apply([0], [1])) == "JOURNAL"
        assert reason(await pod.finalize([1])) == "JOURNAL"
        assert reason(await pod.ft("status", {"endpoint_ids": [0]})) == "JOURNAL"
        assert reason(await pod.http.get("/node-manager/fault-tolerance/journal")) == "JOURNAL"
        assert reason(await pod.post("start", pod.start_body())) == "JOURNAL"
    assert (tmp_path / "journal.sqlite").read_bytes() == b""


async def test_metrics_tell_the_guard(pod: Pod) -> None:
    await pod.guard()
    assert "autotomy_node_manager_guard_live 1.0" in (await pod.http.get("/metrics")).text


async def test_another_instance_neither_stops_nor_replaces_the_engines_that_run_here(
    pod: Pod, controller: FakeController, fakes: list[FakeEngine]
) -> None:
    engines = await pod.started(controller, generation=3)
    for path, body in (
        ("start", pod.start_body(generation=3, instance_id=78)),
        ("start", pod.start_body(generation=9, instance_id=78)),
        ("stop", {"generation": 9, "instance_id": 78}),
        ("engine-restart", {"action": "stop", "generation": 9, "instance_id": 78}),
        ("engine-restart", {"action": "restart", "generation": 9, "instance_id": 78}),
    ):
        refused = await pod.post(path, body)
        assert (refused.status_code, reason(refused)) == (502, "OTHER_INSTANCE"), (path, refused.text)
        assert "instance 7 " in refused.text
        assert "instance 78 " in refused.text
    journal = await pod.journal()
    assert (journal["instance_id"], journal["highest_generation"], journal["engines"]) == (7, 3, engines)
    assert all(alive(engine) for engine in engines.values())


async def test_a_stopped_nodemanager_belongs_to_whoever_starts_it_next(pod: Pod, controller: FakeController) -> None:
    engines = await pod.started(controller)
    assert (await pod.post("engine-restart", {"action": "stop", "generation": 2, "instance_id": 7})).status_code == 200
    assert (await pod.start(generation=3, instance_id=78))["status"] == "started"
    assert (await pod.journal())["instance_id"] == 78
    await eventually(lambda: not any(alive(engine) for engine in engines.values()))
