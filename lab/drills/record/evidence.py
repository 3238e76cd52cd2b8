"""Everything that was recorded of one run, read once, for figures and judgement alike.

Sources: the engines' own logs, the Coordinators' view logs, the NodeManagers' journals and logs, the client's records,
the supervisor's account of its processes, and the rounds' reports from the workflow histories. From all of it `observed`
makes the record that the invariants are judged on.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

from domain.engine import EngineStatus, EntrySource, Instruction
from domain.messages.coordinator import CoordinatorView
from domain.messages.node_manager import JournalReply, NodeManagerReason
from domain.messages.strategy import RoundReason, RoundReport
from domain.topology import Topology
from lab.drills.outcome import Completion, StopAsked
from lab.drills.record import engine_log, view_log
from lab.drills.record.engine_log import EngineLife, EngineLine
from lab.drills.record.entry_log import LoggedEntry
from lab.drills.record.figures import Episode
from lab.drills.record.histories import Replay
from lab.drills.record.observer import served_ranks
from lab.drills.record.traffic import RequestRecord
from lab.drills.record.view_log import ViewLine
from lab.oracle.observations import (
    Event,
    FastRecoveryFailed,
    GuardSeen,
    Observed,
    OutageSeen,
    RebuildExcuse,
    RebuildSeen,
    RecoveredSeen,
    RoundSeen,
    RouteSeen,
    SourceKind,
    SourceRead,
    StatusSeen,
    VerdictSeen,
)
from lab.stack.record import EventKind, ProcessKind, StackEvent
from lab.stack.spec import StackSpec

EXCUSES: Mapping[RoundReason, RebuildExcuse] = {
    RoundReason.NO_SURVIVOR: RebuildExcuse.FURTHER_DEATH,
    RoundReason.SURVIVOR_DIED: RebuildExcuse.FURTHER_DEATH,
    RoundReason.GUARD_UNREACHABLE: RebuildExcuse.DEADLINE,
    RoundReason.NOT_READY_IN_TIME: RebuildExcuse.DEADLINE,
    RoundReason.ENGINES_TIME_OVER: RebuildExcuse.ENGINES_TIME_OVER,
    RoundReason.ENGINE_PROTOCOL: RebuildExcuse.ENGINE_REFUSED,
    RoundReason.ENGINE_MISSING: RebuildExcuse.ENGINE_REFUSED,
    RoundReason.ENGINE_FAILED: RebuildExcuse.ENGINE_REFUSED,
    RoundReason.WITHDRAW_UNCONFIRMED: RebuildExcuse.DEADLINE,
    RoundReason.APPLY_UNKNOWN: RebuildExcuse.OUTCOME_UNKNOWN,
    RoundReason.NOT_RECOVERED_IN_TIME: RebuildExcuse.DEADLINE,
    RoundReason.VERIFY_FAILED: RebuildExcuse.DEADLINE,
    RoundReason.CANCELLED: RebuildExcuse.PREEMPTED,
}
"""What of a round's reasons lets a complete set be rebuilt all the same (I17)."""

EXCUSES_OF_A_PEER: Mapping[str, RebuildExcuse] = {
    NodeManagerReason.GUARD_HELD: RebuildExcuse.GUARD_LOST,
    NodeManagerReason.ENGINE_REFUSED: RebuildExcuse.ENGINE_REFUSED,
    NodeManagerReason.ENGINE_PROTOCOL: RebuildExcuse.ENGINE_REFUSED,
    NodeManagerReason.OUTCOME_UNKNOWN: RebuildExcuse.OUTCOME_UNKNOWN,
    NodeManagerReason.NOT_STARTED: RebuildExcuse.FURTHER_DEATH,  # the Pod is a new one: its engines are gone
}
"""The same of a NodeManager's reasons, where the round's reason says no more than that it was refused."""

SILENCES: Final = frozenset({"REFUSED_CONNECTION", "UNREACHABLE", "NO_ANSWER", "BROKEN", "UNAVAILABLE"})
"""How a peer gave no answer until the deadline: the words of `service.peer.Silence`."""

_REFUSED: Final = frozenset({RoundReason.GUARD_REFUSED, RoundReason.GUARD_LOST, RoundReason.APPLY_REFUSED})


def rebuild_excuse(report: RoundReport) -> RebuildExcuse | None:
    """What lets a complete set be rebuilt after this round (I17); None where nothing does.

    Where peers refused, their own reasons decide. One that was silent counts only if no other said no: a no ends the
    asking of all, and then no deadline was missed.
    """
    if report.reason not in _REFUSED:
        return EXCUSES.get(report.reason)
    reasons = [refusal.reason for refusal in report.refusals]
    if reasons and SILENCES.issuperset(reasons):
        return RebuildExcuse.DEADLINE
    return next((EXCUSES_OF_A_PEER[reason] for reason in reasons if reason in EXCUSES_OF_A_PEER), None)


@dataclass(frozen=True)
class Evidence:
    """All of it; times are `time.monotonic()`."""

    spec: StackSpec
    topology: Topology
    injections: tuple[float, ...]
    """When each episode began."""

    ended_at: float
    lives: Mapping[int, Sequence[EngineLife]]
    view_lines: Mapping[str, Sequence[ViewLine]]
    entries: Sequence[LoggedEntry]
    polled: Sequence[Event]
    """What the observer saw while it lasted."""

    journals: Mapping[str, JournalReply]
    views: Mapping[str, CoordinatorView]
    requests: Sequence[RequestRecord]
    stack_events: Sequence[StackEvent]
    reports: Sequence[RoundReport]
    completions: Sequence[Completion]
    unchanged_refreshes: Mapping[str, float]
    """Per Coordinator: how many entries of refreshes came after a round and changed nothing."""

    workflows: Sequence[str]
    replay: Replay
    orphans: Sequence[str]
    killed: frozenset[str]
    ft_refused: Mapping[str, int] = field(default_factory=dict)
    """Per NodeManager: how often it answered that it has no fault-tolerance routes (404)."""

    stops_asked: Mapping[str, Sequence[StopAsked]] = field(default_factory=dict)
    """Per NodeManager that could not be stopped: who asked it to."""

    late_sec: Mapping[str, float | None] = field(default_factory=dict)
    """Per cell in which one of two workers went: how long after that the round's next step began, None where it did not."""

    unread: Sequence[str] = ()
    """Histories and rounds' reports that could not be read, and why."""

    failed_recoveries: Sequence[float] = ()
    """When each fast recovery that failed ended, as its workflow says."""

    last_injection: float | None = None
    """When the last of the injections was, those within an episode included."""

    @cached_property
    def applies(self) -> list[EngineLine]:
        return engine_log.applies(self.lives)

    @cached_property
    def published(self) -> tuple[int, ...]:
        """What every Coordinator serves at the end; what only some serve is left out."""
        served = [set(served_ranks(view, self.spec.instance_id)) for view in self.views.values()]
        return tuple(sorted(set.intersection(*served))) if served else ()

    @cached_property
    def dead_committed(self) -> tuple[int, ...]:
        """What the NodeManagers have as removed for good, all of them together."""
        return tuple(sorted({rank for journal in self.journals.values() for rank in journal.dead_committed}))

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """Each injection with what answered it."""
        return tuple(self._episode(begin, end) for begin, end in self._until_the_next(float("inf")))

    def _until_the_next(self, last: float) -> Iterator[tuple[float, float]]:
        """Each episode's time from its injection to the next one's, or to `last`; none where nothing had to be answered."""
        yield from pairwise((*self.injections, last))

    def _episode(self, begin: float, end: float) -> Episode:
        told = [line for line in self.applies if begin <= line.mono < end and line.request_id]
        request_id = told[-1].request_id or "" if told else ""
        own = [line for line in told if line.request_id == request_id]
        lines = [line for line in engine_log.all_lines(self.lives) if line.request_id == request_id and begin <= line.mono < end]
        began = [line.mono for line in lines if line.event == "recovery_start"]
        ended = [line.mono for line in lines if line.event == "recovery_end" and line.ok]
        recovered = bool(own) and len(ended) == len({line.rank for line in own})
        applied_at = own[0].mono if own else None
        evidence = [s.at for s in self.entries if s.is_evidence and begin <= s.at < (applied_at or end)]
        report = next((report for report in self.reports if report.request_id == request_id), None)
        return Episode(
            injected_at=begin,
            request_id=request_id,
            removed=own[0].told_removed if own else (),
            engines=tuple(sorted({line.rank for line in own})),
            evidence_at=max(evidence, default=None),
            applied_at=applied_at,
            recovery_began_at=min(began, default=None),
            recovery_ended_at=max(ended) if recovered else None,
            published_at=self._published_after(max(ended) if recovered else None, end),
            stage_times=report.stage_times if report is not None else {},
        )

    def _published_after(self, recovered_at: float | None, end: float) -> float | None:
        """When the last Coordinator had taken over a view again."""
        taken = [] if recovered_at is None else self._first_views(recovered_at, end)
        return max(taken) if taken and len(taken) == len(self.view_lines) else None

    def _first_views(self, since: float, end: float) -> list[float]:
        """When each Coordinator first took over a view with endpoints between two times; those that did."""
        found = []
        for lines in self.view_lines.values():
            found += [line.mono for line in lines if line.applied and line.ranks and since < line.mono < end][:1]
        return found

    @cached_property
    def serving_again_at(self) -> float | None:
        """When the last Coordinator began to serve for the last time; None where one serves nothing at the end."""
        return self._serving_since(self.ended_at)

    @cached_property
    def windows(self) -> tuple[tuple[float, float | None], ...]:
        """Per episode from its injection until every Coordinator served again, whatever way that came about."""
        found = []
        for begin, end in self._until_the_next(self.ended_at):
            since = self._serving_since(end)
            if since is not None:  # a Coordinator that stands still serves nobody, whatever its view is
                held = (stop.ended_at or end for stop in self.stops if stop.process in self.views and begin <= stop.at < end)
                since = max([since, *held])
            found.append((begin, since if since is not None and since > begin else None))
        return tuple(found)

    def _serving_since(self, end: float) -> float | None:
        """When the last Coordinator went from serving nothing to serving, before `end`; None where one served nothing then."""
        since: list[float] = []
        for lines in self.view_lines.values():
            began: float | None = None
            for line in lines:
                if line.mono >= end or not (line.applied or line.event == "start"):
                    continue
                began = None if not line.ranks else line.mono if began is None else began
            if began is None:
                return None
            since.append(began)
        return max(since, default=None)

    @cached_property
    def observed(self) -> Observed:
        """The record that the invariants are judged on."""
        rank_of_port = {endpoint.business_port: endpoint.id for endpoint in self.topology.endpoints}
        events: list[Event] = [
            *engine_log.observations(self.lives, rank_of_port),
            *self.polled,
            *self._routes(),
            *self._process_ends(),
            *self._silences(),
            *self._failed_recoveries(),
        ]
        for name, lines in self.view_lines.items():
            events += view_log.observations(name, lines, self.spec.instance_id)
        events += self._outages()
        events += self._rounds(events)
        events = [self._with_gate(event) for event in events]
        return Observed(
            instance_id=self.spec.instance_id,
            original=frozenset(self.spec.ranks),
            events=tuple(events),
            ended_at=self.ended_at,
        )

    def _with_gate(self, event: Event) -> Event:
        """A rebuild where the gate has refused every round of the run was not the control plane's choice."""
        gates = [report.gate for report in self.reports if report.gate is not None]
        if not isinstance(event, RebuildSeen) or not gates or any(gate.allowed for gate in gates):
            return event
        return event.model_copy(update={"gate_allowed": False})

    def _process_ends(self) -> Iterator[StatusSeen]:
        """What the kernel told a NodeManager: of an engine that was killed as a whole no log of its own says anything."""
        for seen in self.entries:
            if seen.source == EntrySource.PROCESS_EXIT:
                yield StatusSeen(at=seen.at, rank=seen.rank, status=EngineStatus.DEAD, final=True)

    def _silences(self) -> Iterator[StatusSeen]:
        """Ranks that hang write no log: their NodeManagers saw them silent, and nothing else for `dead_confirm_sec`.

        What such a rank said when it spoke again was no change to it either.
        """
        enough_sec = self.spec.effective_config().dp_scale_down_config.dead_confirm_sec
        for seen in self.entries:
            if seen.source == EntrySource.POLL_ERROR and seen.status == EngineStatus.DEAD:
                later = [other for other in self.entries if other.rank == seen.rank and other.at > seen.at]
                spoke = min(later, key=lambda other: other.at, default=None)
                if (spoke.at if spoke is not None else self.ended_at) - seen.at < enough_sec:
                    continue
                yield StatusSeen(at=seen.at, rank=seen.rank, status=EngineStatus.DEAD)
                if spoke is not None and spoke.source == EntrySource.ENGINE and spoke.status in set(EngineStatus):
                    yield StatusSeen(at=spoke.at, rank=spoke.rank, status=EngineStatus(spoke.status))

    def _failed_recoveries(self) -> Iterator[FastRecoveryFailed]:
        """Fast recoveries that say so themselves, and those whose retry was told to engines and then aborted."""
        yield from (FastRecoveryFailed(at=at) for at in self.failed_recoveries)
        transactions = (transaction for journal in self.journals.values() for transaction in journal.transactions)
        retries = {transaction.request_id for transaction in transactions if transaction.instruction == Instruction.RETRY}
        for seen in self.polled:
            if isinstance(seen, VerdictSeen) and seen.request_id in retries and not seen.committed:
                yield FastRecoveryFailed(at=seen.at)

    def _routes(self) -> list[Event]:
        routes: list[Event] = [
            RouteSeen(at=record.started_at, rank=record.rank, answered_by=record.answered_by)
            for record in self.requests
            if record.rank is not None
        ]
        routes += [
            RouteSeen(at=self.ended_at, rank=completion.rank, answered_by=completion.answered_by)
            for completion in self.completions
            if completion.ok
        ]
        return [*routes, SourceRead(at=self.ended_at, kind=SourceKind.CLIENT, who="client")]

    def _outages(self) -> list[OutageSeen]:
        """From a process's exit to its next start."""
        found = []
        for event in self.stack_events:
            if event.event is EventKind.EXITED:
                back = (
                    other.mono
                    for other in self.stack_events
                    if other.name == event.name and other.event is EventKind.RESTARTED and other.mono >= event.mono
                )
                found.append(OutageSeen(at=event.mono, process=event.name, ended_at=min(back, default=None)))
        return [*found, *self.stops]

    @cached_property
    def stops(self) -> tuple[OutageSeen, ...]:
        """From each SIGSTOP since the first injection to its SIGCONT."""
        begin = self.injections[0] if self.injections else float("inf")
        signalled = [e for e in self.stack_events if e.event is EventKind.SIGNALLED and e.mono >= begin]
        found = []
        for event in signalled:
            if event.detail == signal.SIGSTOP.name:
                conts = (
                    o.mono for o in signalled if o.name == event.name and o.detail == signal.SIGCONT.name and o.mono >= event.mono
                )
                found.append(OutageSeen(at=event.mono, process=event.name, ended_at=min(conts, default=None)))
        return tuple(found)

    def _rounds(self, events: Sequence[Event]) -> list[RoundSeen]:
        """Each request id that a NodeManager guarded: from its first guard to its last verdict and the view after it."""
        config = self.spec.effective_config().dp_scale_down_config
        guards = [event for event in events if isinstance(event, GuardSeen)]
        verdicts = [event for event in events if isinstance(event, VerdictSeen)]
        found = []
        for request_id in {guard.request_id for guard in guards} | {verdict.request_id for verdict in verdicts}:
            own = [verdict for verdict in verdicts if verdict.request_id == request_id]
            began = min([g.at for g in guards if g.request_id == request_id] + [v.at for v in own])
            ended = self._round_end(request_id, own, events)
            report = next((report for report in self.reports if report.request_id == request_id), None)
            found.append(
                RoundSeen(
                    at=began,
                    request_id=request_id,
                    ended_at=ended,
                    bound_sec=config.round_bound_sec + self._outages_sec(began, self.ended_at if ended is None else ended),
                    excuse=rebuild_excuse(report) if report is not None else None,
                )
            )
        return found

    def _round_end(self, request_id: str, verdicts: Sequence[VerdictSeen], events: Sequence[Event]) -> float | None:
        """The last verdict; after a commit also the view that follows: each Coordinator's first one with endpoints since
        the last engine had recovered. What was served before that (a SET to a Coordinator that came back) ends no round.
        """
        ended = max((verdict.at for verdict in verdicts), default=None)
        if ended is None or not any(verdict.committed for verdict in verdicts):
            return ended
        recoveries = (seen.at for seen in events if isinstance(seen, RecoveredSeen) and seen.request_id == request_id)
        recovered_at = max(recoveries, default=min(verdict.at for verdict in verdicts if verdict.committed))
        published = self._first_views(recovered_at, float("inf"))
        return max(ended, *published) if published else None

    def _outages_sec(self, begin: float, end: float) -> float:
        """How long a worker or the Temporal server was away between two times; where both were at once it counts once."""
        total = 0.0
        for outage in sorted(self._outages(), key=lambda outage: outage.at):
            if outage.process == ProcessKind.TEMPORAL or outage.process.startswith(ProcessKind.WORKER):
                since, until = max(outage.at, begin), min(outage.ended_at or self.ended_at, end)
                total += max(0.0, until - since)
                begin = max(begin, until)
        return total
