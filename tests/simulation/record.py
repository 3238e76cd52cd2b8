"""What the world writes down: observations for the invariants, and a timeline for people."""

from lab.oracle.observations import Event, Observation
from tests.simulation.clock import EPOCH_SEC, now


class Record:
    """Everything that was seen and told, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Event | str]] = []

    def saw(self, event: Event) -> None:
        """An observation, for the invariants."""
        self.entries.append((event.at, event))

    def told(self, text: str) -> None:
        """A line for whoever reads the timeline."""
        self.entries.append((now(), text))

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(entry for _, entry in self.entries if not isinstance(entry, str))

    def timeline(self) -> list[str]:
        return [f"{at - EPOCH_SEC:9.3f} {entry if isinstance(entry, str) else _told(entry)}" for at, entry in self.entries]


def _told(event: Observation) -> str:
    fields = ", ".join(f"{name}={_short(value)}" for name, value in event if name != "at")
    return f"  · {type(event).__name__}({fields})"


def _short(value: object) -> str:
    if isinstance(value, frozenset):
        return str(sorted(value))
    if isinstance(value, float):
        return f"{value - EPOCH_SEC:.3f}" if value >= EPOCH_SEC else f"{value:g}"
    return str(value)
