"""Errors, by what must happen next.

A caller never asks *what broke* first; it asks *may I try again*. The family answers:

    AutotomyError
    ├── Transient         nobody knows of a lasting obstacle: retry within the deadline
    ├── Refused           the peer understood and said no (or the input is wrong): never retry as it is
    │   ├── ProtocolError     the peer answers, but nonsense: fail closed, never read as DEAD
    │   └── ConfigError       a setting is wrong or contradicts another: says key, value, why
    └── OutcomeUnknown    it may have happened: never repeat, fail closed

Each carries a machine-readable `reason` (an enum member's value or a short upper-case word) and a message that names the
thing, the value and what to do. The mapping to Temporal's `ApplicationError` is in `activities/errors.py`, nowhere else.
"""


class AutotomyError(Exception):
    """Base of all errors that Autotomy raises on purpose."""

    default_reason = "ERROR"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason if reason is not None else self.default_reason


class Transient(AutotomyError):
    """A transport error, a timeout, a peer that is not there yet: retry until the deadline."""

    default_reason = "UNREACHABLE"


class Refused(AutotomyError):
    """The peer said no, or the input is wrong: the same request will be refused again."""

    default_reason = "REFUSED"


class ProtocolError(Refused):
    """A peer's reply breaks its contract (missing, duplicate or foreign id, bad JSON, 404, 5xx)."""

    default_reason = "ENGINE_PROTOCOL"


class ConfigError(Refused):
    """A setting is wrong or contradicts another one."""

    default_reason = "CONFIG"


class OutcomeUnknown(AutotomyError):
    """A side effect may or may not have happened; it is never repeated."""

    default_reason = "OUTCOME_UNKNOWN"
