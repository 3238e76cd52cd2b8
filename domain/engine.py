"""What an engine says about itself, and what it means for a round.

An engine's FT API gives one *entry* per DP rank: a status (`healthy`, `unhealthy`, `dead`) and, in the `v1` dialect, an
`ft_state` (`recovering`, `failed`). The NodeManager lays what it knows of the *process* over it: a process that is gone
is `dead` whatever the FT API still says. The functions at the end give the meaning of one entry at the two waits of a
round, as an enum (design §4, steps 5 and 8).
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, TypeAdapter, ValidationError

from domain.errors import ProtocolError
from domain.model import Count, Incarnation, Rank, Said, Strict, Tolerant, WireNumber

ACCEPTED_HTTP: Final = 202
"""The one HTTP status with which an engine takes a command: it is queued, and how it ends is in the status. 200 is a refusal
(contracts §1)."""


class EngineStatus(StrEnum):
    HEALTHY = "healthy"  # "no fault was pushed": it is a cache, not a proof
    UNHEALTHY = "unhealthy"  # noticed a peer's fault; takes instructions
    DEAD = "dead"  # its worker is gone; to be removed
    UNKNOWN = "unknown"  # the NodeManager cannot read it right now
    RETIRED = "retired"  # committed as removed; no longer part of the group


class FtState(StrEnum):
    RECOVERING = "recovering"
    FAILED = "failed"


class Dialect(StrEnum):
    """The two generations of vLLM's FT API (contracts §1)."""

    V1 = "v1"  # /v1/fault_tolerance/…, retry and scale_down (vLLM PR #46370)
    LEGACY = "legacy"  # /fault_tolerance/…, retry only (released vLLM)


class Instruction(StrEnum):
    SCALE_DOWN = "scale_down"
    RETRY = "retry"


class EntrySource(StrEnum):
    """Who says it. A process exit overrules the engine; a protocol error is never DEAD evidence."""

    ENGINE = "engine"
    PROCESS_EXIT = "process_exit"
    POLL_ERROR = "poll_error"
    PROTOCOL_ERROR = "protocol_error"
    OPERATOR = "operator"


class ProcessState(StrEnum):
    RUNNING = "running"
    EXITED = "exited"


MaskWord = Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]
Mask = Annotated[tuple[MaskWord, ...], Field(max_length=65_536)]
"""What an engine says of its EP peers; shown to people, read by nothing."""

_MASKS: Final[TypeAdapter[Mask]] = TypeAdapter(Mask)


def _mask(value: object) -> object:
    """A mask that cannot be read is none: it must not hide what else the engine says."""
    try:
        return _MASKS.validate_python(value)
    except ValidationError:
        return None


class EngineEntry(Tolerant):
    """One entry of `GET …/fault_tolerance/status`, as the engine sent it.

    `status` stays a plain word here: a word that we do not know is not actionable, but no error either.
    `mask` indexes EP ranks and is only logged: a rank is never derived from it.
    """

    id: Rank
    status: Said
    fault_info: Said | None = None
    mask: Annotated[tuple[MaskWord, ...] | None, BeforeValidator(_mask)] = None
    ft_state: Said | None = None
    last_ft_request_id: Said | None = None
    ft_error: Said | None = None


class RankEntry(EngineEntry):
    """An engine's entry with the NodeManager's knowledge over it (contracts §2, status).

    `incarnation` is "<boot id>:<pid>:<start time>" of the engine's API server; `sequence` orders what one NodeManager
    saw, over its restarts too.
    """

    source: EntrySource = EntrySource.ENGINE
    process: ProcessState = ProcessState.RUNNING
    incarnation: Incarnation | None = None
    sequence: Count = 0


class StatusBody(Tolerant):
    """The body of the engine's status reply."""

    schema_version: Count
    total_engines: Count | None = None
    engines: tuple[EngineEntry, ...]


def parse_status(body: object, expected_rank: int) -> EngineEntry:
    """Reads the one entry of an engine's status reply and checks its identity (RFC §4.1).

    Raises `ProtocolError` unless the body has schema 1 and exactly one entry, whose id is `expected_rank` and whose
    status is a word: a local rank is never taken for a global one.
    """
    try:
        status = StatusBody.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"engine {expected_rank} sent a status that cannot be read: {where}: {first['msg']}") from None
    if status.schema_version != 1:
        raise ProtocolError(f"engine {expected_rank} speaks status schema {status.schema_version}, we know 1")
    ids = [entry.id for entry in status.engines]
    if ids != [expected_rank]:
        raise ProtocolError(f"engine {expected_rank} answered for ranks {ids}; Endpoint.id and engines[].id must be equal")
    if status.total_engines is not None and status.total_engines != 1:
        raise ProtocolError(f"engine {expected_rank} says total_engines={status.total_engines}, must be 1")
    return status.engines[0]


def scale_down_params(removed: list[int], master_ip: str, store_port: int) -> dict[str, Any]:
    """The engine's `params` of a scale_down, as vLLM PR #46370 reads them."""
    return {"removed_dp_ranks": removed, "dp_master_ip": master_ip, "dp_store_port": store_port}


class ApplyReadiness(StrEnum):
    READY = "ready"  # unhealthy, waiting for an instruction
    WAIT = "wait"  # has not noticed the fault yet, is busy with it, or cannot be read right now
    DEAD = "dead"  # joins this round's removal set
    REFUSED = "refused"  # cannot take part; the round fails


def apply_readiness(entry: EngineEntry) -> ApplyReadiness:
    """What one survivor's entry means before apply (RFC §5, step 5)."""
    match entry.status, entry.ft_state:
        case EngineStatus.DEAD, _:
            return ApplyReadiness.DEAD
        case EngineStatus.RETIRED, _:
            return ApplyReadiness.REFUSED
        case _, FtState.FAILED:
            return ApplyReadiness.REFUSED
        case EngineStatus.UNHEALTHY, None:
            return ApplyReadiness.READY
        case _:
            return ApplyReadiness.WAIT


class Recovery(StrEnum):
    DONE = "done"  # healthy, nothing pending
    WAIT = "wait"  # recovering, or cannot be read right now
    FAILED = "failed"  # said so, died, or left the group


def recovery(entry: EngineEntry, request_id: str, *, before: EngineEntry | None = None) -> Recovery:
    """What one survivor's entry means after its 202 (RFC §5, step 7; design §4, step 8).

    `ft_error` proves a failure only together with our request id and `unhealthy`: on a healthy entry it may be a late
    duplicate that was refused. After a `retry`, `before` is the entry that stood there when it was sent: in the legacy
    dialect the server makes the request id, and a former retry's error still stands, so ours is any error but that one
    (contracts §1). Nobody else commands an engine that we guard.
    """
    match entry.status, entry.ft_state:
        case ((EngineStatus.DEAD | EngineStatus.RETIRED), _):
            return Recovery.FAILED
        case _, FtState.FAILED:
            return Recovery.FAILED
        case EngineStatus.HEALTHY, None:
            return Recovery.DONE
        case EngineStatus.UNHEALTHY, None if entry.ft_error and _is_ours(entry, request_id, before):
            return Recovery.FAILED
        case _:
            return Recovery.WAIT


def _is_ours(entry: EngineEntry, request_id: str, before: EngineEntry | None) -> bool:
    """Whether the entry's `ft_error` is that of our command."""
    if before is None:
        return entry.last_ft_request_id in (request_id, None)
    return (entry.last_ft_request_id, entry.ft_error) != (before.last_ft_request_id, before.ft_error)


class FtCapability(Strict):
    """What the engines of an instance can do, told at registration or declaration (contracts §5)."""

    enabled: StrictBool
    scale_down_supported: StrictBool
    retry_supported: StrictBool = False
    external_lb: StrictBool
    auto_recovery: StrictBool = False
    eplb_enabled: StrictBool
    num_redundant_experts: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    engine_recovery_timeout_sec: WireNumber = 120.0
    dialect: Dialect | None = None
