"""What a benchmark says: percentiles of our share of a recovery, its stages, and the comparison with the bare loop."""

from collections.abc import Iterable, Mapping
from typing import Final

from domain.model import Strict
from lab.bench.group import Episode

STAGES: Final = (
    *("detect", "decide", "guard", "apply_ready", "withdraw", "apply"),
    *("engine_recovery", "recovery_seen", "verify", "finalize", "publish"),
)
_ROUND_STAGES: Final = ("guard", "apply_ready", "withdraw", "apply", "verify", "finalize", "publish")


class Spread(Strict):
    """Seconds, over all rounds."""

    p50: float
    p95: float
    p99: float
    most: float
    n: int


class Sample(Strict):
    """One round: `ours` = from a NodeManager's last piece of evidence to ADD acknowledged, less the engines' own part.

    `seen_late`: the part of it between the engines' recovery and the look that saw it. `whole`: injection to ADD.
    """

    instance_id: int
    ours: float
    seen_late: float
    whole: float
    stages: dict[str, float]
    commands_per_engine: int


class BareSample(Strict):
    """One round of the bare loop, without detection and decision: from its first call to ADD, less the engines' part."""

    ours: float
    seen_late: float
    stages: dict[str, float]


def sample(episode: Episode, published_at: float, told: Mapping[str, float]) -> Sample:
    """One Controller's round; `told` are its `stage_times`. Raises ValueError for an episode that did not get that far."""
    began, ended = episode.recovery_began_at, episode.recovery_ended_at
    if began is None or ended is None or not episode.seen:
        raise ValueError(f"instance {episode.instance_id}: its engines were never commanded")
    evidence_at = max(episode.seen.values())
    before = sum(told.get(name, 0.0) for name in ("guard", "apply_ready", "withdraw"))
    after = sum(told.get(name, 0.0) for name in ("verify", "finalize", "publish"))
    seen_late = max(0.0, published_at - ended - after)
    stages = {name: told[name] for name in _ROUND_STAGES if name in told} | {
        "detect": evidence_at - episode.injected_at,
        "decide": max(0.0, began - evidence_at - before),
        "engine_recovery": ended - began,
        "recovery_seen": seen_late,
    }
    return Sample(
        instance_id=episode.instance_id,
        ours=published_at - evidence_at - (ended - began),
        seen_late=seen_late,
        whole=published_at - episode.injected_at,
        stages=stages,
        commands_per_engine=max(episode.applies.values(), default=0),
    )


def bare_sample(episode: Episode, began_at: float, published_at: float, told: Mapping[str, float]) -> BareSample:
    """One round of the bare loop, measured the same way from its first call on. Raises as `sample`."""
    began, ended = episode.recovery_began_at, episode.recovery_ended_at
    if began is None or ended is None:
        raise ValueError("the bare loop's engines were never commanded")
    after = sum(told.get(name, 0.0) for name in ("verify", "finalize", "publish"))
    stages = {name: told[name] for name in _ROUND_STAGES if name in told} | {
        "engine_recovery": ended - began,
        "recovery_seen": max(0.0, published_at - ended - after),
    }
    return BareSample(ours=published_at - began_at - (ended - began), seen_late=stages["recovery_seen"], stages=stages)


def spread(values: Iterable[float]) -> Spread | None:
    """None without any value."""
    ordered = sorted(values)
    if not ordered:
        return None

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)

    return Spread(p50=at(0.5), p95=at(0.95), p99=at(0.99), most=round(ordered[-1], 4), n=len(ordered))


def stage_spreads(samples: Iterable[Mapping[str, float]]) -> dict[str, Spread]:
    """Per stage, in their order in a round."""
    by_stage: dict[str, list[float]] = {name: [] for name in STAGES}
    for stages in samples:
        for name, seconds in stages.items():
            by_stage[name].append(seconds)
    found = {name: spread(values) for name, values in by_stage.items()}
    return {name: one for name, one in found.items() if one is not None}
