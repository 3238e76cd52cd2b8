"""Why the Controller API says no, as its own reasons (contracts §3); the envelope is `service.http`'s."""

from enum import StrEnum


class ApiReason(StrEnum):
    TEMPORAL_UNAVAILABLE = "TEMPORAL_UNAVAILABLE"  # 503: no Temporal server answers
    NO_WORKER = "NO_WORKER"  # 503: Temporal answers, but no worker takes work from the task queue
    UNKNOWN_INSTANCE = "UNKNOWN_INSTANCE"  # 404; 503 to a heartbeat, whose sender then registers again
    CONFLICT = "CONFLICT"  # 409: declared otherwise already
    ENDING = "ENDING"  # 409: the instance of that id is still being taken down
    WRONG_SET = "WRONG_SET"  # 409: a heartbeat that names other ranks than the Pod should have
    FOREIGN_POD = "FOREIGN_POD"  # 409: no NodeManager of the instance is there
    CONTRADICTS = "CONTRADICTS"  # 409: a Pod registers with another shape than the others of its instance
    SEAT_TAKEN = "SEAT_TAKEN"  # 409: a newer Pod has that node_rank
    ADDRESS_TAKEN = "ADDRESS_TAKEN"  # 409: that Pod has another node_rank already
    OTHER_INSTANCE = "OTHER_INSTANCE"  # 409: another instance owns the NodeManager that registers
    REFUSED = "REFUSED"  # 409: the FaultManager refuses the command; its own reason is in `outcome`


class ReportRefusal(StrEnum):
    """Why a fault report was not accepted: `data.reason` of a 200 with `accepted: false`."""

    UNKNOWN_RANK = "UNKNOWN_RANK"
    FOREIGN_RANK = "FOREIGN_RANK"  # another Pod owns that rank
    FOREIGN_POD = "FOREIGN_POD"  # no NodeManager of the instance is at that address
    UNKNOWN_NODE = "UNKNOWN_NODE"  # no instance has a Pod on that node
