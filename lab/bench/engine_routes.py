"""One fake engine's HTTP API, as vLLM's `v1` dialect serves it (contracts §1): asked by a real NodeManager."""

import json
from typing import Final

from pydantic import Field

from domain.engine import ACCEPTED_HTTP, EngineStatus, Instruction
from domain.model import Rank, RequestId, Tolerant
from lab.bench.group import Engine, Group
from lab.bench.wire import Answer

_GONE: Final = Answer({"error": {"message": "the engine does not run"}}, 503)


class ScaleDownParams(Tolerant):
    removed_dp_ranks: tuple[Rank, ...] = Field(min_length=1)


class Command(Tolerant):
    """An apply's body; the engine is told where the store is, and this one needs none."""

    instruction: Instruction
    params: ScaleDownParams
    request_id: RequestId


class EngineRoutes:
    """The handler of one rank's port."""

    def __init__(self, group: Group, rank: int, model_name: str) -> None:
        self._group = group
        self._rank = rank
        self._model_name = model_name

    def __call__(self, method: str, path: str, body: bytes) -> Answer:
        engine = self._group.engines[self._rank]
        if not engine.runs:
            return _GONE
        match method, path:
            case "GET", "/v1/fault_tolerance/status":
                self._group.seen(self._rank)
                return Answer({"schema_version": 1, "total_engines": 1, "engines": [engine.entry()]})
            case "POST", "/v1/fault_tolerance/apply":
                return self._apply(body)
            case "GET", "/health":
                return Answer({})
            case "GET", "/v1/models":
                return Answer({"object": "list", "data": [{"id": self._model_name, "object": "model"}]})
            case "POST", "/v1/completions":
                return self._completion(engine)
        return Answer({"error": {"message": f"no route {method} {path}"}}, 404)

    def _apply(self, body: bytes) -> Answer:
        command = Command.model_validate(json.loads(body))
        self._group.scale_down(self._rank, frozenset(command.params.removed_dp_ranks), command.request_id)
        return Answer({"message": "queued", "request_id": command.request_id}, ACCEPTED_HTTP)

    def _completion(self, engine: Engine) -> Answer:
        if engine.status is not EngineStatus.HEALTHY:
            return Answer({"error": {"message": f"rank {self._rank} is {engine.status}"}}, 503)
        return Answer({"object": "text_completion", "choices": [{"index": 0, "text": " 1", "finish_reason": "length"}]})
