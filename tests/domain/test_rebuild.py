"""A rebuild and a relaunch: the order of their steps, whom they may do without, and every way in which they end early."""

from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from domain.engine import RankEntry
from domain.errors import AutotomyError, Transient
from domain.messages.rebuild import (
    EnginesReadyCall,
    EnginesReadyResult,
    StartNodeManagersCall,
    StartNodeManagersResult,
    StopNodeManagersCall,
    StopNodeManagersResult,
)
from domain.messages.round import VerifyCall, VerifyResult, ViewCall, ViewResult
from domain.messages.strategy import ReconfigurationOrder, ReconfigurationReason, RelaunchOrder, StepReport
from domain.rebuild.new_engines import run_reconfiguration, run_relaunch
from domain.runtime import FtPhase
from tests.domain.round_factories import BEGAN_AT, fault_tolerance, healthy, incarnation, pod, refusal, topology

Reason = ReconfigurationReason
M = TypeVar("M", bound=BaseModel)


class Ports:
    """A world in which every step goes well, but for what the test scripts: a result, or an error that is raised."""

    def __init__(self, **scripted: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.steps: list[StepReport] = []
        self.stop_at: str | None = None
        self._wish: str | None = None
        self._scripted = {name: list(result) if isinstance(result, list) else [result] for name, result in scripted.items()}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def called(self, name: str) -> list[Any]:
        return [call for called, call in self.calls if called == name]

    def now(self) -> float:
        return BEGAN_AT

    def stop_requested(self) -> str | None:
        return self._wish

    def progress(self, report: StepReport) -> None:
        self.steps.append(report)

    async def pause(self, seconds: float, why: str) -> None:
        raise AssertionError(f"it waits by looking, never blindly: {why}")

    async def push_view(self, call: ViewCall) -> ViewResult:
        return self._play("publish" if call.ranks else "withdraw", call, ViewResult(confirmed=True))

    async def stop_node_managers(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        return self._play("stop_node_managers", call, StopNodeManagersResult(stopped=call.managers))

    async def stop_engines(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        return self._play("stop_engines", call, StopNodeManagersResult(stopped=call.managers))

    async def start(self, call: StartNodeManagersCall) -> StartNodeManagersResult:
        wanted = [rank for rank in call.topology.ranks if rank not in call.dead_committed]
        return self._play("start", call, StartNodeManagersResult(engines={rank: incarnation(rank, 2) for rank in wanted}))

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult:
        looked = {rank: anew(rank) for question in call.questions for rank in question.ranks}
        return self._play("await_ready", call, EnginesReadyResult(last_entries=looked))

    async def verify(self, call: VerifyCall) -> VerifyResult:
        return self._play("verify", call, VerifyResult(ok=tuple(r for group in call.groups for r in group.ranks)))

    def _play(self, name: str, call: BaseModel, success: M) -> M:
        self.calls.append((name, call))
        if self.stop_at == name:
            self._wish = "a person said so"
        results = self._scripted.get(name)
        result = results.pop(0) if results else success
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, type(success))
        return result


def anew(rank: int) -> RankEntry:
    return healthy(rank, incarnation=incarnation(rank, 2))


def order(**fields: Any) -> ReconfigurationOrder:
    base: dict[str, Any] = {"instance_id": 7, "generation": 5, "topology": topology(), "config": fault_tolerance()}
    return ReconfigurationOrder(**{**base, "view_revision": 10, "why": "all are dead", **fields})


def relaunch(*dead_committed: int, **fields: Any) -> RelaunchOrder:
    return RelaunchOrder(**{**dict(order()), "dead_committed": dead_committed, **fields})


STEPS = ["withdraw", "stop_node_managers", "start", "await_ready", "verify", "await_ready", "publish"]


async def test_a_rebuild_takes_its_steps_in_order_and_brings_every_rank_back() -> None:
    ports = Ports()
    report = await run_reconfiguration(order(), ports)
    assert ports.names == STEPS
    assert (report.succeeded, report.reason, report.view_revision) == (True, Reason.REBUILT, 12)
    assert report.engine_incarnations == {rank: incarnation(rank, 2) for rank in range(4)}
    assert (ports.called("withdraw")[0].revision, ports.called("publish")[0].revision) == (11, 12)
    assert ports.called("publish")[0].ranks == (0, 1, 2, 3)
    assert {step.phase for step in ports.steps} == {FtPhase.RECONFIGURING}
    assert [step.step for step in ports.steps] == list(range(1, len(ports.steps) + 1))


async def test_a_relaunch_leaves_the_node_managers_and_the_removed_ranks_as_they_are() -> None:
    ports = Ports()
    report = await run_relaunch(relaunch(1), ports)
    assert ports.names == [name.replace("stop_node_managers", "stop_engines") for name in STEPS]
    assert (report.succeeded, report.reason, report.dead_committed) == (True, Reason.RELAUNCHED, (1,))
    assert ports.called("start")[0].dead_committed == (1,)
    assert ports.called("publish")[0].ranks == (0, 2, 3)
    assert report.engine_incarnations.keys() == {0, 2, 3}


async def test_each_step_gets_what_is_left_of_the_time_and_the_stop_at_most_half() -> None:
    ports = Ports()
    await run_reconfiguration(order(config=fault_tolerance(reconfiguration_deadline_sec=100.0)), ports)
    assert ports.called("stop_node_managers")[0].deadline_at == BEGAN_AT + 50.0
    assert ports.called("start")[0].deadline_at == ports.called("await_ready")[0].deadline_at == BEGAN_AT + 100.0


class TestWhoMayBeGone:
    async def test_nobody_whose_heartbeat_came(self) -> None:
        ports = Ports()
        await run_reconfiguration(order(), ports)
        assert ports.called("stop_node_managers")[0].may_be_gone == ()

    async def test_one_whose_heartbeat_was_lost_but_it_must_be_started(self) -> None:
        ports = Ports(stop_node_managers=StopNodeManagersResult(stopped=(pod(0),), gone=(pod(1),)))
        report = await run_reconfiguration(order(lost_node_managers=(pod(1),)), ports)
        assert report.succeeded
        assert ports.called("stop_node_managers")[0].may_be_gone == (pod(1),)
        assert ports.called("start")[0].optional == ()
        assert any(str(pod(1)) in step.detail and "count as stopped" in step.detail for step in ports.steps)

    async def test_a_pod_of_removed_ranks_alone_in_a_relaunch_and_it_need_not_be_started(self) -> None:
        ports = Ports()
        await run_relaunch(relaunch(2, 3), ports)
        assert ports.called("stop_engines")[0].may_be_gone == ports.called("start")[0].optional == (pod(1),)

    async def test_not_a_pod_with_a_headless_member_of_a_wanted_rank(self) -> None:
        ports = Ports()
        await run_relaunch(relaunch(2, 3, topology=topology(headless=[(0, 2)])), ports)
        assert ports.called("start")[0].optional == (pod(1),)


ENDS: list[tuple[str, Any, Reason]] = [
    ("withdraw", ViewResult(confirmed=False, refusals=(refusal("NO_ANSWER"),)), Reason.WITHDRAW_UNCONFIRMED),
    ("stop", StopNodeManagersResult(refusals=(refusal("OLD_GENERATION"),)), Reason.STOP_REFUSED),
    ("stop", StopNodeManagersResult(unreachable=(refusal("NO_CONNECTION"),)), Reason.STOP_UNREACHABLE),
    ("start", StartNodeManagersResult(refusals=(refusal("NO_ENGINE_COMMAND"),)), Reason.START_FAILED),
    ("await_ready", EnginesReadyResult(waiting={2: "unknown"}), Reason.NOT_READY_IN_TIME),
    ("verify", VerifyResult(ok=(0, 1, 3), failed={2: "HTTP 503"}), Reason.VERIFY_FAILED),
    ("verify", VerifyResult(ok=(0, 1, 3)), Reason.VERIFY_FAILED),
    ("await_ready", [EnginesReadyResult(), EnginesReadyResult(waiting={2: "unhealthy"})], Reason.FAULTS_REMAIN),
    ("withdraw", Transient("no worker"), Reason.PORT_FAILED),
    ("start", Transient("no worker"), Reason.PORT_FAILED),
]


@pytest.mark.parametrize(("step", "result", "reason"), ENDS, ids=lambda value: str(value) if isinstance(value, Reason) else "")
async def test_a_step_that_fails_ends_it_unpublished_with_its_reason(
    step: str, result: BaseModel | AutotomyError, reason: Reason
) -> None:
    for kind, stop in (("rebuild", "stop_node_managers"), ("relaunch", "stop_engines")):
        scripted = list(result) if isinstance(result, list) else result
        ports = Ports(**{stop if step == "stop" else step: scripted})
        report = await (run_reconfiguration(order(), ports) if kind == "rebuild" else run_relaunch(relaunch(), ports))
        assert (report.succeeded, report.reason) == (False, reason)
        assert report.detail
        assert ports.called("publish") == []
        assert not report.serving_published


async def test_a_view_that_is_not_confirmed_is_said_and_is_no_failure() -> None:
    for result in (ViewResult(confirmed=False, refusals=(refusal("NO_ANSWER"),)), Transient("no worker")):
        report = await run_reconfiguration(order(), Ports(publish=result))
        assert (report.succeeded, report.serving_published) == (True, False)
        assert "not confirmed" in report.detail


async def test_an_isolated_rebuild_succeeds_and_leaves_the_view_withdrawn() -> None:
    report = await run_reconfiguration(order(isolated=True), Ports())
    assert (report.succeeded, report.serving_published) == (True, False)
    assert report.view_revision == order().view_revision + 1
    assert "ISOLATED" in report.detail


async def test_a_relaunch_of_nobody_is_a_bad_order() -> None:
    ports = Ports()
    report = await run_relaunch(relaunch(0, 1, 2, 3), ports)
    assert (report.reason, ports.calls) == (Reason.BAD_ORDER, [])


@pytest.mark.parametrize("where", ["withdraw", "stop_node_managers", "start", "await_ready", "verify"])
async def test_a_wish_to_stop_ends_it_at_the_next_step_withdrawn(where: str) -> None:
    ports = Ports()
    ports.stop_at = where
    report = await run_reconfiguration(order(), ports)
    assert report.reason is Reason.CANCELLED
    assert "a person said so" in report.detail
    assert ports.called("publish") == []


@pytest.mark.parametrize("config", [fault_tolerance(enable_dp_scale_down=False), fault_tolerance({"verify_inference": False})])
async def test_without_ft_routes_or_verification_nobody_is_asked_for_a_completion(config: Any) -> None:
    ports = Ports()
    assert (await run_reconfiguration(order(config=config), ports)).succeeded
    assert ports.called("verify") == []
