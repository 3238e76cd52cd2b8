"""How the engines of an instance are stopped, started anew, and waited for: calls of activities, one model in and one out.

All `…_at` fields are seconds since the epoch, UTC, by the caller's clock.
"""

from pydantic import Field

from domain.config import FaultToleranceConfig
from domain.engine import RankEntry
from domain.messages.round import PeerRefusal
from domain.model import Generation, InstanceId, Rank, Strict
from domain.topology import NodeManagerAddress, Topology
from domain.watch import Question


class EnginesReadyCall(Strict):
    """Wait until every rank is healthy in its new life. `started`: engine incarnation per rank, as far as told at start."""

    questions: tuple[Question, ...]
    started: dict[int, str] = Field(default_factory=dict)
    poll_interval_sec: float
    request_timeout_sec: float
    deadline_at: float


class EnginesReadyResult(Strict):
    """`waiting`: the ranks that were not ready at the deadline, and why (empty: all are). `last_entries`: the last entries."""

    last_entries: dict[int, RankEntry] = Field(default_factory=dict)
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
