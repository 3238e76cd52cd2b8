"""Between a strategy's workflow and the FaultManager that started it: kinds, orders, progress, reports, ends.

Each strategy has a kind, an order with which it begins, and a report with which it ends; `StrategyReport` is one of them,
told apart by `kind`. What a kind means for its instance (who starts it, how long it may take, what its end does) is its row
in `domain.instance.strategies`.

The FaultManager never awaits a handle: a strategy tells it about progress, its commit and its end by signal-with-start
from an activity, so that a terminated FaultManager is simply started again (design §1).
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from domain.config import FaultToleranceConfig
from domain.engine import RankEntry
from domain.messages.round import PeerRefusal
from domain.model import Generation, InstanceId, Rank, RequestId, Revision, Strict
from domain.runtime import FtPhase, GateRecord
from domain.topology import NodeManagerAddress, Topology

STOP_SIGNAL = "stop"
"""To a running strategy, no input needed: end before the commit point, or not at all."""


class StrategyKind(StrEnum):
    """The value is the workflow id's first part: `<kind>-<instance>-<generation>`."""

    SCALE_DOWN = "scale-down"
    FAST_RECOVERY = "fast-recovery"
    INSTANCE_RECONFIGURATION = "instance-reconfiguration"
    ENGINE_RELAUNCH = "engine-relaunch"
    TOKEN_REINFERENCE = "token-reinference"

    def workflow_id(self, instance_id: int, generation: int) -> str:
        return f"{self.value}-{instance_id}-{generation}"


# Orders.


class StrategyOrder(Strict):
    """What every strategy is ordered with. Frozen: it keeps the topology and the configuration that it began with."""

    instance_id: InstanceId
    generation: Generation
    topology: Topology
    config: FaultToleranceConfig


class TransactionOrder(StrategyOrder):
    """What a round and a fast recovery are ordered with alike.

    active = original − dead_committed; ranks that were removed earlier stay removed. `view_revision`: the published view's
    r, so that the transaction owns r+1 (DEL) and r+2 (ADD). `first_unhealthy_at`: when each active rank's UNHEALTHY was first
    received. `capability_consistent`: all Pods registered the same capability. `isolated`: an L3 hardware fault stands, so
    ADD is left to the FaultManager, for when it was cleared.
    """

    request_id: RequestId
    dead_committed: tuple[Rank, ...]
    phase_before: FtPhase
    capability_consistent: bool = True
    published_ranks: tuple[Rank, ...]
    view_revision: Revision
    isolated: bool = False
    first_unhealthy_at: dict[int, float] = Field(default_factory=dict)


class RoundOrder(TransactionOrder):
    """One scale-down transaction (design §4).

    `pending_ranks` are the DEAD ranks at the decision, `reported_incarnations` the engines that were reported dead.
    """

    pending_ranks: tuple[Rank, ...]
    reported_incarnations: dict[int, str | None] = Field(default_factory=dict)


class FastRecoveryOrder(TransactionOrder):
    """Let every active rank `retry` in place: all are UNHEALTHY, none is DEAD (design §3, rule 6).

    `request_id` is "fast-recovery-" and 32 hex digits, and the at-most-once rule of a round's apply holds for it.
    """


class RebuildOrder(StrategyOrder):
    """What a rebuild and a relaunch are ordered with alike. Owns view revisions r+1 (DEL) and r+2 (ADD).

    `why` is for people. `config.reconfiguration_deadline_sec` bounds the whole. `lost_node_managers`: their heartbeats were
    lost before the order; one of them that cannot be reached counts as stopped. `isolated`: as in a `TransactionOrder`.
    """

    view_revision: Revision
    isolated: bool = False
    why: str
    lost_node_managers: tuple[NodeManagerAddress, ...] = ()


class ReconfigurationOrder(RebuildOrder):
    """Withdraw, stop every engine, start all ranks anew, serve again (design §3)."""


class RelaunchOrder(RebuildOrder):
    """Withdraw, stop the engines, start those of original − dead_committed anew, serve again: what was removed stays removed."""

    dead_committed: tuple[Rank, ...]


class ReinferenceOrder(StrategyOrder):
    """Wait until these ranks have healed by themselves, touching nothing (hardware L2, design §3, rule 3).

    `ranks`: those to which the fault maps, or all active ones. `why` names the fault. The wait ends after
    `config.token_reinference_deadline_sec`. Owns no view revision.
    """

    ranks: tuple[Rank, ...]
    why: str


# Progress.


class StepReport(Strict):
    """A strategy's progress. Ordered by (generation, step), so that a late one changes nothing.

    `request_id`: a transaction's; any other strategy has its workflow id there.
    """

    step: int
    phase: FtPhase
    detail: str
    request_id: RequestId
    pending_ranks: tuple[Rank, ...]
    at: float


class StrategyProgress(Strict):
    """Signal `strategy_progress`: ordered by (generation, step.step)."""

    kind: StrategyKind
    instance_id: InstanceId
    generation: Generation
    workflow_id: str
    step: StepReport


# Reports.


class RoundOutcome(StrEnum):
    """How a strategy ended, in a word. Only a round and a fast recovery tell apart what is no success."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # → reconfiguration
    ABANDONED = "abandoned"  # the evidence was false; nothing was withdrawn; decide again
    CANCELLED = "cancelled"  # pre-empted before the commit point


class RoundReason(StrEnum):
    """How a round or a fast recovery ended. The first three are success; every other names what stood in the way."""

    COMMITTED = "COMMITTED"
    ALREADY_COMMITTED = "ALREADY_COMMITTED"
    RECOVERED = "RECOVERED"  # a fast recovery: every active rank is healthy again
    GATE_REFUSED = "GATE_REFUSED"
    BAD_ORDER = "BAD_ORDER"
    NO_SURVIVOR = "NO_SURVIVOR"
    GUARD_REFUSED = "GUARD_REFUSED"
    GUARD_UNREACHABLE = "GUARD_UNREACHABLE"
    GUARD_LOST = "GUARD_LOST"
    NOT_READY_IN_TIME = "NOT_READY_IN_TIME"
    ENGINES_TIME_OVER = "ENGINES_TIME_OVER"
    FALSE_ALARM = "FALSE_ALARM"
    RELAPSED = "RELAPSED"  # healthy after the retry, and not any more at the second look
    RANK_DIED = "RANK_DIED"  # a fast recovery: none was dead when it was ordered, one is now
    ENGINE_PROTOCOL = "ENGINE_PROTOCOL"
    ENGINE_MISSING = "ENGINE_MISSING"
    ENGINE_FAILED = "ENGINE_FAILED"
    SURVIVOR_DIED = "SURVIVOR_DIED"
    SURVIVOR_RETIRED = "SURVIVOR_RETIRED"
    WITHDRAW_UNCONFIRMED = "WITHDRAW_UNCONFIRMED"
    APPLY_REFUSED = "APPLY_REFUSED"
    APPLY_UNKNOWN = "APPLY_UNKNOWN"
    NOT_RECOVERED_IN_TIME = "NOT_RECOVERED_IN_TIME"
    VERIFY_FAILED = "VERIFY_FAILED"
    PORT_FAILED = "PORT_FAILED"  # an activity ended without an answer
    CANCELLED = "CANCELLED"


class TransactionReport(Strict):
    """How a round or a fast recovery ended, for the FaultManager and for people.

    `applied`: the HTTP status with which each engine took the command (None: not learnt). `last_entries`: the last entry seen per
    rank, merged before the next decision, so that older reports which are still under way start nothing. `stage_times` are
    seconds. `refusals`: the peers by whose no, or silence, it ended. What `detail` says is for people alone.
    """

    instance_id: InstanceId
    generation: Generation
    request_id: RequestId
    outcome: RoundOutcome
    reason: RoundReason
    detail: str = ""
    refusals: tuple[PeerRefusal, ...] = ()
    gate: GateRecord | None = None
    withdrawn: bool = False
    serving_published: bool = False
    view_revision: Revision = 0
    applied: dict[int, int | None] = Field(default_factory=dict)
    pending_finalize: tuple[str, ...] = ()
    last_entries: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)


class RoundReport(TransactionReport):
    """The end of a round. `removed_dp_ranks` is the cumulative set of the apply body."""

    kind: Literal[StrategyKind.SCALE_DOWN]
    committed: bool = False
    dead_committed: tuple[Rank, ...] = ()
    removed_dp_ranks: tuple[Rank, ...] = ()
    survivors: tuple[Rank, ...] = ()
    absent_node_managers: tuple[str, ...] = ()


class FastRecoveryReport(TransactionReport):
    """The end of a fast recovery. FAILED → reconfiguration, never a scale-down (I9).

    ABANDONED: before anything was withdrawn or sent, a rank turned out dead; `last_entries` is the evidence to decide with anew.
    `recovered`: the ranks that serve again. `gate`: the codes of `domain.round.gate.retry_gate`.
    """

    kind: Literal[StrategyKind.FAST_RECOVERY]
    recovered: tuple[Rank, ...] = ()


class ReconfigurationReason(StrEnum):
    """How a rebuild or a relaunch ended. The first two are success."""

    REBUILT = "REBUILT"
    RELAUNCHED = "RELAUNCHED"
    BAD_ORDER = "BAD_ORDER"  # a relaunch with nobody left to start
    WITHDRAW_UNCONFIRMED = "WITHDRAW_UNCONFIRMED"
    STOP_REFUSED = "STOP_REFUSED"
    START_FAILED = "START_FAILED"
    NOT_READY_IN_TIME = "NOT_READY_IN_TIME"
    VERIFY_FAILED = "VERIFY_FAILED"
    STOP_UNREACHABLE = "STOP_UNREACHABLE"  # a NodeManager that did not answer until the deadline may still run its engines
    PORT_FAILED = "PORT_FAILED"  # an activity ended without an answer
    FAULTS_REMAIN = "FAULTS_REMAIN"  # all ranks were ready, and after the completions one is not any more
    CANCELLED = "CANCELLED"


class RebuildReport(Strict):
    """How a rebuild or a relaunch ended. `engine_incarnations`: the new engines; evidence of others is dropped from then on."""

    instance_id: InstanceId
    generation: Generation
    succeeded: bool
    reason: ReconfigurationReason
    detail: str = ""
    serving_published: bool = False
    view_revision: Revision = 0
    engine_incarnations: dict[int, str] = Field(default_factory=dict)
    last_entries: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)

    @property
    def outcome(self) -> RoundOutcome:
        return RoundOutcome.SUCCEEDED if self.succeeded else RoundOutcome.FAILED


class ReconfigurationReport(RebuildReport):
    """The end of a rebuild."""

    kind: Literal[StrategyKind.INSTANCE_RECONFIGURATION]


class RelaunchReport(RebuildReport):
    """The end of a relaunch; failed → reconfiguration. `dead_committed` is the order's."""

    kind: Literal[StrategyKind.ENGINE_RELAUNCH]
    dead_committed: tuple[Rank, ...] = ()


class ReinferenceReason(StrEnum):
    HEALED = "HEALED"
    NOT_HEALED_IN_TIME = "NOT_HEALED_IN_TIME"
    RANK_DIED = "RANK_DIED"  # a process is gone: waiting longer cannot heal it
    BAD_ORDER = "BAD_ORDER"
    PORT_FAILED = "PORT_FAILED"  # an activity ended without an answer
    CANCELLED = "CANCELLED"


class ReinferenceReport(Strict):
    """The end of the wait. `healed`: every rank is healthy, and gave a completion. Either way the fault has been tried once."""

    kind: Literal[StrategyKind.TOKEN_REINFERENCE]
    instance_id: InstanceId
    generation: Generation
    healed: bool
    reason: ReinferenceReason
    detail: str = ""
    last_entries: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)

    @property
    def outcome(self) -> RoundOutcome:
        return RoundOutcome.SUCCEEDED if self.healed else RoundOutcome.FAILED


StrategyReport = RoundReport | FastRecoveryReport | ReconfigurationReport | RelaunchReport | ReinferenceReport
"""The end of any strategy. `kind` has no default in them, so that no way of writing them leaves it out."""

AnyReport: Final[TypeAdapter[StrategyReport]] = TypeAdapter(Annotated[StrategyReport, Field(discriminator="kind")])
"""Reads the report of a strategy whose kind is not known beforehand."""


class StrategyEnd(Strict):
    """Signal `strategy_end`: which workflow ended, and its report."""

    workflow_id: str
    report: StrategyReport = Field(discriminator="kind")

    @property
    def kind(self) -> StrategyKind:
        return self.report.kind

    @property
    def instance_id(self) -> int:
        return self.report.instance_id

    @property
    def generation(self) -> int:
        return self.report.generation
