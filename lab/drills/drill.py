"""What a drill is: an installation, something that happens to it, how that must end, and what else must hold.

The script (`act`) only injects and waits for what can be seen from outside; it judges nothing. What must hold is judged
afterwards, over everything that was recorded (`lab.drills.judge`): the checks that the drill lists, those that follow from
its end, and the invariants. `autotomy drill NAME --list` shows them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from domain.config import FallbackStrategy
from domain.model import Rank
from lab.drills.check import Check
from lab.stack.spec import EngineSpec, StackSpec

if TYPE_CHECKING:
    from lab.drills.script.scene import Scene


PODS: Final = ("node-manager-0", "node-manager-1")
"""The two Pods of a `local_spec`, by the names of their NodeManagers."""


@dataclass(frozen=True)
class End:
    """How a drill leaves the installation; each has the checks that follow from it. Made by `in_place` or `rebuilt`.

    Args:
        rebuilt: all engines are new and all ranks serve; otherwise every engine lives on that was not removed.
        losses: per in-place round the ranks that it removes; they stay gone.
        leaving: NodeManagers whose Pods are stopped on purpose; in a rebuild all may be.
    """

    rebuilt: bool
    losses: tuple[tuple[Rank, ...], ...] = ()
    leaving: tuple[str, ...] = ()

    @property
    def gone(self) -> tuple[Rank, ...]:
        """All that was removed."""
        return tuple(sorted({rank for loss in self.losses for rank in loss}))


def in_place(*losses: tuple[Rank, ...], leaving: tuple[str, ...] = ()) -> End:
    """The group shrank by these ranks, round by round, and serves without them; without any it serves as it did."""
    return End(rebuilt=False, losses=losses, leaving=leaving)


def rebuilt() -> End:
    """All engines are new, all ranks serve; whatever was removed before is back."""
    return End(rebuilt=True)


@dataclass(frozen=True)
class Drill:
    """One scenario.

    Args:
        name: as `autotomy drill NAME` takes it.
        summary: one line: what is done, and what is expected.
        spec: the installation. Failpoints are put in by the runner, from `failpoints`.
        act: injects and waits.
        end: how it must end.
        checks: what else must hold; says in particular what engines were told, where no round shrank the group.
        traffic: whether clients send requests all the time.
        undisturbed: ranks whose clients must not notice anything; without any, requests may fail until the end is reached.
        failpoints: process kind or name → failpoints that stop there.
    """

    name: str
    summary: str
    spec: StackSpec
    act: "Callable[[Scene], Awaitable[None]]"
    end: End
    checks: tuple[Check, ...] = ()
    traffic: bool = True
    undisturbed: tuple[Rank, ...] = ()
    failpoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def can_scale_down(self) -> bool:
        """Whether the feature is on; where it is not, no journal and no guard tells anything."""
        return self.spec.effective_config().enable_dp_scale_down


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
