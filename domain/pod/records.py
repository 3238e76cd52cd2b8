"""What a Pod keeps of the commands that it took: guards, transactions by request id, and its standing (contracts §2).

Models without a rule but one, how long a guard lasts. A NodeManager has them in its journal on disk, the simulation and the
benchmark's played Pods in memory; what may be written there says `fence.py`.
"""

from enum import StrEnum

from domain.engine import Instruction
from domain.messages.node_manager import ApplyRequest, EngineApplied
from domain.model import Strict

ACCEPTED = "accepted"
"""`ApplyRecord.outcome` where every engine answered 202; any other outcome is a `NodeManagerReason`."""


class BootTime(Strict):
    """A time of the clock of leases. It belongs to one boot of the machine: times of two boots compare with nothing."""

    boot: str
    sec: float


class Verdict(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"


class CallEnd(StrEnum):
    """What became of the call of one engine."""

    ACCEPTED = "accepted"  # 202
    REFUSED = "refused"  # it said no, or the call was not delivered
    UNKNOWN = "unknown"  # no answer, and it may have arrived
    PREVENTED = "prevented"  # not made: a verdict came between the intent and the call


class Guard(Strict):
    """Which request id took the Pod last, until when. It stays recorded after its lease; a verdict removes it."""

    request_id: str
    generation: int | None
    expires_at: BootTime
    applied_at: BootTime | None = None

    def remaining_sec(self, now: BootTime) -> float:
        """What is left of the lease; of another boot's lease, nothing."""
        return max(0.0, self.expires_at.sec - now.sec) if self.expires_at.boot == now.boot else 0.0

    def live(self, now: BootTime, engine_recovery_timeout_sec: float) -> bool:
        """Whether other ids are kept out: while the lease lasts, and between apply and verdict until the engines' own
        time is over, because until then nobody knows what they became."""
        if self.remaining_sec(now) > 0:
            return True
        applied = self.applied_at
        return applied is not None and applied.boot == now.boot and now.sec < applied.sec + engine_recovery_timeout_sec


class ApplyBody(Strict):
    """What makes two applies the same: everything but the margin, which belongs to the sending, in one order."""

    endpoint_ids: tuple[int, ...]
    instruction: Instruction
    removed_dp_ranks: tuple[int, ...]
    dp_master_ip: str | None
    dp_master_rank: int | None
    generation: int | None

    @classmethod
    def of(cls, request: ApplyRequest) -> "ApplyBody":
        return cls(
            endpoint_ids=tuple(sorted(request.endpoint_ids)),
            instruction=request.instruction,
            removed_dp_ranks=tuple(sorted(set(request.params.removed_dp_ranks))),
            dp_master_ip=request.params.dp_master_ip,
            dp_master_rank=request.params.dp_master_rank,
            generation=request.generation,
        )


class ApplyRecord(Strict):
    """One apply: `outcome` is None from the intent until the engines' answers are recorded."""

    body: ApplyBody
    outcome: str | None = None
    message: str = ""
    engines: dict[str, EngineApplied] = {}


class Transaction(Strict):
    """Everything under one request id. `taken_over_by`: the id that took the Pod after this one's lease had lapsed."""

    request_id: str
    generation: int | None = None
    guarded: bool = False
    taken_over_by: str | None = None
    apply: ApplyRecord | None = None
    verdict: Verdict | None = None
    retired: tuple[int, ...] = ()


class PodStanding(Strict):
    """What a Pod knows beside its transactions. `retired`: its own ranks that left the group; `dead_committed`: all that did."""

    highest_generation: int = 0
    guard: Guard | None = None
    retired: tuple[int, ...] = ()
    dead_committed: tuple[int, ...] = ()
