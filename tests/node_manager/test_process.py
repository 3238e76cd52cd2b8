"""`python -m node_manager` as a process, with simulated engines that really shrink: kills, restarts, a whole round."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from domain.messages.node_manager import FT_PREFIX
from service.process_identity import ProcessIdentity, process_table
from tests.eventually import eventually
from tests.listening import free_port
from tests.node_manager.controller import DEAD, HEALTHY, UNHEALTHY, FakeController
from tests.node_manager.pod import LIMIT_SEC, alive, reason

RANKS = (0, 1, 2)


@dataclass
class Installation:
    """NodeManager processes, each with its ranks of one simulated instance, under one folder."""

    folder: Path
    controller: FakeController
    ranks_of: dict[str, tuple[int, ...]]
    ports: dict[str, int] = field(default_factory=dict)
    engine_ports: dict[int, int] = field(default_factory=dict)
    master_port: int = 0
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(trust_env=False, timeout=LIMIT_SEC))

    def __post_init__(self) -> None:
        self.ports = {name: free_port() for name in self.ranks_of}
        self.engine_ports = {rank: free_port() for ranks in self.ranks_of.values() for rank in ranks}
        self.master_port = free_port()

    def config(self, name: str) -> Path:
        simulator = [sys.executable, "-m", "lab.simulator", "--host", "{ip}", "--port", "{port}", "--log-dir", "{log_dir}"]
        simulator += ["--data-parallel-size", "{dp_size}", "--data-parallel-rank", "{rank}", "--step-ms", "10"]
        simulator += ["--data-parallel-address", "{master_ip}", "--data-parallel-rpc-port", "{master_port}"]
        simulator += ["--detection-sec", "2", "--recovery-sec", "0.1", "--store-timeout-sec", "30"]
        content = {
            "pod_ip": "127.0.0.1",
            "port": self.ports[name],
            "controller_url": self.controller.url,
            "journal": str(self.folder / name / "journal.sqlite"),
            "log_dir": str(self.folder / name / "logs"),
            "engines": [{"command": simulator, "stop_grace_sec": 2.0}],
            "heartbeat_interval_sec": 0.2,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    async def launch(self, name: str, until_path: str = "/readiness", **environment: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "node_manager", "--config", str(self.config(name)),
                env={**os.environ, **environment}, stderr=log, stdout=log,
            )  # fmt: skip
        await self.answers(name, until_path)

    async def answers(self, name: str, path: str) -> None:
        for _ in range(int(LIMIT_SEC / 0.05)):
            with contextlib.suppress(httpx.HTTPError):
                if (await self.http.get(self.url(name) + path)).status_code == 200:
                    return
            await asyncio.sleep(0.05)
        raise AssertionError((self.folder / f"{name}.log").read_text())

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        self.processes[name].send_signal(number)
        return await asyncio.wait_for(self.processes[name].wait(), LIMIT_SEC)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    async def post(self, name: str, path: str, body: object) -> httpx.Response:
        return await self.http.post(f"{self.url(name)}{path}", json=body)

    async def ft(self, name: str, command: str, body: object) -> httpx.Response:
        return await self.post(name, f"{FT_PREFIX}/{command}", body)

    async def entries(self, name: str) -> dict[str, dict[str, Any]]:
        answer = await self.ft(name, "status", {"endpoint_ids": list(self.ranks_of[name])})
        assert answer.status_code == 200, answer.text
        engines: dict[str, dict[str, Any]] = answer.json()["engines"]
        return engines

    async def start(self, generation: int = 1) -> dict[str, str]:
        here = {"pod_ip": "127.0.0.1", "ip": "127.0.0.1"}
        endpoints = [
            {"id": rank, "business_port": self.engine_ports[rank], "node_manager_port": self.ports[name], **here}
            for name, ranks in self.ranks_of.items()
            for rank in ranks
        ]
        pacing = {"enable_dp_scale_down_proxy": True, "poll_interval_sec": 0.1, "fault_poll_interval_sec": 0.1}
        body = {
            "job_name": "job",
            "role": "union",
            "instance_id": 7,
            "generation": generation,
            "endpoints": endpoints,
            "master_dp_ip": "127.0.0.1",
            "dp_master_port": self.master_port,
            "fault_tolerance_config": pacing | {"engine_request_timeout_sec": 4.0},
        }
        engines: dict[str, str] = {}
        for name in self.ranks_of:
            answer = await self.post(name, "/node-manager/start", body)
            assert answer.status_code == 200, answer.text
            engines |= answer.json()["engines"]
        for rank in self.engine_ports:
            await eventually(self.controller.says(rank, HEALTHY), what=f"rank {rank} healthy")
        return engines

    async def traffic(self, rank: int) -> None:
        """One request: what makes the group step, and so notice a dead peer."""
        url = f"http://127.0.0.1:{self.engine_ports[rank]}/v1/completions"
        with contextlib.suppress(httpx.HTTPError):
            await self.http.post(url, json={"model": "simulated", "prompt": "x", "max_tokens": 3}, timeout=2.0)

    def workers_of(self, engine: str) -> list[int]:
        root = ProcessIdentity.parse(engine).pid
        return [s.pid for s in process_table().values() if s.session == root and s.pid != root and not s.ended]

    def applies_logged(self) -> list[dict[str, Any]]:
        """From the engines' own logs."""
        lines = [line for path in self.folder.glob("*/logs/*.jsonl") for line in path.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event.get("event") == "apply"]

    async def close(self, everything: list[str]) -> None:
        for name, process in self.processes.items():
            if process.returncode is None:
                await self.kill(name, signal.SIGTERM)
        for identity in everything:
            with contextlib.suppress(ProcessLookupError):
                if alive(identity):
                    os.killpg(ProcessIdentity.parse(identity).pid, signal.SIGKILL)
        await self.http.aclose()


@pytest.fixture
async def two_pods(tmp_path: Path, controller: FakeController) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path, controller, {"a": (0, 1), "b": (2,)})
    try:
        await asyncio.gather(*(installation.launch(name) for name in installation.ranks_of))
        yield installation
    finally:
        seen = [one.engine_incarnation for report in controller.reports for one in report.reports]
        await installation.close(sorted({identity for identity in seen if identity}))


async def test_a_whole_round_by_hand_with_a_restart_after_the_guard_and_one_after_the_apply(two_pods: Installation) -> None:
    engines = await two_pods.start()
    (worker,) = two_pods.workers_of(engines["1"])
    os.kill(worker, signal.SIGKILL)
    await eventually(two_pods.controller.says(1, DEAD, "process_exit"))
    await two_pods.traffic(0)
    for rank in (0, 2):
        await eventually(two_pods.controller.says(rank, UNHEALTHY), what=f"rank {rank} notices")

    guard = {"request_id": "A", "lease_sec": 85.0, "generation": 2}
    for name in ("a", "b"):
        assert (await two_pods.ft(name, "guard", guard)).status_code == 200
    await two_pods.kill("a")
    await two_pods.launch("a")
    assert (await two_pods.ft("a", "guard", guard)).json()["lapsed"] is False

    params = {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_master_rank": 0}
    applies = {
        name: {"endpoint_ids": ranks, "instruction": "scale_down", "params": params, "request_id": "A", "generation": 2}
        for name, ranks in (("a", [0]), ("b", [2]))
    }
    answers = await asyncio.gather(*(two_pods.ft(name, "apply", body) for name, body in applies.items()))
    assert [answer.status_code for answer in answers] == [200, 200], [answer.text for answer in answers]
    await two_pods.kill("b")
    await two_pods.launch("b")
    for name, body in applies.items():
        assert (await two_pods.ft(name, "apply", body)).json()["status"] == "accepted"
    for rank in (0, 2):
        await eventually(two_pods.controller.says(rank, HEALTHY), what=f"rank {rank} recovered")
    assert sorted(event["rank"] for event in two_pods.applies_logged()) == [0, 2]

    for name, retired in (("a", [1]), ("b", [])):
        body = {"request_id": "A", "commit": True, "retired_endpoint_ids": retired, "dead_committed": [1], "generation": 2}
        assert (await two_pods.ft(name, "finalize", body)).json() == {"status": "committed"}
        probed = await two_pods.ft(name, "probe", {"endpoint_ids": applies[name]["endpoint_ids"], "timeout_sec": 5.0})
        assert all(engine["ok"] for engine in probed.json()["engines"].values()), probed.text
    entries = await two_pods.entries("a")
    assert (entries["0"]["status"], entries["1"]["status"]) == ("healthy", "retired")
    assert {entries[rank]["incarnation"] for rank in entries} == {engines["0"], engines["1"]}


async def test_killed_node_manager_leaves_its_engines_and_its_next_life_reports_what_died_meanwhile(
    two_pods: Installation,
) -> None:
    engines = await two_pods.start()
    await two_pods.kill("a")
    assert all(alive(identity) for identity in engines.values())
    last = two_pods.controller.last(0)
    assert last is not None
    os.kill(ProcessIdentity.parse(engines["1"]).pid, signal.SIGKILL)
    await two_pods.launch("a")
    await eventually(two_pods.controller.says(1, DEAD, "process_exit"))
    await eventually(lambda: two_pods.controller.last(0) != last)
    again = two_pods.controller.last(0)
    assert again is not None
    assert (again.engine_incarnation, again.engine_status) == (engines["0"], HEALTHY)
    assert again.sequence > last.sequence
    assert (await two_pods.entries("a"))["1"]["process"] == "exited"
    await eventually(lambda: not two_pods.workers_of(engines["1"]), what="orphaned worker ended")


async def test_journal_that_is_garbage_in_the_next_life_refuses_commands_says_so_and_leaves_the_engines(
    two_pods: Installation,
) -> None:
    engines = await two_pods.start()
    await two_pods.kill("a")
    journal = two_pods.folder / "a" / "journal.sqlite"
    journal.write_bytes(os.urandom(journal.stat().st_size))
    await two_pods.launch("a", until_path="/liveness")
    assert reason(await two_pods.ft("a", "guard", {"request_id": "A", "lease_sec": 85.0})) == "JOURNAL"
    assert (await two_pods.http.get(f"{two_pods.url('a')}/readiness")).status_code == 503
    assert all(alive(identity) for identity in engines.values())
    assert str(journal) in (two_pods.folder / "a.log").read_text()


async def test_death_between_intent_and_call_is_unknown_in_the_next_life(two_pods: Installation) -> None:
    await two_pods.start()
    await two_pods.kill("b")
    async with failpoint_driver(two_pods.folder) as (socket, hit):
        await two_pods.launch("b", AUTOTOMY_FAILPOINTS=f"node-manager.after-intent=unix:{socket}")
        await two_pods.ft("b", "guard", {"request_id": "A", "lease_sec": 85.0})
        params = {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_master_rank": 0}
        body = {"endpoint_ids": [2], "instruction": "scale_down", "params": params, "request_id": "A"}
        applying = asyncio.create_task(two_pods.ft("b", "apply", body))
        await asyncio.wait_for(hit.wait(), LIMIT_SEC)
        await two_pods.kill("b")
        with pytest.raises(httpx.HTTPError):
            await applying
    await two_pods.launch("b")
    for _ in range(2):
        assert reason(await two_pods.ft("b", "apply", body)) == "OUTCOME_UNKNOWN"
    assert two_pods.applies_logged() == []
    assert (
        await two_pods.ft("b", "finalize", {"request_id": "A", "commit": False, "retired_endpoint_ids": []})
    ).status_code == 200


async def test_stop_ends_engines_and_the_process_with_exit_code_0(two_pods: Installation) -> None:
    engines = await two_pods.start()
    assert (await two_pods.post("a", "/node-manager/stop", {"generation": 2})).json()["status"] == "stopping"
    assert await asyncio.wait_for(two_pods.processes["a"].wait(), LIMIT_SEC) == 0
    for rank in ("0", "1"):
        assert not alive(engines[rank])
        assert two_pods.workers_of(engines[rank]) == []
    assert alive(engines["2"])
    await two_pods.launch("a")
    assert reason(await two_pods.ft("a", "status", {"endpoint_ids": [0]})) == "NOT_STARTED"


async def test_sigterm_ends_the_pod_as_a_whole(two_pods: Installation) -> None:
    engines = await two_pods.start()
    assert await two_pods.kill("a", signal.SIGTERM) == 0
    assert [alive(engines[rank]) for rank in ("0", "1", "2")] == [False, False, True]


@contextlib.asynccontextmanager
async def failpoint_driver(folder: Path) -> AsyncIterator[tuple[Path, asyncio.Event]]:
    """Tells when a failpoint was hit, and never releases it."""
    hit, over = asyncio.Event(), asyncio.Event()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        hit.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_unix_server(held, folder / "driver.sock")
    try:
        yield folder / "driver.sock", hit
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("pod_ip: a\njournal: j\nlog_dir: l\nport: 70000")
    code, errors = await run_to_end("--config", str(tmp_path / "c.yaml"))
    assert (code, errors.count("\n")) == (2, 1)
    assert "port = 70000" in errors


async def test_taken_port_and_missing_file_are_said_plainly(tmp_path: Path, controller: FakeController) -> None:
    (tmp_path / "c.yaml").write_text(f"pod_ip: 127.0.0.1\njournal: {tmp_path}/j\nlog_dir: {tmp_path}/l\n")
    port = controller.url.rsplit(":", 1)[1]
    code, errors = await run_to_end("--config", str(tmp_path / "c.yaml"), "--port", port)
    assert (code, "another process listens there" in errors) == (2, True)
    code, errors = await run_to_end("--config", str(tmp_path / "none.yaml"))
    assert (code, "none.yaml" in errors) == (2, True)


async def run_to_end(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "node_manager", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), LIMIT_SEC)
    assert process.returncode is not None
    return process.returncode, errors.decode()
