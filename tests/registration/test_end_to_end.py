"""The example file, real processes: a Pod of four simulated ranks registers itself and serves; and its NodeManager's restart."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import yaml
from temporalio.client import Client

from service.http import bind
from tests.api.installation import a_namespace

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "node-manager-simulated.yaml"
PATIENCE_SEC = 60.0


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        return [int(held.enter_context(bind("127.0.0.1", 0)).getsockname()[1]) for _ in range(count)]


def adapted_example(folder: Path, ports: list[int], controller_url: str) -> Path:
    """The example with this machine's free ports and this test's folder; everything else as it is."""
    config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    nm_port, store_port, *business = ports
    config |= {"port": nm_port, "controller_url": controller_url}
    config |= {"journal": str(folder / "journal.sqlite"), "log_dir": str(folder / "logs")}
    config["registration"] |= {"business_ports": business, "dp_master_port": store_port}
    path = folder / "node-manager.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@contextlib.asynccontextmanager
async def process(folder: Path, name: str, *arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m …` until the block ends; SIGTERM first, so that a NodeManager takes its engines along."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / f"{name}.log").open("ab") as log:
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, stdout=log, stderr=log, env={**os.environ, "PATH": path, **environment}
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
            try:
                await asyncio.wait_for(started.wait(), 20)
            except TimeoutError:
                started.kill()
                await started.wait()


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    end = time.monotonic() + PATIENCE_SEC
    while True:
        with contextlib.suppress(httpx.HTTPError, LookupError, ValueError):
            if found := await condition():
                return found
        assert time.monotonic() < end, f"never came: {what}"
        await asyncio.sleep(0.1)


async def test_the_example_pod_registers_serves_outlives_its_node_manager_and_is_held_without_a_past(
    temporal_client: Client, temporal_server: str, tmp_path: Path
) -> None:
    namespace = (await a_namespace(temporal_client, temporal_server)).namespace
    where = {"TEMPORAL_ADDRESS": temporal_server, "TEMPORAL_NAMESPACE": namespace}
    where["AUTOTOMY_FAULT_TOLERANCE_CONFIG__ENABLE_DP_SCALE_DOWN"] = "true"
    api_port, inference, management, *nm_ports = free_ports(9)
    url = f"http://127.0.0.1:{api_port}"
    config = adapted_example(tmp_path, nm_ports, url)
    routes = ("--port", str(inference), "--management-port", str(management), "--controller-url", url)
    async with (
        httpx.AsyncClient(timeout=5.0, trust_env=False) as http,
        process(tmp_path, "api", "api", "--port", str(api_port), **where),
        process(tmp_path, "worker", "workers", **where),
        process(tmp_path, "coordinator", "coordinator", *routes, **where),
    ):

        async def instance() -> Any:
            reply = await http.get(f"{url}/controller/fault_tolerance/status")
            return next((one for one in reply.json()["data"]["instances"] if one["can_serve"]), None)

        async def liveness() -> Any:
            return (await http.get(f"http://127.0.0.1:{nm_ports[0]}/liveness")).json()

        async with process(tmp_path, "pod", "node_manager", "--config", str(config)) as pod:
            record = await until(instance, "an instance that serves")
            assert record["alive_dp_ranks"] == [0, 1, 2, 3]
            body = {"model": "simulated-moe", "prompt": "hello", "max_tokens": 2}
            answer = await until(lambda: http.post(f"http://127.0.0.1:{inference}/v1/completions", json=body), "an answer")
            assert answer.status_code == 200, answer.text
            before = await liveness()
            assert before["instance_id"] == record["instance_id"]
            pod.send_signal(signal.SIGKILL)
            await pod.wait()
        async with process(tmp_path, "pod", "node_manager", "--config", str(config)):
            after = await until(liveness, "its next life")
            assert (after["instance_id"], after["incarnation"] != before["incarnation"]) == (record["instance_id"], True)

            async def registered() -> bool:
                return (tmp_path / "pod.log").read_text(encoding="utf-8").count("registered") >= 2

            await until(registered, "a second registration")
            assert (await instance())["alive_dp_ranks"] == [0, 1, 2, 3]
        (tmp_path / "journal.sqlite").rename(tmp_path / "past.sqlite")
        async with process(tmp_path, "pod", "node_manager", "--config", str(config)):

            async def held() -> bool:
                return "registered and held" in (tmp_path / "pod.log").read_text(encoding="utf-8")

            await until(held, "a Pod without a past is held: its group lives, as far as anybody knows")
            assert (await until(liveness, "it answers"))["instance_id"] is None
