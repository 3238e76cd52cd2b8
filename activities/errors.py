"""The one mapping between our errors and Temporal's.

In an activity an `AutotomyError` becomes an `ApplicationError`: its type is the reason (what an operator reads in the Web
UI), its first detail the family, and only a `Transient` may be retried. In a workflow the failure of an activity becomes
an `AutotomyError` again, so that `domain` code never meets Temporal:

| what ended the activity | in the workflow |
|---|---|
| ApplicationError with one of our families | the same family, reason and message |
| ApplicationError of a bug | Refused, BUG |
| its time was over: no worker, or no end in time | Transient, TIME_OVER |
| it was cancelled | Transient, CANCELLED |
"""

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from domain.errors import AutotomyError, OutcomeUnknown, Refused, Transient

BUG = "BUG"
TIME_OVER = "TIME_OVER"
CANCELLED = "CANCELLED"

_FAMILIES: dict[str, type[AutotomyError]] = {"Transient": Transient, "Refused": Refused, "OutcomeUnknown": OutcomeUnknown}


def to_application_error(error: AutotomyError) -> ApplicationError:
    """What an activity raises for one of our errors."""
    family = next((name for name, kind in _FAMILIES.items() if isinstance(error, kind)), "Refused")
    return ApplicationError(error.message, family, type=error.reason, non_retryable=not isinstance(error, Transient))


def bug(error: Exception) -> ApplicationError:
    """An exception that nobody meant: not retried, because it would come again; the worker's log has the traceback."""
    message = f"{type(error).__name__}: {error}; a bug, the worker's log has the traceback"
    return ApplicationError(message, "Refused", type=BUG, non_retryable=True)


def from_activity_error(error: ActivityError) -> AutotomyError:
    """Why an activity gave no result, as one of our errors."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        family = _FAMILIES.get(str(cause.details[0]) if cause.details else "", Refused)
        return family(f"{error.activity_type}: {cause.message}", reason=cause.type or family.default_reason)
    if isinstance(cause, CancelledError):
        return Transient(f"{error.activity_type} was cancelled", reason=CANCELLED)
    if isinstance(cause, ActivityTimeout):
        kind = cause.type.name.lower().replace("_", " ") if cause.type is not None else "some"
        return Transient(f"{error.activity_type} came to no end in time ({kind} timeout)", reason=TIME_OVER)
    return Refused(f"{error.activity_type}: {cause or error}", reason=BUG)
