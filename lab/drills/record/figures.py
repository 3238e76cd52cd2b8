"""Figures of a recovery, from what was seen outside the Controller.

The judged time is our own share: from the NodeManagers seeing the last piece of evidence to the survivors' view being
acknowledged, less what the engines themselves worked (design §7). Both ends and the engines' part come from logs of
other processes. Only the split of our share into stages is the Controller's own account (`stage_times` of its record);
what it leaves over is put where it must have been spent.
"""

from collections.abc import Iterable, Mapping, Sequence

from domain.model import Strict
from lab.drills.outcome import RequestCount, RequestFigures, RoundFigures
from lab.drills.record.traffic import RequestRecord


class Episode(Strict):
    """One injection and the round that answered it; times are `time.monotonic()`, None where it did not come to that.

    `evidence_at`: a NodeManager had the last piece of evidence. `applied_at`: the first engine got its command.
    `recovery_began_at`, `recovery_ended_at`: first and last engine, as they logged it. `published_at`: the survivors'
    view was taken over by the last Coordinator. `stage_times`: the round's own account, in seconds.
    """

    injected_at: float
    request_id: str = ""
    removed: tuple[int, ...] = ()
    engines: tuple[int, ...] = ()
    evidence_at: float | None = None
    applied_at: float | None = None
    recovery_began_at: float | None = None
    recovery_ended_at: float | None = None
    published_at: float | None = None
    stage_times: Mapping[str, float] = {}

    @property
    def engine_recovery_sec(self) -> float | None:
        if self.recovery_began_at is None or self.recovery_ended_at is None:
            return None
        return self.recovery_ended_at - self.recovery_began_at

    @property
    def control_plane_sec(self) -> float | None:
        """Our share; None where the group was not shrunk and published."""
        engines = self.engine_recovery_sec
        if self.evidence_at is None or self.published_at is None or engines is None:
            return None
        return self.published_at - self.evidence_at - engines


def stage_seconds(episode: Episode) -> dict[str, float]:
    """Seconds per stage, as far as the episode got."""
    told = episode.stage_times
    stages: dict[str, float] = {}
    if episode.evidence_at is not None:
        stages["detect"] = episode.evidence_at - episode.injected_at
    before_apply = sum(told.get(name, 0.0) for name in ("guard", "apply_ready", "withdraw"))
    if episode.evidence_at is not None and episode.applied_at is not None:
        stages["decide"] = max(0.0, episode.applied_at - episode.evidence_at - before_apply)
    stages |= {name: told[name] for name in ("guard", "apply_ready", "withdraw", "apply", "verify", "finalize") if name in told}
    engines = episode.engine_recovery_sec
    if engines is not None:
        stages["engine_recovery"] = engines
    if "publish" in told:
        stages["publish"] = told["publish"]
    if episode.published_at is not None and episode.recovery_ended_at is not None:
        after = sum(told.get(name, 0.0) for name in ("verify", "finalize", "publish"))
        stages["recovery_seen"] = max(0.0, episode.published_at - episode.recovery_ended_at - after)
    return {name: round(seconds, 4) for name, seconds in stages.items()}


def round_figures(episode: Episode, zero: float) -> RoundFigures:
    """One episode for the report, in seconds since `zero`."""
    ours = episode.control_plane_sec
    return RoundFigures(
        request_id=episode.request_id,
        injected_at=round(episode.injected_at - zero, 4),
        evidence_at=_since(episode.evidence_at, zero),
        published_at=_since(episode.published_at, zero),
        removed=episode.removed,
        engines=episode.engines,
        control_plane_sec=None if ours is None else round(ours, 4),
        stage_sec=stage_seconds(episode),
    )


def count_requests(records: Iterable[RequestRecord], windows: Sequence[tuple[float, float | None]]) -> RequestFigures:
    """Sort requests by `windows` (injection, published again or None): during = it overlapped one of them.

    A request counts as before if it ended before the first injection; as after if it started when everything injected so
    far had been overcome. Without a window everything ran before.
    """
    counted = {name: [0, 0] for name in ("before", "during", "after")}
    for record in records:
        counted[_window_of(record, windows)][0 if record.ok else 1] += 1
    counts = {name: RequestCount(ok=ok, failed=failed) for name, (ok, failed) in counted.items()}
    return RequestFigures(**counts)


def _window_of(record: RequestRecord, windows: Sequence[tuple[float, float | None]]) -> str:
    if not windows or record.ended_at < windows[0][0]:
        return "before"
    overlaps = any(record.ended_at >= begin and (end is None or record.started_at < end) for begin, end in windows)
    return "during" if overlaps else "after"


def median(values: Sequence[float]) -> float:
    """The middle value. Raises ValueError without any."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _since(at: float | None, zero: float) -> float | None:
    return None if at is None else round(at - zero, 4)
