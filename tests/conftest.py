"""What all tests share: one real Temporal server a session, on a free port, ended with the session."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator

import hypothesis  # noqa: F401, its plugin imports it at a session's end, and CPython 3.11 may then fail with "AST constructor recursion"
import pytest
from temporalio.client import Client

from service.leave import leave
from service.temporal import connect, server_command

_SESSION = pytest.StashKey[pytest.Session]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SESSION] = session


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """As our processes end: the SDK must not turn a green run into an abort."""
    if (session := config.stash.get(_SESSION, None)) is not None:
        leave(int(session.exitstatus))


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an embedded server, tuned as ours is. It may still be starting: `connect` waits for it."""
    directory = tmp_path_factory.mktemp("temporal")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(server_command(directory / "temporal.db", "127.0.0.1", port, None), stdout=log, stderr=log)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait(10)


@pytest.fixture(scope="session")
async def temporal_client(temporal_server: str) -> Client:
    """A client of that server."""
    return await asyncio.wait_for(connect({"target_host": temporal_server, "namespace": "default"}), 20)
