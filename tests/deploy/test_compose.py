"""docker-compose.yml, as far as it can be judged without a Docker engine: its files, its commands, our own inputs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from domain.messages.controller import InstanceDeclaration
from domain.topology import Topology
from node_manager.config import NodeManagerConfig, load_config
from service.settings import load_settings
from service.temporal import SEARCH_ATTRIBUTES

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"
OURS = ("worker", "controller", "coordinator", "pod-0", "pod-1", "declare")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def declared() -> Topology:
    body = yaml.safe_load((COMPOSE / "instance.yaml").read_text(encoding="utf-8"))
    return InstanceDeclaration.model_validate(body).topology(7)


@pytest.fixture(scope="module")
def pods() -> dict[str, NodeManagerConfig]:
    return {name: load_config(COMPOSE / f"{name}.yaml", {}) for name in ("pod-0", "pod-1")}


def test_every_mounted_file_exists(compose: dict[str, Any]) -> None:
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert len(mounted) >= 6
    for path in mounted:
        assert (ROOT / path).is_file(), path


def test_every_dependency_is_a_service_and_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for dependency in service.get("depends_on", {}):
            assert dependency in services, f"{name} depends on {dependency}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("./") or source in compose["volumes"], volume


@pytest.mark.parametrize("name", OURS)
def test_our_commands_are_ones_that_the_command_line_knows(compose: dict[str, Any], name: str) -> None:
    command = compose["services"][name]["command"]
    flags = [word for word in command if word.startswith("--")]
    known = command[: 2 if command[0] == "instance" else 1]
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *known, "--help"], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    for flag in flags:
        assert flag in done.stdout, f"{name}: {flag}"


def test_our_environment_is_a_configuration_that_loads(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AUTOTOMY_")]:
        monkeypatch.delenv(name)
    for name, value in compose["x-autotomy"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.fault_tolerance_config.enable_dp_scale_down_proxy
    assert settings.controller_url == "http://controller:1026"


def test_pods_are_the_ones_that_the_declaration_names(
    compose: dict[str, Any], declared: Topology, pods: dict[str, NodeManagerConfig]
) -> None:
    assert {str(address) for address in declared.managers} == {f"{pod.pod_ip}:{pod.port}" for pod in pods.values()}
    for name, pod in pods.items():
        assert compose["services"][name]["networks"]["default"]["ipv4_address"] == pod.pod_ip


def test_every_rank_has_an_engine_command(declared: Topology, pods: dict[str, NodeManagerConfig]) -> None:
    by_ip = {pod.pod_ip: pod for pod in pods.values()}
    for endpoint in declared.endpoints:
        assert by_ip[endpoint.pod_ip].engine_for(endpoint.id) is not None


def test_the_namespace_script_registers_the_search_attributes_that_the_worker_wants() -> None:
    script = (COMPOSE / "namespace.sh").read_text(encoding="utf-8")
    for name, kind in SEARCH_ATTRIBUTES.items():
        assert f"{name}={kind}" in script


@pytest.mark.parametrize("script", ["schema.sh", "namespace.sh"])
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", str(COMPOSE / script)], check=True, timeout=10)
