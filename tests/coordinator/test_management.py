"""The Controller's side over HTTP: answers, refusals, the view, the evidence."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from domain.messages.coordinator import ConflictReason, CoordinatorView, RefreshConflictReply, RefreshReply, StaleInstance
from tests.coordinator.factories import body, entry
from tests.coordinator.harness import LIFE, RunningCoordinator, coordinator


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    async with coordinator(tmp_path / "views.jsonl") as running:
        yield running


async def test_a_refresh_says_what_became_of_each_entry(running: RunningCoordinator) -> None:
    await running.push("set", entry(7, [0], 1), entry(8, [0], 5))
    answer = await running.push("set", entry(7, [0], 1), entry(8, [0], 3), entry(9, [0], 1))
    assert answer == {
        "status": "success",
        "data": {"applied": [9], "unchanged": [7], "stale": [{"id": 8, "revision": 3, "known": 5}]},
    }
    assert RefreshReply.model_validate(answer).data.stale == (StaleInstance(id=8, revision=3, known=5),)


@pytest.mark.parametrize(
    ("instances", "incarnation", "reason"),
    [
        ([entry(7, [0, 1], 1)], LIFE, ConflictReason.IDENTITY_CONFLICT),
        ([entry(7, [0], 2), entry(7, [0], 2)], LIFE, ConflictReason.DUPLICATE_ID),
        ([entry(7, [0], 2)], "another-life", ConflictReason.INCARNATION),
    ],
)
async def test_a_conflict_is_409_with_its_reason_and_nothing_is_done(
    running: RunningCoordinator, instances: list[dict[str, Any]], incarnation: str, reason: ConflictReason
) -> None:
    await running.push("set", entry(7, [0], 1))
    answer = await running.push("add", entry(9, [0], 1), *instances, incarnation=incarnation, status=409)
    conflict = RefreshConflictReply.model_validate(answer)
    assert conflict.reason == conflict.data.reason == reason
    assert conflict.data.incarnation == LIFE
    assert [instance.id for instance in running.state.published().instances] == [7]


@pytest.mark.parametrize(
    "content",
    [
        "{nope",
        "[]",
        json.dumps(body("replace")),
        json.dumps(body("add", entry(7, [0]) | {"revision": True})),
        json.dumps({"event": "add"}),
    ],
)
async def test_a_malformed_refresh_is_400_and_says_why(running: RunningCoordinator, content: str) -> None:
    reply = await running.management.post("/instances/refresh", content=content)
    assert reply.status_code == 400
    assert reply.json()["data"]["reason"] in {"MALFORMED_JSON", "INVALID"}
    assert not running.state.view.instances


async def test_the_view_is_told_as_it_is_held(running: RunningCoordinator) -> None:
    before = CoordinatorView.model_validate((await running.management.get("/instances")).json())
    assert (before.incarnation, before.has_view, before.instances) == (LIFE, False, ())
    await running.push("set", entry(7, [0, 2], 4), entry(8, [0], 1))
    await running.push("del", entry(8, [], 2))
    view = CoordinatorView.model_validate((await running.management.get("/instances")).json())
    assert view.has_view
    assert [(i.id, i.revision, i.ranks) for i in view.instances] == [(7, 4, (0, 2)), (8, 2, ())]
    shown = view.instance(7)
    assert shown is not None
    assert shown.endpoints["10.0.0.1"]["2"].business_port == 10_002


async def test_readiness_follows_the_view_and_liveness_does_not(running: RunningCoordinator) -> None:
    reply = await running.management.get("/readiness")
    assert (reply.status_code, reply.json()["data"]["reason"]) == (503, "NO_VIEW")
    assert (await running.management.get("/liveness")).status_code == 200
    await running.push("set")
    assert (await running.management.get("/readiness")).status_code == 200


async def test_metrics_tell_of_view_and_refreshes(running: RunningCoordinator) -> None:
    await running.push("set", entry(7, [0], 1))
    text = (await running.management.get("/metrics")).text
    assert "autotomy_coordinator_has_view 1.0" in text
    assert 'autotomy_coordinator_refresh_entries_total{outcome="applied"} 1.0' in text
    assert 'autotomy_coordinator_requests_in_flight{instance_id="7",rank="0"} 0.0' in text


async def test_the_view_log_holds_what_changed_and_what_was_refused(running: RunningCoordinator, tmp_path: Path) -> None:
    await running.push("set", entry(7, [0, 1], 1))
    await running.push("set", entry(7, [0, 1], 1))
    await running.push("del", entry(7, [], 2))
    await running.push("add", entry(7, [0], 3))
    await running.push("add", entry(7, [0, 1], 2))
    await running.push("add", entry(7, [0, 1], 3), status=409)
    lines = [json.loads(line) for line in (tmp_path / "views.jsonl").read_text().splitlines()]
    assert [(line["event"], line["revision"], line["ranks"], line["outcome"]) for line in lines] == [
        ("start", None, [], "started"),
        ("set", 1, [0, 1], "applied"),
        ("del", 2, [], "applied"),
        ("add", 3, [0], "applied"),
        ("add", 2, [0], "stale"),
        ("add", 3, None, "conflict:IDENTITY_CONFLICT"),
    ]
    assert [line["mono"] for line in lines] == sorted(line["mono"] for line in lines)
    assert {line["incarnation"] for line in lines} == {LIFE}


async def test_pushes_from_several_senders_at_once_converge(running: RunningCoordinator) -> None:
    await running.push("set")
    pushes = [running.push("add", entry(7, [0, revision], revision)) for revision in range(1, 30)]
    pushes += [running.push("set", entry(7, [0, revision], revision)) for revision in range(1, 30)]
    await asyncio.gather(*pushes[::-1])
    published = running.state.published().instance(7)
    assert published is not None
    assert (published.revision, published.ranks) == (29, (0, 29))
