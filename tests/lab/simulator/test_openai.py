"""The OpenAI side: shapes, limits, streams, bad requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.lab.simulator.ranks import Rank, instance


@pytest_asyncio.fixture(scope="module")
async def rank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rank]:
    async with instance(tmp_path_factory.mktemp("openai"), size=1, model="small", step_ms=2) as ranks:
        yield ranks[0]


CHAT = {"messages": [{"role": "user", "content": "how are you"}]}


async def post(rank: Rank, path: str, **body: Any) -> dict[str, Any]:
    answer = await rank.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def events(rank: Rank, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = await rank.http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_models_lists_the_served_model(rank: Rank) -> None:
    body = (await rank.http.get("/v1/models")).json()
    assert (body["object"], [card["id"] for card in body["data"]]) == ("list", ["small"])


async def test_completion_honours_max_tokens_and_counts(rank: Rank) -> None:
    said = await post(rank, "/v1/completions", model="small", prompt="a b c", max_tokens=3)
    assert said["object"] == "text_completion"
    assert said["model"] == "small"
    assert said["id"].startswith("cmpl-")
    choice = {"index": 0, "text": "rank 0 epoch 0 token1 token2", "logprobs": None, "finish_reason": "length"}
    assert said["choices"] == [choice]
    assert said["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


async def test_completion_without_a_limit_gets_sixteen_tokens(rank: Rank) -> None:
    said = await post(rank, "/v1/completions", prompt=[1, 2, 3, 4])
    assert said["usage"] == {"prompt_tokens": 4, "completion_tokens": 16, "total_tokens": 20}
    assert said["choices"][0]["finish_reason"] == "length"


async def test_chat_without_a_limit_ends_by_itself(rank: Rank) -> None:
    said = await post(rank, "/v1/chat/completions", **CHAT)
    assert said["object"] == "chat.completion"
    (choice,) = said["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].startswith("rank 0 epoch 0 token1")
    assert said["usage"]["prompt_tokens"] == 3


async def test_chat_honours_either_name_of_the_limit(rank: Rank) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        said = await post(rank, "/v1/chat/completions", **CHAT, **{name: 2})
        assert said["usage"]["completion_tokens"] == 2
        assert said["choices"][0]["finish_reason"] == "length"


async def test_stop_string_cuts_the_answer(rank: Rank) -> None:
    said = await post(rank, "/v1/completions", prompt="x", max_tokens=9, stop=[" token2", " token3"])
    assert said["choices"][0] == {
        "index": 0,
        "text": "rank 0 epoch 0 token1",
        "logprobs": None,
        "finish_reason": "stop",
    }


async def test_streamed_completion_says_the_same_in_pieces(rank: Rank) -> None:
    chunks = await events(rank, "/v1/completions", prompt="x", max_tokens=4)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "rank 0 epoch 0 token1 token2 token3"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_streamed_chat_opens_with_the_role_and_closes_with_usage(rank: Rank) -> None:
    chunks = await events(rank, "/v1/chat/completions", **CHAT, max_tokens=2, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])
    assert text == "rank 0 epoch 0 token1"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {}, "prompt"),
        ("completions", {"prompt": 3}, "prompt"),
        ("completions", {"prompt": ["a", "b"]}, "prompt"),
        ("completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": "x", "max_tokens": True}, "max_tokens"),
        ("completions", {"prompt": "x", "max_tokens": "9"}, "max_tokens"),
        ("completions", {"prompt": "x", "stream": "yes"}, "stream"),
        ("completions", {"prompt": "x", "n": 2}, "n"),
        ("completions", {"prompt": "x", "stop": [1]}, "stop"),
        ("completions", {"prompt": "x", "stream_options": {}}, "stream_options"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": ["hi"]}, "messages"),
        ("chat/completions", {"messages": [{"content": "hi"}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages"),
    ],
)
async def test_malformed_request_gets_400_in_openai_shape(rank: Rank, path: str, body: Any, param: str) -> None:
    answer = await rank.http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", param, 400)


async def test_bodies_that_are_no_request_get_400_and_unknown_models_404(rank: Rank) -> None:
    for content in (b"{", b"[]", b"\xff"):
        assert (await rank.http.post("/v1/completions", content=content)).status_code == 400
    answer = await rank.http.post("/v1/completions", json={"model": "large", "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "The model `large` does not exist."
    assert (await rank.http.get("/v1/completions")).status_code == 405
