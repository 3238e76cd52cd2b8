"""The played engines and NodeManagers refuse what the real ones refuse: a benchmark over nodding fakes would prove nothing."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from activities.node_manager_client import NodeManagerClient
from domain.engine import EngineStatus, Instruction
from domain.messages.node_manager import (
    ApplyParams,
    ApplyRequest,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
    ProbeRequest,
    StartRequest,
    StatusRequest,
)
from domain.topology import Endpoint, NodeManagerAddress, Role
from lab.bench.group import Group
from lab.bench.light_pod import LightPod
from lab.bench.wire import serve
from service.peer import PeerRefused
from tests.eventually import eventually

HOST = "127.0.0.1"


class Played:
    """One Pod with three ranks, and a client of it."""

    def __init__(self, pod: LightPod, client: NodeManagerClient) -> None:
        self.pod = pod
        self.client = client

    async def guard(self, request_id: str, generation: int = 2) -> None:
        await self.client.guard(GuardRequest(request_id=request_id, lease_sec=30.0, generation=generation), 5.0)

    async def apply(self, request_id: str, removed: tuple[int, ...] = (2,)) -> None:
        request = ApplyRequest(
            endpoint_ids=(0, 1),
            instruction=Instruction.SCALE_DOWN,
            params=ApplyParams(removed_dp_ranks=removed, dp_master_ip=HOST, dp_master_rank=0),
            request_id=request_id,
            generation=2,
            apply_margin_sec=5.0,
        )
        await self.client.apply(request, 5.0)


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    async with httpx.AsyncClient(trust_env=False) as http:
        group = Group(7, (0, 1, 2), recovery_sec=0.01)
        address = NodeManagerAddress(ip=HOST, port=1)
        pod = LightPod(address, group, (0, 1, 2), poll_sec=0.02, phase_sec=0.0, http=http, controller_url=None)
        group.on_change = pod.engines_changed
        server = await serve(pod, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        client = NodeManagerClient(http, NodeManagerAddress(ip=HOST, port=port))
        endpoints = tuple(Endpoint(id=rank, pod_ip=HOST, ip=HOST, business_port=1000 + rank) for rank in (0, 1, 2))
        start = StartRequest(
            job_name="bench",
            role=Role.UNION,
            instance_id=7,
            generation=1,
            endpoints=endpoints,
            master_dp_ip=HOST,
            dp_master_port=1500,
        )
        await client.start(start, 5.0)
        yield Played(pod, client)
        server.close()
        await asyncio.sleep(0)


async def test_a_whole_round_shrinks_the_group_with_one_command_per_engine(played: Played) -> None:
    episode = played.pod.group.fail(2)
    await eventually(lambda: set(episode.seen) == {0, 1, 2}, "the Pod sees every rank's news at its next poll")
    await played.guard("round-1")
    await played.apply("round-1")
    await played.apply("round-1")
    await eventually(lambda: played.pod.group.engines[0].status is EngineStatus.HEALTHY, "the survivors recover")
    await played.client.finalize(FinalizeRequest(request_id="round-1", commit=True, retired_endpoint_ids=(2,), generation=2), 5.0)
    entries = (await played.client.status(StatusRequest(endpoint_ids=(0, 1, 2)), 5.0)).entries()
    assert [entries[rank].status for rank in (0, 1, 2)] == ["healthy", "healthy", "retired"]
    assert played.pod.group.episodes[-1].applies == {0: 1, 1: 1}
    probe = await played.client.probe(ProbeRequest(endpoint_ids=(0, 1), timeout_sec=1.0), 5.0)
    assert all(result.ok for result in probe.engines.values())


async def test_refusals_are_those_of_the_contract(played: Played) -> None:
    with pytest.raises(PeerRefused) as unguarded:
        await played.apply("round-1")
    assert unguarded.value.reason == NodeManagerReason.NOT_GUARDED
    await played.guard("round-1")
    with pytest.raises(PeerRefused) as held:
        await played.guard("round-2")
    assert held.value.reason == NodeManagerReason.GUARD_HELD
    with pytest.raises(PeerRefused) as old:
        await played.guard("round-0", generation=1)
    assert old.value.reason == NodeManagerReason.OLD_GENERATION
    await played.client.finalize(FinalizeRequest(request_id="round-1", commit=False, retired_endpoint_ids=(), generation=2), 5.0)
    with pytest.raises(PeerRefused) as over:
        await played.guard("round-1")
    assert over.value.reason == NodeManagerReason.VERDICT_KNOWN


async def test_who_is_turned_away_leaves_no_trace(played: Played) -> None:
    """Generations of two instances are not comparable: the owner's must not become old by a stranger's number."""
    await played.guard("round-1", generation=3)
    with pytest.raises(PeerRefused) as held:
        await played.guard("round-2", generation=9)
    assert held.value.reason == NodeManagerReason.GUARD_HELD
    stranger = FinalizeRequest(request_id="round-2", commit=False, retired_endpoint_ids=(), generation=9)
    await played.client.finalize(stranger, 5.0)
    assert (await played.client.journal(5.0)).highest_generation == 3
    await played.guard("round-1", generation=3)


async def test_a_healthy_engine_takes_no_command(played: Played) -> None:
    await played.guard("round-1")
    await played.apply("round-1")
    engine = played.pod.group.engines[0]
    assert engine.status is EngineStatus.HEALTHY
    assert engine.error is not None
