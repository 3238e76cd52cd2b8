"""POST /controller/register on real sockets and a real Temporal server: from single Pods to a serving instance."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from domain.messages.instance_registry import INSTANCE_REGISTRY_ID
from tests.api.installation import Installation, an_api, an_installation
from tests.registration.factories import CAPABLE, registration
from tests.workflows.factories import config


@pytest.fixture(scope="module")
async def here(temporal_client: Client, temporal_server: str) -> AsyncIterator[Installation]:
    async with an_installation(temporal_client, temporal_server) as installation:
        yield installation


_nets: dict[str, int] = {}
"""Each job has Pods of its own."""


def pod_ip(job: str, node_rank: int) -> str:
    return f"127.{_nets.setdefault(job, len(_nets) + 1)}.0.{node_rank + 2}"


def body(node_rank: int, *, job: str, life: str = "a", **changes: Any) -> dict[str, Any]:
    changes.setdefault("pod_ip", pod_ip(job, node_rank))
    request = registration(node_rank, job_name=job, life=life, **changes)
    return request.model_dump(mode="json")


async def register(here: Installation, node_rank: int, **changes: Any) -> dict[str, Any]:
    reply = await here.controller.answered("POST", "/controller/register", body(node_rank, **changes))
    assert reply.status_code == 200, reply.text
    data: dict[str, Any] = reply.json()["data"]
    return data


async def until_serving(here: Installation, instance_id: int, job: str) -> None:
    """Its FaultManager has sent the start commands; the Pods' engines report healthy."""
    path = f"/controller/fault_tolerance/status?instance_id={instance_id}"
    await here.controller.until(path, lambda reply: "not ready yet" in reply.text)
    for node_rank, ranks in enumerate([(0, 1), (2, 3)]):
        reports = [
            {"engine_id": rank, "engine_status": 0, "sequence": 1, "source": "engine", "engine_incarnation": f"e-{rank}"}
            for rank in ranks
        ]
        pod = {"pod_ip": pod_ip(job, node_rank), "node_manager_port": 1026, "incarnation": f"a-{node_rank}"}
        said = {"instance_id": instance_id, **pod, "reports": reports}
        reply = await here.controller.answered("POST", "/controller/report_software_fault", said)
        assert reply.json()["data"] == {"accepted": True, "reason": ""}
    await here.controller.until(path, lambda reply: reply.json()["data"]["phase"] == "NORMAL")


async def history_length(here: Installation) -> int:
    description = await here.client.get_workflow_handle(INSTANCE_REGISTRY_ID).describe()
    return description.history_length


async def test_pods_that_register_in_any_order_become_an_instance(here: Installation) -> None:
    second = await register(here, 1, job="first")
    assert (second["hold"], second["waiting_for"], second["master_dp_ip"]) == (False, [0], None)
    assert [endpoint["id"] for endpoint in second["endpoints"]] == [2, 3]
    number = second["instance_id"]
    record = await here.controller.record(number)
    assert "1 of 2 Pods" in record["waiting"]["reason"]
    assert "node_rank 0" in record["waiting"]["reason"]
    explained = await here.controller.call("GET", f"/controller/instances/{number}/explain")
    assert "missing: node_rank 0" in explained.text

    first = await register(here, 0, job="first")
    assert (first["instance_id"], first["waiting_for"], first["master_dp_ip"]) == (number, [], pod_ip("first", 0))
    assert [endpoint["id"] for endpoint in first["endpoints"]] == [0, 1, 2, 3]
    await until_serving(here, number, "first")


async def test_the_same_pod_and_life_gets_the_same_answer_and_adds_no_history(here: Installation) -> None:
    await register(here, 0, job="same")
    number = (await register(here, 1, job="same"))["instance_id"]
    await until_serving(here, number, "same")
    before = await register(here, 0, job="same")
    length = await history_length(here)
    assert [await register(here, 0, job="same") for _ in range(5)] == [before] * 5
    assert await history_length(here) == length
    assert (before["hold"], before["instance_id"]) == (False, number)


async def test_a_restarted_pod_of_a_living_instance_is_held_also_by_a_restarted_api(here: Installation) -> None:
    await register(here, 0, job="held")
    number = (await register(here, 1, job="held"))["instance_id"]
    await until_serving(here, number, "held")
    held = await register(here, 0, job="held", life="b")
    assert (held["hold"], held["hold_reason"]) == (True, "GROUP_LIVES")
    async with an_api(here.settings, here.world.task_queue, here.world.config) as another:
        await another.until("/readiness", lambda reply: reply.status_code == 200)
        reply = await another.call("POST", "/controller/register", body(0, job="held", life="b"))
        assert (reply.json()["data"]["hold"], reply.json()["data"]["instance_id"]) == (True, number)


async def test_a_registry_that_was_terminated_still_knows_everybody(here: Installation) -> None:
    await register(here, 0, job="registry")
    number = (await register(here, 1, job="registry"))["instance_id"]
    half = (await register(here, 1, job="half"))["instance_id"]
    await here.client.get_workflow_handle(INSTANCE_REGISTRY_ID).terminate()
    assert (await register(here, 0, job="half"))["instance_id"] == half
    assert (await register(here, 1, job="registry"))["instance_id"] == number


async def test_capabilities_that_differ_let_it_run_and_are_kept_for_the_gate(here: Installation) -> None:
    other = CAPABLE.model_copy(update={"num_redundant_experts": 0}).model_dump()
    await register(here, 0, job="differ")
    number = (await register(here, 1, job="differ", ft_capability=other))["instance_id"]
    await until_serving(here, number, "differ")
    shown = (await here.controller.call("GET", f"/controller/instances/{number}")).json()["data"]
    assert shown["ft_capability_consistent"] is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"model_name": "other"}, "CONTRADICTS"), ({"pod_ip": pod_ip("refused-ADDRESS_TAKEN", 0)}, "ADDRESS_TAKEN")],
)
async def test_a_pod_that_cannot_be_is_told_why(here: Installation, changes: dict[str, Any], reason: str) -> None:
    await register(here, 0, job=f"refused-{reason}")
    reply = await here.controller.call("POST", "/controller/register", body(1, job=f"refused-{reason}", **changes))
    assert (reply.status_code, reply.json()["data"]["reason"]) == (409, reason)


async def test_a_pod_at_another_address_is_none_of_an_assembled_instance(here: Installation) -> None:
    await register(here, 0, job="foreign")
    await register(here, 1, job="foreign")
    reply = await here.controller.call("POST", "/controller/register", body(1, job="foreign", life="c", pod_ip="127.0.0.9"))
    assert (reply.status_code, reply.json()["data"]["reason"]) == (409, "FOREIGN_POD")


async def test_a_pod_that_was_moved_is_told_what_to_do_and_that_brings_the_instance_back_with_its_new_address(
    here: Installation,
) -> None:
    for node_rank in (0, 1):
        number = (await register(here, node_rank, job="moved"))["instance_id"]
    await until_serving(here, number, "moved")
    new = f"127.{_nets['moved']}.0.99"
    moved = body(1, job="moved", life="m", pod_ip=new)
    reply = await here.controller.call("POST", "/controller/register", moved)
    assert (reply.status_code, reply.json()["data"]["reason"]) == (409, "FOREIGN_POD")
    explained = await here.controller.call("GET", f"/controller/instances/{number}/explain")
    for told in (reply.json()["message"], explained.text):
        assert f"in the place of {pod_ip('moved', 1)}:1026" in told
        assert "terminate_instance" in told
    ended = await here.controller.call("POST", "/controller/terminate_instance", {"instance_id": number, "reason": "a Pod moved"})
    assert ended.status_code == 200, ended.text
    await here.controller.until(f"/controller/instances/{number}", lambda shown: shown.status_code == 404)
    replies = []
    for request in (body(0, job="moved", life="n"), moved):
        reply = await here.controller.answered("POST", "/controller/register", request)  # until the former FaultManager knows
        assert reply.status_code == 200, reply.text
        replies.append(reply.json()["data"])
    assert [reply["instance_id"] for reply in replies] == [number, number]
    assert {endpoint["pod_ip"] for endpoint in replies[-1]["endpoints"]} == {pod_ip("moved", 0), new}
    assert replies[-1]["hold"] is False


async def test_a_declared_instance_takes_pods_that_register(here: Installation) -> None:
    for node_rank in (0, 1):
        number = (await register(here, node_rank, job="template"))["instance_id"]
    await until_serving(here, number, "template")
    shown = await here.controller.call("GET", f"/controller/instances/{number}")
    moved = shown.text.replace(pod_ip("template", 0), pod_ip("declared", 0)).replace(pod_ip("template", 1), pod_ip("declared", 1))
    declared = {**json.loads(moved)["data"], "job_name": "declared"}
    reply = await here.controller.call("PUT", "/controller/instances/900", declared)
    assert reply.status_code == 200, reply.text
    assert (await register(here, 0, job="declared"))["instance_id"] == 900


async def test_the_pods_of_an_instance_cannot_be_taken_by_another_one(here: Installation) -> None:
    await register(here, 0, job="owner")
    assembling = await here.controller.call("POST", "/controller/register", body(0, job="thief", pod_ip=pod_ip("owner", 0)))
    number = (await register(here, 1, job="owner"))["instance_id"]
    await until_serving(here, number, "owner")
    registering = await here.controller.call("POST", "/controller/register", body(0, job="thief", pod_ip=pod_ip("owner", 0)))
    for reply in (assembling, registering):
        assert (reply.status_code, reply.json()["data"]["reason"]) == (409, "OTHER_INSTANCE"), reply.text
        assert reply.json()["data"]["instance_id"] == number
    declared = (await here.controller.call("GET", f"/controller/instances/{number}")).json()["data"]
    declaring = await here.controller.call("PUT", "/controller/instances/78", declared)
    assert (declaring.status_code, declaring.json()["data"]["reason"]) == (409, "CONFLICT")
    for reply in (assembling, registering, declaring):
        assert f"{pod_ip('owner', 0)}:1026 belongs to instance {number}" in reply.json()["message"]
    assert (await here.controller.call("PUT", f"/controller/instances/{number}", declared)).status_code == 200
    assert (await here.controller.call("GET", "/controller/instances/78")).status_code == 404


async def test_forty_pods_at_once_are_one_instance(here: Installation) -> None:
    pods: list[dict[str, Any]] = [
        {"node_rank": n, "job": "many", "nnodes": 40, "dp_size": 320, "pod_ip": f"127.0.1.{n + 1}"} for n in range(40)
    ]
    replies = await asyncio.gather(*(register(here, **pod) for pod in pods))
    assert len({reply["instance_id"] for reply in replies}) == 1
    last = await register(here, **pods[0])
    assert (last["waiting_for"], len(last["endpoints"])) == ([], 320)


async def test_an_assembly_that_is_not_complete_in_time_begins_anew(here: Installation) -> None:
    short = config(assembly_timeout_sec=0.5)
    async with an_api(here.settings, here.world.task_queue, short) as hasty:
        await hasty.until("/readiness", lambda reply: reply.status_code == 200)
        reply = await hasty.call("POST", "/controller/register", body(0, job="late"))
        number = reply.json()["data"]["instance_id"]
        path = f"/controller/fault_tolerance/status?instance_id={number}"
        await hasty.until(path, lambda status: status.status_code == 404)
    again = await register(here, 1, job="late")
    assert (again["instance_id"], again["waiting_for"]) == (number, [0])
