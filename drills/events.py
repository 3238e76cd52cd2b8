"""What a drill tells while it runs, for whoever wants to show it: a progress line, or the live view of the demo."""

from collections.abc import Callable
from enum import StrEnum

from domain.model import Strict


class DrillEventKind(StrEnum):
    STEP = "step"  # the drill itself moved on; `text` says to what
    STACK = "stack"  # a process of the installation started, ended, answers; `text`
    READY = "ready"  # the installation serves; `text` is the Web UI's address, "" without one
    INJECTED = "injected"  # `text` says what was done, `ranks` to whom
    PHASE = "phase"  # `text` is the phase of the runtime record
    RANK = "rank"  # a rank's engine changed: `ranks` holds it, `text` its status
    VIEW = "view"  # `ranks` are served now
    REQUESTS = "requests"  # in the last second: `ok` and `failed`
    WORKFLOW = "workflow"  # a round began; `text` is its workflow id
    CHECK = "check"  # a check was judged: `text`, and `ok` 1 or `failed` 1
    DONE = "done"  # `text` is PASSED, FAILED or COULD NOT RUN


class DrillEvent(Strict):
    """`t`: seconds since the first injection, negative before it. `mono`: `time.monotonic()`."""

    kind: DrillEventKind
    mono: float
    t: float | None = None
    text: str = ""
    ranks: tuple[int, ...] = ()
    ok: int = 0
    failed: int = 0


OnDrillEvent = Callable[[DrillEvent], None]


def ignore(_event: DrillEvent) -> None:
    """Nobody watches."""
