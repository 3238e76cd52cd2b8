"""The gate refuses what an instance cannot do, with the code of what is missing (acceptance A, gate).

One installation; the instance is declared anew for each prerequisite, without it. What is refused has touched nothing:
no guard, no command; the fallback rebuilds. Nobody declares fused MC2: it is no prerequisite.
"""

import asyncio
import time
from typing import Final

import httpx
from pydantic import JsonValue

from domain.messages.strategy import RoundReason
from domain.round.gate import GateCode
from lab.drills.drill import Drill, local_spec, rebuilt
from lab.drills.judge.commands import no_apply, no_round
from lab.drills.judge.endings import gate_refused, rounds_ended
from lab.drills.record.observer import NotSeen
from lab.drills.script.scene import Scene

MISSING: Final[tuple[tuple[GateCode, dict[str, JsonValue] | None], ...]] = (
    (GateCode.ENGINE_FT_REQUIRED, {"enabled": False}),
    (GateCode.EXTERNAL_LB_REQUIRED, {"external_lb": False}),
    (GateCode.AUTO_RECOVERY_CONFLICT, {"auto_recovery": True}),
    (GateCode.ENGINE_SCALE_DOWN_UNSUPPORTED, {"scale_down_supported": False}),
    (GateCode.EPLB_REQUIRED, {"eplb_enabled": False}),
    (GateCode.EXPERT_REDUNDANCY_REQUIRED, {"num_redundant_experts": 0}),
    (GateCode.FT_CAPABILITY_MISSING, None),
)
"""Per code what is declared otherwise; None: nothing is declared about the engines at all."""

VICTIM: Final = 1
BUDGET_WINDOW_SEC: Final = 10.0
_LIMIT_SEC: Final = 60.0
_PAUSE_SEC: Final = 0.2


async def each_in_turn(scene: Scene) -> None:
    for number, (code, change) in enumerate(MISSING):
        scene.step(f"prerequisite {number + 1} of {len(MISSING)}: {code}")
        await _declare(scene, change)
        lives = len(scene.engine_lives()[VICTIM])
        await scene.until_settled()
        scene.kill_workers(VICTIM)
        await scene.until_rebuilt(lives + 1)
        await scene.until_settled()


async def _declare(scene: Scene, change: dict[str, JsonValue] | None) -> None:
    """End the instance and its engines, declare it anew, and wait until it serves with new engines."""
    body = scene.stack.topology.model_dump(mode="json", exclude={"instance_id"})
    body["ft_capability"] = None if change is None else {**body["ft_capability"], **change}
    instance = scene.stack.spec.instance_id
    lives = len(scene.engine_lives()[VICTIM])
    async with httpx.AsyncClient(base_url=scene.stack.addresses.controller_url, timeout=5.0, trust_env=False) as http:
        ended = await http.post("/controller/terminate_instance", json={"instance_id": instance, "reason": "the next drill"})
        ended.raise_for_status()
        deadline = time.monotonic() + _LIMIT_SEC
        while (told := await http.put(f"/controller/instances/{instance}", json=body)).status_code != httpx.codes.OK:
            if time.monotonic() >= deadline:
                raise NotSeen(f"the instance cannot be declared anew: {told.text}")
            await asyncio.sleep(_PAUSE_SEC)
    await scene.until_rebuilt(lives + 1)


DRILLS: Final = (
    Drill(
        name="gate",
        summary="Each prerequisite of a scale-down is missing in turn: refused with its code, nothing touched, rebuilt.",
        spec=local_spec("gate", reconfiguration_budget=10, reconfiguration_window_sec=BUDGET_WINDOW_SEC),
        act=each_in_turn,
        end=rebuilt(),
        checks=(
            no_apply(),
            no_round(),
            rounds_ended(*[RoundReason.GATE_REFUSED] * len(MISSING)),
            gate_refused(*(code.value for code, _ in MISSING)),
        ),
    ),
)
