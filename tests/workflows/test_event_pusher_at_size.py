"""EventPusher over a loop that only notes what it is told: lives fit views, nobody is forgotten in error, size is no harm."""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from domain.messages.event_pusher import (
    ANNOUNCE_UPDATE,
    CoordinatorRecord,
    EventPusherState,
    PushLoopCall,
    PushLoopResult,
    ViewRecord,
)
from domain.serving import known_view
from domain.topology import Endpoint, NodeManagerPlace, ParallelConfig, Topology
from tests.eventually import eventually
from tests.leaving_worker import LeavingWorker
from tests.workflows.strategy_world import views_record
from workers.workflow_runner import workflow_runner
from workflows.event_pusher import EventPusher

pytestmark = pytest.mark.verify

Pusher = WorkflowHandle[EventPusher, None]

WARNED_OF_FROM_BYTES = 512 * 1024
"""Temporal's warning; it refuses four times as much."""


def topology(instance_id: int, ranks: int, per_pod: int = 8) -> Topology:
    ips = [f"10.{instance_id}.{rank // per_pod}.1" for rank in range(ranks)]
    return Topology(
        instance_id=instance_id,
        job_name=f"job-{instance_id}",
        model_name="model",
        parallel_config=ParallelConfig(dp_size=ranks),
        dp_master_port=29500,
        node_managers=tuple(NodeManagerPlace(pod_ip=ip, port=1026, node_name=f"node-{ip}") for ip in dict.fromkeys(ips)),
        endpoints=tuple(Endpoint(id=rank, pod_ip=ip, ip=ip, business_port=10000 + rank) for rank, ip in enumerate(ips)),
    )


@asynccontextmanager
async def a_pusher(
    client: Client, start: EventPusherState, calls: list[PushLoopCall], forgetting: asyncio.Event | None = None
) -> AsyncIterator[Pusher]:
    """`forgetting`: when it is set, the loop ends once, with everybody to be forgotten."""

    @activity.defn(name="push_set_loop")
    async def push_set_loop(call: PushLoopCall) -> PushLoopResult:
        calls.append(call)
        while forgetting is None or not forgetting.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.1)
        forgetting.clear()
        return PushLoopResult(forgotten=tuple(known.url for known in call.coordinators))

    queue = f"pusher-{uuid.uuid4().hex[:8]}"
    async with LeavingWorker(
        client, task_queue=queue, workflows=[EventPusher], activities=[push_set_loop], workflow_runner=workflow_runner()
    ):
        handle = await client.start_workflow(EventPusher.run, start, id=queue, task_queue=queue)
        try:
            yield handle
        finally:
            await handle.terminate()


def coordinator(life: int) -> CoordinatorRecord:
    return CoordinatorRecord(url="http://127.0.0.1:9", incarnation=f"life-{life}", has_view=False, last_answer_at=time.time())


async def test_a_life_is_never_paired_with_a_view_older_than_what_was_known_when_it_was_learnt(temporal_client: Client) -> None:
    """Else a Coordinator that restarted, and so refused a DEL, would get the view before that DEL by a SET in flight."""
    calls: list[PushLoopCall] = []
    dice, where = random.Random(7), topology(1, 4)
    learnt_at: dict[str, int] = {}
    async with a_pusher(temporal_client, EventPusherState(), calls) as handle:
        revision, life = 0, 0
        for _ in range(60):
            if dice.random() < 0.5:
                life += 1
                learnt_at[f"life-{life}"] = revision
                await handle.execute_update(ANNOUNCE_UPDATE, coordinator(life))
            else:
                revision += 1
                ranks = () if revision % 2 else where.ranks
                await handle.execute_update(EventPusher.record_views, views_record(where, revision, ranks))
        await eventually(lambda: bool(calls) and _newest(calls[-1]) == (f"life-{life}", revision), "the last pair is pushed", 15)
    pairs = [_newest(call) for call in calls]
    assert len(pairs) > 10
    assert all(known >= learnt_at[incarnation] for incarnation, known in pairs)


def _newest(call: PushLoopCall) -> tuple[str, int]:
    return call.coordinators[0].incarnation, max((view.revision for view in call.views), default=0)


async def test_who_announced_itself_lately_is_not_forgotten_though_the_loop_did_not_hear_it(temporal_client: Client) -> None:
    calls: list[PushLoopCall] = []
    forgetting = asyncio.Event()
    silent = coordinator(1).model_copy(update={"last_answer_at": time.time() - 120.0})
    async with a_pusher(temporal_client, EventPusherState(), calls, forgetting) as handle:
        for record, kept in ((silent, []), (coordinator(1), [coordinator(1).url])):
            await handle.execute_update(ANNOUNCE_UPDATE, record)
            await eventually(lambda: bool(calls), "a loop")
            calls.clear()
            forgetting.set()
            await eventually(lambda: not forgetting.is_set(), "it ends")

            async def learnt(urls: list[str] = kept) -> bool:
                return list((await handle.query(EventPusher.state)).coordinators) == urls

            await eventually(learnt, f"known is {kept}")
            if kept:
                await eventually(lambda: bool(calls), "and pushed to")


async def test_a_hundred_instances_of_320_ranks_fit(temporal_client: Client) -> None:
    """4.7 MB as topologies in JSON, 2.9 MB as entries of a SET: Temporal refuses both. As EventPusher keeps them, a tenth."""
    views = {}
    for instance_id in range(100):
        where = topology(instance_id, 320)
        views[instance_id] = known_view(ViewRecord(topology=where, revision=1, ranks=where.ranks))
    assert len(EventPusherState(views=views).model_dump_json()) < WARNED_OF_FROM_BYTES
    calls: list[PushLoopCall] = []
    async with a_pusher(temporal_client, EventPusherState(views=views), calls) as handle:
        await handle.execute_update(ANNOUNCE_UPDATE, coordinator(1))
        await eventually(lambda: bool(calls), "a loop with all of it", 30)
        assert len(calls[0].views) == 100
        assert len((await handle.query(EventPusher.state)).views) == 100
        history = await handle.fetch_history()
        assert sum(event.ByteSize() for event in history.events) < 2_000_000
