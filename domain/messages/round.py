"""What a round and a fast recovery ask of the world: the calls of `domain.round`'s ports, one model in and one out.

They travel as Temporal activity arguments, and the simulation and the bare loop use the very same. What a round is ordered
to do, and what it reports, is in `strategy.py` with every other strategy's.

All `…_at` fields are seconds since the epoch, UTC, by the caller's clock (`workflow.now()` in a workflow).
"""

from pydantic import Field

from domain.engine import Instruction
from domain.model import Generation, InstanceId, Rank, RequestId, Revision, Said, Strict
from domain.topology import NodeManagerAddress, Topology
from domain.watch import Question, Watch, WatchStanding


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


class WatchCall(Strict):
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


class WatchResult(Strict):
    """The last observation and the watch as it stood then. `lost_guard`: a renewal was refused; the Pod is someone else's."""

    watch: Watch
    observation: WatchStanding
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
