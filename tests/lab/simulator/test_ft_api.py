"""The forms of the FT API: paths, bodies, status codes, in both dialects."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.lab.simulator.ranks import Rank, instance


@pytest_asyncio.fixture(scope="module")
async def v1(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rank]:
    async with instance(tmp_path_factory.mktemp("v1"), size=1) as ranks:
        yield ranks[0]


@pytest_asyncio.fixture(scope="module")
async def legacy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rank]:
    async with instance(tmp_path_factory.mktemp("legacy"), size=1, dialect="legacy") as ranks:
        yield ranks[0]


async def test_status_starts_healthy_and_bare(v1: Rank, legacy: Rank) -> None:
    for rank in (v1, legacy):
        answer = await rank.http.get(rank.path("status"))
        assert answer.json() == {
            "schema_version": 1,
            "total_engines": 1,
            "engines": [{"id": 0, "status": "healthy"}],
        }


async def test_each_dialect_has_only_its_own_paths(v1: Rank, legacy: Rank) -> None:
    not_found = {"detail": "Not Found"}
    for rank, other in ((v1, legacy), (legacy, v1)):
        for answer in (await rank.http.get(other.path("status")), await rank.http.post(other.path("apply"), json={})):
            assert (answer.status_code, answer.json()) == (404, not_found)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Invalid JSON format"),
        (b"[]", "Request body must be a JSON object."),
        (b'{"instruction": "pause", "params": {}, "request_id": "x"}', "Invalid instruction: 'pause'."),
        (b'{"params": {}, "request_id": "x"}', "'instruction' is required."),
        (b'{"instruction": 5, "params": {}, "request_id": "x"}', "Invalid instruction: '5'."),
        (b'{"instruction": ["retry"], "params": {}, "request_id": "x"}', "unhashable type: 'list'"),
        (b'{"instruction": "retry", "params": [], "request_id": "x"}', "'params' must be an object."),
        (b'{"instruction": "retry", "params": {}}', "'request_id' must be a non-empty string."),
        (b'{"instruction": "retry", "params": {}, "request_id": ""}', "'request_id' must be a non-empty string."),
        (b'{"instruction": "retry", "params": {}, "request_id": 7}', "'request_id' must be a non-empty string."),
    ],
)
async def test_malformed_apply_is_refused_with_400_and_logged(v1: Rank, body: bytes, message: str) -> None:
    before = len(v1.log("apply"))
    answer = await v1.http.post(v1.path("apply"), content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json() == {"error": {"message": message, "type": "Bad Request", "param": None, "code": 400}}
    assert [line["http"] for line in v1.log("apply")[before:]] == [400]


async def test_an_apply_of_another_media_type_is_refused(v1: Rank) -> None:
    for headers in ({}, {"content-type": "text/plain"}):
        answer = await v1.http.post(v1.path("apply"), content=b'{"instruction": "retry", "params": {}}', headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "Unsupported Media Type: Only 'application/json' is allowed"


async def test_wrong_methods_and_paths_are_answered_in_fastapis_shape(v1: Rank) -> None:
    for answer in (await v1.http.head("/health"), await v1.http.post("/health"), await v1.http.get(v1.path("apply"))):
        assert answer.status_code == 405
    assert (await v1.http.post("/health")).json() == {"detail": "Method Not Allowed"}
    assert (await v1.http.get("/nowhere")).json() == {"detail": "Not Found"}


async def test_metrics_are_of_version_1_0_0_and_have_help(v1: Rank) -> None:
    answer = await v1.http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert answer.text.startswith("# HELP vllm:num_requests_running ")


async def test_apply_is_queued_with_202_whatever_the_params_say(v1: Rank) -> None:
    answer = await v1.apply("scale_down", "sd-1", removed_dp_ranks="nonsense")
    assert answer.status_code == 202
    assert answer.json() == {
        "message": "Request accepted; poll /v1/fault_tolerance/status for updates.",
        "request_id": "sd-1",
    }


async def test_legacy_knows_retry_only_and_does_not_read_the_request_id(legacy: Rank) -> None:
    answer = await legacy.apply("scale_down", removed_dp_ranks=[1])
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Invalid instruction: 'scale_down'."
    answer = await legacy.http.post(legacy.path("apply"), json={"instruction": "retry", "params": {}})
    assert answer.status_code == 202
    assert str(uuid.UUID(answer.json()["request_id"])) == answer.json()["request_id"]


async def test_fault_tolerance_off_answers_404_on_both_paths(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1, no_enable_fault_tolerance=True) as (rank,):
        for prefix in ("/v1", ""):
            assert (await rank.http.get(f"{prefix}/fault_tolerance/status")).status_code == 404
            assert (await rank.http.post(f"{prefix}/fault_tolerance/apply", json={})).status_code == 404
        assert await rank.text() == "rank 0 epoch 0"


async def test_api_key_is_wanted_on_everything_under_v1(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1, api_key="secret") as (rank,):
        for path in ("/v1/fault_tolerance/status", "/v1/models"):
            answer = await rank.http.get(path)
            assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
        assert (await rank.apply("retry", "x")).status_code == 401
        assert [line["http"] for line in rank.log("apply")] == [401]
        assert (await rank.complete()).status_code == 401
        assert (await rank.http.get("/health")).status_code == 200
        rank.http.headers["Authorization"] = "Bearer secret"
        assert (await rank.entry())["status"] == "healthy"
        assert await rank.text() == "rank 0 epoch 0"
        assert b"secret" not in rank.worker_command


async def test_api_key_is_not_wanted_on_the_legacy_paths(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1, dialect="legacy", api_key="secret") as (rank,):
        assert (await rank.entry())["status"] == "healthy"
        assert (await rank.complete()).status_code == 401


@pytest.mark.parametrize(
    ("knobs", "http", "entries"),
    [
        ("status=dead", 200, [{"id": 0, "status": "dead"}]),
        ("status=ready", 200, [{"id": 0, "status": "ready"}]),
        ("wrong-id", 200, [{"id": 1, "status": "healthy"}]),
        ("missing-id", 200, [{"status": "healthy"}]),
        ("duplicate-id", 200, [{"id": 0, "status": "healthy"}] * 2),
        ("no-entry", 200, []),
        ("status-404", 404, None),
        ("status-500", 500, None),
    ],
)
async def test_knobs_break_the_status(legacy: Rank, knobs: str, http: int, entries: list[Any] | None) -> None:
    await legacy.misbehave(knobs)
    try:
        answer = await legacy.http.get(legacy.path("status"))
        assert answer.status_code == http
        if entries is not None:
            shown = [{key: entry[key] for key in ("id", "status") if key in entry} for entry in answer.json()["engines"]]
            assert shown == entries
            assert legacy.log("identity")[-1]["ids"] == [entry.get("id") for entry in entries]
    finally:
        await legacy.misbehave("")
    assert (await legacy.entry())["status"] == "healthy"
    assert legacy.log("identity")[-1]["ids"] == [0]


async def test_knobs_are_set_while_running_and_refused_when_unknown(tmp_path: Path) -> None:
    async with instance(tmp_path, size=1) as (rank,):
        assert (await rank.misbehave("garbage-json,wrong-mask")).json() == {"misbehave": {"garbage-json": "", "wrong-mask": ""}}
        with pytest.raises(ValueError, match="Expecting"):
            (await rank.http.get(rank.path("status"))).json()
        refused = await rank.misbehave("nonsense")
        assert refused.status_code == 400
        assert "no misbehaviour is called 'nonsense'" in refused.json()["error"]["message"]
        assert (await rank.http.post("/simulator/misbehave", json=["x"])).status_code == 400
        await rank.misbehave("schema-2")
        assert (await rank.http.get(rank.path("status"))).json()["schema_version"] == 2


@pytest.mark.parametrize("http", [200, 400, 409, 500])
async def test_apply_knobs_refuse_and_do_nothing(v1: Rank, http: int) -> None:
    await v1.misbehave(f"apply-{http}")
    before = len(v1.log("refused"))
    try:
        assert (await v1.apply("retry", "odd")).status_code == http
        assert v1.log("apply")[-1]["http"] == http
    finally:
        await v1.misbehave("")
    await v1.apply("retry", "even")
    await eventually(lambda: len(v1.log("refused")) > before)
    assert [line["request_id"] for line in v1.log("refused")[before:]] == ["even"]


async def test_slow_apply_takes_the_command_before_it_answers(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2, misbehave="slow-apply=20") as ranks:
        (survivor,) = await ranks.lose(1)
        body = {"instruction": "scale_down", "params": {"removed_dp_ranks": [1]}, "request_id": "x"}
        with pytest.raises(httpx.ReadTimeout):
            await survivor.http.post(survivor.path("apply"), json=body, timeout=0.3)
        await survivor.becomes("healthy")
        assert await survivor.text() == "rank 0 epoch 1"


async def test_recovery_can_be_made_to_fail_with_given_words(tmp_path: Path) -> None:
    async with instance(tmp_path, size=2, misbehave="recovery-fails=no luck,zero-mask") as ranks:
        (survivor,) = await ranks.lose(1)
        assert (await survivor.entry())["mask"] == [0, 0]
        await survivor.apply("scale_down", removed_dp_ranks=[1])
        assert (await survivor.becomes("unhealthy", "failed"))["ft_error"] == "no luck"


async def test_mask_covers_ep_ranks_and_can_blame_the_wrong_peer(tmp_path: Path) -> None:
    async with instance(tmp_path, size=3, tensor_parallel_size=2) as ranks:
        await ranks[2].misbehave("wrong-mask")
        survivors = await ranks.lose(1)
        assert (await survivors[0].entry())["mask"] == [0, 0, 1, 1, 0, 0]
        assert (await survivors[1].entry())["mask"] == [1, 1, 0, 0, 0, 0]
