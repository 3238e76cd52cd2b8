"""The supervisor's ear: a Unix socket in the run directory, one JSON object a line each way.

    → {"op": "kill", "name": "worker-0", "signal": "SIGKILL", "restart_after_sec": 2.0}
    ← {"ok": true, "pid": 4711}
    → {"op": "hold", "name": "tabby"}
    ← {"ok": false, "reason": "UNKNOWN_PROCESS", "message": "no process 'tabby'; there are: temporal, api, …"}

A connection may carry any number of commands. The socket is reached through a descriptor of its directory, because the
kernel allows 107 bytes for its path and run directories may be longer.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from domain.errors import AutotomyError, Refused, Transient
from domain.model import Strict, Tolerant

_SOCKET: Final = "control.sock"
_LINE_LIMIT: Final = 1 << 20


class Status(Strict):
    """The supervisor is there and has written `stack.json`."""

    op: Literal["status"] = "status"


class Kill(Strict):
    """Send a signal to the current life of a process.

    `restart_after_sec` is how long its return takes, once it has ended; `hold` keeps it away until released.
    """

    op: Literal["kill"] = "kill"
    name: str
    signal: str = "SIGKILL"
    restart_after_sec: Annotated[float, Field(ge=0, le=3600)] | None = None
    hold: bool = False

    @field_validator("signal")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in signal.Signals.__members__:
            raise ValueError(f"{name!r} is not a signal, e.g. SIGKILL, SIGSTOP, SIGCONT, SIGTERM")
        return name


class Hold(Strict):
    """Do not bring this process back once it has ended."""

    op: Literal["hold"] = "hold"
    name: str


class Release(Strict):
    """Bring it back again; at once if it is away."""

    op: Literal["release"] = "release"
    name: str


class Down(Strict):
    """Stop everything. The answer comes at once; the supervisor is gone when all is done."""

    op: Literal["down"] = "down"


Command = Annotated[Status | Kill | Hold | Release | Down, Field(discriminator="op")]
_COMMANDS: Final[TypeAdapter[Command]] = TypeAdapter(Command)


class Reply(Tolerant):
    ok: bool
    pid: int | None = None
    reason: str = ""
    message: str = ""


class ControlRefused(Refused):
    """The supervisor understood the command and said no."""

    default_reason = "CONTROL"


class SupervisorUnreachable(Transient):
    """Nobody listens in that run directory, or it does not answer in time."""

    default_reason = "NO_SUPERVISOR"


Handler = Callable[[Command], Awaitable[Reply]]


@contextlib.asynccontextmanager
async def listening(directory: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer commands in `directory` while the context lasts. The caller holds the directory's lock."""
    path = directory / _SOCKET
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(directory) as short:
        sock.bind(short)
    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            while line := await reader.readline():
                reply = await _answer(line, handler)
                writer.write(reply.model_dump_json().encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # ValueError: a line longer than the limit
            pass
        finally:
            connections.discard(writer)
            writer.close()

    server = await asyncio.start_unix_server(serve, sock=sock, limit=_LINE_LIMIT)
    try:
        yield
    finally:
        server.close()
        for writer in list(connections):
            writer.close()
        path.unlink(missing_ok=True)


async def _answer(line: bytes, handler: Handler) -> Reply:
    try:
        command = _COMMANDS.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Reply(ok=False, reason="MALFORMED", message=f"{where}: {first['msg']}".removeprefix(": "))
    try:
        return await handler(command)
    except AutotomyError as error:
        return Reply(ok=False, reason=error.reason, message=error.message)


async def ask(directory: Path, command: Command, *, timeout_sec: float = 5.0) -> Reply:
    """Give the supervisor of `directory` one command. Raises SupervisorUnreachable, ControlRefused."""
    try:
        async with asyncio.timeout(timeout_sec):
            line = await _exchange(directory, command)
    except (OSError, TimeoutError) as error:
        raise SupervisorUnreachable(f"no supervisor answers in {directory}: {error or 'timeout'}") from None
    if not line:
        raise SupervisorUnreachable(f"the supervisor in {directory} went away before it answered")
    reply = Reply.model_validate(json.loads(line))
    if not reply.ok:
        raise ControlRefused(reply.message, reason=reply.reason)
    return reply


async def _exchange(directory: Path, command: Command) -> bytes:
    with _short_path(directory) as short:
        reader, writer = await asyncio.open_unix_connection(short)
    try:
        writer.write(command.model_dump_json().encode() + b"\n")
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)
