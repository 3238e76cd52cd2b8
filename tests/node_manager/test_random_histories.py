"""Random histories of guard, apply, finalize, start, time and crashes, against the invariants (acceptance B).

I1: an engine is called at most once per request id. I8: never two live guards, and who is overtaken releases nobody.
I10: every guard ends, by verdict or by time. I16: generations and sequence numbers never go back, over restarts either.
The process dies at any of the named pauses, between any two writes of the journal.
"""

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from domain.engine import Instruction
from domain.errors import OutcomeUnknown, Transient
from domain.messages.node_manager import (
    ApplyParams,
    ApplyRequest,
    FinalizeRequest,
    GuardRequest,
    NodeManagerReason,
)
from domain.pod.records import ACCEPTED, Verdict
from node_manager.journal import Journal
from node_manager.transactions import CommandRefused, Transactions
from tests.node_manager.engines_in_memory import EnginesInMemory, TurnedClock

RECOVERY_SEC = 120.0
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # many thousand commits, each synced
IDS = st.sampled_from(["A", "B", "C"])
GENERATIONS = st.one_of(st.none(), st.integers(1, 4))
PAUSES = st.sampled_from(
    [
        *(None, None, None, "before-guard", "after-guard", "before-intent", "after-intent", "before-engine-call"),
        *("before-outcome", "after-outcome", "before-verdict", "after-commit", "after-abort"),
    ]
)
ANSWERS = st.sampled_from([202, 202, 202, 400, Transient("refused"), OutcomeUnknown("lost")])


class Crash(BaseException):
    pass


class PodHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(dir=_IN_MEMORY)
        self.engines = EnginesInMemory()
        self.clock = TurnedClock()
        self.crash_at: str | None = None
        self.highest = 0
        self.last_sequence = 0
        self.verdicts: dict[str, Verdict] = {}
        self.answers: dict[str, str] = {}
        self.runner.run(self._live())

    async def _live(self) -> None:
        self.journal = Journal(Path(self.folder.name) / "journal.sqlite")
        self.transactions = Transactions(
            self.journal, self.engines, clock=self.clock, engine_recovery_timeout_sec=RECOVERY_SEC, pause=self._pause
        )
        self.transactions.recover()

    async def _pause(self, name: str) -> None:
        if self.crash_at is not None and name == f"node-manager.{self.crash_at}":
            raise Crash

    def carried_out(self, work: Awaitable[object], crash_at: str | None) -> object:
        """The reply, or the refusal's reason; None where the process died over it (and was started again)."""
        self.crash_at = crash_at

        async def run() -> object:
            try:
                return await work
            except CommandRefused as refused:
                return refused.refusal.reason
            except Crash:
                return None

        result = self.runner.run(run())
        self.crash_at = None
        if result is None:
            self.journal.close()
            self.runner.run(self._live())
        return result

    @rule(request_id=IDS, generation=GENERATIONS, lease_sec=st.sampled_from([1.0, 85.0]), crash_at=PAUSES)
    def guard(self, request_id: str, generation: int | None, lease_sec: float, crash_at: str | None) -> None:
        holder = self._live_holder()
        request = GuardRequest(request_id=request_id, lease_sec=lease_sec, generation=generation)
        result = self.carried_out(self.transactions.guard(request), crash_at)
        now = self.journal.standing.guard
        if holder is not None and holder != request_id:
            assert now is not None, "I8: a live guard vanished by another id's guard"
            assert now.request_id == holder, "I8: two live guards"
            assert result in (NodeManagerReason.GUARD_HELD, *_PRIOR_REFUSALS, None)
        if request_id in self.verdicts:
            assert result in (NodeManagerReason.VERDICT_KNOWN, None)

    @rule(
        request_id=IDS,
        generation=GENERATIONS,
        ranks=st.sampled_from([(0,), (0, 2), (2,)]),
        margin=st.sampled_from([None, 35.0]),
        answer=ANSWERS,
        crash_at=PAUSES,
    )
    def apply(
        self,
        request_id: str,
        generation: int | None,
        ranks: tuple[int, ...],
        margin: float | None,
        answer: int | Exception,
        crash_at: str | None,
    ) -> None:
        self.engines.answers[0] = answer
        holder, called = self._live_holder(), dict(self.engines.calls)
        request = ApplyRequest(
            endpoint_ids=ranks,
            instruction=Instruction.SCALE_DOWN,
            params=ApplyParams(removed_dp_ranks=(1,), dp_master_ip="10.0.0.1", dp_master_rank=0),
            request_id=request_id,
            generation=generation,
            apply_margin_sec=margin,
        )
        self.carried_out(self.transactions.apply(request), crash_at)
        if dict(self.engines.calls) != called:
            assert holder == request_id, f"{request_id} called engines while {holder} owned the Pod"
            assert request_id not in self.verdicts, "engines were called after the verdict"

    @rule(request_id=IDS, generation=GENERATIONS, commit=st.booleans(), crash_at=PAUSES)
    def finalize(self, request_id: str, generation: int | None, commit: bool, crash_at: str | None) -> None:
        holder = self._live_holder()
        request = FinalizeRequest(
            request_id=request_id, commit=commit, retired_endpoint_ids=(1,) if commit else (), generation=generation
        )
        result = self.carried_out(self.transactions.finalize(request), crash_at)
        if holder is not None and holder != request_id:
            assert self._live_holder() == holder, "I8: a stale id released a newer guard"
        if not commit and request_id not in self.verdicts:
            assert result is None or getattr(result, "status", None) == "aborted", "an abort is always taken"

    @rule(generation=st.integers(1, 4))
    def start(self, generation: int) -> None:
        standing = self.journal.standing
        if generation > standing.highest_generation:
            voided = self.transactions.voided_by_start(generation)
            ids = {transaction.request_id for transaction in voided}
            guard = standing.guard if standing.guard and standing.guard.request_id not in ids else None
            update = {"highest_generation": generation, "guard": guard}
            self.journal.commit(standing=standing.model_copy(update=update), transactions=voided)

    @rule(sec=st.sampled_from([0.5, 40.0, 130.0]))
    def time_passes(self, sec: float) -> None:
        self.clock.sec += sec

    @rule()
    def restart(self) -> None:
        self.journal.close()
        self.runner.run(self._live())

    @invariant()
    def engines_are_called_at_most_once(self) -> None:
        assert all(count == 1 for count in self.engines.calls.values()), f"I1: {self.engines.calls}"

    @invariant()
    def nothing_goes_back(self) -> None:
        standing = self.journal.standing
        assert standing.highest_generation >= self.highest, "I16: the generation went back"
        self.highest = standing.highest_generation
        sequence = self.journal.next_sequence()
        assert sequence > self.last_sequence, "I16: a sequence number came back"
        self.last_sequence = sequence

    @invariant()
    def verdicts_and_answers_stay(self) -> None:
        for transaction in self.journal.transactions():
            known = self.verdicts.get(transaction.request_id)
            assert known in (None, transaction.verdict), "a verdict changed"
            if transaction.verdict is not None:
                self.verdicts[transaction.request_id] = transaction.verdict
            if transaction.apply is not None and transaction.apply.outcome is not None:
                before = self.answers.setdefault(transaction.request_id, transaction.apply.outcome)
                assert before == transaction.apply.outcome, "an answer changed"
                if transaction.apply.outcome == ACCEPTED:
                    assert all(self.engines.calls[transaction.request_id, r] == 1 for r in transaction.apply.body.endpoint_ids)

    def _live_holder(self) -> str | None:
        guard = self.journal.standing.guard
        return guard.request_id if guard is not None and guard.live(self.clock(), RECOVERY_SEC) else None

    def teardown(self) -> None:
        self.clock.sec += 3600 + RECOVERY_SEC
        if self.journal.broken is None:
            last = GuardRequest(request_id="last", lease_sec=1.0, generation=self.journal.standing.highest_generation)
            reply = self.carried_out(self.transactions.guard(last), None)
            assert getattr(reply, "status", None) == "guarded", "I10: a guard never ended"
        self.journal.close()
        self.runner.close()
        self.folder.cleanup()


_PRIOR_REFUSALS = (NodeManagerReason.VERDICT_KNOWN, NodeManagerReason.OLD_GENERATION)

PodHistory.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
TestPodHistory = PodHistory.TestCase
