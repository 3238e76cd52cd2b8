"""The FT runtime record: what an instance's recovery is doing, for operators and for the status API.

The record is derived: the FaultManager writes it, nobody decides by reading it elsewhere. `phase` follows one table; a
change that is not in it is refused and recorded, and never fails a workflow task (contracts §5; RFC §3.1).
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import Field

from domain.engine import RankEntry
from domain.model import Generation, InstanceId, Rank, Revision, Strict


class FtPhase(StrEnum):
    DISABLED = "DISABLED"  # shown while the feature is off; never stored
    NORMAL = "NORMAL"
    DECIDING = "DECIDING"
    WAITING_ENGINE_FAULT = "WAITING_ENGINE_FAULT"
    SCALING_DOWN = "SCALING_DOWN"
    POST_SCALE_CLEANUP = "POST_SCALE_CLEANUP"
    SCALED_DOWN_RUNNING = "SCALED_DOWN_RUNNING"
    RECONFIGURING = "RECONFIGURING"


SERVING_PHASES = frozenset({FtPhase.NORMAL, FtPhase.SCALED_DOWN_RUNNING})
"""The phases in which an instance may serve."""

TRANSACTION_PHASES = frozenset({FtPhase.DECIDING, FtPhase.WAITING_ENGINE_FAULT, FtPhase.SCALING_DOWN, FtPhase.POST_SCALE_CLEANUP})
"""A round is under way: partial-loss shutdown is suppressed (RFC §3.1)."""

TRANSITIONS: dict[FtPhase, frozenset[FtPhase]] = {
    FtPhase.NORMAL: frozenset({FtPhase.DECIDING, FtPhase.RECONFIGURING}),
    FtPhase.SCALED_DOWN_RUNNING: frozenset({FtPhase.DECIDING, FtPhase.RECONFIGURING}),
    FtPhase.DECIDING: frozenset(
        {
            FtPhase.WAITING_ENGINE_FAULT,
            FtPhase.SCALING_DOWN,
            FtPhase.RECONFIGURING,
            FtPhase.NORMAL,  # abandoned, or FastRecovery or TokenReinference done
            FtPhase.SCALED_DOWN_RUNNING,
        }
    ),
    FtPhase.WAITING_ENGINE_FAULT: frozenset(
        {FtPhase.SCALING_DOWN, FtPhase.RECONFIGURING, FtPhase.NORMAL, FtPhase.SCALED_DOWN_RUNNING}
    ),
    FtPhase.SCALING_DOWN: frozenset({FtPhase.POST_SCALE_CLEANUP, FtPhase.RECONFIGURING}),
    FtPhase.POST_SCALE_CLEANUP: frozenset({FtPhase.SCALED_DOWN_RUNNING, FtPhase.RECONFIGURING}),
    FtPhase.RECONFIGURING: frozenset({FtPhase.NORMAL, FtPhase.SCALED_DOWN_RUNNING}),
    FtPhase.DISABLED: frozenset(),
}
"""Which phase may follow which (contracts §5). The phase before a round decides which of the two serving ones comes back."""


def may_follow(before: FtPhase, after: FtPhase) -> bool:
    """Whether the table allows `before` → `after`; staying is always allowed."""
    return before == after or after in TRANSITIONS[before]


def resting_phase(dead_committed: tuple[int, ...]) -> FtPhase:
    """The serving phase that fits a committed set: NORMAL for a whole group, SCALED_DOWN_RUNNING for a shrunk one."""
    return FtPhase.SCALED_DOWN_RUNNING if dead_committed else FtPhase.NORMAL


class GateRecord(Strict):
    """The last answer of the static gate (domain/round/gate.py)."""

    allowed: bool
    reason_codes: tuple[str, ...] = ()


class Waiting(Strict):
    """What the FaultManager waits for: why, until when (UTC, ISO 8601; None = without an end of its own), and what then."""

    reason: str
    until: str | None
    then: str


REJECTED_SIGNALS_KEPT: Final = 20
_LONGEST_SHOWN_PAYLOAD: Final = 200


class RejectedSignal(Strict):
    """A signal or report that was refused, with its reason; the last REJECTED_SIGNALS_KEPT are kept."""

    at: str
    name: str
    reason: str
    payload: str


def rejected_signal(name: str, reason: str, payload: str, at: float) -> RejectedSignal:
    """`at`: epoch seconds. Of a long payload the beginning is shown."""
    shown = payload if len(payload) <= _LONGEST_SHOWN_PAYLOAD else payload[: _LONGEST_SHOWN_PAYLOAD - 1] + "…"
    return RejectedSignal(at=iso(at), name=name, reason=reason, payload=shown)


def with_rejected(kept: tuple[RejectedSignal, ...], one: RejectedSignal) -> tuple[RejectedSignal, ...]:
    """The last few, with the newest at the end."""
    return (*kept, one)[-REJECTED_SIGNALS_KEPT:]


def iso(at: float) -> str:
    """Epoch seconds as people read them: UTC, ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Budget(Strict):
    """Reconfigurations used and allowed within the sliding window."""

    used: int
    allowed: int
    window_sec: float


class RuntimeRecord(Strict):
    """One instance in `GET /controller/fault_tolerance/status` (contracts §5; RFC §7).

    `stage_times`: seconds per stage of the last round. `engine_statuses`: the newest entry per rank ("0", "1", …).
    `last_strategy_workflow_id`: the strategy that ended last. `known_dead`: ranks known dead and not removed. `held`: why a
    person switched the automation off. `hardware_faults`: those that stand, in words. `signals_taken`: how many signals its
    FaultManager has taken since it was started, refused ones included.
    """

    instance_id: InstanceId
    phase: FtPhase
    original_dp_ranks: tuple[Rank, ...]
    request_id: str | None = None
    dead_committed: tuple[Rank, ...] = ()
    pending_removed_ranks: tuple[Rank, ...] = ()
    alive_dp_ranks: tuple[Rank, ...]
    fallback_strategy: str
    gate: GateRecord | None = None
    engine_statuses: dict[str, RankEntry] = Field(default_factory=dict)
    serving_published: bool = False
    last_error: str | None = None
    can_serve: bool = False
    generation: Generation = 0
    view_revision: Revision = 0
    active_strategy: str | None = None
    strategy_workflow_id: str | None = None
    last_strategy_workflow_id: str | None = None
    known_dead: tuple[Rank, ...] = ()
    waiting: Waiting | None = None
    pending_finalize: tuple[str, ...] = ()
    absent_node_managers: tuple[str, ...] = ()
    lost_node_managers: tuple[str, ...] = ()
    stage_times: dict[str, float] = Field(default_factory=dict)
    budget: Budget | None = None
    rejected_signals: tuple[RejectedSignal, ...] = ()
    signals_taken: int = 0
    held: str | None = None
    hardware_faults: tuple[str, ...] = ()


def undecided_deaths(record: RuntimeRecord) -> str | None:
    """Ranks that count as alive and are known dead while nothing runs about it, in words; None: there are none."""
    if record.strategy_workflow_id is not None:
        return None
    dead = record.known_dead
    if not dead:
        return None
    ranks = f"rank {dead[0]} is" if len(dead) == 1 else f"ranks {', '.join(map(str, dead))} are"
    why = f": {record.waiting.reason}" if record.waiting is not None else ""
    return f"{ranks} dead, not yet {'acted' if record.held is not None else 'decided'} on{why}"


def can_serve(phase: FtPhase, serving_published: bool) -> bool:
    """I6: an instance serves only in a serving phase and with its view published."""
    return phase in SERVING_PHASES and serving_published
