"""The two kinds of pydantic model that Autotomy has.

`Strict` parses what we serve and what we keep: an unknown field is an error. `Tolerant` parses what peers answer: unknown
fields are ignored, because a newer engine may say more; its identity fields stay strict. Both are frozen: change by
`model_copy(update=…)`.

On the wire a boolean is never an integer and "7" is no number: fields use the strict types below. Configuration also
comes from environment variables, where everything is text: it uses `NotBool` on numbers instead.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt


class Strict(BaseModel):
    """What we serve and keep."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tolerant(BaseModel):
    """What a peer answered."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


NotBool = BeforeValidator(_reject_bool)
"""For numbers in configuration: `true` is not 1."""

WireNumber = Annotated[float, Field(strict=True)]
WireSeconds = Annotated[float, Field(strict=True, ge=0, le=86_400)]
"""A duration on the wire, in seconds."""

Rank = Annotated[StrictInt, Field(ge=0)]
"""An original, global data-parallel rank = Endpoint.id = `engines[].id`; it never changes."""

InstanceId = Annotated[StrictInt, Field(ge=0)]
Generation = Annotated[StrictInt, Field(ge=0)]
"""+1 at each strategy start of an instance; carried by every command to a NodeManager, which refuses a lower one."""

Revision = Annotated[StrictInt, Field(ge=0)]
"""+1 at each change of an instance's published view; carried by every push to a Coordinator."""

RequestId = Annotated[str, Field(min_length=1, max_length=200)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
