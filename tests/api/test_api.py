"""The Controller API's contract (contracts §3): HTTP in, workflows behind, everything real but the Pods."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from domain.messages.event_pusher import ANNOUNCE_UPDATE, EVENT_PUSHER_ID, Coordinators
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID
from domain.runtime import FtPhase
from tests.api.installation import Controller, Installation, an_api, an_installation, declaration
from tests.eventually import eventually
from tests.workflows.factories import config
from tests.workflows.fault_manager_world import DEAD, HEALTHY, UNHEALTHY


@pytest.fixture(scope="module")
async def here(temporal_client: Client, temporal_server: str) -> AsyncIterator[Installation]:
    """One installation with instance 7 declared, assembled and serving; tests use other ids where they disturb."""
    async with an_installation(temporal_client, temporal_server) as installation:
        reply = await installation.controller.call("PUT", "/controller/instances/7", declaration(7))
        assert reply.status_code == 200, reply.text
        await installation.world.until_true(lambda: installation.world.asked("await_engines_ready"), "engines start")
        for ranks, pod_ip in (((0, 1), "127.0.0.2"), ((2, 3), "127.0.0.3")):
            reply = await report(installation.controller, 7, dict.fromkeys(ranks, HEALTHY), pod_ip)
            assert reply.json()["data"] == {"accepted": True, "reason": ""}, reply.text
        await installation.controller.until("/controller/instances/7/explain", lambda r: r.json()["data"].get("can_serve"))
        yield installation


STATUS = "/controller/fault_tolerance/status?instance_id=7"

sequence = iter(range(1, 1000))


async def report(
    controller: Controller, instance_id: int, statuses: dict[int, int], pod_ip: str, port: int = 1026
) -> httpx.Response:
    """A NodeManager's report in our form."""
    reports = [
        {
            "engine_id": rank,
            "engine_status": status,
            "sequence": next(sequence),
            "source": "engine",
            "engine_incarnation": f"e-{rank}",
        }
        for rank, status in statuses.items()
    ]
    body = {
        "instance_id": instance_id,
        "pod_ip": pod_ip,
        "node_manager_port": port,
        "incarnation": "life-1",
        "reports": reports,
    }
    return await controller.answered("POST", "/controller/report_software_fault", body)


def heartbeat(ranks: tuple[int, ...], pod_ip: str = "127.0.0.2", instance_id: int = 7) -> dict[str, Any]:
    endpoints = {str(rank): "normal" for rank in ranks}
    return {"job_name": "job", "instance_id": instance_id, "pod_ip": pod_ip, "nm_port": 1026, "endpoints": endpoints}


def reason(reply: httpx.Response) -> str:
    word: str = reply.json()["data"]["reason"]
    return word


async def test_status_gives_the_runtime_record(here: Installation) -> None:
    record = await here.controller.record(7)
    assert (record["phase"], record["can_serve"], record["alive_dp_ranks"]) == ("NORMAL", True, [0, 1, 2, 3])
    everything = (await here.controller.call("GET", "/controller/fault_tolerance/status")).json()
    assert everything["code"] == 200
    assert [one["instance_id"] for one in everything["data"]["instances"]] == [7]


@pytest.mark.parametrize(
    ("query", "status"),
    [("?instance_id=x", 400), ("?instance_id=8", 404), ("?instance_id=", 400)],
    ids=["word", "unknown", "empty"],
)
async def test_status_of_no_instance(here: Installation, query: str, status: int) -> None:
    reply = await here.controller.call("GET", f"/controller/fault_tolerance/status{query}")
    assert reply.status_code == status
    assert reply.json()["code"] == status


async def test_with_the_feature_off_the_status_is_disabled(here: Installation) -> None:
    async with an_api(here.settings, here.world.task_queue, config(enable_dp_scale_down=False)) as off:
        for query in ("", "?instance_id=7"):
            reply = await off.call("GET", f"/controller/fault_tolerance/status{query}")
            assert reply.json()["data"] == {"phase": "DISABLED", "instances": []}
        assert (await off.call("GET", "/controller/fault_tolerance/status?instance_id=x")).status_code == 400


async def test_declaring_again_changes_nothing_and_otherwise_is_a_conflict(here: Installation) -> None:
    again = await here.controller.call("PUT", "/controller/instances/7", declaration(7))
    assert (again.status_code, again.json()["data"]["outcome"]) == (200, "UNCHANGED")
    other = await here.controller.call("PUT", "/controller/instances/7", declaration(7, ranks=2))
    assert (other.status_code, reason(other)) == (409, "CONFLICT")
    shown = await here.controller.call("GET", "/controller/instances/7")
    assert shown.json()["data"] == declaration(7)
    everything = await here.controller.call("GET", "/controller/instances")
    assert [one["instance_id"] for one in everything.json()["data"]["instances"]] == [7]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dp_master_port": "29500"}, "dp_master_port"),
        ({"dp_master_port": True}, "dp_master_port"),
        ({"colour": "red"}, "colour"),
        ({"endpoints": []}, "endpoints"),
        ({"job_name": None}, "job_name"),
    ],
    ids=["text for a number", "a boolean for a number", "unknown field", "no endpoints", "null"],
)
async def test_a_malformed_declaration_names_the_field(here: Installation, change: dict[str, Any], field: str) -> None:
    reply = await here.controller.call("PUT", "/controller/instances/9", {**declaration(9), **change})
    assert (reply.status_code, reason(reply)) == (400, "INVALID")
    assert field in reply.json()["message"]
    assert (await here.controller.call("GET", "/controller/instances/9")).status_code == 404


async def test_a_declaration_with_a_duplicate_rank_is_refused_with_its_reason(here: Installation) -> None:
    body = declaration(9)
    body["endpoints"][1]["id"] = 0
    reply = await here.controller.call("PUT", "/controller/instances/9", body)
    assert reply.status_code == 400
    assert "duplicate: [0]" in reply.json()["message"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pod_ip": "127.0.0.3"}, "FOREIGN_RANK"),
        ({"pod_ip": "127.0.0.9"}, "FOREIGN_POD"),
        ({"node_manager_port": 1027}, "FOREIGN_POD"),
        ({"engine_id": 12}, "UNKNOWN_RANK"),
    ],
    ids=["another Pod's rank", "a Pod of nobody", "another port", "no such rank"],
)
async def test_a_pod_reports_its_own_ranks_only(here: Installation, changes: dict[str, Any], why: str) -> None:
    body = {"instance_id": 7, "pod_ip": "127.0.0.2", "engine_id": 1, "engine_status": 1, **changes}
    reply = await here.controller.call("POST", "/controller/report_software_fault", body)
    assert reply.status_code == 200
    assert reply.json()["data"] == {"accepted": False, "reason": why}
    assert (await here.controller.record(7))["waiting"] is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"instance_id": 99, "pod_ip": "127.0.0.2", "engine_id": 1, "engine_status": 1}, 404),
        ({"instance_id": 7, "pod_ip": "127.0.0.2", "engine_id": 1, "engine_status": 3}, 400),
        ({"instance_id": 7, "pod_ip": "127.0.0.2", "engine_id": True, "engine_status": 1}, 400),
        ({"instance_id": "7", "pod_ip": "127.0.0.2", "engine_id": 1, "engine_status": 1}, 400),
        ({"instance_id": 7, "pod_ip": "127.0.0.2", "reports": []}, 400),
        ([1, 2], 400),
        ("word", 400),
    ],
    ids=["unknown instance", "unknown status", "boolean rank", "text id", "empty report", "array", "string"],
)
async def test_a_report_that_cannot_be_read(here: Installation, body: object, status: int) -> None:
    reply = await here.controller.call("POST", "/controller/report_software_fault", body)
    assert reply.status_code == status, reply.text


async def test_json_that_is_none_is_a_400(here: Installation) -> None:
    reply = await here.controller.http.post(
        "/controller/report_software_fault", content=b"{", headers={"content-type": "application/json"}
    )
    assert (reply.status_code, reason(reply)) == (400, "MALFORMED_JSON")


async def test_motors_form_reaches_the_evidence_and_is_cleared_again(here: Installation) -> None:
    body = {
        "instance_id": 7,
        "pod_ip": "127.0.0.2",
        "node_manager_port": 1026,
        "engine_id": 1,
        "engine_status": UNHEALTHY,
        "exception_type": "RuntimeError",
        "exception_message": "peer lost",
        "additional_info": {"ft_state": None, "mask": [0, 1, 0, 0]},
    }
    assert (await here.controller.call("POST", "/controller/report_software_fault", body)).json()["data"]["accepted"]
    explain = "/controller/instances/7/explain"
    waits = await here.controller.until(explain, lambda r: "INCOMPLETE" in str(r.json()["data"]["text"]))
    assert "fresh look" in str(waits.json()["data"]["text"])
    await here.controller.call("POST", "/controller/report_software_fault", {**body, "engine_status": HEALTHY})
    await here.controller.until(explain, lambda r: "INCOMPLETE" not in str(r.json()["data"]["text"]))


async def test_heartbeats_name_exactly_the_pods_ranks(here: Installation) -> None:
    reply = await here.controller.call("POST", "/controller/heartbeat", heartbeat((0, 1)))
    data = reply.json()["data"]
    assert (reply.status_code, data["generation"], data["dead_committed"]) == (200, 1, [])
    assert data["fault_tolerance_config"]["enable_dp_scale_down_proxy"] is True
    for wrong in ((0,), (), (0, 1, 2)):
        refused = await here.controller.call("POST", "/controller/heartbeat", heartbeat(wrong))
        assert (refused.status_code, reason(refused)) == (409, "WRONG_SET")
    foreign = await here.controller.call("POST", "/controller/heartbeat", heartbeat((0, 1), "127.0.0.9"))
    assert (foreign.status_code, reason(foreign)) == (409, "FOREIGN_POD")
    unknown = await here.controller.call("POST", "/controller/heartbeat", heartbeat((0, 1), instance_id=99))
    assert (unknown.status_code, reason(unknown)) == (503, "UNKNOWN_INSTANCE")


async def test_a_coordinators_word_reaches_eventpusher(here: Installation) -> None:
    body = {"url": "http://127.0.0.1:9/", "incarnation": "c1", "has_view": False}
    assert (await here.controller.call("POST", "/controller/coordinators", body)).status_code == 200
    pusher = here.client.get_workflow_handle(EVENT_PUSHER_ID)
    known: Coordinators = await pusher.query("coordinators", result_type=Coordinators)
    assert [(one.url, one.incarnation) for one in known.coordinators] == [("http://127.0.0.1:9/", "c1")]
    unreachable = (
        "ftp://x",
        "http://coordinator..svc:1026",
        "http://10.0.0.9:99999",
        f"http://{'a' * 64}:1",
        "http://:1",
        "http://[x]",
    )
    malformed: list[dict[str, object]] = [
        *[dict[str, object](url=url) for url in unreachable],
        {"has_view": 1},
        {"incarnation": ""},
    ]
    for wrong in malformed:
        assert (await here.controller.call("POST", "/controller/coordinators", {**body, **wrong})).status_code == 400


async def test_a_coordinator_that_is_reached_adds_nothing_to_the_history(here: Installation) -> None:
    pusher = here.client.get_workflow_handle(EVENT_PUSHER_ID)
    reached = {"url": "http://127.0.0.1:9/", "incarnation": "c2", "has_view": True, "last_push_sec_ago": 0.5}

    async def heard() -> list[dict[str, Any]]:
        events = [event.workflow_execution_signaled_event_attributes for event in (await pusher.fetch_history()).events]
        bodies = [json.loads(event.input.payloads[0].data) for event in events if event.signal_name == ANNOUNCE_UPDATE]
        return [body for body in bodies if body["incarnation"] != "c1"]

    news: list[dict[str, object]] = [
        {},
        {"last_push_sec_ago": 61.0},
        {"last_push_sec_ago": None},
        {"has_view": False},
        {"url": "http://127.0.0.1:10/"},
    ]
    for count, changed in enumerate(news, start=1):
        for body in (reached | changed, reached, reached | {"last_push_sec_ago": 19.0}):
            assert (await here.controller.call("POST", "/controller/coordinators", body)).status_code == 200
        await eventually(partial(_has, heard, count), f"{count} were news, and none that EventPusher reaches")
    assert (await here.controller.call("POST", "/controller/coordinators", {"last_push_sec_ago": -1})).status_code == 400


async def _has(listed: Callable[[], Awaitable[list[Any]]], count: int) -> bool:
    found = len(await listed())
    assert found <= count
    return found == count


async def test_commands_answer_with_the_faultmanagers_own_word(here: Installation) -> None:
    before = (await here.controller.record(7))["view_revision"]
    reply = await here.controller.call("POST", "/controller/instances/7/republish", {})
    assert (reply.status_code, reply.json()["data"]["accepted"]) == (200, True)
    await here.controller.until(
        "/controller/fault_tolerance/status?instance_id=7", lambda r: r.json()["data"]["view_revision"] == before + 1
    )
    assert (await here.controller.call("POST", "/controller/instances/8/republish", {})).status_code == 404
    assert (await here.controller.call("POST", "/controller/instances/7/reconfigure", {"force": "yes"})).status_code == 400


async def test_automation_is_held_and_released_by_a_person(here: Installation) -> None:
    call = here.controller.call
    refused = await call("POST", "/controller/instances/7/release")
    assert (refused.status_code, refused.json()["data"]["outcome"]) == (409, "NOT_HELD")
    assert (await call("POST", "/controller/instances/7/hold", {"why": "upgrade of the switch"})).status_code == 200
    told = (await call("GET", "/controller/instances/7/explain")).json()["data"]
    assert told["held"] == "upgrade of the switch"
    assert any("upgrade of the switch" in sentence for sentence in told["text"])
    plan = (await call("GET", "/controller/instances/7/plan?dead=1")).json()["data"]
    assert plan["automation_off"] == "held: upgrade of the switch"
    assert (await call("POST", "/controller/instances/7/release")).status_code == 200
    assert (await call("GET", "/controller/instances/7/explain")).json()["data"]["held"] is None
    assert (await call("POST", "/controller/instances/8/hold")).status_code == 404
    assert (await call("POST", "/controller/instances/7/hold", {"because": 1})).status_code == 400


async def test_a_dry_run_says_what_a_round_would_do_and_touches_nothing(here: Installation) -> None:
    before = await here.controller.record(7)
    reply = await here.controller.call("GET", "/controller/instances/7/plan?dead=1,2")
    plan = reply.json()["data"]
    assert (plan["decision"]["action"], plan["decision"]["reason"]) == ("scale_down", "COMPLETE")
    assert (plan["round"]["survivors"], plan["round"]["removed_dp_ranks"]) == ([0, 3], [1, 2])
    assert plan["round"]["apply"][0]["body"]["params"]["removed_dp_ranks"] == [1, 2]
    assert await here.controller.record(7) == before


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("7/plan?dead=9", 400, "0..3"),
        ("7/plan?dead=1,x", 400, "'x'"),
        ("7/plan?dead=", 400, "no rank"),
        ("7/plan", 400, "dead"),
        ("8/plan?dead=1", 404, "no instance 8"),
        ("8/explain", 404, "no instance 8"),
    ],
)
async def test_a_dry_run_of_what_is_not_there(here: Installation, path: str, status: int, said: str) -> None:
    reply = await here.controller.call("GET", f"/controller/instances/{path}")
    assert (reply.status_code, said in reply.json()["message"]) == (status, True), reply.text


async def test_probes_figures_and_documentation(here: Installation) -> None:
    for path in ("/startup", "/liveness", "/readiness", "/docs", "/openapi.json"):
        assert (await here.controller.call("GET", path)).status_code == 200, path
    figures = (await here.controller.call("GET", "/metrics")).text
    assert 'autotomy_api_reports_total{outcome="accepted"}' in figures
    missing = await here.controller.call("GET", "/controller/nothing")
    assert (missing.status_code, reason(missing)) == (404, "NOT_FOUND")


async def test_a_fault_over_http_becomes_a_round_and_committed_ranks_come_back_in_heartbeats(here: Installation) -> None:
    world = here.world
    world.sequence = 5000
    await report(here.controller, 7, {1: DEAD, 0: UNHEALTHY}, "127.0.0.2")
    await report(here.controller, 7, {2: UNHEALTHY, 3: UNHEALTHY}, "127.0.0.3")
    await world.until_true(lambda: world.rounds, "a round")
    order = world.rounds[-1]
    refused = await here.controller.call("POST", "/controller/instances/7/republish", {})
    assert (refused.status_code, refused.json()["data"]["outcome"]) == (409, "STRATEGY_RUNS")
    await world.progress(order, 1, FtPhase.SCALING_DOWN)
    await world.progress(order, 2, FtPhase.POST_SCALE_CLEANUP)
    await world.commit(order)
    for ranks in ((0, 1), (0,)):
        reply = await here.controller.call("POST", "/controller/heartbeat", heartbeat(ranks))
        assert reply.status_code == 200, "while a round is under way the sets before and after both pass"
    await world.end_round(order)
    await here.controller.until(
        "/controller/fault_tolerance/status?instance_id=7", lambda r: r.json()["data"]["phase"] == "SCALED_DOWN_RUNNING"
    )
    shrunk = await here.controller.call("POST", "/controller/heartbeat", heartbeat((0,)))
    assert shrunk.json()["data"]["dead_committed"] == [1]
    assert (await here.controller.call("POST", "/controller/heartbeat", heartbeat((0, 1)))).status_code == 409


async def test_a_hardware_fault_reaches_the_instances_on_its_node_until_it_is_cleared(here: Installation) -> None:
    fault = {"node_name": "node-0", "fault_code": "80E24E00", "npu_name": "Ascend910-0", "level": "NotHandleFault"}
    told = await here.controller.call("POST", "/controller/report_hardware_fault", fault)
    assert told.json()["data"] == {"accepted": True, "reason": "", "instances": [7]}
    status = "/controller/fault_tolerance/status?instance_id=7"
    shown = (await here.controller.until(status, lambda r: r.json()["data"]["hardware_faults"])).json()["data"]
    assert shown["hardware_faults"] == ["L1 80E24E00 on node-0, Ascend910-0 (ranks [0])"]
    assert shown["active_strategy"] is None
    await here.controller.call("POST", "/controller/clear_hardware_fault", fault)
    await here.controller.until(status, lambda r: not r.json()["data"]["hardware_faults"])
    elsewhere = await here.controller.call("POST", "/controller/report_hardware_fault", {**fault, "node_name": "node-9"})
    assert elsewhere.json()["data"] == {"accepted": False, "reason": "UNKNOWN_NODE", "instances": []}
    assert (await here.controller.call("POST", "/controller/report_hardware_fault", {"npu_name": "x"})).status_code == 400


async def test_a_faultmanager_that_was_terminated_is_started_by_the_next_heartbeat(here: Installation) -> None:
    first = (await here.world.handle.describe()).run_id
    await here.world.handle.terminate()
    here.world.journals = here.world.journals.model_copy(
        update={
            "started": True,
            "highest_generation": 2,
            "dead_committed": (1,),
            "view_revision": 9,
            "published_ranks": (0, 2, 3),
        }
    )
    end = time.monotonic() + 10
    while not (record := await here.controller.record(7))["can_serve"]:
        assert time.monotonic() < end, record
        await here.controller.call("POST", "/controller/heartbeat", heartbeat((0,)))
        await asyncio.sleep(0.1)
    assert record["dead_committed"] == [1]
    assert (await here.world.handle.describe()).run_id != first


async def test_an_api_without_a_memory_starts_registry_and_faultmanager_that_were_terminated(here: Installation) -> None:
    """The topology is where it was: in the history of the FaultManager that is gone. It asks the journals, as ever."""
    asked = len(here.world.asked("read_journals"))
    await here.client.get_workflow_handle(INSTANCE_REGISTRY_ID).terminate()
    await here.world.handle.terminate()
    async with an_api(here.settings, here.world.task_queue, here.world.config) as another:
        await another.until("/readiness", lambda reply: reply.status_code == 200)
        told = await report(another, 7, {0: HEALTHY}, "127.0.0.2")
        assert told.json()["data"] == {"accepted": True, "reason": ""}
        shown = await another.until(STATUS, lambda reply: reply.json()["data"].get("can_serve"))
        assert shown.json()["data"]["dead_committed"] == [1]
        assert (await another.call("GET", "/controller/instances/7")).json()["data"] == declaration(7)
    assert len(here.world.asked("read_journals")) > asked


async def test_the_same_declaration_again_starts_a_faultmanager_that_is_gone(here: Installation) -> None:
    await here.world.handle.terminate()
    again = await here.controller.answered("PUT", "/controller/instances/7", declaration(7))
    assert again.json()["data"]["outcome"] == "UNCHANGED"
    assert (await here.world.handle.describe()).close_time is None
    await here.controller.until(STATUS, lambda reply: reply.json()["data"].get("can_serve"))


async def test_a_removed_instance_is_gone_and_may_be_declared_anew(here: Installation) -> None:
    assert (await here.controller.call("DELETE", "/controller/instances/70")).status_code == 404
    body = {"instance_id": 7, "reason": "test"}
    assert (await here.controller.call("POST", "/controller/terminate_instance", body)).status_code == 200
    assert (await here.controller.call("GET", "/controller/instances/7")).status_code == 404
    await asyncio.wait_for(here.world.handle.result(), 15)
    assert here.world.asked("push_view")[-1].ranks == ()
    assert here.world.asked("stop_node_managers")
    late = await report(here.controller, 7, {1: DEAD}, "127.0.0.2")
    assert late.status_code == 404
    assert (await here.controller.call("PUT", "/controller/instances/7", declaration(7))).status_code == 200
