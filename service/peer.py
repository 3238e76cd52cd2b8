"""Asking a peer over HTTP, and what its silence or its no means.

    200, readable                          → the reply model
    200, unreadable                        → ProtocolError (Refused)
    4xx; 502 with our envelope's reason    → PeerRefused (Refused): it understood, and said no
    other 5xx; no connection; no answer    → PeerSilent (Transient), with how it failed
    an address that cannot be one          → Refused

One client serves a whole worker (`service/one_exchange.py`). Timeouts are explicit and bound the whole exchange, slow drips
included.
"""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from domain.errors import AutotomyError, ProtocolError, Refused, Transient
from domain.messages.round import PeerRefusal
from service.json_reader import read_peer_json
from service.one_exchange import within

R = TypeVar("R", bound=BaseModel)

_JSON: Final = {"content-type": "application/json"}
_SHOWN_BODY: Final = 200


class Silence(StrEnum):
    """How a peer gave no answer."""

    REFUSED_CONNECTION = "REFUSED_CONNECTION"  # nobody listens there
    UNREACHABLE = "UNREACHABLE"  # no way to it: no route, no such name
    NO_ANSWER = "NO_ANSWER"  # time ran out; it may have heard us
    BROKEN = "BROKEN"  # the connection broke, or the answer cannot be decoded; it may have heard us
    UNAVAILABLE = "UNAVAILABLE"  # a 5xx that is no refusal


class PeerSilent(Transient):
    """No answer. `may_have_heard`: the request may have arrived all the same."""

    def __init__(self, message: str, how: Silence, *, may_have_heard: bool) -> None:
        super().__init__(message, reason=how.value)
        self.how = how
        self.may_have_heard = may_have_heard


class PeerRefused(Refused):
    """A no, with its HTTP status, its reason and what else was in `data`."""

    def __init__(self, message: str, reason: str, status: int, data: Mapping[str, Any]) -> None:
        super().__init__(message, reason=reason)
        self.status = status
        self.data = data


def refusal(peer: object, error: AutotomyError) -> PeerRefusal:
    """An error as what a result lists: which peer, the reason word, the message."""
    return PeerRefusal(peer=str(peer), reason=error.reason, message=error.message)


async def post(http: httpx.AsyncClient, url: str, body: BaseModel, reply: type[R], timeout_sec: float) -> R:
    """POST `body` and read the reply. Raises Refused, PeerSilent, ProtocolError."""
    return await _exchange(http, "POST", url, body.model_dump_json(exclude_none=True), reply, timeout_sec)


async def get(http: httpx.AsyncClient, url: str, reply: type[R], timeout_sec: float) -> R:
    """GET and read the reply. Raises Refused, PeerSilent, ProtocolError."""
    return await _exchange(http, "GET", url, None, reply, timeout_sec)


async def _exchange(http: httpx.AsyncClient, method: str, url: str, content: str | None, reply: type[R], timeout_sec: float) -> R:
    response = await _send(http, method, url, content, timeout_sec)
    if response.status_code == httpx.codes.OK:
        return _read(reply, response, url)
    raise _no(response, method, url)


async def _send(http: httpx.AsyncClient, method: str, url: str, content: str | None, timeout_sec: float) -> httpx.Response:
    try:
        async with asyncio.timeout(timeout_sec):
            return await http.request(method, url, content=content, headers=_JSON, timeout=within(timeout_sec))
    except (TimeoutError, httpx.TimeoutException) as error:
        unsent = isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
        message = f"{method} {url}: no answer within {timeout_sec:.3g} s"
        raise PeerSilent(message, Silence.NO_ANSWER, may_have_heard=not unsent) from None
    except httpx.ConnectError as error:
        how = Silence.REFUSED_CONNECTION if _refused(error) else Silence.UNREACHABLE
        why = "connection refused" if how is Silence.REFUSED_CONNECTION else str(error) or "cannot be reached"
        raise PeerSilent(f"{method} {url}: {why}", how, may_have_heard=False) from None
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Refused(f"{url} is no usable address: {error}", reason="BAD_URL") from None
    except httpx.RequestError as error:
        message = f"{method} {url}: the answer broke off ({type(error).__name__})"
        raise PeerSilent(message, Silence.BROKEN, may_have_heard=True) from None


def _refused(error: BaseException) -> bool:
    """Whether the kernel said ECONNREFUSED, somewhere down the chain of causes."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _read(reply: type[R], response: httpx.Response, url: str) -> R:
    try:
        body = read_peer_json(response.content)
        data = body["data"] if isinstance(body, dict) and body.keys() >= {"code", "data"} else body
        return reply.model_validate(data)
    except (ValueError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ProtocolError(f"{url} answered 200, but not a {reply.__name__}: {why}", reason="MALFORMED_REPLY") from None


def _no(response: httpx.Response, method: str, url: str) -> AutotomyError:
    status, envelope = response.status_code, _envelope(response)
    data = envelope.get("data") if isinstance(envelope.get("data"), dict) else {}
    reason = data.get("reason") if isinstance(data, dict) else None
    if 400 <= status < 500 or (status == httpx.codes.BAD_GATEWAY and reason):
        message = str(envelope.get("message") or response.text[:_SHOWN_BODY] or "no reason given")
        return PeerRefused(f"{message} (HTTP {status})", str(reason or f"HTTP_{status}"), status, data or {})
    message = f"{method} {url}: HTTP {status} {response.text[:_SHOWN_BODY]}".rstrip()
    return PeerSilent(message, Silence.UNAVAILABLE, may_have_heard=True)


def _envelope(response: httpx.Response) -> dict[str, Any]:
    try:
        body = read_peer_json(response.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
