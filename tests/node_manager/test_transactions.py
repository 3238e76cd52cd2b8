"""Guard, apply, finalize with a real journal: what is called, what is answered, and what a crash leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from domain.engine import Instruction
from domain.errors import OutcomeUnknown, Transient
from domain.messages.node_manager import (
    ApplyParams,
    ApplyReply,
    ApplyRequest,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
)
from node_manager.journal import Journal, JournalError
from node_manager.transactions import CommandRefused, Transactions
from tests.node_manager.engines_in_memory import EnginesInMemory, TurnedClock

LIMIT_SEC = 10


class Crash(BaseException):
    """The process died here."""


@dataclass
class Pod:
    """Transactions over a journal that outlives them. `crash_at`: the pause where the process dies next."""

    path: Path
    engines: EnginesInMemory = field(default_factory=EnginesInMemory)
    clock: TurnedClock = field(default_factory=TurnedClock)
    pauses: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._live()

    def _live(self) -> None:
        self.journal = Journal(self.path)
        self.transactions = Transactions(
            self.journal, self.engines, clock=self.clock, engine_recovery_timeout_sec=120, pause=self._pause
        )

    async def _pause(self, name: str) -> None:
        if name in self.pauses:
            await self.pauses[name]()

    def restart(self) -> None:
        self.pauses.clear()
        self.journal.close()
        self._live()
        self.transactions.recover()

    async def guard(self, request_id: str = "A", generation: int | None = 1) -> None:
        await self.transactions.guard(GuardRequest(request_id=request_id, lease_sec=85.0, generation=generation))

    async def apply(self, request_id: str = "A", ranks: tuple[int, ...] = (0, 2)) -> ApplyReply:
        return await asyncio.wait_for(self.transactions.apply(apply_request(request_id, ranks)), LIMIT_SEC)

    async def finalize(self, request_id: str = "A", *, commit: bool, generation: int | None = 1) -> str:
        request = FinalizeRequest(
            request_id=request_id, commit=commit, retired_endpoint_ids=(1,) if commit else (), generation=generation
        )
        return (await self.transactions.finalize(request)).status

    async def refusal(self, work: Awaitable[object]) -> CommandRefused:
        with pytest.raises(CommandRefused) as caught:
            await work
        return caught.value


def apply_request(request_id: str = "A", ranks: tuple[int, ...] = (0, 2), removed: tuple[int, ...] = (1,)) -> ApplyRequest:
    params = ApplyParams(removed_dp_ranks=removed, dp_master_ip="10.0.0.1", dp_master_rank=2)
    return ApplyRequest(
        endpoint_ids=ranks, instruction=Instruction.SCALE_DOWN, params=params, request_id=request_id, generation=1
    )


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    pod = Pod(tmp_path / "journal.sqlite")
    yield pod
    await pod.transactions.drain(1)
    pod.journal.close()


async def test_apply_adds_the_store_port_and_strips_the_master_rank(pod: Pod) -> None:
    await pod.guard()
    reply = await pod.apply()
    assert {rank: answer.http for rank, answer in reply.engines.items()} == {"0": 202, "2": 202}
    expected = {"removed_dp_ranks": [1], "dp_master_ip": "10.0.0.1", "dp_store_port": 29502}
    assert [dict(command.params) for command in pod.engines.commands] == [expected, expected]
    assert {command.request_id for command in pod.engines.commands} == {"A"}


async def test_repeated_apply_calls_nobody_again_also_after_a_restart(pod: Pod) -> None:
    await pod.guard()
    first = await pod.apply()
    assert await pod.apply() == first
    pod.restart()
    assert await pod.apply() == first
    assert set(pod.engines.calls.values()) == {1}


@pytest.mark.parametrize(
    ("answer", "reason", "http"),
    [
        (200, NodeManagerReason.ENGINE_REFUSED, 200),
        (400, NodeManagerReason.ENGINE_REFUSED, 400),
        (500, NodeManagerReason.ENGINE_REFUSED, 500),
        (Transient("refused"), NodeManagerReason.ENGINE_REFUSED, None),
        (OutcomeUnknown("lost"), NodeManagerReason.OUTCOME_UNKNOWN, None),
    ],
)
async def test_anything_but_202_is_refused_and_says_which_engine(
    pod: Pod, answer: int | Exception, reason: NodeManagerReason, http: int | None
) -> None:
    pod.engines.answers[2] = answer
    await pod.guard()
    for _ in range(2):
        refused = await pod.refusal(pod.apply())
        assert refused.refusal.reason is reason
        assert refused.refusal.engines is not None
        assert {rank: engine.http for rank, engine in refused.refusal.engines.items()} == {"0": 202, "2": http}
    assert set(pod.engines.calls.values()) == {1}


async def test_duplicate_in_flight_joins_and_a_client_that_leaves_changes_nothing(pod: Pod) -> None:
    pod.engines.gate = asyncio.Event()
    await pod.guard()
    leaving, staying = asyncio.create_task(pod.apply()), asyncio.create_task(pod.apply())
    await until_called(pod, 2)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    pod.engines.gate.set()
    assert (await staying).status == "accepted"
    assert pod.engines.calls == {("A", 0): 1, ("A", 2): 1}


async def test_engines_that_answer_only_when_all_were_called_do_not_block_us(pod: Pod) -> None:
    barrier = asyncio.Barrier(2)

    async def wait_for_the_others() -> None:
        await barrier.wait()

    pod.pauses["node-manager.before-engine-call"] = wait_for_the_others
    await pod.guard()
    assert (await pod.apply()).status == "accepted"


async def test_abort_between_intent_and_call_prevents_the_call(pod: Pod) -> None:
    intent, go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        intent.set()
        await go.wait()

    pod.pauses["node-manager.after-intent"] = hold
    await pod.guard()
    applying = asyncio.create_task(pod.apply())
    await asyncio.wait_for(intent.wait(), LIMIT_SEC)
    assert await pod.finalize(commit=False) == "aborted"
    go.set()
    assert (await pod.refusal(applying)).refusal.reason is NodeManagerReason.ABORTED
    assert not pod.engines.calls


@pytest.mark.parametrize("place", ["after-intent", "before-engine-call", "before-outcome"])
async def test_crash_between_intent_and_outcome_is_unknown_for_ever(pod: Pod, place: str) -> None:
    await pod.guard()
    pod.pauses[f"node-manager.{place}"] = crash
    with pytest.raises(Crash):
        await pod.apply()
    pod.restart()
    called = dict(pod.engines.calls)
    for _ in range(2):
        assert (await pod.refusal(pod.apply())).refusal.reason is NodeManagerReason.OUTCOME_UNKNOWN
        pod.restart()
    assert pod.engines.calls == called
    assert (await pod.refusal(pod.guard("B"))).refusal.reason is NodeManagerReason.GUARD_HELD


@pytest.mark.parametrize("place", ["before-guard", "before-intent"])
async def test_crash_before_the_intent_leaves_everything_possible(pod: Pod, place: str) -> None:
    if place == "before-intent":
        await pod.guard()
    pod.pauses[f"node-manager.{place}"] = crash
    with pytest.raises(Crash):
        await (pod.guard() if place == "before-guard" else pod.apply())
    pod.restart()
    await pod.guard()
    assert (await pod.apply()).status == "accepted"
    assert set(pod.engines.calls.values()) == {1}


async def test_crash_after_the_outcome_loses_nothing(pod: Pod) -> None:
    await pod.guard()
    pod.pauses["node-manager.after-outcome"] = crash
    with pytest.raises(Crash):
        await pod.apply()
    pod.restart()
    assert (await pod.apply()).status == "accepted"
    assert set(pod.engines.calls.values()) == {1}


async def test_commit_retires_and_a_crash_before_its_answer_changes_nothing(pod: Pod) -> None:
    await pod.guard()
    await pod.apply()
    pod.pauses["node-manager.after-commit"] = crash
    with pytest.raises(Crash):
        await pod.finalize(commit=True)
    pod.restart()
    assert await pod.finalize(commit=True) == "committed"
    assert pod.journal.standing.retired == (1,)
    assert pod.journal.standing.guard is None
    assert (await pod.refusal(pod.finalize(commit=False))).refusal.reason is NodeManagerReason.VERDICT_DIFFERS


async def test_a_verdict_ends_the_guard_and_the_next_round_gets_the_pod(pod: Pod) -> None:
    await pod.guard("A")
    assert (await pod.refusal(pod.guard("B", 2))).refusal.holder == "A"
    assert await pod.finalize("A", commit=False) == "aborted"
    await pod.guard("B", 2)
    assert await pod.finalize("A", commit=False) == "aborted"
    assert pod.transactions.guard_live
    assert (await pod.refusal(pod.guard("A", 2))).refusal.reason is NodeManagerReason.VERDICT_KNOWN


async def test_a_refused_newcomer_does_not_raise_the_generation(pod: Pod) -> None:
    await pod.guard("A", 1)
    await pod.refusal(pod.guard("B", 9))
    assert (await pod.apply()).status == "accepted"
    assert await pod.finalize(commit=True) == "committed"


async def test_the_abort_of_a_refused_newcomer_leaves_the_owner_its_generation(pod: Pod) -> None:
    """Of two rounds that want one Pod the second may belong to another instance, far ahead in a count of its own."""
    await pod.guard("A", 1)
    await pod.refusal(pod.guard("B", 9))
    assert await pod.finalize("B", commit=False, generation=9) == "aborted"
    assert (await pod.apply()).status == "accepted"
    assert await pod.finalize(commit=True) == "committed"
    assert (await pod.refusal(pod.guard("B", 9))).refusal.reason is NodeManagerReason.VERDICT_KNOWN


async def test_committed_ranks_come_with_a_heartbeat_unless_it_is_old(pod: Pod) -> None:
    await pod.guard("A", 5)
    pod.transactions.retire_committed(4, (0,))
    assert pod.engines.retired == set()
    pod.transactions.retire_committed(5, (1, 7))
    standing = pod.journal.standing
    assert (standing.retired, standing.dead_committed, standing.highest_generation) == ((1,), (1, 7), 5)
    assert pod.engines.retired == {1}


@pytest.mark.parametrize(
    "params",
    [
        ApplyParams(removed_dp_ranks=(), dp_master_ip="10.0.0.1", dp_master_rank=0),
        ApplyParams(removed_dp_ranks=(1,), dp_master_rank=0),
        ApplyParams(removed_dp_ranks=(1,), dp_master_ip="10.0.0.1"),
        ApplyParams(removed_dp_ranks=(0,), dp_master_ip="10.0.0.1", dp_master_rank=2),
        ApplyParams(removed_dp_ranks=(1,), dp_master_ip="10.0.0.1", dp_master_rank=1),
    ],
)
async def test_a_scale_down_that_cannot_be_meant_is_malformed(pod: Pod, params: ApplyParams) -> None:
    await pod.guard()
    request = ApplyRequest(endpoint_ids=(0, 2), instruction=Instruction.SCALE_DOWN, params=params, request_id="A")
    refused = await pod.refusal(pod.transactions.apply(request))
    assert (refused.status, refused.refusal.reason) == (400, NodeManagerReason.MALFORMED)
    assert not pod.engines.calls


async def test_retired_and_foreign_ranks_are_not_applied(pod: Pod) -> None:
    await pod.guard()
    pod.engines.retire([0])
    for ranks in ((0,), (2, 9), (2, 2)):
        assert (await pod.refusal(pod.apply(ranks=ranks))).refusal.reason is NodeManagerReason.UNMANAGED_ENDPOINT
    assert not pod.engines.calls


async def test_broken_journal_refuses_every_command_before_any_effect(pod: Pod) -> None:
    await pod.guard()
    pod.journal.commit(calls=[("A", 0)])  # as if this call had been made: the intent cannot be recorded
    with pytest.raises(JournalError):
        await pod.apply()
    for work in (pod.guard(), pod.apply(), pod.finalize(commit=False)):
        with pytest.raises(JournalError):
            await work
    assert not pod.engines.calls


async def crash() -> None:
    raise Crash


async def until_called(pod: Pod, times: int) -> None:
    for _ in range(1000):
        if pod.engines.calls.total() >= times:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"called {pod.engines.calls}")
