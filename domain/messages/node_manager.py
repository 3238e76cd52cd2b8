"""What a NodeManager serves (contracts §2): requests strict, replies tolerant.

All commands carry the round's `request_id` and, from our Controller, the instance's `generation`. Every one may be
repeated: the NodeManager's journal gives the same answer. Refusals are HTTP 502 with an `ErrorEnvelope` whose
`data.reason` is a `NodeManagerReason`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, field_validator

from domain.address import Host
from domain.engine import EntrySource, Instruction, Mask, RankEntry
from domain.model import (
    MAX_RANKS,
    Count,
    Generation,
    Incarnation,
    InstanceId,
    Name,
    Port,
    Rank,
    RequestId,
    Said,
    Strict,
    Tolerant,
    WireNumber,
    WireSeconds,
    Word,
)
from domain.topology import Endpoint, Role

FT_PREFIX = "/node-manager/fault-tolerance"

HttpStatus = Annotated[StrictInt, Field(ge=0, le=999)]


class NodeManagerReason(StrEnum):
    """Why a NodeManager refused."""

    MALFORMED = "MALFORMED"  # 400: the body cannot be read
    DISABLED = "DISABLED"  # 404: enable_dp_scale_down_proxy is off
    UNMANAGED_ENDPOINT = "UNMANAGED_ENDPOINT"  # an id that this Pod does not own, or one named twice
    ENGINE_PROTOCOL = "ENGINE_PROTOCOL"  # an engine answered nonsense
    GUARD_HELD = "GUARD_HELD"  # another live request id owns the Pod; `holder` names it
    OLD_GENERATION = "OLD_GENERATION"  # a newer generation was seen
    VERDICT_KNOWN = "VERDICT_KNOWN"  # this request id was finalized already
    NOT_GUARDED = "NOT_GUARDED"  # apply without a live guard of this id
    LEASE_TOO_SHORT = "LEASE_TOO_SHORT"  # less than apply_margin_sec is left: renew first
    BODY_DIFFERS = "BODY_DIFFERS"  # same request id, other body
    ENGINE_REFUSED = "ENGINE_REFUSED"  # an engine did not answer 202
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"  # restarted between intent and outcome: never called again
    VERDICT_DIFFERS = "VERDICT_DIFFERS"  # finalized with the other verdict
    STALE = "STALE"  # commit of an old generation
    ABORTED = "ABORTED"  # an abort came between the intent and the engine call
    NOT_STARTED = "NOT_STARTED"  # no start command has been taken yet: no endpoints are known
    LOOP_FAILED = "LOOP_FAILED"  # a loop of the NodeManager failed by a bug, and was begun again
    JOURNAL = "JOURNAL"  # the journal cannot be read or written: fails closed
    NO_ENGINE_COMMAND = "NO_ENGINE_COMMAND"  # the config file describes no engine for an endpoint, or its program is missing
    OTHER_INSTANCE = "OTHER_INSTANCE"  # engines of another instance run here: that one must be stopped first
    STOPPING = "STOPPING"  # told to stop, about to exit; its next life can be started


class StatusRequest(Strict):
    """POST …/status: the entries of these ranks of this Pod, read from their engines now."""

    endpoint_ids: Annotated[tuple[Rank, ...], Field(min_length=1, max_length=MAX_RANKS)]


class StatusReply(Tolerant):
    engines: dict[Word, RankEntry]
    node_manager_incarnation: Word = ""

    def entries(self) -> dict[int, RankEntry]:
        return {entry.id: entry for entry in self.engines.values()}


class GuardRequest(Strict):
    """POST …/guard: this request id owns the Pod for `lease_sec` ∈ (0, 3600]; repeated, it renews."""

    request_id: RequestId
    lease_sec: Annotated[float, Field(strict=True, gt=0, le=3600)]
    generation: Generation | None = None


class GuardReply(Tolerant):
    """`lapsed`: the lease had run out before this renewal, and nobody else had taken the Pod meanwhile."""

    status: Literal["guarded"]
    expires_in_sec: WireNumber
    lapsed: StrictBool = False


class ApplyParams(Strict):
    """`dp_master_rank` is stripped by the NodeManager, which adds `dp_store_port` = dp_master_port + dp_master_rank."""

    removed_dp_ranks: tuple[Rank, ...] = ()
    dp_master_ip: Host | None = None
    dp_master_rank: Rank | None = None


class ApplyRequest(Strict):
    """POST …/apply: one instruction to these engines, each called at most once per request id, ever."""

    endpoint_ids: Annotated[tuple[Rank, ...], Field(min_length=1, max_length=MAX_RANKS)]
    instruction: Instruction
    params: ApplyParams
    request_id: RequestId
    generation: Generation | None = None
    apply_margin_sec: WireSeconds | None = None


class EngineApplied(Tolerant):
    """What one engine answered: its HTTP status (202 is the only acceptance), or None where it could not be learnt."""

    http: HttpStatus | None
    message: Said | None = None


class ApplyReply(Tolerant):
    status: Literal["accepted"]
    engines: dict[Word, EngineApplied]


class FinalizeRequest(Strict):
    """POST …/finalize: the verdict. `dead_committed`, where given, is the instance's whole committed set."""

    request_id: RequestId
    commit: StrictBool
    retired_endpoint_ids: tuple[Rank, ...]
    dead_committed: tuple[Rank, ...] | None = None
    generation: Generation | None = None


class FinalizeReply(Tolerant):
    status: Literal["committed", "aborted"]


class ProbeRequest(Strict):
    """POST …/probe (ours): one completion of one token on each of these ranks, within `timeout_sec`."""

    endpoint_ids: Annotated[tuple[Rank, ...], Field(min_length=1, max_length=MAX_RANKS)]
    timeout_sec: Annotated[float, Field(strict=True, gt=0, le=600)]


class ProbeResult(Tolerant):
    """`ok` is HTTP 200 with a finish reason that is not `abort`."""

    ok: StrictBool
    http: HttpStatus | None = None
    finish_reason: Said | None = None
    detail: Said | None = None


class ProbeReply(Tolerant):
    engines: dict[Word, ProbeResult]


class PaceRequest(Strict):
    """POST …/pace (ours): how often to look at the engines from now on."""

    poll_interval_sec: Annotated[float, Field(strict=True, gt=0, le=3600)]


class FtPacing(Strict):
    """`fault_tolerance_config` in the start body, the registration reply and the heartbeat reply (contracts §3)."""

    enable_dp_scale_down_proxy: StrictBool
    poll_interval_sec: WireSeconds
    fault_poll_interval_sec: WireSeconds
    engine_request_timeout_sec: WireSeconds


class StartRequest(Strict):
    """POST /node-manager/start: become part of this instance, under this generation.

    Repeated with the same generation it changes nothing; with a newer one, engines of the older generation that still
    run are stopped first. While engines of another instance run it is refused (OTHER_INSTANCE). Retired ids are reset to
    `dead_committed`; ranks in it are not started.
    """

    job_name: Name
    role: Role
    instance_id: InstanceId
    generation: Generation
    dead_committed: tuple[Rank, ...] = ()
    endpoints: tuple[Endpoint, ...]
    master_dp_ip: Host
    dp_master_port: Port
    fault_tolerance_config: FtPacing | None = None


class StartReply(Tolerant):
    """`engines`: incarnation per started or already running rank."""

    status: Literal["started", "unchanged"]
    incarnation: Incarnation
    engines: dict[Word, Word]


class StopRequest(Strict):
    """POST /node-manager/stop: stop the engines, then exit so that the Pod restarts.

    A NodeManager whose incarnation is not `incarnation` ignores it (it already is a newer life); an old generation is refused.
    `instance_id` (ours): whose engines are meant; while those of another instance run, it is refused.
    """

    generation: Generation | None = None
    incarnation: Incarnation | None = None
    instance_id: InstanceId | None = None


class StopReply(Tolerant):
    status: Literal["stopping", "ignored"]
    incarnation: Incarnation


class EngineRestartAction(StrEnum):
    RESTART = "restart"
    ABORT = "abort"
    STOP = "stop"  # ours: end the engines, and wait for a start


class EngineRestartRequest(Strict):
    """POST /node-manager/engine-restart: new engines under the same start, or give up on one that is under way.

    `stop` (ours) ends the engines of older generations without ending the NodeManager; repeated, it tells whether they are gone.
    `instance_id` (ours): as in a `StopRequest`.
    """

    action: EngineRestartAction
    generation: Generation | None = None
    instance_id: InstanceId | None = None


class EngineRestartReply(Tolerant):
    status: Literal["restarting", "aborted", "unchanged", "stopping", "stopped"]
    incarnation: Incarnation


class PauseReply(Tolerant):
    """POST /node-manager/pause and …/resume (PreStop): whether faults are kept back now."""

    status: Literal["paused", "running"]
    incarnation: Incarnation


class LivenessReply(Tolerant):
    """GET /liveness. `instance_id`: of the start command that holds, None without one (ours)."""

    status: Word
    incarnation: Word = ""
    instance_id: InstanceId | None = None


class PodStatusReply(Tolerant):
    """GET /node-manager/status: all engines ready and healthy; relaxed: all engine processes there, or a guard is live."""

    status: StrictBool


class GuardRecord(Tolerant):
    request_id: Word
    generation: Generation | None
    expires_in_sec: WireNumber
    live: StrictBool
    applied: StrictBool


class TransactionRecord(Tolerant):
    """One request id as the journal knows it. `verdict`: committed, aborted, or None while open."""

    request_id: Word
    generation: Generation | None = None
    guarded: StrictBool = False
    apply_engines: dict[Word, EngineApplied] = {}
    apply_outcome: Word | None = None  # "accepted", or a NodeManagerReason
    instruction: Word | None = None
    removed_dp_ranks: tuple[Rank, ...] = ()
    verdict: Word | None = None
    retired_endpoint_ids: tuple[Rank, ...] = ()


class JournalReply(Tolerant):
    """GET …/journal (ours): what a FaultManager without memory needs to know (design §1)."""

    incarnation: Incarnation
    instance_id: InstanceId | None
    highest_generation: Generation
    retired_ranks: tuple[Rank, ...]
    dead_committed: tuple[Rank, ...]
    guard: GuardRecord | None
    transactions: tuple[TransactionRecord, ...]
    engines: dict[Word, Word] = {}


class RankReport(Strict):
    """One rank's news in a Pod's report to the Controller (contracts §3, our form).

    `engine_status`: 0 healthy, 1 dead, 2 unhealthy (Motor's numbers). `sequence` orders reports of one NodeManager.
    """

    engine_id: Rank
    engine_status: Annotated[StrictInt, Field(ge=0, le=2)]
    engine_incarnation: Incarnation | None = None
    sequence: Count
    source: EntrySource
    exception_type: Said | None = None
    exception_message: Said | None = None
    ft_state: Said | None = None
    ft_error: Said | None = None
    mask: Mask | None = None
    last_ft_request_id: Said | None = None


class PodReport(Strict):
    """POST /controller/report_software_fault, our form: all changes that one poll of one Pod saw."""

    instance_id: InstanceId
    pod_ip: Host
    node_manager_port: Port
    incarnation: Incarnation
    reports: Annotated[tuple[RankReport, ...], Field(min_length=1, max_length=MAX_RANKS)]

    @field_validator("reports")
    @classmethod
    def _one_per_rank(cls, reports: tuple[RankReport, ...]) -> tuple[RankReport, ...]:
        ranks = [report.engine_id for report in reports]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"a rank is reported twice in one report: {sorted(ranks)}")
        return reports
