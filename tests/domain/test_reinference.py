"""TokenReinference: it waits, touches nothing, and wants proof before it says that anything has healed."""

from typing import Any

import pytest

from domain.engine import RankEntry
from domain.errors import Transient
from domain.messages.rebuild import EnginesReadyCall, EnginesReadyResult
from domain.messages.round import VerifyCall, VerifyResult, ViewCall, ViewResult
from domain.messages.strategy import ReinferenceOrder, ReinferenceReason, StepReport
from domain.rebuild.reinference import run_reinference
from domain.runtime import FtPhase
from tests.domain.round_factories import BEGAN_AT, exited, fault_tolerance, healthy, topology, unhealthy

Reason = ReinferenceReason
DEADLINE_SEC = 12.0


class Ports:
    """Engines that say in turn what the test scripts, the last for ever; a look in vain lasts until its deadline."""

    def __init__(self, *answers: RankEntry | Transient, verified: tuple[int, ...] = (2,)) -> None:
        self.clock = BEGAN_AT
        self.answers = list(answers)
        self.looks: list[EnginesReadyCall] = []
        self.verifies: list[VerifyCall] = []
        self.steps: list[StepReport] = []
        self.stop_at_look: int | None = None
        self._verified = verified

    def now(self) -> float:
        return self.clock

    def stop_requested(self) -> str | None:
        return "a person said so" if self.stop_at_look is not None and len(self.looks) >= self.stop_at_look else None

    def progress(self, report: StepReport) -> None:
        self.steps.append(report)

    async def pause(self, seconds: float, why: str) -> None:
        assert why
        self.clock += seconds

    async def push_view(self, call: ViewCall) -> ViewResult:
        raise AssertionError(f"it touches nothing: {call}")

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult:
        self.looks.append(call)
        seen = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(seen, Transient):
            raise seen
        if seen.status == "healthy":
            return EnginesReadyResult(last_entries={seen.id: seen})
        self.clock = max(self.clock, call.deadline_at)
        return EnginesReadyResult(last_entries={seen.id: seen}, waiting={seen.id: str(seen.status)})

    async def verify(self, call: VerifyCall) -> VerifyResult:
        self.verifies.append(call)
        self.clock += 0.5
        return VerifyResult(ok=self._verified, failed={} if self._verified else {2: "HTTP 503"})


def order(**fields: Any) -> ReinferenceOrder:
    base: dict[str, Any] = {
        "instance_id": 7,
        "generation": 3,
        "topology": topology(),
        "config": fault_tolerance(token_reinference_deadline_sec=DEADLINE_SEC),
        "ranks": (2,),
        "why": "L2 0x08520003 on node-1",
    }
    return ReinferenceOrder(**{**base, **fields})


async def test_it_asks_only_the_ranks_of_the_fault_and_looks_again_after_the_completion() -> None:
    ports = Ports(unhealthy(2), healthy(2))
    report = await run_reinference(order(), ports)
    assert (report.healed, report.reason) == (True, Reason.HEALED)
    assert [question.ranks for call in ports.looks for question in call.questions] == [(2,)] * 3
    assert len(ports.verifies) == 1
    assert report.last_entries[2].status == "healthy"
    assert {step.phase for step in ports.steps} == {FtPhase.DECIDING}


async def test_a_rank_that_breaks_under_the_completion_has_not_healed() -> None:
    ports = Ports(healthy(2), unhealthy(2))
    report = await run_reinference(order(), ports)
    assert (report.healed, report.reason) == (False, Reason.NOT_HEALED_IN_TIME)


async def test_a_rank_without_a_completion_has_not_healed() -> None:
    ports = Ports(healthy(2), verified=())
    report = await run_reinference(order(), ports)
    assert (report.reason, report.detail) == (Reason.NOT_HEALED_IN_TIME, "rank 2: HTTP 503")
    assert len(ports.verifies) < 5


async def test_the_wait_ends_in_time_with_a_last_look() -> None:
    ports = Ports(unhealthy(2))
    report = await run_reinference(order(), ports)
    assert report.reason is Reason.NOT_HEALED_IN_TIME
    assert "rank 2: unhealthy" in report.detail
    assert ports.clock == BEGAN_AT + DEADLINE_SEC
    assert ports.verifies == []


async def test_a_process_that_is_gone_ends_it_at_the_next_look() -> None:
    ports = Ports(unhealthy(2), exited(2))
    report = await run_reinference(order(), ports)
    assert report.reason is Reason.RANK_DIED
    assert ports.clock < BEGAN_AT + DEADLINE_SEC


async def test_a_wish_to_stop_ends_it() -> None:
    ports = Ports(unhealthy(2))
    ports.stop_at_look = 1
    assert (await run_reinference(order(), ports)).reason is Reason.CANCELLED


async def test_without_ft_routes_health_is_all_that_can_be_asked_for() -> None:
    ports = Ports(healthy(2))
    report = await run_reinference(order(config=fault_tolerance(enable_dp_scale_down=False)), ports)
    assert report.healed
    assert ports.verifies == []


@pytest.mark.parametrize("ranks", [(), (9,)])
async def test_an_order_without_ranks_of_the_instance_is_refused(ranks: tuple[int, ...]) -> None:
    ports = Ports(healthy(2))
    assert (await run_reinference(order(ranks=ranks), ports)).reason is Reason.BAD_ORDER
    assert ports.looks == []


async def test_a_look_that_cannot_be_made_is_said() -> None:
    report = await run_reinference(order(), Ports(Transient("no worker")))
    assert (report.reason, report.detail) == (Reason.PORT_FAILED, "no worker")
