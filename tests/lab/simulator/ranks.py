"""Real ranks for the tests: started by command line, reached by HTTP, hurt by signals, judged by their own logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from service.process_identity import read_stat
from tests.eventually import eventually
from tests.listening import free_port

DETECTION_SEC = 0.5
RECOVERY_SEC = 0.1
STORE_TIMEOUT_SEC = 0.8
GRACE_SEC = 15.0
"""How long a test waits for what must happen; generous, because the machine may be busy."""


def process_runs(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    stat = read_stat(pid)
    return stat is not None and not stat.ended


class Rank:
    """One started rank."""

    def __init__(self, number: int, flags: list[str], log_dir: Path, dialect: str = "v1") -> None:
        self.number = number
        self.dialect = dialect
        command = [sys.executable, "-m", "lab.simulator", "--data-parallel-rank", str(number), "--port", "0"]
        self._log_dir = log_dir
        self.process = subprocess.Popen(
            [*command, "--dialect", dialect, "--log-dir", str(log_dir), *flags], stderr=subprocess.DEVNULL
        )
        self.http = httpx.AsyncClient(timeout=30.0, trust_env=False, verify=False)  # plain HTTP: no time for certificates

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        """Its own log, or only one kind of event."""
        path = self._log_dir / f"engine-{self.number}-{self.process.pid}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if event in (None, line["event"])]

    @property
    def worker_pid(self) -> int:
        return int(self.log("start")[0]["worker_pid"])

    async def ready(self) -> None:
        """Wait until the port is open."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return bool(self.log("ready"))

        await eventually(is_ready)
        start = self.log("start")[0]
        self.http.base_url = httpx.URL(f"http://{start['host']}:{start['port']}")

    async def entry(self) -> dict[str, Any]:
        """The status entry, absent fields absent."""
        answer = await self.http.get(self.path("status"))
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["schema_version"], body["total_engines"], len(body["engines"])) == (1, 1, 1)
        entry: dict[str, Any] = body["engines"][0]
        assert entry["id"] == self.number
        return entry

    def path(self, name: str) -> str:
        return f"{'/v1' if self.dialect == 'v1' else ''}/fault_tolerance/{name}"

    async def apply(self, instruction: str, request_id: str = "one", **params: Any) -> httpx.Response:
        body = {"instruction": instruction, "params": params, "request_id": request_id}
        return await self.http.post(self.path("apply"), json=body)

    async def complete(self, max_tokens: int = 1) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": max_tokens})

    async def text(self) -> str:
        """The text of a short completion, which must succeed."""
        answer = await self.complete()
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        return str(answer.json()["choices"][0]["text"])

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self.http.get("/simulator/state")).json()
        return state

    async def misbehave(self, knobs: str) -> httpx.Response:
        return await self.http.post("/simulator/misbehave", json={"knobs": knobs})

    async def becomes(self, status: str, ft_state: str | None = None, timeout_sec: float = GRACE_SEC) -> dict[str, Any]:
        """Wait for a status; the entry."""
        found: dict[str, Any] = {}

        async def is_so() -> bool:
            found.clear()
            found.update(await self.entry())
            return (found["status"], found.get("ft_state")) == (status, ft_state)

        await eventually(is_so, within_sec=timeout_sec)
        return found

    async def errs(self) -> dict[str, Any]:
        """Wait for an `ft_error`; the entry."""
        found: dict[str, Any] = {}

        async def has_erred() -> bool:
            found.clear()
            found.update(await self.entry())
            return "ft_error" in found

        await eventually(has_erred)
        return found

    async def runs_a_request(self) -> bool:
        """Whether the API server has one in progress."""
        return "} 1\n" in (await self.http.get("/metrics")).text

    async def refuses(self, request_id: str) -> None:
        """Wait until it has refused this command (asynchronously)."""
        await eventually(lambda: any(line["request_id"] == request_id for line in self.log("refused")))

    @property
    def worker_command(self) -> bytes:
        return Path(f"/proc/{self.worker_pid}/cmdline").read_bytes()

    def signal_worker(self, number: int) -> None:
        os.kill(self.worker_pid, number)

    def kill_worker(self) -> None:
        self.signal_worker(signal.SIGKILL)

    async def ended(self, timeout_sec: float = GRACE_SEC) -> int:
        """Wait for the API server's end; its exit code."""
        await eventually(lambda: self.process.poll() is not None, within_sec=timeout_sec)
        return int(self.process.returncode)

    async def stop(self) -> None:
        """End it for certain, and be sure that its worker went with it."""
        await self.http.aclose()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                await self.ended(5.0)
            except AssertionError:
                self.process.kill()
                self.process.wait()
                raise
        for start in self.log("start"):
            await eventually(lambda pid=int(start["worker_pid"]): not process_runs(pid), within_sec=2.0)  # type: ignore[misc]


class Ranks(list[Rank]):
    """A whole instance."""

    async def lose(self, dead: int) -> list[Rank]:
        """Kill a rank's worker and make the others notice; the survivors."""
        self[dead].kill_worker()
        await self[dead].becomes("dead")
        survivors = [rank for rank in self if rank.number != dead]
        await survivors[0].complete()
        for rank in survivors:
            await rank.becomes("unhealthy")
        return survivors


async def apply_all(ranks: list[Rank], instruction: str, request_id: str = "one", **params: Any) -> None:
    """Tell several ranks the same; each must accept."""
    answers = await asyncio.gather(*(rank.apply(instruction, request_id, **params) for rank in ranks))
    assert [answer.status_code for answer in answers] == [202] * len(ranks)


async def all_become(ranks: list[Rank], status: str, ft_state: str | None = None) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(rank.becomes(status, ft_state) for rank in ranks)))


def _flag(name: str, value: object) -> str:
    """A flag; without a value when it is True."""
    return f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")


@asynccontextmanager
async def instance(
    log_dir: Path, size: int = 3, dialect: str = "v1", hosts: list[str] | None = None, **flags: Any
) -> AsyncIterator[Ranks]:
    """Start `size` ranks with short times; flags as keyword arguments, ready when it yields."""
    hosts = hosts or ["127.0.0.1"] * size
    times = {
        "detection_sec": DETECTION_SEC,
        "recovery_sec": RECOVERY_SEC,
        "store_timeout_sec": STORE_TIMEOUT_SEC,
        "step_ms": 10,
        "data_parallel_size": size,
        "data_parallel_address": hosts[0],
        "dp_master_port": free_port(hosts[0]),
    }
    given = [_flag(name, value) for name, value in {**times, **flags}.items()]
    ranks = Ranks(Rank(number, [f"--host={hosts[number]}", *given], log_dir, dialect) for number in range(size))
    try:
        await asyncio.gather(*(rank.ready() for rank in ranks))
        yield ranks
    finally:
        ends = await asyncio.gather(*(rank.stop() for rank in ranks), return_exceptions=True)
        assert not [end for end in ends if end is not None], ends
