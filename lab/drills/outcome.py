"""What a drill says in the end: its checks, its figures, and where the evidence is (contracts §8).

A check states how many observations it judged; without any it is not ok, for it has seen nothing. Figures are measured
from outside; times are figures and decide nothing.
"""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from domain.model import Strict

STAGES: Final[tuple[str, ...]] = (
    "detect",
    "decide",
    "guard",
    "apply_ready",
    "withdraw",
    "apply",
    "engine_recovery",
    "recovery_seen",
    "verify",
    "finalize",
    "publish",
)
"""In the order in which they happen. `recovery_seen`: from the last engine's end of recovery until the round knew it."""

STAGE_MEANINGS: Final[Mapping[str, str]] = {
    "detect": "injection until the NodeManagers had seen the last piece of evidence (the engines' communication timeout)",
    "decide": "last evidence until the round began",
    "guard": "all NodeManagers guarded",
    "apply_ready": "every survivor waits for an instruction, every death is confirmed",
    "withdraw": "the view withdrawn from every Coordinator",
    "apply": "one command to each survivor, all accepted",
    "engine_recovery": "the engines' own work, as their logs show it",
    "recovery_seen": "the engines' last end of recovery until the round knew it",
    "verify": "one completion on each survivor",
    "finalize": "the verdict at the survivors' NodeManagers",
    "publish": "the survivors' view acknowledged by every Coordinator",
}


class Finding(Strict):
    """What a check found. `detail` says what was seen, in words with values."""

    name: str
    ok: bool
    observations: int = Field(ge=0)
    detail: str

    @classmethod
    def of(cls, name: str, observations: int, faults: list[str], fine: str) -> "Finding":
        """ok when something was observed and nothing was wrong; `fine` describes what was seen then."""
        detail = "; ".join(faults) if faults else fine if observations else "nothing was observed"
        return cls(name=name, ok=observations > 0 and not faults, observations=observations, detail=detail)


class RequestCount(Strict):
    ok: int = 0
    failed: int = 0


class RequestFigures(Strict):
    """By when a request ran: ended before the injection; started after the survivors were published; or between."""

    before: RequestCount = RequestCount()
    during: RequestCount = RequestCount()
    after: RequestCount = RequestCount()


class Figures(Strict):
    """`control_plane_sec`: last evidence seen by a NodeManager → ADD acknowledged, less the engines' own recovery.

    `late_sec`: per cell in which one of two workers goes, from then until the round's next step began.
    """

    applies_per_engine: dict[str, int] = {}
    dead_committed: tuple[int, ...] = ()
    published_ranks: tuple[int, ...] = ()
    control_plane_sec: float | None = None
    stage_sec: dict[str, float] = {}
    late_sec: dict[str, float] = {}
    requests: RequestFigures = RequestFigures()
    orphans: int = 0
    non_default_timers: dict[str, float] = {}


class RoundFigures(Strict):
    """One in-place round, as seen from outside. Times are seconds since the (first) injection."""

    request_id: str
    injected_at: float
    evidence_at: float | None
    published_at: float | None
    removed: tuple[int, ...]
    engines: tuple[int, ...]
    control_plane_sec: float | None
    stage_sec: dict[str, float]


class Injection(Strict):
    """What was done to the installation. `at`: seconds since the first injection."""

    at: float
    what: str
    command: str
    target_ranks: tuple[int, ...] = ()


class Completion(Strict):
    """One completion asked directly of a rank's own engine, at the end."""

    rank: int
    ok: bool
    answered_by: int | None
    text: str
    detail: str = ""


class PodStop(Strict):
    """A Pod's NodeManager or engine that ended or was replaced."""

    at: float
    process: str
    detail: str


class StopAsked(Strict):
    """A request to stop a Pod that could not be carried out: when it came, and when the asker hung up (`time.monotonic()`)."""

    at: float
    given_up_at: float | None = None


class Report(Strict):
    """What every `report.json` begins with, and what it comes down to."""

    drill: str
    summary: str
    passed: bool
    could_run: bool = True

    @property
    def exit_code(self) -> Literal[0, 1, 2]:
        """0 passed, 1 failed, 2 could not run."""
        if not self.could_run:
            return 2
        return 0 if self.passed else 1

    def last_line(self) -> str:
        """The one line of JSON that `--json` prints last."""
        return self.model_dump_json(include={"drill", "passed", "checks", "figures", "bundle"})


class DrillReport(Report):
    """`report.json` of a drill."""

    failure: str | None = None
    """Why the drill could not be run to its end; None where it was."""

    checks: tuple[Finding, ...] = ()
    figures: Figures = Figures()
    rounds: tuple[RoundFigures, ...] = ()
    injections: tuple[Injection, ...] = ()
    target_ranks: tuple[int, ...] = ()
    pod_stops: tuple[PodStop, ...] = ()
    completions: tuple[Completion, ...] = ()
    orphan_processes: tuple[str, ...] = ()
    workflows: tuple[str, ...] = ()
    started_at: str = ""
    took_sec: float = 0.0
    run_id: str = ""
    bundle: str = ""
