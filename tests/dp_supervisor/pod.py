"""A Pod for the tests: the supervisor as a process, its simulated ranks, and everything that it leaves behind."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from lab.stack.ports import PortLease
from lab.stack.processes import RUN_ID_VARIABLE, carriers, sweep
from tests.eventually import eventually

SWEEP_SEC = 0.1
THRESHOLD = 3
DETECTION_SEC = 0.5


class Pod:
    """`dp_supervisor` in front of `ranks` simulated servers; `rules` are its flags, `engine` theirs."""

    def __init__(self, folder: Path, lease: PortLease, ranks: int, rules: Sequence[str], engine: Sequence[str]) -> None:
        self.folder = folder
        self.ranks = ranks
        self.run_id = f"dp-supervisor-test-{os.urandom(6).hex()}"
        self.port = lease.take_block(ranks)
        self.supervisor_port = lease.take()
        self.store_port = lease.take_block(ranks)
        self.http = httpx.AsyncClient(timeout=10.0, trust_env=False)
        self.process: asyncio.subprocess.Process | None = None
        own = ["-dp", str(ranks), "-dpl", str(ranks), "--port", str(self.port), "--log-dir", str(folder / "servers")]
        own += ["--data-parallel-supervisor-port", str(self.supervisor_port), "--host", "127.0.0.1"]
        own += ["--dp-supervisor-probe-interval-s", str(SWEEP_SEC), "--dp-supervisor-probe-timeout-s", "2"]
        server = [sys.executable, "-m", "lab.simulator", "--dp-master-port", str(self.store_port), "--log-dir", str(folder)]
        server += ["--detection-sec", str(DETECTION_SEC), "--recovery-sec", "0.1", "--step-ms", "20"]
        self.command = [sys.executable, "-m", "dp_supervisor", *own, *rules, "--", *server, *engine]

    async def start(self) -> None:
        with (self.folder / "supervisor.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, env={**os.environ, RUN_ID_VARIABLE: self.run_id}, stdout=log, stderr=log
            )

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            assert self.process is not None
            assert self.process.returncode is None, self.log
            return await self.answer("/ready") == 200

        await eventually(is_ready, within_sec=60)

    async def answer(self, path: str) -> int | None:
        """The HTTP status of a probe; None where nobody listens."""
        try:
            return (await self.http.get(f"http://127.0.0.1:{self.supervisor_port}{path}")).status_code
        except httpx.TransportError:
            return None

    async def status(self) -> dict[str, Any]:
        answer = await self.http.get(f"http://127.0.0.1:{self.supervisor_port}/status")
        data: dict[str, Any] = answer.json()["data"]
        return data

    def url(self, rank: int) -> str:
        return f"http://127.0.0.1:{self.port + rank}"

    async def request(self, rank: int) -> None:
        """One request, which makes the group step."""
        try:
            await self.http.post(f"{self.url(rank)}/v1/completions", json={"prompt": "x", "max_tokens": 2})
        except httpx.TransportError:
            pass

    async def scale_down(self, removed: list[int], survivors: Sequence[int]) -> None:
        params = {
            "removed_dp_ranks": removed,
            "dp_master_ip": "127.0.0.1",
            "dp_store_port": self.store_port + min(survivors),
        }
        body = {"instruction": "scale_down", "params": params, "request_id": "scale-down-by-test"}
        answers = await asyncio.gather(
            *(self.http.post(f"{self.url(rank)}/v1/fault_tolerance/apply", json=body) for rank in survivors)
        )
        assert [answer.status_code for answer in answers] == [202] * len(survivors)

    def engine_log(self, rank: int, event: str) -> list[dict[str, Any]]:
        texts = [path.read_text() for path in self.folder.glob(f"engine-{rank}-*.jsonl")]
        return [line for text in texts for line in map(json.loads, text.splitlines()) if line["event"] == event]

    def kill_worker(self, rank: int) -> None:
        os.kill(self.engine_log(rank, "start")[0]["worker_pid"], signal.SIGKILL)

    async def exit_code(self, within_sec: float = 30) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), within_sec)

    @property
    def left(self) -> list[str]:
        """What still runs of it."""
        return [str(carrier) for carrier in carriers(self.run_id)]

    @property
    def log(self) -> str:
        return (self.folder / "supervisor.log").read_text()

    async def close(self) -> None:
        await self.http.aclose()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        await asyncio.to_thread(sweep, self.run_id)


@asynccontextmanager
async def pod_running(
    folder: Path, ranks: int, *, rules: Sequence[str] = (), engine: Sequence[str] = (), ready: bool = True
) -> AsyncIterator[Pod]:
    """Started, ready unless told otherwise, and ended with all that belongs to it."""
    with PortLease() as lease:
        pod = Pod(folder, lease, ranks, rules, engine)
        try:
            await pod.start()
            if ready:
                await pod.until_ready()
            yield pod
        finally:
            await pod.close()
