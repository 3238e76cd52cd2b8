"""Places where a drill can stop a process for a moment, to kill something exactly then.

A failpoint is one named call, `await failpoint("finalize.committed")`, in an activity or a process (never in workflow
code: it would fire again at replay). Off, it costs one dictionary look-up. Armed by

    AUTOTOMY_FAILPOINTS="finalize.committed=unix:/run/driver.sock,apply.sent=unix:/run/driver.sock"

it tells the driver at that socket and waits to be released:

    process → driver   {"name": "finalize.committed", "pid": 4711, "process": "worker"}\\n
    driver → process   go\\n

Whether a name has fired before in this installation is the driver's business, since the process may be a new one: it
answers a repeated hit with `go` at once. A driver that is not there, or goes away, releases everybody; so does time.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Final

from domain.errors import ConfigError
from service.logging import process_name

log = logging.getLogger(__name__)

VARIABLE: Final = "AUTOTOMY_FAILPOINTS"
_SCHEME: Final = "unix:"
RELEASE: Final = b"go\n"
HOLD_LIMIT_SEC: Final = 120.0


@cache
def armed_failpoints() -> Mapping[str, str]:
    """Name → socket path, read from the environment once. Raises ConfigError if it cannot be read."""
    return parse_failpoints(os.environ.get(VARIABLE, ""))


def parse_failpoints(text: str) -> Mapping[str, str]:
    """`name=unix:/path[,name2=unix:@abstract]` → {name: socket}. Raises ConfigError naming the part that cannot be read."""
    armed: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, target = part.partition("=")
        if not name or not target.startswith(_SCHEME) or target == _SCHEME:
            raise ConfigError(f"{VARIABLE}: {part!r} is not name=unix:/path/to/socket or name=unix:@socket")
        armed[name] = target.removeprefix(_SCHEME)
    return armed


def socket_path(text: str) -> str:
    """What the kernel calls a socket: `@name` is an abstract one."""
    return "\0" + text[1:] if text.startswith("@") else text


async def failpoint(name: str) -> None:
    """Stop here while the driver says so, at most HOLD_LIMIT_SEC; return at once where `name` is not armed."""
    path = armed_failpoints().get(name)
    if path is not None:
        await _held(name, path)


async def _held(name: str, path: str) -> None:
    try:
        async with asyncio.timeout(HOLD_LIMIT_SEC):
            answer = await _tell(name, path)
    except TimeoutError:
        log.error("failpoint was never released, going on", extra={"failpoint": name, "after_sec": HOLD_LIMIT_SEC})
    except OSError as error:
        log.warning("failpoint has no driver, going on", extra={"failpoint": name, "why": str(error)})
    else:
        log.info("failpoint released", extra={"failpoint": name, "answer": answer.decode(errors="replace").strip()})


async def _tell(name: str, path: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket_path(path))
    try:
        hit = {"name": name, "pid": os.getpid(), "process": process_name()}
        writer.write(json.dumps(hit).encode() + b"\n")
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()
