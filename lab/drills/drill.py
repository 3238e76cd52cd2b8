"""What a drill is: an installation, something that happens to it, and what must be true afterwards.

The script (`act`) only injects and waits for what can be seen from outside; it judges nothing. What must hold is said
as an `Expectation`, judged afterwards over everything that was recorded (`lab.drills.judge.judge`).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from domain.config import FallbackStrategy
from domain.messages.round import RoundReason
from domain.model import Rank, Strict
from lab.stack.spec import EngineSpec, StackSpec

if TYPE_CHECKING:
    from lab.drills.scene import Scene


PODS: Final = ("node-manager-0", "node-manager-1")
"""The two Pods of a `local_spec`, by the names of their NodeManagers."""


class Outcome(StrEnum):
    IN_PLACE = "in place"  # the group shrank and serves without the dead ranks
    REBUILT = "rebuilt"  # all engines new, all ranks serve


class Expectation(Strict):
    """What must hold at the end. `losses`: per in-place round the ranks that it removes; `outcome`: how it ends.

    `masters`: per round the rank whose address every apply must name. `may_apply`: engines may have been told something
    before a rebuild (never twice: I1). `no_round`: nothing is begun at all before the rebuild. `rebuild_not_before_sec`:
    no withdrawal earlier than this after the injection. `kept_pods`: NodeManagers that must live on. `killed`: how many
    of our processes the drill kills, `stopped`: how many it stops for a while, and `stopped_for_sec`: for how long at
    least. `goes_on_within_sec`: per cell in which one of two workers goes, when the round must have gone on at the latest.
    `reasons`: the first round must have ended with one of these. `repeated_set`: the periodic SET must have come, and
    have changed nothing. `retried`: every engine was told to retry, once, and nothing else. `feature_off`: NodeManagers
    have no fault-tolerance routes, so no journal tells anything either. `endings`: how each round must have ended, in
    their order; `gates`: the codes with which the gate refused each of them. `aborted`: every round that failed was aborted
    at NodeManagers, and committed at none. `stopped_pods`: NodeManagers that must have been stopped exactly once.
    `unstoppable_pods`: those that were asked to stop and could not. `quiet_after`: what was injected last changes no view.
    `undisturbed`: ranks that answer clients all the time, and where no request fails.
    """

    outcome: Outcome
    losses: tuple[tuple[int, ...], ...] = ()
    masters: tuple[int, ...] = ()
    may_apply: bool = False
    no_round: bool = False
    rebuild_not_before_sec: float | None = None
    kept_pods: tuple[str, ...] = ()
    killed: int = 0
    stopped: int = 0
    stopped_for_sec: float = 0.0
    goes_on_within_sec: Mapping[str, float] = {}
    reasons: tuple[RoundReason, ...] = ()
    repeated_set: bool = False
    retried: bool = False
    feature_off: bool = False
    endings: tuple[RoundReason, ...] = ()
    gates: tuple[tuple[str, ...], ...] = ()
    aborted: bool = False
    stopped_pods: tuple[str, ...] = ()
    unstoppable_pods: tuple[str, ...] = ()
    quiet_after: bool = False
    undisturbed: tuple[Rank, ...] = ()

    @property
    def removed(self) -> tuple[int, ...]:
        """All that in-place rounds removed."""
        return tuple(sorted({rank for loss in self.losses for rank in loss}))

    @property
    def dead_committed(self) -> tuple[int, ...]:
        """What is removed for good at the end: a rebuild brings all back."""
        return self.removed if self.outcome is Outcome.IN_PLACE else ()


@dataclass(frozen=True)
class Drill:
    """One scenario.

    Args:
        name: as `autotomy drill NAME` takes it.
        summary: one line: what is done, and what is expected.
        spec: the installation. Failpoints are put in by the runner, from `failpoints`.
        act: injects and waits.
        expected: what is judged.
        traffic: whether clients send requests all the time.
        failpoints: process kind or name → failpoints that stop there.
    """

    name: str
    summary: str
    spec: StackSpec
    act: "Callable[[Scene], Awaitable[None]]"
    expected: Expectation
    traffic: bool = True
    failpoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def local_spec(name: str, engine: EngineSpec | None = None, *, workers: int = 1, **config: JsonValue) -> StackSpec:
    """Four ranks in two Pods; engines notice a dead peer after 2 s (real ones: ~30 s) and shrink in 1 s, as real ones do.

    `config` overrides `fault_tolerance_config`. Everything shorter than in production is printed with the report.
    """
    polls: dict[str, JsonValue] = {"poll_interval_sec": 0.25}
    scale_down = config.pop("dp_scale_down_config", {})
    assert isinstance(scale_down, Mapping)
    return StackSpec(
        name=name,
        workers=workers,
        engine=engine or EngineSpec(detection_sec=2.0, recovery_sec=1.0),
        fault_tolerance_config={
            "fallback_strategy": FallbackStrategy.INSTANCE_RECONFIGURATION.value,
            **config,
            "dp_scale_down_config": {**polls, **scale_down},
        },
    )
