"""What a client of the OpenAI API asks for, read and checked once; and the text that it gets.

The text is made up: token 0 is ``rank 2 epoch 1``, the others `` token1``, `` token2``… so that a reader sees which
rank answered, and with which group.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lab.simulator.http_errors import ApiError

NATURAL_LENGTH = 32
"""Tokens of an answer when the client sets no limit; it then ends with `stop`."""

_COMPLETION_LIMIT = 16  # the OpenAI API's default for max_tokens of /v1/completions


@dataclass(frozen=True)
class Asked:
    """One request. `tokens` to make; the end is `stop` when the answer is complete, `length` when it was cut."""

    chat: bool
    model: str
    prompt_tokens: int
    tokens: int
    natural_end: bool
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool


def read_request(body: bytes, chat: bool, model: str) -> Asked:
    """Parse the body of a completion or chat completion.

    Raises:
        ApiError: 400 for a malformed request, 404 for a model that is not served here.
    """
    try:
        said = json.loads(body)
    except ValueError:
        raise ApiError(400, "Invalid JSON format", "BadRequestError") from None
    if not isinstance(said, dict):
        raise _bad("the body must be a JSON object", None)
    if (asked_model := said.get("model", model)) != model:
        raise ApiError(404, f"The model `{asked_model}` does not exist.", "NotFoundError", "model")
    if said.get("n", 1) != 1 or isinstance(said.get("n", 1), bool):
        raise _bad(f"n must be 1 here, got {said['n']!r}", "n")
    limit = _limit(said, chat)
    stream = _flag(said, "stream")
    return Asked(
        chat=chat,
        model=model,
        prompt_tokens=_messages(said.get("messages")) if chat else _prompt(said.get("prompt")),
        tokens=NATURAL_LENGTH if limit is None else limit,
        natural_end=limit is None,
        stop=_stop(said.get("stop")),
        stream=stream,
        include_usage=_include_usage(said.get("stream_options"), stream),
    )


def token_text(rank: int, epoch: int, index: int) -> str:
    """The text of an answer's token number `index`, from 0."""
    return f"rank {rank} epoch {epoch}" if index == 0 else f" token{index}"


def _limit(said: dict[str, Any], chat: bool) -> int | None:
    name = "max_completion_tokens" if chat and said.get("max_completion_tokens") is not None else "max_tokens"
    limit = said.get(name)
    if limit is None:
        return None if chat else _COMPLETION_LIMIT
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise _bad(f"{name} must be a whole number of at least 1, got {limit!r}", name)
    return limit


def _flag(said: dict[str, Any], name: str) -> bool:
    value = said.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(f"{name} must be true or false, got {value!r}", name)
    return bool(value)


def _prompt(prompt: Any) -> int:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    raise _bad("prompt must be a string or a list of token ids (one prompt a request here)", "prompt")


def _messages(messages: Any) -> int:
    if not isinstance(messages, list) or not messages:
        raise _bad("messages must be a non-empty list", "messages")
    words = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad("each message must be an object with a role", "messages")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise _bad("a message's content must be a string or a list of parts", "messages")
        words += len(str(content or "").split())
    return words


def _stop(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise _bad("stop must be a non-empty string or a list of such", "stop")
    return tuple(stops)


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise _bad("stream_options must be an object, and only with stream", "stream_options")
    return _flag(options, "include_usage")


def _bad(message: str, param: str | None) -> ApiError:
    return ApiError(400, message, "BadRequestError", param)
