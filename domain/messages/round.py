"""What a round is ordered to do, what it asks of the world, and what it reports.

`RoundOrder` is frozen by the FaultManager when it starts a round; `RoundReport` is the round's end. Between them stand
the calls of `domain.round.scale_down.RoundPorts`, one model in and one out: they travel as Temporal activity arguments, and the
simulation and the bare loop use the very same.

All `…_at` fields are seconds since the epoch, UTC, by the caller's clock (`workflow.now()` in a workflow).
"""

from enum import StrEnum

from pydantic import Field

from domain.config import FaultToleranceConfig
from domain.engine import Instruction, RankEntry
from domain.model import Generation, InstanceId, Rank, RequestId, Revision, Said, Strict
from domain.runtime import FtPhase, GateRecord
from domain.topology import NodeManagerAddress, Topology
from domain.watch import Observation, Question, Watch


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


class PeerRefusal(Strict):
    """A NodeManager or Coordinator that said no, or could not be asked: which, the reason word, and its message."""

    peer: Said
    reason: Said
    message: Said


class Lease(Strict):
    """The guards that a look keeps alive: renewed whenever `renew_every_sec` have passed."""

    managers: tuple[NodeManagerAddress, ...]
    lease_sec: float
    renew_every_sec: float


class GuardCall(Strict):
    """Guard all participants concurrently. `must` are retried until `deadline_at`; `may_be_absent` hold dead ranks only."""

    request_id: RequestId
    generation: Generation
    lease_sec: float
    must: tuple[NodeManagerAddress, ...]
    may_be_absent: tuple[NodeManagerAddress, ...]
    request_timeout_sec: float
    deadline_at: float


class GuardResult(Strict):
    """`refusals` are final no's; `unreachable` are participants with survivors that did not answer in time."""

    guarded: tuple[NodeManagerAddress, ...] = ()
    absent: tuple[NodeManagerAddress, ...] = ()
    refusals: tuple[PeerRefusal, ...] = ()
    unreachable: tuple[PeerRefusal, ...] = ()


class LookCall(Strict):
    """Look at engines through their NodeManagers until the watch ends, or until `deadline_at` (`once`: one sweep).

    A sweep is made at least once, also after the deadline: nothing is called timed out without a last look.
    """

    instance_id: InstanceId
    request_id: RequestId
    generation: Generation
    watch: Watch
    once: bool = False
    poll_interval_sec: float
    request_timeout_sec: float
    deadline_at: float
    lease: Lease


class LookResult(Strict):
    """The last observation and the watch as it stood then. `lost_guard`: a renewal was refused; the Pod is someone else's."""

    watch: Watch
    observation: Observation
    sweeps: int
    lost_guard: PeerRefusal | None = None


class ViewCall(Strict):
    """Push one revision of the serving view to every Coordinator: `ranks` (ADD), or none (DEL).

    EventPusher is told the revision before the first push leaves.
    """

    topology: Topology
    revision: Revision
    ranks: tuple[Rank, ...]
    request_timeout_sec: float
    deadline_at: float


class ViewResult(Strict):
    """`confirmed`: every Coordinator that must know has acknowledged. `refusals` names those that did not, and why."""

    confirmed: bool
    coordinators: tuple[str, ...] = ()
    refusals: tuple[PeerRefusal, ...] = ()


class ApplyCall(Strict):
    """Send one instruction to every NodeManager with survivors, concurrently; the same request until `deadline_at`.

    `removed_dp_ranks` and the master belong to a scale_down; a retry has none of them.
    """

    request_id: RequestId
    generation: Generation
    instruction: Instruction = Instruction.SCALE_DOWN
    groups: tuple[Question, ...]
    removed_dp_ranks: tuple[Rank, ...] = ()
    master_ip: str | None = None
    master_rank: Rank | None = None
    apply_margin_sec: float
    lease_sec: float
    request_timeout_sec: float
    deadline_at: float


class ApplyResult(Strict):
    """`engines`: HTTP status per rank, as their NodeManagers told it (None: not learnt). 202 everywhere is acceptance."""

    accepted: bool
    engines: dict[int, int | None] = Field(default_factory=dict)
    refusals: tuple[PeerRefusal, ...] = ()
    unknown: tuple[PeerRefusal, ...] = ()


class VerifyCall(Strict):
    """One bounded completion on each survivor, through its NodeManager, repeated until it succeeds or `deadline_at`."""

    groups: tuple[Question, ...]
    request_timeout_sec: float
    deadline_at: float


class VerifyResult(Strict):
    """`failed`: what each rank said that gave no completion."""

    ok: tuple[Rank, ...] = ()
    failed: dict[int, str] = Field(default_factory=dict)


class CommitRecord(Strict):
    """Told to the FaultManager at the commit point, before anything is finalized."""

    instance_id: InstanceId
    generation: Generation
    request_id: RequestId
    dead_committed: tuple[Rank, ...]
    view_revision: Revision


class FinalizeCall(Strict):
    """Give the verdict to these NodeManagers, each retried until `deadline_at`. `retired` are this verdict's ranks.

    Those in `once` did not answer the guard: they are tried one time, so that a dead node does not hold up the fallback.
    """

    request_id: RequestId
    generation: Generation
    commit: bool
    managers: tuple[NodeManagerAddress, ...]
    retired: tuple[Question, ...] = ()
    dead_committed: tuple[Rank, ...] = ()
    once: tuple[NodeManagerAddress, ...] = ()
    request_timeout_sec: float
    deadline_at: float


class FinalizeResult(Strict):
    done: tuple[NodeManagerAddress, ...] = ()
    pending: tuple[NodeManagerAddress, ...] = ()
    refusals: tuple[PeerRefusal, ...] = ()


class StopPodsCall(Strict):
    """Stop these Pods once, best effort, never retried (RFC §5)."""

    managers: tuple[NodeManagerAddress, ...]
    generation: Generation
    request_timeout_sec: float
    instance_id: InstanceId | None = None


class StepReport(Strict):
    """A round's progress. Ordered by (generation, step), so that a late one changes nothing."""

    step: int
    phase: FtPhase
    detail: str
    request_id: RequestId
    pending_ranks: tuple[Rank, ...]
    at: float


class RoundOutcome(StrEnum):
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

    `applied`: the HTTP status with which each engine took the command (None: not learnt). `looked`: the last entry seen per
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
    looked: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)


class RoundReport(TransactionReport):
    """The end of a round. `removed_dp_ranks` is the cumulative set of the apply body."""

    committed: bool = False
    dead_committed: tuple[Rank, ...] = ()
    removed_dp_ranks: tuple[Rank, ...] = ()
    survivors: tuple[Rank, ...] = ()
    absent_node_managers: tuple[str, ...] = ()
