"""The engines of a Pod as `Transactions` sees them, with every call counted; and a clock that tests turn."""

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from domain.messages.node_manager import NodeManagerReason
from domain.pod.fence import Refusal
from domain.pod.records import BootTime
from engine.client import ApplyAnswer, EngineCommand


@dataclass
class EnginesInMemory:
    """Ranks 0, 1, 2 are ours. `answers` overrules the 202 of a rank: another code, or an error to raise."""

    answers: dict[int, int | Exception] = field(default_factory=dict)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    commands: list[EngineCommand] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)
    gate: asyncio.Event | None = None
    ranks: frozenset[int] = frozenset({0, 1, 2})
    dp_master_port: int | None = 29500

    def unavailable(self, ranks: Collection[int]) -> dict[int, Refusal]:
        return {
            rank: Refusal(NodeManagerReason.UNMANAGED_ENDPOINT, f"rank {rank} is retired or not ours")
            for rank in ranks
            if rank not in self.ranks or rank in self.retired
        }

    async def apply(self, rank: int, command: EngineCommand) -> ApplyAnswer:
        self.calls[command.request_id, rank] += 1
        self.commands.append(command)
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.get(rank, 202)
        if isinstance(answer, Exception):
            raise answer
        return ApplyAnswer(answer, "queued" if answer == 202 else "no")

    def own(self, ranks: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted(self.ranks & set(ranks)))

    def retire(self, ranks: Collection[int]) -> None:
        self.retired |= set(ranks)


@dataclass
class TurnedClock:
    sec: float = 1000.0
    boot: str = "boot-a"

    def __call__(self) -> BootTime:
        return BootTime(boot=self.boot, sec=self.sec)
