"""A small HTTP/1.1 server for very many addresses in one process: JSON in, JSON out, connections kept alive.

The real servers of this project stand on uvicorn, one application a process. Here a process listens on hundreds of
addresses, and what it costs is taken from the two cores on which the Controller is being measured.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

_END_OF_HEAD: Final = b"\r\n\r\n"
_LONGEST_HEAD: Final = 65_536


@dataclass(frozen=True)
class Answer:
    """What goes back: an HTTP status and a JSON body."""

    body: JsonValue
    status: int = 200


Handler = Callable[[str, str, bytes], Answer]
"""(method, path without query, body) → answer. It never awaits: whatever takes time in an engine is a state, not a wait."""


async def serve(handler: Handler, host: str, port: int) -> asyncio.Server:
    """Listens at once. Raises OSError where the address is taken."""
    return await asyncio.get_running_loop().create_server(lambda: _Connection(handler), host, port, backlog=1024)


class _Connection(asyncio.Protocol):
    """One client's connection; requests are answered in order."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._take_one():
            pass

    def _take_one(self) -> bool:
        """Answers the first complete request of the buffer; False where there is none."""
        transport = self._transport
        assert transport is not None
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            if len(self._buffer) > _LONGEST_HEAD:
                transport.close()
            return False
        request, *headers = self._buffer[:end].decode("latin-1").split("\r\n")
        length = next((int(line[15:]) for line in headers if line[:15].lower() == "content-length:"), 0)
        begin = end + len(_END_OF_HEAD)
        if len(self._buffer) < begin + length:
            return False
        body = bytes(self._buffer[begin : begin + length])
        del self._buffer[: begin + length]
        method, target, _ = request.split(" ", 2)
        transport.write(_encoded(self._answer(method, target.partition("?")[0], body)))
        return True

    def _answer(self, method: str, path: str, body: bytes) -> Answer:
        try:
            return self._handler(method, path, body)
        except ValueError as error:  # pydantic's and json's are ValueErrors
            return Answer({"error": {"message": " ".join(str(error).split())}}, 400)


def _encoded(answer: Answer) -> bytes:
    body = json.dumps(answer.body, separators=(",", ":")).encode()
    head = f"HTTP/1.1 {answer.status} {'OK' if answer.status < 300 else 'No'}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
