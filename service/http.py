"""The HTTP side of every process: one envelope, one way to fail, one way to listen.

A success is `{"code": 200, "message": "Success", "data": …}` (`success`). A failure carries its HTTP status and the same
envelope with a machine-readable reason: `{"code": 409, "message": "…", "data": {"reason": "WRONG_SET", …}}`; handlers
raise `HttpError` for it. What nobody raised on purpose has the same shape:

| what came | status | reason |
|---|---|---|
| malformed JSON, too much of it, or too slowly | 400, 413, 408 | MALFORMED_JSON, TOO_LARGE, TOO_SLOW (`service.door`) |
| wrong type, missing or unknown field, value out of range | 400 | INVALID, with each field, value and why |
| unknown route / wrong method | 404 / 405 | NOT_FOUND / METHOD_NOT_ALLOWED |
| a domain error that no handler met: Transient / any other | 503 / 502 | the error's own |
| a bug | 500 | INTERNAL; the traceback goes to the log, not to the caller |

`serve` listens until it is told to stop. Open streams get a bounded grace, then they are cut.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from domain.address import http_url
from domain.errors import AutotomyError, Refused, Transient
from service.door import BodyDoor, NotLetIn, PunctualProtocol
from service.stop import sleep_unless_stopped

log = logging.getLogger(__name__)

_KEEP_ALIVE_SEC: Final = 75
_TICK_SEC: Final = 0.1  # uvicorn counts ten of them as a second
_MAX_SHOWN_VALUE: Final = 120
_MAX_SHOWN_ERRORS: Final = 20
_MAX_SHOWN_ITEMS: Final = 8
_MAX_SHOWN_DEPTH: Final = 4


class HttpReason(StrEnum):
    """Reasons that belong to HTTP itself; each peer's own reasons are in its messages module."""

    INVALID = "INVALID"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class HttpError(Exception):
    """A handler's refusal: HTTP status, reason, message, and whatever else belongs into `data`."""

    def __init__(
        self, status: int, reason: str, message: str, *, headers: Mapping[str, str] | None = None, **data: object
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = str(reason)
        self.message = message
        self.headers = headers
        self.data = data

    def response(self) -> JSONResponse:
        """The refusal in the envelope."""
        return failure(self.status, self.reason, self.message, headers=self.headers, **self.data)


class Envelope(JSONResponse):
    """An answer of ours. Text that no encoding can write, should any ever get here, costs its characters, not the answer."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def success(data: object = None) -> Envelope:
    """200 with `data` (pydantic models welcome) in the envelope."""
    return Envelope({"code": 200, "message": "Success", "data": jsonable_encoder(data)})


def failure(status: int, reason: str, message: str, *, headers: Mapping[str, str] | None = None, **data: object) -> Envelope:
    """`status` with `{"reason", …data}` in the envelope."""
    body = {"code": status, "message": message, "data": jsonable_encoder({"reason": str(reason), **data})}
    return Envelope(body, status_code=status, headers=dict(headers) if headers else None)


def create_app(
    title: str, *, lifespan: Lifespan[FastAPI] | None = None, body_limits: Mapping[str, int] = MappingProxyType({})
) -> FastAPI:
    """A FastAPI application whose every answer, also to nonsense, is in the envelope. OpenAPI at /docs.

    `body_limits`: bytes by the beginning of a path, for routes that take larger bodies than most (`service.door`).
    """
    app = FastAPI(title=title, lifespan=lifespan, redoc_url=None, strict_content_type=False)
    app.add_middleware(BodyDoor, limits=body_limits)
    app.add_middleware(_BugBarrier)
    app.add_exception_handler(HttpError, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(NotLetIn, _on_not_let_in)
    app.add_exception_handler(HTTPException, _on_starlette_error)
    app.add_exception_handler(AutotomyError, _on_domain_error)
    return app


async def _on_http_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HttpError)
    return error.response()


async def _on_invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return invalid(error.errors()).response()


async def _on_not_let_in(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, NotLetIn)
    return failure(error.status_code, error.reason, error.detail, headers=error.headers)


async def _on_starlette_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reasons = {404: HttpReason.NOT_FOUND, 405: HttpReason.METHOD_NOT_ALLOWED, 503: HttpReason.UNAVAILABLE}
    reason = reasons.get(error.status_code, HttpReason.INTERNAL if error.status_code >= 500 else HttpReason.INVALID)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return failure(error.status_code, reason, message, headers=error.headers)


async def _on_domain_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AutotomyError)
    return failure(503 if isinstance(error, Transient) else 502, error.reason, error.message)


def invalid(details: Sequence[Mapping[str, Any]]) -> HttpError:
    """A 400 that names each field, its value and why, from pydantic's error details (`ValidationError.errors()`)."""
    errors = [_field_error(detail) for detail in details[:_MAX_SHOWN_ERRORS]]
    words = "; ".join(map(_in_words, errors))
    if len(details) > len(errors):
        words += f"; and {len(details) - len(errors)} more"
    return HttpError(400, HttpReason.INVALID, words, errors=errors)


def _field_error(detail: Mapping[str, Any]) -> dict[str, str]:
    """`field` is "body" where the whole contradicts itself; `value` is JSON, as it came, cut where it is long."""
    path = [str(part)[:_MAX_SHOWN_VALUE] for part in detail["loc"]]
    if len(path) > 1 and path[0] == "body":
        path = path[1:]
    return {
        "field": ".".join(path) or "body",
        "value": _shown(detail.get("input")),
        "why": str(detail["msg"]).removeprefix("Value error, "),
    }


def _in_words(error: Mapping[str, str]) -> str:
    """What is wrong with one field; a whole body is not shown again to whoever sent it."""
    if error["field"] == "body":
        return error["why"]
    return f"{error['field']}: {error['why']} (got {error['value']})"


def _shown(value: object) -> str:
    """As JSON, cut: only what can be shown is encoded, however much was sent."""
    text = json.dumps(
        _beginning(value, _MAX_SHOWN_DEPTH), ensure_ascii=False, default=lambda other: repr(other)[:_MAX_SHOWN_VALUE]
    )
    return text if len(text) <= _MAX_SHOWN_VALUE else text[: _MAX_SHOWN_VALUE - 1] + "…"


def _beginning(value: object, depth: int) -> object:
    match value:
        case str() | bytes():
            return str(value[:_MAX_SHOWN_VALUE], "utf-8", "replace") if isinstance(value, bytes) else value[:_MAX_SHOWN_VALUE]
        case bool() | float() | None:
            return value
        case int():
            return value if value.bit_length() < 4 * _MAX_SHOWN_VALUE else f"a whole number of {value.bit_length()} bits"
        case Mapping() if depth:
            some = itertools.islice(value.items(), _MAX_SHOWN_ITEMS)
            return {str(key)[:_MAX_SHOWN_VALUE]: _beginning(one, depth - 1) for key, one in some}
        case list() | tuple() if depth:
            return [_beginning(one, depth - 1) for one in value[:_MAX_SHOWN_ITEMS]]
        case Mapping() | list() | tuple():
            return "…"
        case _:
            return repr(value)[:_MAX_SHOWN_VALUE]


class _BugBarrier:
    """Outermost of ours: an exception that nobody expected is logged here and answered without its traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            if scope["type"] != "http":
                raise
            log.exception("request failed by a bug", extra={"method": scope["method"], "path": scope["path"]})
            if started:
                raise
            answer = failure(500, HttpReason.INTERNAL, "internal error; the log of this process has the traceback")
            await answer(scope, receive, send)


class AddressUnavailable(Refused):
    """The process cannot listen where it was told to."""

    default_reason = "ADDRESS_UNAVAILABLE"


class StartupFailed(AutotomyError):
    """The application's own start (its lifespan) raised; the log has the traceback."""

    default_reason = "STARTUP_FAILED"


def bind(host: str, port: int, *, option: str = "--port", listen: bool = True) -> socket.socket:
    """A listening TCP socket at `host`:`port`; port 0 takes a free one (see `url_of`).

    Without `listen` the port is only reserved: connections are refused until `serve_socket` opens it.

    Raises AddressUnavailable, whose message says what is in the way and names the command line `option` to change.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise AddressUnavailable(f"cannot listen on {host}:{port}: {error}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        if listen:
            sock.listen(2048)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise AddressUnavailable(_why_not(host, port, option, error)) from None
    return sock


def _why_not(host: str, port: int, option: str, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            advice = f"another process listens there; stop it, or choose another port with {option}"
        case errno.EACCES:
            advice = f"not allowed; ports below 1024 need privileges, choose another with {option}"
        case errno.EADDRNOTAVAIL:
            advice = "no interface of this machine has that address; choose another with --host"
        case _:
            advice = error.strerror or str(error)
    return f"cannot listen on {host}:{port}: {advice}"


def url_of(sock: socket.socket) -> str:
    """`http://host:port` of a bound socket."""
    host, port = sock.getsockname()[:2]
    return http_url(host, port)


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    grace_sec: float = 2.0,
    access_log: bool = False,
    option: str = "--port",
) -> None:
    """Listen at `host`:`port` until `stop` is set; see `serve_socket`. Raises AddressUnavailable."""
    sock = bind(host, port, option=option)
    await serve_socket(app, sock, stop=stop, on_ready=on_ready, grace_sec=grace_sec, access_log=access_log)


async def serve_socket(
    app: ASGIApp,
    sock: socket.socket,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[str], None] | None = None,
    grace_sec: float = 2.0,
    access_log: bool = False,
) -> None:
    """Serve `app` on a bound socket until `stop` is set, and close the socket.

    `on_ready` gets the bound URL once requests are answered. After `stop`, requests in flight have `grace_sec` seconds,
    then they are cut; idle connections close at once. Raises StartupFailed when the app's lifespan does.
    """
    url = url_of(sock)
    server = _Server(_uvicorn_config(_CutAtStop(app, stop), grace_sec, access_log), url, on_ready, stop)
    try:
        await server.serve(sockets=[sock])
    except SystemExit:
        raise StartupFailed(f"{url}: the application could not start; the log has the reason") from None
    finally:
        sock.close()


def _uvicorn_config(app: ASGIApp, grace_sec: float, access_log: bool) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=PunctualProtocol,
        log_config=None,
        access_log=access_log,
        server_header=False,
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_SEC,
    )
    config.timeout_graceful_shutdown = grace_sec  # type: ignore[assignment]  # asyncio takes fractions too
    return config


class _CutAtStop:
    """A request that is cancelled because the process stops ends quietly; uvicorn would print a traceback for each."""

    def __init__(self, app: ASGIApp, stop: asyncio.Event) -> None:
        self._app = app
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or not self._stop.is_set():
                raise
            log.info("request cut by the stop", extra={"method": scope["method"], "path": scope["path"]})


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would replace ours; it says when it is ready and stops at once."""

    def __init__(self, config: uvicorn.Config, url: str, on_ready: Callable[[str], None] | None, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._url = url
        self._on_ready = on_ready
        self._stop = stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        log.info("listening", extra={"url": self._url})
        if self._on_ready is not None:
            self._on_ready(self._url)

    async def main_loop(self) -> None:
        for tick in itertools.count():
            if await self.on_tick(tick):
                return
            if await sleep_unless_stopped(_TICK_SEC, self._stop):
                self.should_exit = True
