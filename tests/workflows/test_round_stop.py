"""A round that is asked to end: before the commit point it aborts, after it it completes, never both (acceptance D29)."""

import time
from collections.abc import Callable

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from domain.messages.strategy import RoundOutcome, RoundReason, RoundReport
from tests.activities.fake_pods import fast_config, hang, healthy
from tests.eventually import eventually
from tests.workflows.strategy_world import StrategyWorld, round_report, strategy_world

pytestmark = pytest.mark.verify

HOLD_SEC = 0.6
"""How long the step lasts in which the wish arrives; longer than a cancelled activity needs to hear of it."""


def hold(route: str) -> Callable[[StrategyWorld], None]:
    """One NodeManager answers this route late."""

    def prepare(world: StrategyWorld) -> None:
        world.instance.pod_of(2).script(route, hang(HOLD_SEC))

    return prepare


def asked(route: str) -> Callable[[StrategyWorld], bool]:
    return lambda world: bool(world.instance.pod_of(2).bodies(route))


def one_has_not_noticed(world: StrategyWorld) -> None:
    world.instance.pod_of(2).engines[2] = healthy(2)


def nobody_recovers(world: StrategyWorld) -> None:
    world.instance.recovery_sec = None


BEFORE = {
    "guard": (hold("guard"), asked("guard")),
    "apply-ready": (one_has_not_noticed, lambda world: len(world.instance.pod_of(2).bodies("status")) > 2),
    "apply": (hold("apply"), asked("apply")),
    "recovery": (nobody_recovers, lambda world: len(world.instance.applies()) == 2),
}
AFTER = {
    "verify": (hold("probe"), asked("probe")),
    "finalize": (hold("finalize"), asked("finalize")),
}
WISHES = ("cancel", "signal")

Step = tuple[Callable[[StrategyWorld], None], Callable[[StrategyWorld], bool]]


async def stopped_round(world: StrategyWorld, step: Step, wish: str) -> tuple[RoundReport, str]:
    """Runs a round for rank 1 and makes the wish in this step; gives its report and request id."""
    prepare, reached = step
    world.instance.kill(1)
    prepare(world)
    order = world.instance.order(1, config=fast_config(request_timeout_sec=2.0))
    handle = await world.start_round(order)
    await eventually(lambda: reached(world), "the step is reached")
    await (handle.cancel() if wish == "cancel" else handle.signal("stop"))
    report = await round_report(handle)
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
    heard = await world.heard()
    assert [end.report for end in heard.ends] == [report]
    return report, order.request_id


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("step", BEFORE.values(), ids=BEFORE.keys())
async def test_before_the_commit_point_a_stop_aborts(temporal_client: Client, step: Step, wish: str) -> None:
    async with strategy_world(temporal_client) as world:
        report, request_id = await stopped_round(world, step, wish)
        assert (report.outcome, report.reason) == (RoundOutcome.CANCELLED, RoundReason.CANCELLED)
        assert [pod.verdicts[request_id] for pod in world.instance.pods] == [False, False]
        assert (await world.heard()).commits == ()


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("step", AFTER.values(), ids=AFTER.keys())
async def test_from_the_last_check_on_a_stop_changes_nothing(temporal_client: Client, step: Step, wish: str) -> None:
    async with strategy_world(temporal_client) as world:
        report, request_id = await stopped_round(world, step, wish)
        assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.COMMITTED)
        assert [pod.verdicts[request_id] for pod in world.instance.pods] == [True, True]
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)


async def test_a_stop_ends_a_look_at_once(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        one_has_not_noticed(world)
        handle = await world.start_round(world.instance.order(1, config=fast_config(execution_deadline_sec=60.0)))
        await eventually(lambda: len(world.instance.pod_of(2).bodies("status")) > 2, "the look sweeps")
        asked_at = time.monotonic()
        await handle.cancel()
        report = await round_report(handle)
        assert time.monotonic() - asked_at < 10
        assert report.outcome is RoundOutcome.CANCELLED
        assert report.last_entries.keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("inputs", [(), ({"any": "thing"},), (1, "two")], ids=["none", "one", "two"])
async def test_stop_takes_any_inputs_and_garbage_changes_nothing(temporal_client: Client, inputs: tuple[object, ...]) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        one_has_not_noticed(world)
        handle = await world.start_round(world.instance.order(1, config=fast_config(execution_deadline_sec=60.0)))
        await eventually(lambda: len(world.instance.pod_of(2).bodies("status")) > 2, "the look sweeps")
        await handle.signal("no-such-signal", args=inputs)
        status = await handle.query("status")
        (refused,) = status["rejected_signals"]
        assert (refused["name"], refused["reason"]) == ("no-such-signal", "unknown signal; known: stop")
        await handle.signal("stop", args=inputs)
        assert (await round_report(handle)).outcome is RoundOutcome.CANCELLED
