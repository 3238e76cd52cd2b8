"""Faults that come by HTTP: a resource monitor's reports, and knobs of the simulated engines; and engines that fall silent."""

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Final

import httpx

from lab.drills.record.observer import NotSeen
from lab.drills.script.scene import Scene

FAULT_CODE: Final = "0x80E01801"
_TIMEOUT_SEC: Final = 5.0


async def report_hardware(scene: Scene, node: str, npu: str, level: str, *, begins_episode: bool = True) -> None:
    """POST /controller/report_hardware_fault, as the resource monitor would. Raises NotSeen where it is not accepted."""
    body = {"node_name": node, "fault_code": FAULT_CODE, "npu_name": npu, "level": level, "source": "drill"}
    url = f"{scene.stack.addresses.controller_url}/controller/report_hardware_fault"
    at = time.monotonic()
    async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as http:
        answer = await http.post(url, json=body)
    card = npu or "the whole node"
    what = f"hardware fault {level} of {card} on {node}"
    scene.record_injection(at, what, f"POST {url} {body}", (), begins_episode=begins_episode)
    if answer.status_code != httpx.codes.OK or not answer.json()["data"]["accepted"]:
        raise NotSeen(f"the Controller did not accept the {what}: {answer.text}")


async def misbehave(scene: Scene, knobs: str, *ranks: int, begins_episode: bool = False) -> None:
    """These engines break their contract from now on (`lab.simulator.misbehaviour`); "" ends it."""
    at = time.monotonic()
    async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as http:
        for rank in ranks:
            url = f"{scene.stack.engine(rank).url}/simulator/misbehave"
            answer = await http.post(url, json={"knobs": knobs})
            answer.raise_for_status()
    what = f"engines {', '.join(map(str, ranks))} misbehave: {knobs}"
    scene.record_injection(at, what, f'POST …/simulator/misbehave {{"knobs": "{knobs}"}}', ranks, begins_episode=begins_episode)


@contextlib.asynccontextmanager
async def silent_engine(scene: Scene, rank: int) -> AsyncIterator[None]:
    """A rank's API server stands still while the context lasts, or until it is ended: connections open, nobody answers."""
    pid = scene.stack.engine_api_pid(rank)
    os.kill(pid, signal.SIGSTOP)
    scene.record_injection(
        time.monotonic(), f"SIGSTOP of rank {rank}'s API server", f"kill -STOP {pid}", (rank,), begins_episode=False
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
