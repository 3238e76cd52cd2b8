"""How an installation can fail its starter."""

from domain.errors import AutotomyError, Refused


class StartFailed(AutotomyError):
    """The installation did not get ready; the message says which part, and why."""

    default_reason = "START_FAILED"


class PortTaken(StartFailed):
    """A process could not listen where it was planned to: worth another plan."""

    default_reason = "PORT_IN_USE"


class RecordLost(Refused):
    """A stack runs in that directory, but its files do not tell what it is."""

    default_reason = "RECORD_LOST"


class StopFailed(AutotomyError):
    """Something of the installation still runs; the message says what."""

    default_reason = "STOP_FAILED"


class NoStack(Refused):
    """There is no running installation in that directory."""

    default_reason = "NO_STACK"
