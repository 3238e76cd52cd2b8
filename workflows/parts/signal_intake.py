"""Signals as they come in, from our own processes or from anybody with the `temporal` CLI.

Nobody can be kept from sending nonsense: no input, two inputs, an array, an unknown name. A typed handler would fail the
workflow task for ever on the first, and drop the last while the CLI says "succeeded". So every workflow takes its signals raw,
by one dynamic handler, and hands them here: `take_in` finds who handles one, and makes of whatever cannot be used a refusal
with its reason, which the workflow keeps for people to see. Nothing is read before its handler asks for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel, ValidationError

    from domain.config import FaultToleranceConfig, whole
    from domain.runtime import RejectedSignal, rejected_signal

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_LONGEST_REASON: Final = 300


class SignalRefused(Exception):
    """The signal cannot be used; the message says why."""


class Inputs:
    """What came with one signal."""

    def __init__(self, raw: Sequence[RawValue]) -> None:
        self._raw = raw

    @property
    def text(self) -> str:
        """As it was sent, for people."""
        return ", ".join(one.payload.data.decode(errors="replace") for one in self._raw)

    def only(self) -> Any:
        """The one input there must be."""
        if len(self._raw) != 1:
            raise SignalRefused(f"takes exactly one input, got {len(self._raw)}")
        try:
            return workflow.payload_converter().from_payload(self._raw[0].payload)
        except Exception as error:
            raise SignalRefused(f"cannot be read: {type(error).__name__}: {error}") from error

    def mapping(self) -> dict[str, Any]:
        """The one input, which must be a JSON object."""
        value = self.only()
        if not isinstance(value, dict):
            raise SignalRefused(f"takes a JSON object, got {type(value).__name__}")
        return value

    def parsed(self, kind: type[M]) -> M:
        """The one input as a model."""
        return parsed(kind, self.mapping())


Handlers = Mapping[str, Callable[[Inputs], T]]
"""By the signals' names. A handler raises SignalRefused or ValueError (pydantic's is one) for what it cannot use."""


def take_in(name: str, raw: Sequence[RawValue], handlers: Handlers[T], now: float) -> T | RejectedSignal:
    """What the signal's handler makes of it, or its refusal at `now` (epoch seconds). Never raises."""
    inputs = Inputs(raw)
    try:
        handler = handlers.get(name)
        if handler is None:
            raise SignalRefused(f"unknown signal; known: {', '.join(sorted(handlers))}")
        return handler(inputs)
    except ValidationError as error:
        reason = _first_error(error)
    except (SignalRefused, ValueError) as error:
        reason = str(error)
    except Exception as error:
        reason = f"cannot be used: {type(error).__name__}: {error}"
    return rejected_signal(name, " ".join(reason.split())[:_LONGEST_REASON], inputs.text, now)


def parsed(kind: type[M], value: dict[str, Any]) -> M:
    """A JSON object as a model: read from JSON, where a list may be a tuple; numbers and booleans stay strict."""
    return kind.model_validate_json(_Anything.model_validate(value).model_dump_json())


def whole_config(inputs: Inputs) -> FaultToleranceConfig:
    """What `config_changed` brings, whoever takes it: all of a configuration."""
    return whole(inputs.parsed(FaultToleranceConfig))


class _Anything(BaseModel, extra="allow"):
    """Any JSON object."""


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])
