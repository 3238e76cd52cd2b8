"""Signals from the stock `temporal` CLI, sensible and not: refused ones are recorded, and the FaultManager goes on."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from domain.runtime import RuntimeRecord
from service.temporal import temporal_binary
from tests.workflows.fault_manager_world import World, a_world

REPORT = "report_software_fault"


async def temporal_cli(address: str, world: World, name: str, *inputs: str) -> None:
    """`temporal workflow signal …`, as an operator would type it."""
    command = [str(temporal_binary()), "workflow", "signal", "--address", address, "--workflow-id", world.handle.id]
    command += ["--name", name, *(part for one in inputs for part in ("--input", one))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    output, _ = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0, output.decode()


@pytest.fixture
async def world(temporal_client: Client) -> AsyncIterator[World]:
    async with a_world(temporal_client) as world:
        await world.serve()
        yield world


async def refusal_of(world: World, name: str) -> str:
    record = await world.until(lambda r: any(one.name == name for one in r.rejected_signals), "a recorded refusal")
    return record.rejected_signals[-1].reason


@pytest.mark.parametrize(
    ("name", "inputs", "reason"),
    [
        (REPORT, [], "exactly one input, got 0"),
        (REPORT, ['{"engine_id":1,"engine_status":1}', '{"engine_id":2,"engine_status":1}'], "exactly one input, got 2"),
        (REPORT, ["[1, 2]"], "a JSON object, got list"),
        (REPORT, ['{"engine_id":9,"engine_status":1}'], "no rank 9"),
        (REPORT, ['{"engine_id":1,"engine_status":7}'], "0 healthy | 1 dead | 2 unhealthy"),
        (REPORT, ['{"engine_id":true,"engine_status":1}'], "0 healthy | 1 dead | 2 unhealthy"),
        (REPORT, ['{"report":[],"received_at":1}'], "report must be a JSON object"),
        ("no_such_signal", ['{"engine_id":1}'], "unknown signal"),
        ("strategy_end", ['{"workflow_id":"scale-down-7-2"}'], "report"),
        ("strategy_progress", [], "exactly one input"),
        ("config_changed", ['{"enable_dp_scale_up":true}'], "enable_dp_scale_down"),
        ("clear_software_fault", ['{"engine":1}'], '{"engine_id": <rank>}'),
        ("terminate", ["3"], "a JSON object, got int"),
        ("config_changed", ["{}"], "taken over whole"),
        ("terminate", [], "exactly one input, got 0"),
        ("terminate", ["{}"], "stop_engines"),
    ],
    ids=[
        "no input",
        "two inputs",
        "an array",
        "unknown rank",
        "unknown status",
        "a boolean as rank",
        "an empty wrapper",
        "unknown name",
        "half an end",
        "progress of nothing",
        "a contradicting configuration",
        "a clear without rank",
        "a removal by number",
        "an empty configuration",
        "a removal without a word",
        "an empty removal",
    ],
)
async def test_nonsense_is_recorded_as_refused_and_changes_nothing(
    world: World, temporal_server: str, name: str, inputs: list[str], reason: str
) -> None:
    before = await world.record()
    await temporal_cli(temporal_server, world, name, *inputs)
    assert reason in await refusal_of(world, name)
    after = await world.record()
    assert _but_for_refusals(after) == _but_for_refusals(before)


def _but_for_refusals(record: RuntimeRecord) -> RuntimeRecord:
    return record.model_copy(update={"rejected_signals": (), "signals_taken": 0})


async def test_a_fault_reported_by_hand_counts_and_can_be_cleared_by_hand(world: World, temporal_server: str) -> None:
    await temporal_cli(temporal_server, world, REPORT, '{"engine_id":1,"engine_status":1}')
    record = await world.until(lambda r: r.waiting, "the fault is held")
    assert record.engine_statuses["1"].status == "dead"
    assert record.engine_statuses["1"].source == "operator"
    await temporal_cli(temporal_server, world, "clear_software_fault", '{"engine_id":1}')
    await world.until(lambda r: r.waiting is None, "cleared")


async def test_complete_evidence_by_hand_starts_a_round(world: World, temporal_server: str) -> None:
    for rank, status in ((1, 1), (0, 2), (2, 2), (3, 2)):
        await temporal_cli(temporal_server, world, REPORT, f'{{"engine_id":{rank},"engine_status":{status}}}')
    await world.until_true(lambda: world.rounds, "a round")
    assert world.rounds[0].pending_ranks == (1,)


async def test_a_foreign_pods_report_is_refused_by_the_workflow_too(world: World) -> None:
    body = {
        "instance_id": world.instance_id,
        "pod_ip": "127.0.0.3",
        "node_manager_port": 1026,
        "engine_id": 1,
        "engine_status": 1,
    }
    await world.signal(REPORT, body)
    assert "belongs to NodeManager 127.0.0.2:1026" in await refusal_of(world, REPORT)
    await world.signal(REPORT, {**body, "instance_id": world.instance_id + 1})
    record = await world.until(lambda r: len(r.rejected_signals) == 2, "the second refusal")
    assert "is about instance" in record.rejected_signals[-1].reason
    assert record.engine_statuses["1"].status == "healthy"
