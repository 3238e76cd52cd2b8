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
    WORKFLOW = "workflow"  # a strategy began; `text` is its workflow id
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


def in_words(event: DrillEvent) -> str:
    """One event as a line for people."""
    ranks = ", ".join(map(str, event.ranks))
    match event.kind:
        case DrillEventKind.STEP | DrillEventKind.STACK | DrillEventKind.DONE:
            return event.text
        case DrillEventKind.READY:
            return f"the instance serves; Web UI {event.text or 'off'}"
        case DrillEventKind.INJECTED:
            return f"INJECTED: {event.text}"
        case DrillEventKind.PHASE:
            return f"phase {event.text}"
        case DrillEventKind.RANK:
            return f"rank {ranks} is {event.text}"
        case DrillEventKind.VIEW:
            return f"serving: ranks {ranks}" if ranks else "serving: nobody, the view is withdrawn"
        case DrillEventKind.WORKFLOW:
            return f"workflow {event.text}"
        case DrillEventKind.CHECK:
            return f"check {'ok' if event.ok else 'FAILED'}: {event.text}"
        case DrillEventKind.REQUESTS:
            return f"requests in the last second: {event.ok} ok, {event.failed} failed"


def ignore(_event: DrillEvent) -> None:
    """Nobody watches."""
