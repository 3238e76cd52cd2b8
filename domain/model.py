"""The two kinds of pydantic model that Autotomy has, and the types that their fields are made of.

`Strict` parses what we serve and what we keep: an unknown field is an error. `Tolerant` parses what peers answer: unknown
fields are ignored, because a newer engine may say more; its identity fields stay strict. Both are frozen: change by
`model_copy(update=…)`.

On the wire a boolean is never an integer and "7" is no number: fields use the strict types below. Configuration also
comes from environment variables, where everything is text: it uses `NotBool` on numbers instead.

Every number has bounds and every text a length, and a text can be written down again: nothing that was accepted here may
fail later, in a history, a workflow's id or a file. `tests/domain/test_wire_types.py` looks at each field of each message.
"""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt


class Strict(BaseModel):
    """What we serve and keep."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Tolerant(BaseModel):
    """What a peer answered."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


NotBool = BeforeValidator(_reject_bool)
"""For numbers in configuration: `true` is not 1."""

MAX_COUNT: Final = 2**53 - 1
"""The highest whole number that every JSON reader keeps exactly; Temporal's search attributes and SQLite hold it too."""

MAX_EPOCH_SEC: Final = 2.0**33
"""Times of day are seconds since 1970, at most those of the year 2242: they can be shown as a date everywhere."""

Count = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
"""How many, or the how-manieth."""

WireNumber = Annotated[float, Field(strict=True, ge=-1e12, le=1e12)]
WireSeconds = Annotated[float, Field(strict=True, ge=0, le=86_400)]
"""A duration on the wire, in seconds."""

EpochSeconds = Annotated[float, Field(ge=0, le=MAX_EPOCH_SEC)]
"""A moment, in seconds since the epoch, UTC."""

MAX_RANKS: Final = 4096

Rank = Annotated[StrictInt, Field(ge=0, lt=MAX_RANKS)]
"""An original, global data-parallel rank = Endpoint.id = `engines[].id`; it never changes."""

MAX_INSTANCE_ID: Final = 2**31 - 1

InstanceId = Annotated[StrictInt, Field(ge=0, le=MAX_INSTANCE_ID)]
Generation = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
"""+1 at each strategy start of an instance; carried by every command to a NodeManager, which refuses a lower one."""

Revision = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
"""+1 at each change of an instance's published view; carried by every push to a Coordinator."""

Port = Annotated[StrictInt, Field(ge=1, le=65535)]

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_TEXT: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters other than tab and line ends, and halves of a UTF-16 pair, which no encoding can write."""

MAX_SAID: Final = 2_000


def one_line(text: str) -> str:
    """`text`, if it can stand on one line of anything. Raises `ValueError`."""
    if found := _UNPRINTABLE.search(text):
        raise ValueError(f"character {found.start() + 1} is {found.group()!a}, which cannot be written on a line")
    return text


def said(value: object) -> object:
    """What a peer or a person said, fit to be kept and shown: control characters become U+FFFD, and the end is cut."""
    if not isinstance(value, str):
        return value
    text = _NOT_TEXT.sub("\ufffd", value[: MAX_SAID + 1])
    return text if len(text) <= MAX_SAID else text[: MAX_SAID - 1] + "…"


Name = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(one_line)]
"""What something is called: a job, a model, a node."""

Word = Annotated[str, Field(max_length=500), AfterValidator(one_line)]
"""A name that may be missing (empty), or one word of a closed set."""

RequestId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
Incarnation = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
"""One life of a process: a NodeManager's, an engine's, a Coordinator's."""

Said = Annotated[str, Field(max_length=MAX_SAID), BeforeValidator(said)]
"""Free text of a peer or a person: shown and kept, never judged. Made fit where it comes in, not refused."""
