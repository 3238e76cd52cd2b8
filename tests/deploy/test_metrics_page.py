"""docs/metrics.md names exactly the metrics that each process exports, and its alerts use no other."""

import re
from pathlib import Path

import httpx
import pytest
import yaml
from fastapi import FastAPI

from api.app import controller_app
from api.gateway import Gateway
from coordinator.figures import Figures
from coordinator.management import management_app
from coordinator.routing import Router
from coordinator.state import CoordinatorState
from coordinator.view import View
from coordinator.view_log import ViewLog
from node_manager.app import node_manager_app
from node_manager.config import NodeManagerConfig
from node_manager.node import NodeManager
from service.metrics import new_registry
from service.settings import Settings
from workflows.parts.strategy_shell import STRATEGIES_ENDED

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
OURS = re.compile(r"\bautotomy_\w+")


def documented(process: str) -> set[str]:
    """The first column of the table under a process's heading."""
    section = PAGE.split(f"\n## {process}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(autotomy_\w+)` \|", section, re.MULTILINE))


async def exported(app: FastAPI) -> set[str]:
    """What GET /metrics declares as ours; `…_created` belongs to its counter."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://process") as http:
        text = (await http.get("/metrics")).text
    names = re.findall(r"^# TYPE (autotomy_\w+) ", text, re.MULTILINE)
    return {name for name in names if not name.endswith("_created")}


async def test_the_apis_metrics_are_in_the_page() -> None:
    assert await exported(controller_app(Settings(), Gateway("autotomy"))) == documented("API")


async def test_a_coordinators_metrics_are_in_the_page() -> None:
    router, registry = Router(), new_registry()
    state = CoordinatorState(View("life"), router, Figures(registry, router), ViewLog(None))
    assert await exported(management_app(state, registry)) == documented("Coordinator")


async def test_a_node_managers_metrics_are_in_the_page(tmp_path: Path) -> None:
    node = NodeManager(NodeManagerConfig(pod_ip="127.0.0.1", journal=tmp_path / "journal.sqlite", log_dir=tmp_path))
    try:
        assert await exported(node_manager_app(node)) == documented("NodeManager")
    finally:
        node.journal.close()


def test_a_workers_metrics_are_in_the_page() -> None:
    assert {STRATEGIES_ENDED} == documented("Worker")


def alerts() -> list[dict[str, str]]:
    (rules,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    found: list[dict[str, str]] = yaml.safe_load(rules)["groups"][0]["rules"]
    return found


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_uses_metrics_that_are_there(alert: dict[str, str]) -> None:
    known = {name for process in ("API", "Coordinator", "NodeManager", "Worker") for name in documented(process)}
    used = set(OURS.findall(alert["expr"]))
    assert used <= known
    assert used or "temporal_" in alert["expr"]
