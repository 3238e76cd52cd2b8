"""Between a strategy workflow and the FaultManager that started it: orders, progress, reports.

The FaultManager never awaits a handle: a strategy tells it about progress, its commit and its end by signal-with-start
from an activity, so that a terminated FaultManager is simply started again (design §1). The round's own order and report
are in `round.py`.
"""

from enum import StrEnum
from typing import Final, Self

from pydantic import Field

from domain.engine import RankEntry
from domain.messages.round import RoundReport, StepReport, StrategyOrder, TransactionOrder, TransactionReport
from domain.model import Generation, InstanceId, Rank, Revision, Strict
from domain.topology import NodeManagerAddress

STOP_SIGNAL = "stop"
"""To a running strategy, no input needed: end before the commit point, or not at all."""


class StrategyKind(StrEnum):
    """The value is the workflow id's first part: `<kind>-<instance>-<generation>`."""

    SCALE_DOWN = "scale-down"
    FAST_RECOVERY = "fast-recovery"
    INSTANCE_RECONFIGURATION = "instance-reconfiguration"
    ENGINE_RELAUNCH = "engine-relaunch"
    TOKEN_REINFERENCE = "token-reinference"
    SCALE_P2D = "scale-p2d"

    def workflow_id(self, instance_id: int, generation: int) -> str:
        return f"{self.value}-{instance_id}-{generation}"


class StrategyProgress(Strict):
    """Signal `strategy_progress`: ordered by (generation, step.step)."""

    kind: StrategyKind
    instance_id: InstanceId
    generation: Generation
    workflow_id: str
    step: StepReport


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
    looked: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)


class ReconfigurationReport(RebuildReport):
    """The end of a rebuild."""


class RelaunchReport(RebuildReport):
    """The end of a relaunch; failed → reconfiguration. `dead_committed` is the order's."""

    dead_committed: tuple[Rank, ...] = ()


class FastRecoveryOrder(TransactionOrder):
    """Let every active rank `retry` in place: all are UNHEALTHY, none is DEAD (design §3, rule 6).

    `request_id` is "fast-recovery-" and 32 hex digits, and the at-most-once rule of a round's apply holds for it.
    """


class FastRecoveryReport(TransactionReport):
    """The end of a fast recovery. FAILED → reconfiguration, never a scale-down (I9).

    ABANDONED: before anything was withdrawn or sent, a rank turned out dead; `looked` is the evidence to decide with anew.
    `recovered`: the ranks that serve again. `gate`: the codes of `domain.round.gate.retry_gate`.
    """

    recovered: tuple[Rank, ...] = ()


class ReinferenceOrder(StrategyOrder):
    """Wait until these ranks have healed by themselves, touching nothing (hardware L2, design §3, rule 3).

    `ranks`: those to which the fault maps, or all active ones. `why` names the fault. The wait ends after
    `config.token_reinference_deadline_sec`. Owns no view revision.
    """

    ranks: tuple[Rank, ...]
    why: str


class ReinferenceReason(StrEnum):
    HEALED = "HEALED"
    NOT_HEALED_IN_TIME = "NOT_HEALED_IN_TIME"
    RANK_DIED = "RANK_DIED"  # a process is gone: waiting longer cannot heal it
    BAD_ORDER = "BAD_ORDER"
    PORT_FAILED = "PORT_FAILED"  # an activity ended without an answer
    CANCELLED = "CANCELLED"


class ReinferenceReport(Strict):
    """The end of the wait. `healed`: every rank is healthy, and gave a completion. Either way the fault has been tried once."""

    instance_id: InstanceId
    generation: Generation
    healed: bool
    reason: ReinferenceReason
    detail: str = ""
    looked: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)


StrategyReport = RoundReport | FastRecoveryReport | ReconfigurationReport | RelaunchReport | ReinferenceReport


REPORTS: Final[dict[StrategyKind, tuple[str, type[StrategyReport]]]] = {
    StrategyKind.SCALE_DOWN: ("round", RoundReport),
    StrategyKind.FAST_RECOVERY: ("fast_recovery", FastRecoveryReport),
    StrategyKind.TOKEN_REINFERENCE: ("reinference", ReinferenceReport),
    StrategyKind.ENGINE_RELAUNCH: ("relaunch", RelaunchReport),
    StrategyKind.INSTANCE_RECONFIGURATION: ("reconfiguration", ReconfigurationReport),
}
"""Under which field of `StrategyEnd` a kind's report stands, and what it is."""


class StrategyEnd(Strict):
    """Signal `strategy_end`: exactly one of the reports is there, by `kind`."""

    kind: StrategyKind
    instance_id: InstanceId
    generation: Generation
    workflow_id: str
    round: RoundReport | None = None
    reconfiguration: ReconfigurationReport | None = None
    fast_recovery: FastRecoveryReport | None = None
    relaunch: RelaunchReport | None = None
    reinference: ReinferenceReport | None = None

    @classmethod
    def of(cls, kind: StrategyKind, workflow_id: str, report: StrategyReport) -> Self:
        """The end of a strategy of this kind. `workflow_id`: the strategy's own."""
        field, _ = REPORTS[kind]
        common = {"kind": kind, "instance_id": report.instance_id, "generation": report.generation, "workflow_id": workflow_id}
        return cls.model_validate({**common, field: report})
