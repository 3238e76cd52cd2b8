"""Knobs that make the stand-in break its contract, each for a case that a control plane must survive.

A knob changes what is *said* (or, for two of them, whether a recovery succeeds), never the group: a rank that claims
`dead` by knob goes on stepping. Faults of the group itself are made with real signals instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KNOBS: dict[str, str] = {
    "status=WORD": "every status says WORD (healthy, unhealthy, dead, or a word nobody knows)",
    "wrong-id": "the status entry carries the next rank's id",
    "missing-id": "the status entry has no id",
    "duplicate-id": "two status entries with this rank's id",
    "no-entry": "a status without entries",
    "schema-2": "a status of schema version 2",
    "garbage-json": "the status body is not JSON",
    "status-404": "the status path answers 404",
    "status-500": "the status path answers 500",
    "wrong-mask": "masks blame the next alive rank",
    "zero-mask": "masks are all zero",
    "apply-200": "apply answers 200 and does nothing",
    "apply-400": "apply answers 400 and does nothing",
    "apply-409": "apply answers 409 and does nothing",
    "apply-500": "apply answers 500 and does nothing",
    "slow-apply=SEC": "apply takes the command at once and answers SEC seconds later",
    "recovery-fails[=WHY]": "each recovery fails with ft_error WHY, without joining the others",
    "core-death[=SEC]": "a worker's death is not pushed to the status cache (as when an engine core is killed);\n"
    + " " * 24
    + "the API server exits with code 0 SEC seconds later (2)",
}

_NAMES = {knob.split("=")[0].rstrip("["): knob for knob in KNOBS}
_NEED_VALUE = frozenset(name for name, knob in _NAMES.items() if "=" in knob and "[" not in knob)
_TAKE_VALUE = frozenset(name for name, knob in _NAMES.items() if "=" in knob)
_SECONDS = frozenset({"slow-apply", "core-death"})


@dataclass(frozen=True)
class Misbehaviour:
    """The knobs that are set: name → value ("" where none was given)."""

    knobs: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Misbehaviour:
        """Read ``NAME[=VALUE],...``.

        Raises:
            ValueError: an unknown name, or a value where none belongs, or none where one is needed.
        """
        knobs: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            _check(name, value)
            knobs[name] = value
        return Misbehaviour(knobs)

    def __contains__(self, name: str) -> bool:
        return name in self.knobs

    def value(self, name: str) -> str | None:
        """The knob's value, "" when it was set without one, None when it is not set."""
        return self.knobs.get(name)

    def seconds(self, name: str, otherwise: float = 0.0) -> float:
        """The knob's value in seconds, `otherwise` when it has none."""
        return float(self.knobs.get(name) or otherwise)

    @property
    def apply_http(self) -> int | None:
        """The status code with which apply refuses, whatever it is told."""
        return next((code for code in (200, 400, 409, 500) if f"apply-{code}" in self.knobs), None)

    @property
    def status_http(self) -> int | None:
        """The status code of an FT status that does not work."""
        return next((code for code in (404, 500) if f"status-{code}" in self.knobs), None)


def _check(name: str, value: str) -> None:
    if name not in _NAMES:
        raise ValueError(f"no misbehaviour is called {name!r}; there are: {', '.join(KNOBS)}")
    if value and name not in _TAKE_VALUE:
        raise ValueError(f"{name} takes no value, got {value!r}")
    if not value and name in _NEED_VALUE:
        raise ValueError(f"{name} needs a value: {_NAMES[name]}")
    if value and name in _SECONDS:
        try:
            sensible = 0 <= float(value) < 1e9
        except ValueError:
            sensible = False
        if not sensible:
            raise ValueError(f"{name} takes seconds, got {value!r}")
