"""The waits of a round and of a fast recovery, as folds over what NodeManagers say.

A round waits twice: until every survivor is *apply-ready* (it noticed the fault and takes an instruction) and every rank
to be removed is *confirmed* dead, and, after apply, until every survivor has *recovered*. A fast recovery, which removes
nobody, waits until every active rank is ready for a `retry`, and then for the same recovery. Each wait is a small frozen
state that one *sweep* (one look at all NodeManagers) moves on: `state.fold(sweep, now) -> WatchStanding`. It has no clock
and no I/O, so the activity that polls, the simulation and the benchmark's bare loop judge alike, and a wait that was
interrupted goes on from its last state (design §4, steps 5 and 8).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, Literal, Self

from pydantic import Field

from domain.engine import ApplyReadiness, EngineStatus, EntrySource, ProcessState, RankEntry, Recovery, apply_readiness, recovery
from domain.model import Rank, Strict
from domain.topology import NodeManagerAddress, Topology


class WatchState(StrEnum):
    WAIT = "wait"  # nothing is wrong, but it is not done either
    DONE = "done"  # all apply-ready and confirmed; or all recovered
    FAILED = "failed"  # the round cannot succeed any more
    ABANDONED = "abandoned"  # the evidence was false (a rank that was reported dead lives): nothing is to be done


class WatchReason(StrEnum):
    """Why a look ended without success."""

    ENGINE_PROTOCOL = "ENGINE_PROTOCOL"  # a survivor's engine answers nonsense
    ENGINE_MISSING = "ENGINE_MISSING"  # a NodeManager left a rank out, or answered for another
    ENGINE_FAILED = "ENGINE_FAILED"  # ft_state failed, or an ft_error of our own request
    SURVIVOR_DIED = "SURVIVOR_DIED"  # a survivor died after apply
    SURVIVOR_RETIRED = "SURVIVOR_RETIRED"  # a NodeManager has retired a rank that we count on
    NO_SURVIVOR = "NO_SURVIVOR"  # all of them died
    FALSE_ALARM = "FALSE_ALARM"  # the rank that was reported dead answers; or nobody is unhealthy any more
    RANK_DIED = "RANK_DIED"  # a fast recovery was to begin, and a rank is dead


class Confirmation(StrEnum):
    """Why a rank may be removed (design §4, step 5 ▲)."""

    ENGINE_DEAD = "engine_dead"  # its own FT API says `dead`
    PROCESS_EXIT = "process_exit"  # the kernel said so to its NodeManager
    NEW_INCARNATION = "new_incarnation"  # another process answers: it cannot join the old group
    SILENCE = "silence"  # its process runs, its FT API stayed mute for dead_confirm_sec
    ABSENT = "absent"  # nobody is left in its Pod to ask
    RETIRED = "retired"  # its NodeManager has it as removed already


class Question(Strict):
    """What one request of a sweep asks: these ranks, of this NodeManager."""

    manager: NodeManagerAddress
    ranks: tuple[Rank, ...]


def questions(topology: Topology, ranks: Iterable[int]) -> tuple[Question, ...]:
    """These ranks by the NodeManager that is asked about them."""
    return tuple(Question(manager=manager, ranks=own) for manager, own in topology.by_manager(ranks).items())


class Answer(Strict):
    """One answer in a sweep. `fault` is set where there are no entries.

    "unreachable": the NodeManager did not answer. "protocol": it answered that an engine breaks the contract. `reason`: its
    own word for that.
    """

    question: Question
    entries: tuple[RankEntry, ...] = ()
    fault: Literal["unreachable", "protocol"] | None = None
    reason: str | None = None
    detail: str = ""


class WatchStanding(Strict):
    """A verdict with its reason, in words too: `detail` says which ranks, or what is being waited for."""

    verdict: WatchState
    reason: WatchReason | None = None
    detail: str = ""


class Removal(Strict):
    """A rank that is to be removed, and what is known of its death.

    `reported_incarnation` is the engine that was reported DEAD, None where the report did not say. `quiet_since` is when
    the current silence began, in the caller's seconds.
    """

    rank: Rank
    manager: NodeManagerAddress
    manager_has_survivors: bool = False
    reported_incarnation: str | None = None
    confirmed: Confirmation | None = None
    quiet_since: float | None = None


class _SurvivorsWatch(Strict):
    """What every wait keeps: its survivors, by NodeManager, and the last entry of each rank."""

    survivors: tuple[Question, ...]
    entries: dict[int, RankEntry] = Field(default_factory=dict)

    @property
    def survivor_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for question in self.survivors for rank in question.ranks))


class ApplyReadyWatch(_SurvivorsWatch):
    """The wait for apply-ready. Late deaths are absorbed: a survivor that turns out dead joins `removing`."""

    removing: tuple[Removal, ...]
    dead_confirm_sec: float

    @property
    def removed_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(removal.rank for removal in self.removing))

    def questions(self) -> tuple[Question, ...]:
        """What the next sweep must ask. Survivors and removals apart, so that a dying engine's nonsense harms nobody else."""
        removals: dict[NodeManagerAddress, list[int]] = {}
        for removal in self.removing:
            if removal.confirmed is not Confirmation.ABSENT:
                removals.setdefault(removal.manager, []).append(removal.rank)
        return (*self.survivors, *(Question(manager=m, ranks=tuple(sorted(r))) for m, r in removals.items()))

    def fold(self, sweep: tuple[Answer, ...], now: float) -> "tuple[ApplyReadyWatch, WatchStanding]":
        """One sweep's answers, at `now` (seconds of any steady clock, the same in every call)."""
        fault = _identity_fault(sweep, self.survivor_ranks)
        if fault is not None:
            return self, fault
        seen, told = _seen(sweep), _told(sweep)
        readiness = {rank: apply_readiness(seen[rank]) for rank in self.survivor_ranks if rank in seen}
        refused = sorted(rank for rank, value in readiness.items() if value is ApplyReadiness.REFUSED)
        watch = self._absorb({rank for rank, value in readiness.items() if value is ApplyReadiness.DEAD}, seen)
        watch = watch.model_copy(
            update={
                "removing": tuple(
                    _confirm(r, told.get(r.rank), seen.get(r.rank), now, self.dead_confirm_sec) for r in watch.removing
                ),
                "entries": {**watch.entries, **seen},
            }
        )
        if refused:
            return watch, _refused(refused, seen)
        alive = sorted(r.rank for r in watch.removing if _lives(r, seen.get(r.rank)))
        if alive:
            return watch, WatchStanding(
                verdict=WatchState.ABANDONED,
                reason=WatchReason.FALSE_ALARM,
                detail=f"ranks {alive} were reported dead, but the same processes answer {[seen[r].status for r in alive]}",
            )
        if not watch.survivors:
            return watch, WatchStanding(verdict=WatchState.FAILED, reason=WatchReason.NO_SURVIVOR, detail="every rank is dead")
        return watch, watch._progress(readiness, told, seen)

    def with_absent(self, absent: set[NodeManagerAddress]) -> "ApplyReadyWatch":
        """The same wait, knowing that nobody answers in these dead-only Pods."""
        return self.model_copy(
            update={
                "removing": tuple(
                    removal.model_copy(update={"confirmed": Confirmation.ABSENT}) if removal.manager in absent else removal
                    for removal in self.removing
                )
            }
        )

    def _progress(
        self, readiness: dict[int, ApplyReadiness], told: dict[int, Answer], seen: dict[int, RankEntry]
    ) -> WatchStanding:
        waiting = [rank for rank in self.survivor_ranks if readiness.get(rank) is not ApplyReadiness.READY]
        unconfirmed = [removal.rank for removal in self.removing if removal.confirmed is None]
        if not waiting and not unconfirmed:
            return WatchStanding(verdict=WatchState.DONE)
        parts = []
        if waiting:
            parts.append(f"survivors not yet apply-ready: {_describe_all(waiting, told, seen)}")
        if unconfirmed:
            parts.append(f"death not yet confirmed: {_describe_all(unconfirmed, told, seen)}")
        return WatchStanding(verdict=WatchState.WAIT, detail="; ".join(parts))

    def _absorb(self, dead: set[int], seen: dict[int, RankEntry]) -> "ApplyReadyWatch":
        """Moves survivors that are dead into this round's set and rebuilds the groups."""
        if not dead:
            return self
        kept = tuple(
            question.model_copy(update={"ranks": tuple(rank for rank in question.ranks if rank not in dead)})
            for question in self.survivors
        )
        still_serving = {question.manager for question in kept if question.ranks}
        absorbed = tuple(
            Removal(rank=rank, manager=question.manager, reported_incarnation=seen[rank].incarnation)
            for question in self.survivors
            for rank in question.ranks
            if rank in dead
        )
        removing = tuple(
            removal.model_copy(update={"manager_has_survivors": removal.manager in still_serving})
            for removal in (*self.removing, *absorbed)
        )
        return self.model_copy(update={"survivors": tuple(q for q in kept if q.ranks), "removing": removing})


class _EverySurvivorWatch(_SurvivorsWatch, ABC):
    """A wait for every survivor to be in one state; nobody joins or leaves."""

    _waiting_words: ClassVar[str]

    def questions(self) -> tuple[Question, ...]:
        return self.survivors

    def fold(self, sweep: tuple[Answer, ...], now: float) -> tuple[Self, WatchStanding]:
        """One sweep's answers. `now` does not matter here; the signature is the same for all waits."""
        fault = _identity_fault(sweep, self.survivor_ranks)
        if fault is not None:
            return self, fault
        seen = _seen(sweep)
        watch = self.model_copy(update={"entries": {**self.entries, **seen}})
        ended = self._ended(seen)
        if ended is not None:
            return watch, ended
        waiting = [rank for rank in self.survivor_ranks if rank not in seen or not self._is_done(seen[rank])]
        if waiting:
            detail = f"{self._waiting_words}: {_describe_all(waiting, _told(sweep), seen)}"
            return watch, WatchStanding(verdict=WatchState.WAIT, detail=detail)
        return watch, WatchStanding(verdict=WatchState.DONE)

    @abstractmethod
    def _ended(self, seen: dict[int, RankEntry]) -> WatchStanding | None:
        """Why there is nothing to wait for any more; None where there is."""

    @abstractmethod
    def _is_done(self, entry: RankEntry) -> bool:
        """Whether a survivor is where it is waited for."""


class RetryReadyWatch(_EverySurvivorWatch):
    """The wait before a fast recovery: every active rank `unhealthy`, none dead (design §3, rule 6)."""

    _waiting_words = "not yet ready for a retry"

    def _ended(self, seen: dict[int, RankEntry]) -> WatchStanding | None:
        readiness = {rank: apply_readiness(entry) for rank, entry in sorted(seen.items())}
        died = [rank for rank, value in readiness.items() if value is ApplyReadiness.DEAD]
        if died:
            detail = f"not all are merely unhealthy: {_describe_all(died, {}, seen)}"
            return WatchStanding(verdict=WatchState.ABANDONED, reason=WatchReason.RANK_DIED, detail=detail)
        refused = [rank for rank, value in readiness.items() if value is ApplyReadiness.REFUSED]
        if refused:
            return _refused(refused, seen)
        if all(rank in seen and seen[rank].status == EngineStatus.HEALTHY for rank in self.survivor_ranks):
            detail = "every active rank is healthy"
            return WatchStanding(verdict=WatchState.ABANDONED, reason=WatchReason.FALSE_ALARM, detail=detail)
        return None

    def _is_done(self, entry: RankEntry) -> bool:
        return apply_readiness(entry) is ApplyReadiness.READY


class RecoveredWatch(_EverySurvivorWatch):
    """The wait for recovery after apply: every survivor `healthy` with nothing pending.

    `incarnations` are the engines that were apply-ready. Another process in a survivor's place says `healthy` as well, but
    it cannot have joined the group: it means that the survivor died. `before`: the entries that stood there when a `retry`
    was sent; engines of the legacy dialect make request ids of their own, so an error is told to be ours by being new.
    """

    _waiting_words = "survivors not yet recovered"

    request_id: str
    incarnations: dict[int, str | None] = Field(default_factory=dict)
    before: dict[int, RankEntry] = Field(default_factory=dict)

    def _ended(self, seen: dict[int, RankEntry]) -> WatchStanding | None:
        failed = sorted(rank for rank, entry in seen.items() if self._recovery(entry) is Recovery.FAILED)
        if failed:
            return _refused(failed, seen)
        replaced = sorted(rank for rank, entry in seen.items() if _is_another(self.incarnations.get(rank), entry.incarnation))
        if replaced:
            detail = f"other processes than those that took the instruction answer for ranks {replaced}"
            return WatchStanding(verdict=WatchState.FAILED, reason=WatchReason.SURVIVOR_DIED, detail=detail)
        return None

    def _is_done(self, entry: RankEntry) -> bool:
        return self._recovery(entry) is Recovery.DONE

    def _recovery(self, entry: RankEntry) -> Recovery:
        return recovery(entry, self.request_id, before=self.before.get(entry.id))


ReadyWatch = ApplyReadyWatch | RetryReadyWatch
"""What is waited for before an instruction is sent."""

Watch = ReadyWatch | RecoveredWatch


def _seen(sweep: tuple[Answer, ...]) -> dict[int, RankEntry]:
    """The entry of each rank that has one."""
    return {entry.id: entry for answer in sweep for entry in answer.entries}


def _told(sweep: tuple[Answer, ...]) -> dict[int, Answer]:
    """The answer to the question that asked for each rank."""
    return {rank: answer for answer in sweep for rank in answer.question.ranks}


def _identity_fault(sweep: tuple[Answer, ...], survivors: tuple[int, ...]) -> WatchStanding | None:
    """A survivor's engine answers nonsense, or an answer is not about exactly the ranks that were asked (RFC §4.1)."""
    for answer in sorted(sweep, key=lambda answer: answer.question.ranks):
        asked = sorted(answer.question.ranks)
        if answer.fault == "protocol" and set(asked) & set(survivors):
            return WatchStanding(
                verdict=WatchState.FAILED,
                reason=WatchReason.ENGINE_PROTOCOL,
                detail=f"NodeManager {answer.question.manager}: {answer.detail}",
            )
        if answer.fault is None and sorted(entry.id for entry in answer.entries) != asked:
            return WatchStanding(
                verdict=WatchState.FAILED,
                reason=WatchReason.ENGINE_MISSING,
                detail=f"NodeManager {answer.question.manager} was asked for ranks {asked}, "
                f"answered for {sorted(entry.id for entry in answer.entries)}",
            )
    return None


def _refused(ranks: list[int], seen: dict[int, RankEntry]) -> WatchStanding:
    statuses = {seen[rank].status for rank in ranks}
    if EngineStatus.DEAD in statuses:
        reason = WatchReason.SURVIVOR_DIED
    elif EngineStatus.RETIRED in statuses:
        reason = WatchReason.SURVIVOR_RETIRED
    else:
        reason = WatchReason.ENGINE_FAILED
    return WatchStanding(
        verdict=WatchState.FAILED, reason=reason, detail=", ".join(_describe(rank, seen[rank]) for rank in ranks)
    )


def _confirm(removal: Removal, answer: Answer | None, entry: RankEntry | None, now: float, dead_confirm_sec: float) -> Removal:
    """What this sweep says about one rank's death. Silence must last; everything else counts at once."""
    if removal.confirmed is Confirmation.ABSENT:
        return removal
    confirmed = _confirmation(removal, entry) if entry is not None else None
    if confirmed is not None:
        return removal.model_copy(update={"confirmed": confirmed, "quiet_since": None})
    pod_gone = answer is not None and answer.fault == "unreachable" and not removal.manager_has_survivors
    mute = entry is not None and entry.status == EngineStatus.UNKNOWN and entry.process is ProcessState.RUNNING
    if not (pod_gone or mute):
        return removal.model_copy(update={"confirmed": None, "quiet_since": None})
    quiet_since = removal.quiet_since if removal.quiet_since is not None else now
    lasted = now - quiet_since >= dead_confirm_sec
    return removal.model_copy(
        update={
            "quiet_since": quiet_since,
            "confirmed": (Confirmation.ABSENT if pod_gone else Confirmation.SILENCE) if lasted else None,
        }
    )


def _confirmation(removal: Removal, entry: RankEntry) -> Confirmation | None:
    if entry.status == EngineStatus.RETIRED:
        return Confirmation.RETIRED
    if entry.process is ProcessState.EXITED or (entry.status == EngineStatus.DEAD and entry.source is EntrySource.PROCESS_EXIT):
        return Confirmation.PROCESS_EXIT
    if entry.status == EngineStatus.DEAD:
        return Confirmation.ENGINE_DEAD
    if _is_another(removal.reported_incarnation, entry.incarnation):
        return Confirmation.NEW_INCARNATION
    return None


def _is_another(known: str | None, now: str | None) -> bool:
    """Whether these name two processes. What is not known is not another."""
    return None not in (known, now) and known != now


def _lives(removal: Removal, entry: RankEntry | None) -> bool:
    """The very engine that was reported dead answers `healthy` or `unhealthy`."""
    return removal.confirmed is None and entry is not None and entry.status in (EngineStatus.HEALTHY, EngineStatus.UNHEALTHY)


def _describe_all(ranks: Iterable[int], told: dict[int, Answer], seen: dict[int, RankEntry]) -> str:
    """What this sweep said of each rank; where it said nothing, why."""
    return ", ".join(_describe(rank, seen[rank]) if rank in seen else _unread(rank, told.get(rank)) for rank in ranks)


def _unread(rank: int, answer: Answer | None) -> str:
    if answer is None:
        return f"{rank} (absent)"
    if answer.fault == "unreachable":
        return f"{rank} (unknown: NodeManager {answer.question.manager} did not answer: {answer.detail})"
    return f"{rank} (unknown: {answer.detail})"


def _describe(rank: int, entry: RankEntry) -> str:
    words = [str(entry.status)]
    if entry.ft_state:
        words.append(str(entry.ft_state))
    if entry.ft_error:
        words.append(f"ft_error: {entry.ft_error}")
    return f"{rank} ({', '.join(words)})"
