"""The simulation sees what it is for: each rule, broken on purpose in one part of the world, turns the judge red."""

import contextlib
import dataclasses
from collections.abc import Callable

import pytest

from domain.engine import EntrySource
from domain.errors import Refused
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    FinalizeCall,
    FinalizeResult,
    VerifyCall,
    VerifyResult,
    ViewCall,
    ViewResult,
    WatchCall,
    WatchResult,
)
from domain.pod.fence import Fences, Refusal, Settle, raised
from domain.pod.records import BootTime, Guard
from domain.watch import Answer, ApplyReadyWatch, Question, RecoveredWatch, WatchStanding, WatchState
from lab.oracle.invariants import Invariant
from lab.oracle.observations import ApplySeen, ViewChange, ViewSeen
from tests.simulation.clock import now
from tests.simulation.coordinators import FakeCoordinator
from tests.simulation.judge import NEEDS, OLD_FOR_NOBODY, judge, not_judged, seen_kinds
from tests.simulation.node_managers import FakeNodeManager
from tests.simulation.ports import SimulatedPorts
from tests.simulation.world import Parts, play

SEEDS = 400


class CallsTwice(FakeNodeManager):
    """Repeats an engine call, as a retrying HTTP client would."""

    async def _call(self, rank: int, request_id: str, removed: tuple[int, ...]) -> int | None:
        await super()._call(rank, request_id, removed)
        return await super()._call(rank, request_id, removed)


class ForgetsIntent(FakeNodeManager):
    """Writes only outcomes to its journal: after a crash it takes a repeated request for a new one."""

    def crash(self, for_sec: float) -> None:
        super().crash(for_sec)
        for request_id, transaction in self.journal.transactions.items():
            if transaction.apply is not None and transaction.apply.outcome is None:
                self.journal.transactions[request_id] = transaction.model_copy(update={"apply": None})


class GuardsAnyone(FakeNodeManager):
    def _fences(self, request_id: str) -> Fences:
        ledger = super()._fences(request_id)
        own = ledger.guard is not None and ledger.guard.request_id == request_id
        return ledger if own else dataclasses.replace(ledger, guard=None)


class KeepsGuards(FakeNodeManager):
    """A verdict does not release the Pod."""

    def _settle(self, settle: Settle, dead_committed: tuple[int, ...]) -> None:
        super()._settle(settle, dead_committed)
        kept = Guard(request_id=settle.transaction.request_id, generation=None, expires_at=_for_ever())
        self.journal.standing = self.journal.standing.model_copy(update={"guard": kept})


class GuardsForEver(FakeNodeManager):
    """Its leases do not end: whoever is not reached by a verdict holds the Pod."""

    async def guard(self, request_id: str, lease_sec: float, generation: int) -> bool:
        return await super().guard(request_id, 3600.0, generation)


class TakesOldGenerations(FakeNodeManager):
    def _fences(self, request_id: str) -> Fences:
        return dataclasses.replace(super()._fences(request_id), highest_generation=0)


class CountsRefusedGenerations(FakeNodeManager):
    """Whoever is turned away leaves its generation behind, and the owner's commands are old from then on."""

    async def guard(self, request_id: str, lease_sec: float, generation: int) -> bool:
        try:
            return await super().guard(request_id, lease_sec, generation)
        except Refused:
            self.journal.standing = raised(self.journal.standing, generation)
            raise


class CountsAbortsOfStrangers(FakeNodeManager):
    """So does whoever never had the Pod, and gives up."""

    def _settle(self, settle: Settle, dead_committed: tuple[int, ...]) -> None:
        super()._settle(settle, dead_committed)
        self.journal.standing = raised(self.journal.standing, settle.transaction.generation)


class NeverAsksWhoAnswers(FakeNodeManager):
    def _unavailable(self, ranks: tuple[int, ...]) -> dict[int, Refusal]:
        return {}

    def _identify(self, rank: int) -> None:
        with contextlib.suppress(Refused):
            super()._identify(rank)


class ForgetsVerdicts(FakeNodeManager):
    """Takes any verdict, the later one wins."""

    async def finalize(
        self, request_id: str, commit: bool, retired: tuple[int, ...], dead_committed: tuple[int, ...], generation: int
    ) -> None:
        if (known := self.journal.transactions.get(request_id)) is not None:
            self.journal.transactions[request_id] = known.model_copy(update={"verdict": None})
        await super().finalize(request_id, not commit, retired, dead_committed, generation)


class NumbersAnew(FakeCoordinator):
    """Counts the ranks that it serves from 0."""

    def _show(self, change: ViewChange) -> None:
        endpoints = {number: self._home[rank] for number, rank in enumerate(self.ranks)}
        self._record.saw(ViewSeen(at=now(), coordinator=self.name, change=change, revision=self.revision, endpoints=endpoints))


class TakesAnyRevision(FakeCoordinator):
    async def refresh(self, change: ViewChange, revision: int, ranks: tuple[int, ...], life: int) -> str:
        self.revision = 0
        return await super().refresh(change, revision, ranks, life)


class ForgetsEarlyPushes(FakeCoordinator):
    """What it is told before its first SET does not count; so an older SET that arrives later does."""

    async def refresh(self, change: ViewChange, revision: int, ranks: tuple[int, ...], life: int) -> str:
        if not self.has_view and change is not ViewChange.SET:
            raise Refused(f"{self.name} waits for a SET", reason="INCARNATION")
        return await super().refresh(change, revision, ranks, life)


class AppliesAgain(SimulatedPorts):
    """An apply that was not accepted is tried once more, under a fresh id."""

    async def apply(self, call: ApplyCall) -> ApplyResult:
        result = await super().apply(call)
        if result.accepted:
            return result
        again = call.model_copy(update={"request_id": f"{call.request_id}-again", "deadline_at": now() + 5.0})
        for group in call.groups:
            journal = self.managers[group.manager].journal
            journal.standing = journal.standing.model_copy(update={"guard": None})
            await self._guarded(group.manager, again.request_id, call.lease_sec, call.generation, call.request_timeout_sec)
        return await super().apply(again)


class CommitsUnverified(SimulatedPorts):
    """Takes the engines' 202 for their recovery."""

    async def look(self, call: WatchCall) -> WatchResult:
        if isinstance(call.watch, RecoveredWatch):
            return WatchResult(watch=call.watch, observation=WatchStanding(verdict=WatchState.DONE), sweeps=0)
        return await super().look(call)

    async def verify(self, call: VerifyCall) -> VerifyResult:
        return VerifyResult(ok=tuple(rank for group in call.groups for rank in group.ranks))


class OverlooksLateDeaths(SimulatedPorts):
    async def _see(self, question: Question, call: WatchCall) -> Answer:
        sight = await super()._see(question, call)
        if not isinstance(call.watch, ApplyReadyWatch) or not set(question.ranks) <= set(call.watch.survivor_ranks):
            return sight
        waiting = {"status": "unhealthy", "source": EntrySource.ENGINE}
        return sight.model_copy(update={"entries": tuple(entry.model_copy(update=waiting) for entry in sight.entries)})


class BelievesReports(SimulatedPorts):
    """Whoever was reported dead is dead."""

    async def _see(self, question: Question, call: WatchCall) -> Answer:
        sight = await super()._see(question, call)
        if not isinstance(call.watch, ApplyReadyWatch):
            return sight
        doomed = call.watch.removed_ranks
        entries = tuple(
            entry.model_copy(update={"status": "dead" if entry.id in doomed else "unhealthy"}) for entry in sight.entries
        )
        return sight.model_copy(update={"entries": entries})


class NeverWithdraws(SimulatedPorts):
    async def withdraw(self, call: ViewCall) -> ViewResult:
        return ViewResult(confirmed=True)


class PublishesEverybody(SimulatedPorts):
    async def publish(self, call: ViewCall) -> ViewResult:
        return await super().publish(call.model_copy(update={"ranks": call.topology.ranks}))


class PublishesNothing(SimulatedPorts):
    async def publish(self, call: ViewCall) -> ViewResult:
        return ViewResult(confirmed=True)


class RemovesOnlyTheNewOnes(SimulatedPorts):
    async def apply(self, call: ApplyCall) -> ApplyResult:
        new = tuple(rank for rank in call.removed_dp_ranks if rank not in self.dead_committed)
        return await super().apply(call.model_copy(update={"removed_dp_ranks": new}))


class RemovesANeighbour(SimulatedPorts):
    """As if hardware that maps to more ranks had added them."""

    async def apply(self, call: ApplyCall) -> ApplyResult:
        more = tuple(sorted({*call.removed_dp_ranks, call.groups[-1].ranks[-1]}))
        return await super().apply(call.model_copy(update={"removed_dp_ranks": more}))


class RemovesEverybody(SimulatedPorts):
    async def apply(self, call: ApplyCall) -> ApplyResult:
        everybody = {*call.removed_dp_ranks, *(rank for group in call.groups for rank in group.ranks)}
        return await super().apply(call.model_copy(update={"removed_dp_ranks": tuple(sorted(everybody))}))


class WaitsForEver(SimulatedPorts):
    async def look(self, call: WatchCall) -> WatchResult:
        return await super().look(call.model_copy(update={"deadline_at": call.deadline_at + 1_000.0}))


class AbortsSome(SimulatedPorts):
    """A commit that reaches one NodeManager as an abort."""

    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        if call.commit:
            await self._finalize(call.model_copy(update={"commit": False, "managers": call.managers[:1]}))
        return await super().finalize(call)


def _for_ever() -> BootTime:
    return BootTime(boot="this boot", sec=1e9)


BROKEN: list[tuple[str, Parts, str]] = [
    ("a NodeManager calls an engine twice", Parts(node_manager=CallsTwice), "I1:"),
    ("a NodeManager forgets its intent in a crash", Parts(node_manager=ForgetsIntent), "I1:"),
    ("apply is tried again under a new id", Parts(ports=AppliesAgain), "an engine was called under"),
    ("a late death is overlooked", Parts(ports=OverlooksLateDeaths), "I2:"),
    ("removed_dp_ranks is not cumulative", Parts(ports=RemovesOnlyTheNewOnes), "I2:"),
    ("survivors are numbered anew", Parts(coordinator=NumbersAnew), "I3:"),
    ("commit before recovery and verification", Parts(ports=CommitsUnverified), "I4:"),
    ("the view is not withdrawn before apply", Parts(ports=NeverWithdraws), "apply was sent before every Coordinator"),
    ("the view is not withdrawn before the commit", Parts(ports=NeverWithdraws), "I5:"),
    ("a committed rank is published", Parts(ports=PublishesEverybody), "I5:"),
    ("requests go to a committed rank", Parts(ports=PublishesEverybody), "I15:"),
    ("the view is said to be published and is not", Parts(ports=PublishesNothing), "I6:"),
    ("a rank is removed that nobody saw dead", Parts(ports=RemovesANeighbour), "I7:"),
    ("a guard is granted beside another", Parts(node_manager=GuardsAnyone), "I8:"),
    ("a guard outlives its verdict", Parts(node_manager=KeepsGuards), "guard left on"),
    ("a guard never expires", Parts(node_manager=GuardsForEver), "I10:"),
    ("a wait does not end", Parts(ports=WaitsForEver), "I11:"),
    ("apply leaves no survivor", Parts(ports=RemovesEverybody), "I13:"),
    ("an engine that answers for another rank is called", Parts(node_manager=NeverAsksWhoAnswers), "I14:"),
    ("an old generation is taken", Parts(node_manager=TakesOldGenerations), "I16:"),
    ("a refused guard raises the generation", Parts(node_manager=CountsRefusedGenerations), OLD_FOR_NOBODY),
    ("a stranger's abort raises the generation", Parts(node_manager=CountsAbortsOfStrangers), OLD_FOR_NOBODY),
    ("an overtaken view is taken", Parts(coordinator=TakesAnyRevision), "I16:"),
    ("a withdrawal before the first SET is forgotten", Parts(coordinator=ForgetsEarlyPushes), "I5:"),
    ("a verdict is changed", Parts(node_manager=ForgetsVerdicts), "committed"),
    ("both verdicts are given", Parts(ports=AbortsSome), "aborted at"),
    ("whoever was reported dead is removed", Parts(ports=BelievesReports), "though they live and answer"),
]


@pytest.mark.parametrize(("parts", "expected"), [pytest.param(parts, said, id=name) for name, parts, said in BROKEN])
def test_a_broken_rule_is_seen(parts: Parts, expected: str) -> None:
    assert _first_seed_with(parts, lambda fault: expected in fault) is not None, f"{SEEDS} worlds did not show {expected!r}"


def _first_seed_with(parts: Parts, wanted: Callable[[str], bool]) -> int | None:
    for seed in range(SEEDS):
        if any(wanted(fault) for fault in judge(play(seed, parts))):
            return seed
    return None


def test_every_invariant_that_rounds_can_break_is_broken_here() -> None:
    elsewhere = {Invariant.I9, Invariant.I17}
    assert NEEDS.keys() == set(Invariant) - elsewhere
    assert {said for _, _, said in BROKEN} >= {f"{invariant}:" for invariant in NEEDS}


def test_invariant_without_its_own_records_is_not_judged() -> None:
    seen = seen_kinds(play(0)) + seen_kinds(play(1))
    assert not_judged(seen) == []
    del seen[ApplySeen]
    assert {told.partition(":")[0] for told in not_judged(seen)} == {"I1", "I2", "I7", "I13", "I14"}


def test_all_parts_can_be_replaced() -> None:
    replaced = {field.name for _, parts, _ in BROKEN for field in dataclasses.fields(Parts) if _is_broken(parts, field.name)}
    assert replaced == {"node_manager", "coordinator", "ports"}


def _is_broken(parts: Parts, name: str) -> bool:
    return getattr(parts, name) is not getattr(Parts(), name)
