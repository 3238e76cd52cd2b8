"""One engine's HTTP API, as its NodeManager uses it (contracts §1).

Two dialects of the fault-tolerance (FT) API are in the field; which one an engine speaks is found out by asking, once
per engine incarnation: a new process gets a new `EngineClient`. What can go wrong is told apart by what may be done next:

| raised | means |
|---|---|
| `Transient` | nobody answered in time; for `apply`: not one byte of it was sent |
| `ProtocolError` | it answered, but nonsense: 404, 5xx, bad JSON, another rank's id. Never a sign of death |
| `OutcomeUnknown` | only `apply`: it was sent, and the answer was lost. Never send it again |

Connections are not kept (`service/one_exchange.py` says why): the first engine that does not answer already is evidence of
a death.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from domain.engine import ACCEPTED_HTTP, Dialect, EngineEntry, Instruction, parse_status
from domain.errors import OutcomeUnknown, ProtocolError, Transient
from service.json_reader import read_peer_json
from service.one_exchange import within

_PREFIX: Final = {Dialect.V1: "/v1/fault_tolerance", Dialect.LEGACY: "/fault_tolerance"}
_MAX_SHOWN: Final = 300


@dataclass(frozen=True)
class EngineCommand:
    """One FT instruction, with the params as the engine reads them (`dp_store_port` in, `dp_master_rank` out)."""

    instruction: Instruction
    params: Mapping[str, Any]
    request_id: str


@dataclass(frozen=True)
class ApplyAnswer:
    """What the engine answered to apply. Accepted means queued: the outcome shows in its status later."""

    http: int
    message: str

    @property
    def accepted(self) -> bool:
        return self.http == ACCEPTED_HTTP


@dataclass(frozen=True)
class Completion:
    """The answer to one probe: `ok` is HTTP 200 and a finish reason that is not `abort`."""

    ok: bool
    http: int | None = None
    finish_reason: str | None = None
    detail: str | None = None


class FtApiAbsent(ProtocolError):
    """The engine answers 404 in both dialects: its fault tolerance is off."""

    default_reason = "FT_API_ABSENT"


class EngineClient:
    """One engine incarnation. All times are bounds of the whole request, in seconds."""

    def __init__(self, rank: int, base_url: str, http: httpx.AsyncClient, *, api_key: str | None = None) -> None:
        self.rank = rank
        self.base_url = base_url
        self.dialect: Dialect | None = None
        self._http = http
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._absent = False
        self._model: str | None = None

    async def healthy(self, timeout_sec: float) -> bool:
        """Whether `/health` answers 200 in time. Says that the API server runs, not that the rank works."""
        try:
            return await self.health(timeout_sec) == 200
        except Transient:
            return False

    async def health(self, timeout_sec: float) -> int:
        """The HTTP status of `/health`. Raises `Transient` where nobody answers in time, `ProtocolError` for no HTTP."""
        return (await self._request("GET", "/health", timeout_sec)).status_code

    async def status(self, timeout_sec: float) -> EngineEntry:
        """The rank's entry. The first call also finds out the dialect.

        Raises `Transient`, `ProtocolError`; `FtApiAbsent` where there is no FT API in this incarnation.
        """
        if self._absent:
            raise FtApiAbsent(f"engine {self.rank} at {self.base_url} has no FT API: start it with fault tolerance enabled")
        if self.dialect is not None:
            response = await self._request("GET", f"{_PREFIX[self.dialect]}/status", timeout_sec)
        else:
            self.dialect, response = await self._find_dialect(timeout_sec)
        return self._entry(response)

    async def apply(self, command: EngineCommand, timeout_sec: float) -> ApplyAnswer:
        """Sends one instruction, once. Raises `Transient` or `ProtocolError` (certainly not delivered), or `OutcomeUnknown`."""
        if self.dialect is None:
            await self.status(timeout_sec)
        prefix = _PREFIX[self.dialect or Dialect.V1]
        body = {
            "instruction": command.instruction.value,
            "params": dict(command.params),
            "request_id": command.request_id,
        }
        try:
            async with asyncio.timeout(timeout_sec):
                response = await self._http.post(
                    f"{self.base_url}{prefix}/apply", json=body, headers=self._headers, timeout=within(timeout_sec)
                )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, UnicodeError) as error:
            raise Transient(f"engine {self.rank} at {self.base_url}: no connection, apply was not sent: {_why(error)}") from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutcomeUnknown(
                f"engine {self.rank} at {self.base_url}: apply was sent, its answer was lost: {_why(error)}"
            ) from None
        return ApplyAnswer(response.status_code, _message(response))

    async def complete_one_token(self, timeout_sec: float) -> Completion:
        """One completion of one token: the proof that the rank serves. Never raises; `detail` says what was wrong."""
        try:
            async with asyncio.timeout(timeout_sec):
                model = await self._served_model(timeout_sec)
                body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
                response = await self._request("POST", "/v1/completions", timeout_sec, body)
        except (Transient, ProtocolError) as error:
            return Completion(ok=False, detail=error.message)
        except TimeoutError:
            return Completion(ok=False, detail=f"no completion within {timeout_sec:g} s")
        return _completion(response)

    async def _served_model(self, timeout_sec: float) -> str:
        if self._model is None:
            response = await self._request("GET", "/v1/models", timeout_sec)
            try:
                self._model = str(read_peer_json(response.content)["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise ProtocolError(
                    f"engine {self.rank} at {self.base_url} names no model: {response.status_code} {_message(response)}"
                ) from None
        return self._model

    async def _find_dialect(self, timeout_sec: float) -> tuple[Dialect, httpx.Response]:
        for dialect in (Dialect.V1, Dialect.LEGACY):
            response = await self._request("GET", f"{_PREFIX[dialect]}/status", timeout_sec)
            if response.status_code != 404:
                return dialect, response
        self._absent = True
        raise FtApiAbsent(f"engine {self.rank} at {self.base_url} has no FT API: start it with fault tolerance enabled")

    def _entry(self, response: httpx.Response) -> EngineEntry:
        if response.status_code != 200:
            hint = " (check the engine's api_key)" if response.status_code in (401, 403) else ""
            answer = f"HTTP {response.status_code}{hint}: {_message(response)}"
            raise ProtocolError(f"engine {self.rank} at {self.base_url} answered status with {answer}")
        try:
            body = read_peer_json(response.content)
        except ValueError as error:
            raise ProtocolError(
                f"engine {self.rank} at {self.base_url} sent a status that is not JSON ({error}): {response.text[:_MAX_SHOWN]!r}"
            ) from None
        return parse_status(body, self.rank)

    async def _request(self, method: str, path: str, timeout_sec: float, body: object = None) -> httpx.Response:
        try:
            async with asyncio.timeout(timeout_sec):
                return await self._http.request(
                    method, f"{self.base_url}{path}", json=body, headers=self._headers, timeout=within(timeout_sec)
                )
        except (httpx.TransportError, httpx.InvalidURL, UnicodeError, TimeoutError) as error:
            raise Transient(f"engine {self.rank} at {self.base_url} does not answer {method} {path}: {_why(error)}") from None
        except httpx.HTTPError as error:
            raise ProtocolError(f"engine {self.rank} at {self.base_url}, {method} {path}: {_why(error)}") from None


def _completion(response: httpx.Response) -> Completion:
    if response.status_code != 200:
        return Completion(ok=False, http=response.status_code, detail=_message(response))
    try:
        reason = read_peer_json(response.content)["choices"][0]["finish_reason"]
    except (ValueError, LookupError, TypeError):
        return Completion(ok=False, http=200, detail=f"not a completion: {response.text[:_MAX_SHOWN]!r}")
    if not isinstance(reason, str) or reason == "abort":
        return Completion(ok=False, http=200, finish_reason=str(reason), detail="the completion was cut off")
    return Completion(ok=True, http=200, finish_reason=reason)


def _message(response: httpx.Response) -> str:
    """The engine's own words: `error.message` or `message` of a JSON body, else the beginning of the text."""
    try:
        body = read_peer_json(response.content)
        words = body["error"]["message"] if "error" in body else body["message"]
    except (ValueError, LookupError, TypeError):
        words = response.text
    return str(words)[:_MAX_SHOWN]


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
