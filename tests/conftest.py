"""What all tests share: one real Temporal server a session, on a free port, ended with the session."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator

import hypothesis  # noqa: F401, its plugin imports it at a session's end, and CPython 3.11 may then fail with "AST constructor recursion"
import pytest
from temporalio.client import Client
from xdist.remote import Producer

from service.leave import leave
from service.temporal import connect, server_command
from tests.progress import Progress
from tests.side_by_side import SideBySide

_SESSION = pytest.StashKey[pytest.Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--progress", action="store_true", help="one line that tells how far the run is (tests/progress.py)")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("progress") and terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(terminal))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SideBySide:
    return SideBySide(config, log)


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
