"""The fault-tolerance API, in the dialect that the engine was started with.

Status shows the cache. Apply checks the form of a request and queues it; what the instruction asks for is judged later
by the engine, and the answer is found in the status. Every apply that arrives is logged, refused ones included.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.simulator.engine import Command, Engine, Entry
from lab.simulator.http_errors import ApiError, error_response
from lab.simulator.options import Dialect

_PREFIX: dict[Dialect, str] = {"v1": "/v1/fault_tolerance", "legacy": "/fault_tolerance"}
_INSTRUCTIONS: dict[Dialect, frozenset[str]] = {
    "v1": frozenset({"retry", "scale_down"}),
    "legacy": frozenset({"retry"}),
}


def ft_routes(engine: Engine) -> list[Route]:
    """Status and apply; none when fault tolerance is off."""
    if not engine.options.fault_tolerance:
        return []
    prefix = _PREFIX[engine.options.dialect]

    async def status(_request: Request) -> Response:
        return _status(engine)

    async def apply(request: Request) -> Response:
        return await _apply(engine, await request.body(), request.headers.get("content-type", ""))

    return [
        Route(f"{prefix}/status", status, methods=["GET"]),
        Route(f"{prefix}/apply", apply, methods=["POST"]),
    ]


def is_apply(path: str) -> bool:
    """Whether this path is an apply in some dialect."""
    return path in {f"{prefix}/apply" for prefix in _PREFIX.values()}


def _status(engine: Engine) -> Response:
    knobs = engine.misbehaviour
    if (code := knobs.status_http) is not None:
        return error_response(code, "simulated failure of the status path")
    if "garbage-json" in knobs:
        return Response(b'{"schema_version": 1, "engines": [{"id":', media_type="application/json")
    entry = _entry(engine.options.rank, engine.entry)
    if word := knobs.value("status"):
        entry["status"] = word
    if "wrong-id" in knobs:
        entry["id"] = (engine.options.rank + 1) % max(engine.options.size, 2)
    if "missing-id" in knobs:
        del entry["id"]
    entries = [entry] * (0 if "no-entry" in knobs else 2 if "duplicate-id" in knobs else 1)
    engine.identify([told.get("id") for told in entries])
    schema = 2 if "schema-2" in knobs else 1
    return JSONResponse({"schema_version": schema, "total_engines": len(entries), "engines": entries})


def _entry(rank: int, entry: Entry) -> dict[str, Any]:
    """What is not known is absent, not null."""
    optional = {
        "fault_info": entry.fault_info,
        "mask": entry.mask,
        "ft_state": entry.ft_state,
        "last_ft_request_id": entry.last_ft_request_id,
        "ft_error": entry.ft_error,
    }
    return {"id": rank, "status": entry.status} | {key: value for key, value in optional.items() if value is not None}


async def _apply(engine: Engine, body: bytes, content_type: str) -> Response:
    try:
        command = _read_command(engine.options.dialect, body, content_type)
    except ApiError as error:
        log_apply(engine, body, error.http)
        raise
    refusal = engine.misbehaviour.apply_http
    http = refusal or 202
    log_apply(engine, body, http, command.request_id)
    if refusal == 200:
        return JSONResponse({"message": "Instruction executed successfully."})
    if refusal is not None:
        return error_response(refusal, "simulated refusal of apply")
    engine.submit(command)
    await asyncio.sleep(engine.misbehaviour.seconds("slow-apply"))
    path = _PREFIX[engine.options.dialect]
    message = f"Request accepted; poll {path}/status for updates."
    return JSONResponse({"message": message, "request_id": command.request_id}, http)


def log_apply(engine: Engine, body: bytes, http: int, request_id: str | None = None) -> None:
    """One line per apply that arrived: what it said, as far as it can be read, and how it was answered.

    `request_id` is the one that holds (the server's own in legacy); the body's one is logged when none holds.
    """
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    fields = said if isinstance(said, dict) else {}
    engine.log.write(
        "apply",
        instruction=fields.get("instruction"),
        params=fields.get("params"),
        request_id=request_id or fields.get("request_id"),
        http=http,
    )


def _read_command(dialect: Dialect, body: bytes, content_type: str) -> Command:
    """Parse an apply, with the words that vLLM has for each refusal; `params` are looked at only as far as being an object."""
    if content_type.lower().partition(";")[0].strip() != "application/json":
        raise ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed")
    try:
        said = json.loads(body)
    except ValueError:
        raise ApiError(400, "Invalid JSON format") from None
    if not isinstance(said, dict):
        raise ApiError(400, "Request body must be a JSON object.")
    instruction = said.get("instruction")
    if instruction is None:
        raise ApiError(400, "'instruction' is required.")
    if isinstance(instruction, list | dict):  # looked up in a set there
        raise ApiError(400, f"unhashable type: '{type(instruction).__name__}'")
    if instruction not in _INSTRUCTIONS[dialect]:
        raise ApiError(400, f"Invalid instruction: '{instruction}'.")
    params = said.get("params", {})
    if not isinstance(params, dict):
        raise ApiError(400, "'params' must be an object.")
    return Command(instruction, params, _request_id(dialect, said))


def _request_id(dialect: Dialect, said: dict[str, Any]) -> str:
    """v1 wants the client's and echoes it; legacy does not read it and makes its own."""
    if dialect == "legacy":
        return str(uuid.uuid4())
    request_id = said.get("request_id")
    if not isinstance(request_id, str) or not request_id:
        raise ApiError(400, "'request_id' must be a non-empty string.")
    return request_id
