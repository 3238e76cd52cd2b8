"""Whom `doctor` asks, and how it says that nobody is there."""

from pathlib import Path

import pytest

from cli import doctor
from cli.doctor import Grade, controller_address, temporal_address
from lab.stack.record import StackAddresses
from service.settings import load_settings
from tests.listening import free_port

LOCAL = StackAddresses(
    temporal_address="127.0.0.1:17233",
    temporal_namespace="default",
    web_ui_url=None,
    controller_url="http://127.0.0.1:11026",
    coordinators=(),
    node_managers=(),
    engines=(),
)


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AUTOTOMY_CONTROLLER_URL", "AUTOTOMY_CONFIG", "TEMPORAL_ADDRESS", "TEMPORAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))


def test_a_local_stack_is_asked_where_nobody_else_is_named() -> None:
    assert temporal_address(LOCAL).get("target_host") == "127.0.0.1:17233"
    assert controller_address(load_settings(), LOCAL) == "http://127.0.0.1:11026"


def test_without_a_stack_the_defaults_are_asked() -> None:
    assert temporal_address(None).get("target_host") == "localhost:7233"
    assert controller_address(load_settings(), None) == "http://127.0.0.1:1026"


def test_whoever_is_named_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "autotomy.yaml"
    config.write_text("controller_url: http://controller:1026\n")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example:7233")
    assert temporal_address(LOCAL).get("target_host") == "temporal.example:7233"
    assert controller_address(load_settings(config), LOCAL) == "http://controller:1026"
    monkeypatch.setenv("AUTOTOMY_CONTROLLER_URL", "http://127.0.0.1:1026")
    assert controller_address(load_settings(), LOCAL) == "http://127.0.0.1:1026"


def test_nobody_there_is_said_without_the_kernels_number() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    found = doctor._controller(url)
    assert (found.verdict, found.detail) == (Grade.NOTE, f"nobody answers at {url} (Connection refused)")
