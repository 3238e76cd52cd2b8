"""What the API server and its worker say to each other: JSON lines over a socket pair.

The pair has a second use: each side learns from its end that the other one is gone.
"""

from __future__ import annotations

import json
from typing import NamedTuple, TypeAlias

# API server → worker


class Settings(NamedTuple):
    """The first message: what the worker needs of the options. Seconds and milliseconds as the names say."""

    host: str
    rank: int
    size: int
    store_host: str
    store_port: int
    detection_sec: float
    store_timeout_sec: float
    startup_sec: float
    startup_timeout_sec: float
    step_ms: float
    token_ms: float


class Generate(NamedTuple):
    """Make `tokens` tokens for a request."""

    request: int
    tokens: int


class Cancel(NamedTuple):
    """Nobody waits for this request any more."""

    request: int


class Recover(NamedTuple):
    """Meet the `members` at a store, as `round` names the meeting, and go on with them as the group's next epoch."""

    members: list[int]
    epoch: int
    round: str
    store_host: str
    store_port: int
    host_new_store: bool
    recovery_sec: float


class Look(NamedTuple):
    """Ask for the worker's `State`."""


# worker → API server


class Ready(NamedTuple):
    """All initial ranks have met."""


class Unstartable(NamedTuple):
    """The worker cannot join the group and gives up."""

    why: str


class Tokens(NamedTuple):
    """`made` further tokens of a request, made by the group of `epoch`; `done` with the last ones."""

    request: int
    made: int
    epoch: int
    done: bool


class Fault(NamedTuple):
    """A step did not complete within the communication timeout; what is still missing may be nobody."""

    missing: list[int]
    step: int


class Recovered(NamedTuple):
    """The end of a `Recover`: `error` is "" when the group works again."""

    error: str


class State(NamedTuple):
    """Where the worker stands: `steps` counts those of all epochs, dummy steps included."""

    epoch: int
    steps: int
    running: int
    members: list[int]


Message: TypeAlias = Settings | Generate | Cancel | Recover | Look | Ready | Unstartable | Tokens | Fault | Recovered | State
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Settings, Generate, Cancel, Recover, Look, Ready, Unstartable, Tokens, Fault, Recovered, State)
}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return json.dumps([type(message).__name__, *message]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line."""
    name, *fields = json.loads(line)
    return _KINDS[name](*fields)
