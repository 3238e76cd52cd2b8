"""Software evidence: what is known of each rank's engine, and which word about it is the newest.

Reports reach the FaultManager late, twice, out of order and from several mouths. Evidence is what remains when they are
laid over each other: per rank one standing status with the times at which its fault began. The order is

1. the NodeManager's own: its life (incarnation), then the sequence that it numbered its looks with;
2. else the time at which the Controller API received the report (`arrival` mends impossible stamps).

Three rules stand above the order (design §3): a process exit is final for that engine; an engine that was not there when
the group was formed is DEAD evidence whatever it says, for a fresh engine cannot join an old group; and an engine of an
earlier group is not listened to at all. A protocol error says nothing about health: it changes no status.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import Field

from domain.address import host_port
from domain.engine import EngineStatus, EntrySource, RankEntry
from domain.hardware import HardwareEvidence
from domain.messages.controller import MotorStatus, SoftwareFaultReport
from domain.messages.node_manager import PodReport, RankReport
from domain.model import Rank, Strict

LONGEST_DELAY_SEC = 300.0
"""A stamp that is older than this, or in the future, comes from a clock that was stepped: it counts as now."""

_PAST_ENGINES_KEPT = 16
_PAST_LIVES_KEPT = 16


def arrival(received_at: float | None, now: float) -> float:
    """When a report counts as received (epoch seconds): its stamp, or `now` where the stamp is missing or impossible."""
    if received_at is None or not now - LONGEST_DELAY_SEC <= received_at <= now:
        return now
    return received_at


class Report(Strict):
    """One rank's news in one form, however it came.

    `node_manager` ("ip:port", or the Pod's ip alone), its `life` (incarnation) and the `sequence` are None where the
    sender does not know them; `engine` is the engine's incarnation.
    """

    rank: Rank
    status: EngineStatus
    source: EntrySource
    received_at: float
    node_manager: str | None = None
    life: str | None = None
    sequence: int | None = None
    engine: str | None = None
    entry: RankEntry


class Merge(StrEnum):
    """What became of a report."""

    NEWS = "NEWS"  # it is the newest word about its rank
    OLDER = "OLDER"  # a newer one is known
    COMMITTED = "COMMITTED"  # the rank was removed: nothing that it says counts until a group is formed anew
    PROCESS_EXITED = "PROCESS_EXITED"  # the engine's process is gone, which is final
    PAST_ENGINE = "PAST_ENGINE"  # an engine of an earlier group
    NO_NEWS = "NO_NEWS"  # nobody could read the engine: that says nothing


class RankEvidence(Strict):
    """What stands about one rank. `engine` belongs to the present group; `foreign`: another one answers in its place.

    Times are epoch seconds of receipt. `fault_since` is when the standing fault began, in whichever status.
    """

    status: EngineStatus = EngineStatus.UNKNOWN
    newest: Report | None = None
    fault_since: float | None = None
    first_unhealthy_at: float | None = None
    first_dead_at: float | None = None
    last_healthy_at: float | None = None
    ever_ready: bool = False
    exited: bool = False
    foreign: bool = False
    protocol_error: str | None = None
    engine: str | None = None
    past_engines: tuple[str, ...] = ()

    def healthy(self, report: Report) -> "RankEvidence":
        return self._told(
            report,
            status=EngineStatus.HEALTHY,
            fault_since=None,
            first_unhealthy_at=None,
            first_dead_at=None,
            last_healthy_at=report.received_at,
            ever_ready=True,
            protocol_error=None,
        )

    def unhealthy(self, report: Report) -> "RankEvidence":
        return self._told(
            report,
            status=EngineStatus.UNHEALTHY,
            fault_since=_earliest(self.fault_since, report.received_at),
            first_unhealthy_at=_earliest(self.first_unhealthy_at, report.received_at),
            first_dead_at=None,
        )

    def dead(self, report: Report, *, foreign: bool = False) -> "RankEvidence":
        return self._told(
            report,
            status=EngineStatus.DEAD,
            fault_since=_earliest(self.fault_since, report.received_at),
            first_dead_at=_earliest(self.first_dead_at, report.received_at),
            exited=self.exited or report.source is EntrySource.PROCESS_EXIT,
            foreign=self.foreign or foreign,
        )

    def garbled(self, report: Report) -> "RankEvidence":
        """The engine answers nonsense: worth showing, no statement about its health."""
        return self._told(report, protocol_error=report.entry.ft_error or report.entry.fault_info or "protocol error")

    def in_new_group(self, engine: str | None, now: float) -> "RankEvidence":
        """The rank after a rebuild, served by `engine`; what was said of other engines is dropped."""
        gone = (self.engine,) if self.engine is not None and self.engine != engine else ()
        past = (*self.past_engines, *gone)[-_PAST_ENGINES_KEPT:]
        fresh = RankEvidence(engine=engine, ever_ready=True, past_engines=past)
        if self.newest is not None and engine is not None and self.newest.engine == engine:
            return _judged(fresh, self.newest, foreign=False)
        return fresh.model_copy(update={"status": EngineStatus.HEALTHY, "last_healthy_at": now})

    def with_engine(self, engine: str) -> "RankEvidence":
        """Another process forms the group now; the one before it is not listened to any more."""
        if self.engine == engine:
            return self
        past = (*self.past_engines, self.engine) if self.engine else self.past_engines
        return RankEvidence(engine=engine, newest=self.newest, past_engines=past[-_PAST_ENGINES_KEPT:])

    def _told(self, report: Report, **changes: object) -> "RankEvidence":
        return self.model_copy(update={"newest": report, "engine": self.engine or report.engine, **changes})


_UNHEARD = RankEvidence()
"""Of a rank that nobody has said anything about. One for all: it is frozen, and hundreds of ranks are asked for at each turn."""


class Evidence(Strict):
    """All ranks' evidence, and the hardware's. `forming`: the group is being assembled or rebuilt, new engines are welcome.

    `lives` are the NodeManagers' incarnations in the order in which they were first heard of.
    """

    ranks: dict[int, RankEvidence] = Field(default_factory=dict)
    lives: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    forming: bool = False
    hardware: HardwareEvidence = HardwareEvidence()

    def of(self, rank: int) -> RankEvidence:
        return self.ranks.get(rank, _UNHEARD)

    def merge(self, report: Report, dead_committed: Iterable[int]) -> "tuple[Evidence, Merge]":
        """Lay one report over what is known; says what became of it.

        While the group is rebuilt the ranks that the old one lost have engines again. Those are listened to: their
        NodeManagers tell each thing once, and the rebuild's end may be heard of after it.
        """
        known = self.of(report.rank)
        if report.rank in dead_committed and not self.forming:
            return self, Merge.COMMITTED
        if report.engine is not None and report.engine in known.past_engines:
            return self, Merge.PAST_ENGINE
        evidence = self._hearing(report)
        if known.newest is not None and evidence._is_older(report, known.newest):
            return evidence, Merge.OLDER
        if report.status in (EngineStatus.UNKNOWN, EngineStatus.RETIRED) and report.source is not EntrySource.PROTOCOL_ERROR:
            return evidence, Merge.NO_NEWS
        if report.engine is not None and self.forming:
            known = known.with_engine(report.engine)
        foreign = None not in (report.engine, known.engine) and report.engine != known.engine
        if known.exited and not foreign and report.status is not EngineStatus.DEAD:
            return evidence, Merge.PROCESS_EXITED
        return evidence._with(report.rank, _judged(known, report, foreign=foreign)), Merge.NEWS

    def merge_all(self, reports: Iterable[Report], dead_committed: Iterable[int]) -> "Evidence":
        """Lay several reports over what is known, in their order."""
        evidence, committed = self, tuple(dead_committed)
        for report in reports:
            evidence, _ = evidence.merge(report, committed)
        return evidence

    def standing(self, status: EngineStatus, active: Iterable[int]) -> tuple[int, ...]:
        """The active ranks whose standing status is this one, ascending."""
        return tuple(sorted(rank for rank in active if self.of(rank).status is status))

    def faulty(self, active: Iterable[int]) -> tuple[int, ...]:
        """The active ranks with a standing fault, ascending."""
        return tuple(sorted(rank for rank in active if self.of(rank).fault_since is not None))

    def first_fault_at(self, active: Iterable[int]) -> float | None:
        """When the oldest standing fault of an active rank began."""
        return min((since for rank in active if (since := self.of(rank).fault_since) is not None), default=None)

    def not_yet_ready(self, active: Iterable[int]) -> tuple[int, ...]:
        """The active ranks that were never reported healthy in this group, ascending."""
        return tuple(sorted(rank for rank in active if not self.of(rank).ever_ready))

    def entries(self) -> dict[int, RankEntry]:
        """The newest entry per rank, for people."""
        return {rank: known.newest.entry for rank, known in sorted(self.ranks.items()) if known.newest is not None}

    def begin_forming(self) -> "Evidence":
        """Assembly or rebuild begins: engines may come and go until it ends."""
        return self.model_copy(update={"forming": True})

    def formed(self, engines: Mapping[int, str], ranks: Iterable[int], now: float) -> "Evidence":
        """The group stands, formed by `engines` where told; evidence of any other engine is dropped."""
        group = {rank: self.of(rank).in_new_group(engines.get(rank, self.of(rank).engine), now) for rank in ranks}
        return self.model_copy(update={"ranks": group, "forming": False})

    def with_engines(self, engines: Mapping[int, str]) -> "Evidence":
        """These engines were started for the group that is being formed."""
        told = {rank: self.of(rank).with_engine(engine) for rank, engine in engines.items()}
        return self.model_copy(update={"ranks": {**self.ranks, **told}})

    def assembled(self) -> "Evidence":
        """Every rank has been reported ready by the engine that it has now."""
        return self.model_copy(update={"forming": False})

    def known_ready(self, ranks: Iterable[int]) -> "Evidence":
        """These ranks were ready in the past, as a journal or a published view shows."""
        marked = {rank: self.of(rank).model_copy(update={"ever_ready": True}) for rank in ranks}
        return self.model_copy(update={"ranks": {**self.ranks, **marked}})

    def _with(self, rank: int, known: RankEvidence) -> "Evidence":
        return self.model_copy(update={"ranks": {**self.ranks, rank: known}})

    def _hearing(self, report: Report) -> "Evidence":
        """Remembers a NodeManager's life that was not known yet; it is younger than all that were."""
        if report.node_manager is None or report.life is None:
            return self
        known = self.lives.get(report.node_manager, ())
        if report.life in known:
            return self
        return self.model_copy(update={"lives": {**self.lives, report.node_manager: (*known, report.life)[-_PAST_LIVES_KEPT:]}})

    def _is_older(self, report: Report, known: Report) -> bool:
        if report.life is not None and known.life is not None and report.life != known.life:
            lives = self.lives.get(report.node_manager or "", ())
            return report.life in lives and known.life in lives and lives.index(report.life) < lives.index(known.life)
        if report.sequence is not None and known.sequence is not None:
            return report.sequence < known.sequence
        return report.received_at < known.received_at


def _judged(known: RankEvidence, report: Report, *, foreign: bool) -> RankEvidence:
    if report.source is EntrySource.PROTOCOL_ERROR:
        return known.garbled(report)
    if foreign:
        return known.dead(report, foreign=True)
    match report.status:
        case EngineStatus.HEALTHY if known.foreign and report.engine is None:
            return known  # who says so does not know that it is another engine
        case EngineStatus.HEALTHY:
            return known.healthy(report)
        case EngineStatus.UNHEALTHY:
            return known.unhealthy(report)
        case _:
            return known.dead(report)


def _earliest(first: float | None, now: float) -> float:
    return now if first is None else min(first, now)


def from_pod(report: PodReport, received_at: float) -> tuple[Report, ...]:
    """A NodeManager's report in our form, in its own order."""
    manager = host_port(report.pod_ip, report.node_manager_port)
    return tuple(
        _from_rank(rank_report, manager, report.incarnation, received_at)
        for rank_report in sorted(report.reports, key=lambda one: one.sequence)
    )


def _from_rank(report: RankReport, manager: str, life: str, received_at: float) -> Report:
    status = MotorStatus(report.engine_status).status
    return Report(
        rank=report.engine_id,
        status=status,
        source=report.source,
        received_at=received_at,
        node_manager=manager,
        life=life,
        sequence=report.sequence,
        engine=report.engine_incarnation,
        entry=RankEntry(
            id=report.engine_id,
            status=status,
            fault_info=report.exception_type,
            mask=report.mask,
            ft_state=report.ft_state,
            last_ft_request_id=report.last_ft_request_id,
            ft_error=report.ft_error or report.exception_message,
            source=report.source,
            incarnation=report.engine_incarnation,
            sequence=report.sequence,
        ),
    )


def from_motor(report: SoftwareFaultReport, received_at: float) -> Report:
    """Motor's single form: no sequence, no engine incarnation."""
    status = MotorStatus(report.engine_status).status
    info = report.additional_info
    return Report(
        rank=report.engine_id,
        status=status,
        source=EntrySource.ENGINE,
        received_at=received_at,
        node_manager=host_port(report.pod_ip, report.node_manager_port) if report.node_manager_port else report.pod_ip,
        entry=RankEntry(
            id=report.engine_id,
            status=status,
            fault_info=report.exception_type,
            mask=info.mask if info else None,
            ft_state=info.ft_state if info else None,
            last_ft_request_id=info.last_ft_request_id if info else None,
            ft_error=(info.ft_error if info else None) or report.exception_message,
        ),
    )


def from_operator(rank: int, status: EngineStatus, received_at: float) -> Report:
    """A person's word, by a plain Temporal signal."""
    entry = RankEntry(id=rank, status=status, source=EntrySource.OPERATOR)
    return Report(rank=rank, status=status, source=EntrySource.OPERATOR, received_at=received_at, entry=entry)


def from_entries(looked: Mapping[int, RankEntry], received_at: float) -> tuple[Report, ...]:
    """Entries that somebody looked up through the NodeManagers: a round's last look, or a fresh one.

    An entry with sequence 0 was never numbered; it is ordered by `received_at`.
    """
    return tuple(_from_entry(entry, received_at) for _, entry in sorted(looked.items()))


def _from_entry(entry: RankEntry, received_at: float) -> Report:
    known = entry.status in (EngineStatus.HEALTHY, EngineStatus.UNHEALTHY, EngineStatus.DEAD)
    return Report(
        rank=entry.id,
        status=EngineStatus(entry.status) if known else EngineStatus.UNKNOWN,
        source=entry.source,
        received_at=received_at,
        sequence=entry.sequence or None,
        engine=entry.incarnation,
        entry=entry,
    )
