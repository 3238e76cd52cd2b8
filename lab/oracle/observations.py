"""What can be seen of a recovery from outside: the records that the invariants are judged on.

Nobody is asked whether it behaved. An engine's own log says which commands reached it; a NodeManager's journal which
guards and verdicts it took; a Coordinator's view log what it was told to serve; the client where its requests went. Each
such fact is one frozen record here, with the time it happened on one monotonic clock (seconds; drills count from the
injection, simulations from their virtual zero). `Observed` is all of them for one instance, in order.

Two drivers write these records: drills, the restart table among them (real processes), and the simulation of `run_round`
(`tests/simulation`). The judging is `lab.oracle.invariants`.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, TypeVar, cast

from pydantic import Field

from domain.engine import EngineStatus, Instruction
from domain.model import Generation, InstanceId, Rank, RequestId, Revision, Strict

Ranks = frozenset[Rank]


class SourceKind(StrEnum):
    """Where records come from. A source that was read and held nothing still is an observation; an unread one is not."""

    ENGINE_LOG = "engine log"
    JOURNAL = "NodeManager journal"
    VIEW_LOG = "Coordinator view log"
    CLIENT = "client"


class Observation(Strict):
    """`at`: seconds on the run's monotonic clock."""

    at: float


class SourceRead(Observation):
    """One source was read from its beginning until `at`, and every record in it is among the others."""

    kind: SourceKind
    who: str


class StatusSeen(Observation):
    """A rank's status as its engine or its NodeManager had it: software evidence.

    `final`: a process of its engine has ended. Whatever is said of the rank afterwards, it is dead until a rebuild.
    """

    rank: Rank
    status: EngineStatus
    final: bool = False


class EngineIdSeen(Observation):
    """The engine behind endpoint `rank` gave this id in its status; None: none, or several."""

    rank: Rank
    answered: Rank | None


class HardwareFaultSeen(Observation):
    """A hardware fault that maps to these ranks."""

    ranks: Ranks


class ApplySeen(Observation):
    """A command reached an engine, accepted or refused. `removed`: its cumulative removed_dp_ranks."""

    engine: Rank
    request_id: RequestId
    instruction: Instruction
    removed: Ranks = frozenset()


class RecoveredSeen(Observation):
    """An engine finished its recovery under this request id, as it logged it."""

    engine: Rank
    request_id: RequestId


class GuardSeen(Observation):
    """A NodeManager granted or renewed a guard. `expires_at`: when it ends by itself, unless it is renewed.

    That is the end of the lease; after an apply, of the engines' own time where that is later; infinite where nobody told it.
    """

    manager: str
    request_id: RequestId
    expires_at: float = Field(allow_inf_nan=True)


class GuardGone(Observation):
    """A NodeManager no longer holds this guard."""

    manager: str
    request_id: RequestId


class VerdictSeen(Observation):
    """A NodeManager took a verdict."""

    manager: str
    request_id: RequestId
    committed: bool


class CommitSeen(Observation):
    """These ranks are removed for good: the commit point, or the first NodeManager that has recorded it."""

    request_id: RequestId
    ranks: Ranks


class ViewChange(StrEnum):
    ADD = "add"
    DEL = "del"
    SET = "set"


class ViewSeen(Observation):
    """A Coordinator took over a view. `endpoints`: rank → "ip:port", "" where the source does not tell; empty after a DEL."""

    coordinator: str
    change: ViewChange
    revision: Revision | None
    endpoints: Mapping[Rank, str]


class AddressSeen(Observation):
    """A rank was found published at "ip:port", whenever that was done."""

    rank: Rank
    address: str


class RouteSeen(Observation):
    """A request that started `at` was routed to `rank`; `answered_by` is the rank that the answer itself names."""

    rank: Rank
    answered_by: Rank | None = None


class PhaseSeen(Observation):
    """The status API's record, asked for at `asked_at` and answered `at`: judged against the rest, never believed."""

    asked_at: float
    phase: str
    can_serve: bool
    serving_published: bool
    dead_committed: Ranks = frozenset()


class GenerationSeen(Observation):
    """The generation that a receiver of commands stands at."""

    receiver: str
    generation: Generation


class FastRecoveryFailed(Observation):
    """A fast recovery failed: an engine refused or failed its `retry`, or the whole ended without success."""


class RebuildExcuse(StrEnum):
    """Why a complete set may be rebuilt all the same (I17)."""

    ENGINE_REFUSED = "an engine refused or failed"
    FURTHER_DEATH = "a further rank died"
    DEADLINE = "a deadline was missed"
    OUTCOME_UNKNOWN = "the outcome of an apply is unknown"
    GUARD_LOST = "the lease lapsed and something else took the Pod"
    ENGINES_TIME_OVER = "the engines' recovery time is over"
    PREEMPTED = "the round was pre-empted"


class RoundSeen(Observation):
    """A round, from its first guard `at` to its last effect. `ended_at` None: it never ended while we looked."""

    request_id: RequestId
    ended_at: float | None
    bound_sec: float
    excuse: RebuildExcuse | None = None


class RebuildSeen(Observation):
    """The whole instance is rebuilt: `at` its first engine is stopped, at `completed_at` the last new one started."""

    completed_at: float | None
    readmitted: Ranks = frozenset()
    gate_allowed: bool = True


class OutageSeen(Observation):
    """A process of ours was down from `at` until `ended_at` (None: it never came back)."""

    process: str
    ended_at: float | None


Event = (
    SourceRead
    | StatusSeen
    | EngineIdSeen
    | HardwareFaultSeen
    | ApplySeen
    | RecoveredSeen
    | GuardSeen
    | GuardGone
    | VerdictSeen
    | CommitSeen
    | ViewSeen
    | AddressSeen
    | RouteSeen
    | PhaseSeen
    | GenerationSeen
    | FastRecoveryFailed
    | RoundSeen
    | RebuildSeen
    | OutageSeen
)

E = TypeVar("E", bound=Observation)


class Observed(Strict):
    """Everything seen of one instance until `ended_at`; `events` in any order."""

    instance_id: InstanceId
    original: Annotated[Ranks, Field(min_length=1)]
    events: tuple[Event, ...]
    ended_at: float

    @cached_property
    def ordered(self) -> tuple[Event, ...]:
        """By time; records of one instant keep the order they were given in."""
        return tuple(sorted(self.events, key=lambda event: event.at))

    @cached_property
    def _by_kind(self) -> Mapping[type, list[Event]]:
        found: dict[type, list[Event]] = {}
        for event in self.ordered:
            found.setdefault(type(event), []).append(event)
        return found

    def of(self, kind: type[E]) -> Iterator[E]:
        """The records of one kind, by time."""
        return iter(cast(list[E], self._by_kind.get(kind, [])))

    def read(self, kind: SourceKind) -> int:
        """How many sources of this kind were read."""
        return len({event.who for event in self.of(SourceRead) if event.kind is kind})

    def committed(self, at: float) -> Ranks:
        """The ranks removed for good at a time: what was committed until then, less what a rebuild brought back."""
        changes: list[tuple[float, bool, Ranks]] = [(seen.at, True, seen.ranks) for seen in self.of(CommitSeen)]
        changes += [(seen.completed_at, False, seen.readmitted) for seen in self.of(RebuildSeen) if seen.completed_at is not None]
        standing: Ranks = frozenset()
        for when, adds, ranks in sorted(changes, key=lambda change: change[0]):
            if when <= at:
                standing = standing | ranks if adds else standing - ranks
        return standing

    def statuses(self, before: float) -> dict[int, EngineStatus]:
        """Each rank's last known status before a time; healthy until something else was seen."""
        standing: dict[int, EngineStatus] = dict.fromkeys(sorted(self.original), EngineStatus.HEALTHY)
        for at, statuses in self._status_changes:
            if at >= before:
                break
            standing = statuses
        return dict(standing)

    def evidence_since(self, before: float) -> float:
        """When the evidence that stands before a time began: since then not every active rank has been healthy."""
        began = before
        for at, statuses in reversed([change for change in self._status_changes if change[0] < before]):
            committed = self.committed(began)
            if all(status is EngineStatus.HEALTHY for rank, status in statuses.items() if rank not in committed):
                break
            began = at
        return began

    @cached_property
    def _status_changes(self) -> list[tuple[float, dict[int, EngineStatus]]]:
        """Every rank's status from each change on.

        That a rank's status is not known changes nothing, nor does any word of a rank whose process has ended. A rebuild makes
        the ranks that it brings back healthy.
        """
        standing: dict[int, EngineStatus] = dict.fromkeys(sorted(self.original), EngineStatus.HEALTHY)
        ended: set[int] = set()
        changes = []
        happened: list[tuple[float, StatusSeen | RebuildSeen]] = [
            (seen.at, seen) for seen in self.of(StatusSeen) if seen.rank in self.original
        ]
        happened += [(seen.completed_at, seen) for seen in self.of(RebuildSeen) if seen.completed_at is not None]
        for at, seen in sorted(happened, key=lambda change: change[0]):
            if isinstance(seen, RebuildSeen):
                ended -= seen.readmitted
                standing = standing | dict.fromkeys(seen.readmitted, EngineStatus.HEALTHY)
            elif seen.status is not EngineStatus.UNKNOWN and seen.rank not in ended:
                ended |= {seen.rank} if seen.final else set()
                standing = standing | {seen.rank: seen.status}
            changes.append((at, standing))
        return changes
