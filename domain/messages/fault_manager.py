"""What a FaultManager is started with, told and asked: its signals, updates and queries, and the calls of its activities.

The orders and reports of the strategies that it starts are in `strategy.py` and `round.py`, the calls by which engines are
started and stopped in `rebuild.py`.
"""

from enum import StrEnum

from pydantic import Field

from domain.config import FaultToleranceConfig
from domain.engine import RankEntry
from domain.messages.round import CommitRecord, PeerRefusal
from domain.messages.strategy import StrategyEnd, StrategyKind, StrategyProgress
from domain.model import Generation, InstanceId, Rank, Revision, Strict
from domain.topology import NodeManagerAddress, Topology
from domain.watch import Question

TASK_QUEUE = "autotomy"
"""What the Controller's workers poll, unless they are told otherwise."""

FAULT_MANAGER_WORKFLOW = "FaultManager"

PROGRESS_SIGNAL = "strategy_progress"
"""To FaultManager, one `StrategyProgress`; may be late or missing."""

COMMIT_UPDATE = "record_commit"
"""To FaultManager, one `CommitRecord`; its completion (any reply) is the acknowledgement. Repeated, it changes nothing."""

END_SIGNAL = "strategy_end"
"""To FaultManager, one `StrategyEnd`; at least once."""

CONFIG_SIGNAL = "config_changed"
"""To FaultManager and EventPusher, one `FaultToleranceConfig`: a worker started with another one."""

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

STATUS_QUERY = "status"
"""To FaultManager → `RuntimeRecord`."""

PLAN_QUERY = "plan"
"""To FaultManager, one `domain.instance.plan.PlanRequest` → `domain.instance.plan.Plan`: a dry run."""

REPUBLISH_UPDATE = "republish"
"""To FaultManager, no input → `CommandReply`: the same view again under a new revision."""

RECONFIGURE_UPDATE = "reconfigure"
"""To FaultManager, one `ReconfigureCall` → `CommandReply`."""

HOLD_UPDATE = "hold"
"""To FaultManager, one `HoldCall` → `CommandReply`: automation off. Refused by its validator once the instance is deleted."""

RELEASE_UPDATE = "release"
"""To FaultManager, no input → `CommandReply`: automation on again. Refused by its validator where it is on."""


def fault_manager_id(instance_id: int) -> str:
    return f"fault-manager-{instance_id}"


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
    """`last_entries`: what was seen, per rank. `unreadable`: ranks whose NodeManager or engine gave no entry, and why."""

    last_entries: dict[int, RankEntry] = Field(default_factory=dict)
    node_manager_incarnations: dict[str, str] = Field(default_factory=dict)
    unreadable: dict[int, str] = Field(default_factory=dict)


class WakeCall(Strict):
    """One completion to each of these ranks, once, whatever becomes of it (`wake_idle_survivors`)."""

    questions: tuple[Question, ...]
    request_timeout_sec: float


class WakeResult(Strict):
    """`failed`: the ranks that gave no completion, and why. That is no evidence; what the engines report then is."""

    failed: dict[int, str] = Field(default_factory=dict)


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
    """Input of `FaultManager`, and the one place where its instance's topology is kept: whoever needs it looks here, also when
    the workflow was terminated. `state` is None at a first start, and after a terminate: then journals are asked.

    `state` is the JSON of `domain.instance.state.InstanceState` without topology and configuration, carried over continue-as-new.
    """

    instance_id: InstanceId
    topology: Topology
    config: FaultToleranceConfig
    state: str | None = None


class OwnedTopologyCall(Strict):
    """Activity `owned_topology`: what the FaultManager that runs under this id was started for."""

    instance_id: InstanceId


class OwnedTopology(Strict):
    """`digest`: its topology's; None: none runs."""

    digest: str | None


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


class InstanceRemoval(Strict):
    """Signal `terminate` to a FaultManager."""

    reason: str = ""
    stop_engines: bool = False


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
