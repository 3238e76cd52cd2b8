"""The HTTP client that a worker's activities share."""

import contextlib
import ssl
from typing import Any

import httpx
import pytest

from activities.peer import new_http_client


async def test_peers_share_what_is_dear_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TLS context for each of forty NodeManagers would take most of a second at the first guard after a quiet time."""
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def counted(*arguments: Any, **options: Any) -> ssl.SSLContext:
        made.append(make(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    async with new_http_client() as http:
        for host in range(2, 12):
            with contextlib.suppress(httpx.ConnectError):
                await http.get(f"http://127.0.0.{host}:9/")
    assert len(made) == 1
