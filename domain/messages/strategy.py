"""Between a strategy workflow and the FaultManager that started it.

The FaultManager never awaits a handle: a strategy tells it about progress, its commit and its end by signal-with-start
from an activity, so that a terminated FaultManager is simply started again (design §1). Also here: the state with which a
FaultManager starts, the orders and reports of strategies other than the round (`round.py` has those), and what EventPusher
and InstanceRegistry are told.
"""

from enum import StrEnum
from typing import Final, Self

from pydantic import Field

from domain.config import FaultToleranceConfig
from domain.engine import RankEntry
from domain.messages.registration import RegisterRequest
from domain.messages.round import CommitRecord, PeerRefusal, RoundOutcome, RoundReason, RoundReport, StepReport
from domain.model import Generation, InstanceId, Rank, RequestId, Revision, Strict
from domain.registration import Admission, Assembly
from domain.runtime import FtPhase, GateRecord, RejectedSignal
from domain.topology import NodeManagerAddress, Topology
from domain.watch import Question

TASK_QUEUE = "autotomy"
INSTANCE_REGISTRY_ID = "instance-registry"
EVENT_PUSHER_ID = "event-pusher"


FAULT_MANAGER_WORKFLOW = "FaultManager"
EVENT_PUSHER_WORKFLOW = "EventPusher"
INSTANCE_REGISTRY_WORKFLOW = "InstanceRegistry"

PROGRESS_SIGNAL = "strategy_progress"
"""To FaultManager, one `StrategyProgress`; may be late or missing."""

COMMIT_UPDATE = "record_commit"
"""To FaultManager, one `CommitRecord`; its completion (any reply) is the acknowledgement. Repeated, it changes nothing."""

END_SIGNAL = "strategy_end"
"""To FaultManager, one `StrategyEnd`; at least once."""

CONFIG_SIGNAL = "config_changed"
"""To FaultManager and EventPusher, one `FaultToleranceConfig`: a worker started with another one."""

RECORD_VIEWS_UPDATE = "record_views"
"""To EventPusher, one `ViewsRecord` → `RecordedViews`."""

ANNOUNCE_UPDATE = "announce_coordinator"
"""To EventPusher, one `CoordinatorRecord` → `Coordinators`; as a signal of the same name too."""

REPORT_SIGNAL = "report_software_fault"
"""To FaultManager: `{"report": PodReport | SoftwareFaultReport, "received_at": epoch seconds}`, either of them bare, or by
hand `{"engine_id": 1, "engine_status": 1}`."""

CLEAR_SIGNAL = "clear_software_fault"
"""To FaultManager, by hand: `{"engine_id": 1}`, the rank is healthy after all. A process exit cannot be cleared."""

NODE_MANAGER_LOST_SIGNAL = "node_manager_lost"
"""To FaultManager, one `NodeManagerWord`: no heartbeat for `heartbeat_timeout_sec`, and it did not answer the API either.
Lifecycle information, never evidence of a death. May be repeated, also by several APIs."""

NODE_MANAGER_BACK_SIGNAL = "node_manager_back"
"""To FaultManager, one `NodeManagerWord`: one that was lost answers or sends heartbeats again. May be repeated."""

REPORT_HARDWARE_SIGNAL = "report_hardware_fault"
"""To FaultManager: `{"report": HardwareFaultReport, "received_at": epoch seconds}`, or the report bare."""

CLEAR_HARDWARE_SIGNAL = "clear_hardware_fault"
"""To FaultManager: `{"report": HardwareFaultClear, "received_at": epoch seconds}`, or the clear bare."""

TERMINATE_SIGNAL = "terminate"
"""To FaultManager, optionally `{"reason": "…", "stop_engines": true}`: the instance was deleted. Withdraw it, and end."""

FORGET_SIGNAL = "forget_instance"
"""To EventPusher, one `ForgetInstance`: it was deleted; its view, withdrawn before, is listed for an hour more."""

STATUS_QUERY = "status"
"""To FaultManager → `RuntimeRecord`."""

PLAN_QUERY = "plan"
"""To FaultManager, one `domain.plan.PlanRequest` → `domain.plan.Plan`: a dry run."""

REPUBLISH_UPDATE = "republish"
"""To FaultManager, no input → `CommandReply`: the same view again under a new revision."""

RECONFIGURE_UPDATE = "reconfigure"
"""To FaultManager, one `ReconfigureCall` → `CommandReply`."""

HOLD_UPDATE = "hold"
"""To FaultManager, one `HoldCall` → `CommandReply`: automation off. Refused by its validator once the instance is deleted."""

RELEASE_UPDATE = "release"
"""To FaultManager, no input → `CommandReply`: automation on again. Refused by its validator where it is on."""

INSTANCES_QUERY = "instances"
"""To InstanceRegistry → `RegistryView`."""

DECLARE_UPDATE = "declare"
"""To InstanceRegistry, one `DeclareCall` → `RegistryReply`. Its `instances` query gives the `RegistryView`."""

REGISTER_UPDATE = "register"
"""To InstanceRegistry, one `RegisterCall` → `RegisterResult`: a Pod takes its seat."""

REMOVE_UPDATE = "remove"
"""To InstanceRegistry, one `RemoveCall` → `RegistryReply`."""

STOP_SIGNAL = "stop"
"""To a running strategy, no input needed: end before the commit point, or not at all."""


def fault_manager_id(instance_id: int) -> str:
    return f"fault-manager-{instance_id}"


class FaultManagerActivity(StrEnum):
    """The activities that a FaultManager calls, by the names they are registered under: what goes in → what comes out."""

    READ_JOURNALS = "read_journals"  # JournalsCall → JournalsResult
    START_NODE_MANAGERS = "start_node_managers"  # StartNodeManagersCall → StartNodeManagersResult
    STOP_NODE_MANAGERS = "stop_node_managers"  # StopNodeManagersCall → StopNodeManagersResult
    AWAIT_ENGINES_READY = "await_engines_ready"  # EnginesReadyCall → EnginesReadyResult
    PACE = "pace"  # PaceCall → None
    FRESH_LOOK = "fresh_look"  # FreshLookCall → FreshLookResult
    WAKE = "wake"  # WakeCall → WakeResult
    PUSH_VIEW = "push_view"  # ViewCall → ViewResult
    FINALIZE = "finalize"  # FinalizeCall → FinalizeResult
    LOOK_UP_STRATEGY = "look_up_strategy"  # LookUpCall → LookUpResult
    USABLE_SEARCH_ATTRIBUTES = "usable_search_attributes"  # nothing → Reported


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


class ReconfigurationOrder(Strict):
    """Withdraw, stop every engine, start all ranks anew, serve again (design §3). Owns view revisions r+1 and r+2.

    `why` is for people. `config.reconfiguration_deadline_sec` bounds the whole. `lost_node_managers`: their heartbeats were
    lost before the order; one of them that cannot be reached counts as stopped. `isolated`: as in a `RoundOrder`.
    """

    instance_id: InstanceId
    generation: Generation
    topology: Topology
    config: FaultToleranceConfig
    view_revision: Revision
    isolated: bool = False
    why: str
    lost_node_managers: tuple[NodeManagerAddress, ...] = ()


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


class ReconfigurationReport(Strict):
    """The end of a rebuild. `engine_incarnations`: the new engines; evidence of any other is dropped from then on."""

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


class FastRecoveryOrder(Strict):
    """Let every active rank `retry` in place: all are UNHEALTHY, none is DEAD (design §3, rule 6). Owns r+1 (DEL), r+2 (ADD).

    active = original − dead_committed; ranks that were removed earlier stay removed. `request_id` is "fast-recovery-" and
    32 hex digits, and the at-most-once rule of a round's apply holds for it. `first_unhealthy_at`: when each active rank's
    UNHEALTHY was first received. `capability_consistent`: all Pods registered the same capability. `isolated`: as in a
    `RoundOrder`.
    """

    instance_id: InstanceId
    generation: Generation
    request_id: RequestId
    dead_committed: tuple[Rank, ...]
    phase_before: FtPhase
    topology: Topology
    config: FaultToleranceConfig
    capability_consistent: bool = True
    published_ranks: tuple[Rank, ...]
    view_revision: Revision
    isolated: bool = False
    first_unhealthy_at: dict[int, float] = Field(default_factory=dict)


class FastRecoveryReport(Strict):
    """The end of a fast recovery. FAILED → reconfiguration, never a scale-down (I9).

    ABANDONED: before anything was withdrawn or sent, a rank turned out dead; `looked` is the evidence to decide with anew.
    `recovered`: the ranks that serve again. `gate`: the codes of `domain.gate.retry_gate`. `stage_times` are seconds.
    """

    instance_id: InstanceId
    generation: Generation
    request_id: RequestId
    outcome: RoundOutcome
    reason: RoundReason
    detail: str = ""
    gate: GateRecord | None = None
    recovered: tuple[Rank, ...] = ()
    withdrawn: bool = False
    serving_published: bool = False
    view_revision: Revision = 0
    applied: dict[int, int | None] = Field(default_factory=dict)
    pending_finalize: tuple[str, ...] = ()
    looked: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)


class RelaunchOrder(Strict):
    """Withdraw, stop the engines, start those of original − dead_committed anew, serve again. Owns r+1 and r+2.

    As a `ReconfigurationOrder`, but what was removed stays removed.
    """

    instance_id: InstanceId
    generation: Generation
    topology: Topology
    config: FaultToleranceConfig
    dead_committed: tuple[Rank, ...]
    view_revision: Revision
    isolated: bool = False
    why: str
    lost_node_managers: tuple[NodeManagerAddress, ...] = ()


class RelaunchReport(Strict):
    """The end of a relaunch; failed → reconfiguration. As a `ReconfigurationReport`; `dead_committed` is the order's."""

    instance_id: InstanceId
    generation: Generation
    succeeded: bool
    reason: ReconfigurationReason
    detail: str = ""
    dead_committed: tuple[Rank, ...] = ()
    serving_published: bool = False
    view_revision: Revision = 0
    engine_incarnations: dict[int, str] = Field(default_factory=dict)
    looked: dict[int, RankEntry] = Field(default_factory=dict)
    stage_times: dict[str, float] = Field(default_factory=dict)


class ReinferenceOrder(Strict):
    """Wait until these ranks have healed by themselves, touching nothing (hardware L2, design §3, rule 3).

    `ranks`: those to which the fault maps, or all active ones. `why` names the fault. The wait ends after
    `config.token_reinference_deadline_sec`. Owns no view revision.
    """

    instance_id: InstanceId
    generation: Generation
    topology: Topology
    config: FaultToleranceConfig
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


class EnginesReadyCall(Strict):
    """Wait until every rank is healthy in its new life. `started`: engine incarnation per rank, as far as told at start."""

    questions: tuple[Question, ...]
    started: dict[int, str] = Field(default_factory=dict)
    poll_interval_sec: float
    request_timeout_sec: float
    deadline_at: float


class EnginesReadyResult(Strict):
    """`waiting`: the ranks that were not ready at the deadline, and why (empty: all are). `looked`: the last entries."""

    looked: dict[int, RankEntry] = Field(default_factory=dict)
    waiting: dict[int, str] = Field(default_factory=dict)


class StartNodeManagersCall(Strict):
    """POST start to every NodeManager of the instance, each repeated until it took it or `deadline_at` (epoch seconds).

    Those in `optional` have nothing to start: they are told once, and it does not matter if nobody listens.
    """

    topology: Topology
    config: FaultToleranceConfig
    generation: Generation
    dead_committed: tuple[Rank, ...] = ()
    optional: tuple[NodeManagerAddress, ...] = ()
    deadline_at: float


class StartNodeManagersResult(Strict):
    """`started`: NodeManager incarnation per "ip:port"; `engines`: engine incarnation per rank, as far as told."""

    started: dict[str, str] = Field(default_factory=dict)
    engines: dict[int, str] = Field(default_factory=dict)
    refusals: tuple[PeerRefusal, ...] = ()


class StopNodeManagersCall(Strict):
    """Stop every NodeManager's engines, each until that is done: `stop_node_managers` lets the Pods restart, and waits until
    each is back in a new life; `stop_engines` leaves the NodeManagers running.

    An unreachable NodeManager is retried until `deadline_at` and then reported in `unreachable`. One in `may_be_gone` is
    asked once; where nobody answers it counts as stopped. `instance_id`: whose engines are meant; a NodeManager of another
    instance refuses.
    """

    managers: tuple[NodeManagerAddress, ...]
    may_be_gone: tuple[NodeManagerAddress, ...] = ()
    generation: Generation
    request_timeout_sec: float
    deadline_at: float
    instance_id: InstanceId | None = None


class StopNodeManagersResult(Strict):
    """`gone`: those of `may_be_gone` that did not answer."""

    stopped: tuple[NodeManagerAddress, ...] = ()
    gone: tuple[NodeManagerAddress, ...] = ()
    unreachable: tuple[PeerRefusal, ...] = ()
    refusals: tuple[PeerRefusal, ...] = ()


class PaceCall(Strict):
    """Tell all NodeManagers of an instance how often to look at their engines; best effort, bounded by one timeout."""

    managers: tuple[NodeManagerAddress, ...]
    poll_interval_sec: float
    request_timeout_sec: float


class FreshLookCall(Strict):
    """One sweep over these ranks, now (design §3, rule 10)."""

    questions: tuple[Question, ...]
    request_timeout_sec: float


class FreshLookResult(Strict):
    """`looked`: what was seen, per rank. `unreadable`: ranks whose NodeManager or engine gave no entry, and why."""

    looked: dict[int, RankEntry] = Field(default_factory=dict)
    node_manager_incarnations: dict[str, str] = Field(default_factory=dict)
    unreadable: dict[int, str] = Field(default_factory=dict)


class WakeCall(Strict):
    """One completion to each of these ranks, once, whatever becomes of it (`wake_idle_survivors`)."""

    questions: tuple[Question, ...]
    request_timeout_sec: float


class WakeResult(Strict):
    """`failed`: the ranks that gave no completion, and why. That is no evidence; what the engines report then is."""

    failed: dict[int, str] = Field(default_factory=dict)


class ViewRecord(Strict):
    """An instance's newest view revision, as EventPusher is told it before its first push leaves.

    `ranks` empty = withdrawn (listed in SET with `endpoints: {}`). A lower or equal revision than known changes nothing.
    """

    topology: Topology
    revision: Revision
    ranks: tuple[Rank, ...]


class CoordinatorRecord(Strict):
    """A Coordinator as it announced itself. `last_answer_at` (epoch seconds): announcement or acknowledged push."""

    url: str
    incarnation: str
    has_view: bool
    last_answer_at: float


class Coordinators(Strict):
    """Who is to hear of a view, and the highest revision of it that EventPusher knows; the reply of its query `coordinators`."""

    coordinators: tuple[CoordinatorRecord, ...] = ()
    known_revision: Revision = 0


class JournalsCall(Strict):
    """Ask the NodeManagers' journals (and the Coordinators' views) what this instance has been through (design §1)."""

    topology: Topology
    request_timeout_sec: float
    deadline_at: float


class JournalsResult(Strict):
    """The highest that was seen anywhere. `open_request_ids`: transactions without a verdict, by NodeManager.

    `view_revision` is the highest of EventPusher's and the Coordinators'. `complete`: every NodeManager answered.
    """

    complete: bool
    highest_generation: Generation = 0
    dead_committed: tuple[Rank, ...] = ()
    view_revision: Revision = 0
    published_ranks: tuple[Rank, ...] = ()
    open_request_ids: dict[str, str] = Field(default_factory=dict)
    started: bool = False
    unreachable: tuple[PeerRefusal, ...] = ()


class FaultManagerStart(Strict):
    """Input of `FaultManager`. `state` is None at a first start, and after a terminate: then journals are asked.

    `state` is the JSON of `workflows.fault_manager`'s own state model, carried over continue-as-new.
    """

    instance_id: InstanceId
    topology: Topology
    config: FaultToleranceConfig
    state: str | None = None


class ProgressReport(Strict):
    """Activity `report_progress`: signal-with-start, so that a terminated FaultManager is there again (`start`)."""

    start: FaultManagerStart
    progress: StrategyProgress


class CommitReport(Strict):
    """Activity `report_commit`: update-with-start, waits for the acknowledgement at most `within_sec`."""

    start: FaultManagerStart
    record: CommitRecord
    within_sec: float


class EndReport(Strict):
    """Activity `report_end`: signal-with-start."""

    start: FaultManagerStart
    end: StrategyEnd


class Reported(Strict):
    """`search_attributes`: those that the worker found usable at its start; others would fail a workflow task for ever."""

    search_attributes: tuple[str, ...] = ()


class StrategyState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"  # completed, with its report
    LOST = "lost"  # terminated, timed out, failed or reset: it ended without a report
    ABSENT = "absent"  # no workflow of that id was ever started


class LookUpCall(Strict):
    """Activity `look_up_strategy`: what became of a strategy from which nothing is heard (describe, and its result)."""

    kind: StrategyKind
    instance_id: InstanceId
    generation: Generation
    workflow_id: str


class LookUpResult(Strict):
    """`end` is there when, and only when, `state` is ENDED."""

    state: StrategyState
    end: StrategyEnd | None = None


class NodeManagerWord(Strict):
    """Signals `node_manager_lost` and `node_manager_back`; `received_at` (epoch seconds): when the API judged it."""

    node_manager: NodeManagerAddress
    received_at: float | None = None


class RegisteredInstance(Strict):
    """An instance in InstanceRegistry, with its declaration's version (for the API's caches)."""

    topology: Topology
    version: int


class RegistryView(Strict):
    """`assemblies`: instances whose Pods are coming. `lives`: per instance and "ip:port", the NodeManager incarnation that
    belongs to the group. `job_ids`: the number that a job_name had last."""

    instances: tuple[RegisteredInstance, ...] = ()
    assemblies: tuple[Assembly, ...] = ()
    lives: dict[int, dict[str, str]] = Field(default_factory=dict)
    job_ids: dict[str, int] = Field(default_factory=dict)
    version: int = 0


class RegisterCall(Strict):
    """Update `register` of InstanceRegistry. `config` is what the instance's FaultManager starts with.

    `joining`: the instance is assembled already and is being rebuilt, so this life of the Pod may join the group.
    """

    request: RegisterRequest
    config: FaultToleranceConfig
    joining: bool = False


class RegisterResult(Strict):
    """What became of a `register`; `version` is the registry's."""

    instance_id: InstanceId
    admission: Admission
    message: str
    version: int


class DeclareCall(Strict):
    """Update `declare` of InstanceRegistry. `config` is what the instance's FaultManager starts with."""

    topology: Topology
    config: FaultToleranceConfig


class RemoveCall(Strict):
    """Update `remove` of InstanceRegistry: the instance is withdrawn and forgotten, its FaultManager ends.

    `stop_engines`: its NodeManagers are told to stop their engines too; otherwise they are left alone.
    """

    instance_id: InstanceId
    reason: str = ""
    stop_engines: bool = False


class Removal(Strict):
    """Signal `terminate` to a FaultManager."""

    reason: str = ""
    stop_engines: bool = False


class RegistryOutcome(StrEnum):
    DECLARED = "DECLARED"
    UNCHANGED = "UNCHANGED"  # the same declaration is there already
    CONFLICT = "CONFLICT"  # another declaration is there: a topology never changes while the instance lives
    REMOVED = "REMOVED"
    UNKNOWN = "UNKNOWN"  # there is no such instance


class RegistryReply(Strict):
    """What became of a `declare` or `remove`; `version` is the registry's, it grows with each change."""

    outcome: RegistryOutcome
    message: str
    version: int


class ReconfigureCall(Strict):
    """Update `reconfigure` of FaultManager: a person orders a rebuild; `force` passes the budget and starts it anew."""

    force: bool = False
    why: str = ""


class HoldCall(Strict):
    """Update `hold` of FaultManager: decide and record, act no more, until `release`. `why` is shown to people."""

    why: str = ""


class CommandOutcome(StrEnum):
    ACCEPTED = "ACCEPTED"
    STRATEGY_RUNS = "STRATEGY_RUNS"  # not while a strategy runs
    NOT_SERVING = "NOT_SERVING"  # there is no published view that could be pushed again
    BUDGET_SPENT = "BUDGET_SPENT"  # only with `force`
    NOT_HELD = "NOT_HELD"  # the automation is on already
    NOT_READY = "NOT_READY"  # the FaultManager is still learning what the instance has been through, or ends


class CommandReply(Strict):
    """What a FaultManager says to a person's command."""

    outcome: CommandOutcome
    message: str

    @property
    def accepted(self) -> bool:
        return self.outcome is CommandOutcome.ACCEPTED


class RegistryStart(Strict):
    """Input of `InstanceRegistry`; the fields are carried over continue-as-new, a first start gives none.

    `to_start`: instances whose FaultManager is to be started, and until when it is tried (epoch seconds). `to_end`: those
    whose FaultManager has not been told yet to take them down; `ending`: their NodeManagers, which are not free before that.
    """

    instances: tuple[RegisteredInstance, ...] = ()
    version: int = 0
    configs: dict[int, FaultToleranceConfig] = Field(default_factory=dict)
    to_start: dict[InstanceId, float] = Field(default_factory=dict)
    to_end: dict[InstanceId, Removal] = Field(default_factory=dict)
    ending: dict[InstanceId, tuple[NodeManagerAddress, ...]] = Field(default_factory=dict)
    rejected_signals: tuple[RejectedSignal, ...] = ()
    assemblies: tuple[Assembly, ...] = ()
    lives: dict[int, dict[str, str]] = Field(default_factory=dict)
    job_ids: dict[str, int] = Field(default_factory=dict)
