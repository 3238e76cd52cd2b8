"""A check: one thing that must hold after a drill, as a value that the drill lists.

It is written as a function of the evidence and of what it has to be told; a drill calls it with the latter alone:

    @check("killed and back")
    def killed(evidence: Evidence, count: int) -> Seen:
        \"""The processes that the drill was to kill ended after the rank's death, and came back.\"""
        ...
        return Seen(len(ends), faults, "api 0.3 s after the rank")

    Drill(..., checks=(killed(2),))

So everything that a check judges by stands in its call, and the evidence is the same for all of them.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec

from lab.drills.outcome import Finding
from lab.drills.record.evidence import Evidence

P = ParamSpec("P")


class Seen(NamedTuple):
    """What a check found. Without observations it is not ok, whatever else: `fine` says what was seen where nothing is wrong."""

    observations: int
    faults: list[str]
    fine: str


@dataclass(frozen=True)
class Check:
    """One thing that must hold. Equal where name and parameters are.

    Args:
        name: as the report has it; each drill has it once.
        meaning: one sentence.
        parameters: what the drill says about it, by the names of the function's arguments.
        find: looks for it in what was recorded.
    """

    name: str
    meaning: str
    parameters: tuple[tuple[str, object], ...]
    find: Callable[[Evidence], Finding] = field(compare=False, repr=False)

    def __str__(self) -> str:
        """The name, and in brackets what it was told."""
        told = ", ".join(f"{name} {_words(value)}" for name, value in self.parameters)
        return f"{self.name} ({told})" if told else self.name


def check(name: str) -> Callable[[Callable[Concatenate[Evidence, P], Seen]], Callable[P, Check]]:
    """Make a function of the evidence and of parameters into one of the parameters alone, which gives the `Check`."""

    def listed(function: Callable[Concatenate[Evidence, P], Seen]) -> Callable[P, Check]:
        signature = inspect.signature(function)
        meaning = (inspect.getdoc(function) or "").partition("\n")[0]

        @wraps(function)
        def told(*args: P.args, **kwargs: P.kwargs) -> Check:
            bound = signature.bind(None, *args, **kwargs)
            bound.apply_defaults()
            _evidence, *parameters = bound.arguments.items()

            def find(evidence: Evidence) -> Finding:
                return Finding.of(name, *function(evidence, *args, **kwargs))

            return Check(name, meaning, tuple(parameters), find)

        return told

    return listed


def _words(value: object) -> str:
    """A parameter for people."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_words, value)) + "]"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_words(each)}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
