"""What the experiment consists of: its four columns, its times, and what was published."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from domain.model import Strict

RANKS: Final = 4
VICTIM: Final = 1
SURVIVORS: Final = tuple(rank for rank in range(RANKS) if rank != VICTIM)
CLIENTS: Final = 16
REQUESTS_PER_SEC: Final = 16.0
THRESHOLD: Final = 3
GIVES_UP_AT: Final = 120.0
"""A rank that was not recovered exits so long after its own fault; the victim's fault is the kill."""

_SHORTEST_BOUND_SEC: Final = 2.0


class SupervisorRules(StrEnum):
    STOCK = "stock"
    OURS = "ours"


class Column(Strict):
    """One column of the table. `scale_down`: whether the survivors are told to shrink."""

    rules: SupervisorRules
    scale_down: bool

    @property
    def name(self) -> str:
        """As files, logs and figures call it."""
        return f"{self.rules}{'' if self.scale_down else '-no'}-scale-down"

    def __str__(self) -> str:
        return f"{'stock supervisor' if self.rules is SupervisorRules.STOCK else 'ours'}, {self.told}"

    @property
    def told(self) -> str:
        return "scale_down at +32 s" if self.scale_down else "no scale_down"


COLUMNS: Final = tuple(Column(rules=rules, scale_down=told) for told in (True, False) for rules in SupervisorRules)


class Published(Strict):
    """What the pull request's table says of a column, in its own words; None where it says nothing."""

    state_at_125: str | None = None
    failed_after_120: str | None = None
    not_ready_at: str | None = None
    failed_total: str | None = None


PUBLISHED: Final = {
    "stock-scale-down": Published(state_at_125="killed (found 1 exited DP Servers), 2/2 runs", failed_after_120="16, 9"),
    "ours-scale-down": Published(state_at_125="serving on 3 ranks, 3/3 runs", failed_after_120="0, 0, 0"),
    "stock-no-scale-down": Published(not_ready_at="+132s", failed_total="51 / 1704"),
    "ours-no-scale-down": Published(not_ready_at="+34s, +38s, +35s", failed_total="19 / 2006, 15 / 2054, 14 / 2066"),
}


class Clock(Strict):
    """The experiment's times, in its own seconds; `of` gives them on this machine, divided by `factor`.

    Only waiting is divided. Requests keep their length (about a second) and their pace, processes need what they need to
    start and to end; the higher the factor, the more of that shows in the figures, which are multiplied back.
    """

    factor: Annotated[float, Field(ge=1, le=60)] = 10.0
    observe_until: float = 240.0
    """After the kill; the experiment's 300 s less the 60 s before it."""

    kill_at: float = 60.0
    scale_down_at: float = 32.0
    sample_at: float = 125.0
    server_gives_up: float = GIVES_UP_AT
    detection: float = 30.0
    recovery: float = 3.0
    probe_interval: float = 5.0
    probe_timeout: float = 5.0
    readiness_period: float = 1.0
    """Kubernetes' readiness probe; one answer other than 200 counts."""

    def of(self, seconds: float) -> float:
        """That many of the experiment's seconds, here."""
        return seconds / self.factor

    @property
    def probe_timeout_sec(self) -> float:
        """Here. A bound is no wait: it is not divided below what a busy machine needs for an answer."""
        return max(_SHORTEST_BOUND_SEC, self.of(self.probe_timeout)) if self.factor > 1 else self.probe_timeout

    def published(self, seconds: float) -> float:
        """That many seconds here, in the experiment's."""
        return round(seconds * self.factor, 1)

    def non_default_timers(self) -> dict[str, float]:
        """What is set to another value than real installations have; empty at factor 1."""
        timers = {
            "engine_recovery_timeout_sec": self.of(self.server_gives_up),
            "detection_sec": self.of(self.detection),
            "dp_supervisor_probe_interval_s": self.of(self.probe_interval),
            "dp_supervisor_probe_timeout_s": self.probe_timeout_sec,
        }
        return {} if self.factor == 1 else {name: round(seconds, 4) for name, seconds in timers.items()}
