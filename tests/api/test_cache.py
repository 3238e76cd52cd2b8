"""What the API remembers of instances: an unknown one is never unknown by an answer that is older than the question."""

import asyncio
from typing import Any

import pytest

import api.cache
from api.cache import Instances
from domain.config import FaultToleranceConfig
from domain.messages.fault_manager import FaultManagerStart
from domain.registration import PendingStart, RegisteredInstance, RegistryState
from domain.topology import Topology
from service.http import HttpError
from tests.eventually import PATIENCE_SEC, eventually
from tests.workflows.factories import topology


class Registry:
    """Answers as the gateway would: for the registry, and for the history of instance 7's FaultManager (`started_with`).

    While `held` is clear an answer is computed at once, and given later.
    """

    def __init__(self) -> None:
        self.view = RegistryState()
        self.asked = 0
        self.started_with: Topology | None = None
        self.read = 0
        self.held = asyncio.Event()
        self.held.set()

    async def query(self, *_given: Any, **_named: Any) -> RegistryState:
        self.asked += 1
        answer = self.view
        await self.held.wait()
        return answer

    async def ask(self, _question: object) -> FaultManagerStart | None:
        self.read += 1
        return None if self.started_with is None else start_of(self.started_with)

    def declare(self) -> None:
        """It is an instance, and its FaultManager runs."""
        self.started_with = topology(7)
        self.view = RegistryState(instances=(RegisteredInstance.of(topology(7), 1),), version=1)


def start_of(where: Topology) -> FaultManagerStart:
    return FaultManagerStart(instance_id=where.instance_id, topology=where, config=FaultToleranceConfig())


async def test_an_instance_is_known_in_the_moment_in_which_it_is_there_however_fresh_the_miss_was() -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    assert await instances.find(7) is None
    registry.declare()
    found = await instances.find(7)
    assert found is not None
    assert found.instance_id == 7


async def test_an_answer_that_was_under_way_does_not_make_it_unknown() -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    registry.held.clear()
    early = asyncio.create_task(instances.find(7))
    await eventually(lambda: registry.asked == 1, "its question")
    registry.declare()
    late = asyncio.create_task(instances.find(7))
    await asyncio.sleep(0)
    registry.held.set()
    assert await late is not None
    assert await early is None


async def test_many_who_ask_for_what_is_not_there_share_few_questions() -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    assert await asyncio.gather(*(instances.find(number) for number in range(100))) == [None] * 100
    assert registry.asked <= 2


async def test_what_is_known_does_not_wait_for_a_registry_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that follows, a report's signal, needs the rest of the caller's two seconds."""
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    registry.declare()
    assert await instances.find(7) is not None
    monkeypatch.setattr(api.cache, "DECLARATIONS_FRESH_SEC", 0.0)
    registry.held.clear()
    assert await asyncio.wait_for(instances.find(7), PATIENCE_SEC) is not None
    assert registry.asked == 2
    registry.view = RegistryState(version=2)
    registry.held.set()
    assert await instances.find(7) is not None, "the answer that was under way"
    assert await instances.find(7) is None, "a fresh one"


async def test_an_old_record_does_not_wait_for_a_worker_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    first = await instances.record(7, fresh=False)
    monkeypatch.setattr(api.cache, "RECORD_FRESH_SEC", 0.0)
    registry.held.clear()
    assert await asyncio.wait_for(instances.record(7, fresh=False), PATIENCE_SEC) is first
    monkeypatch.setattr(api.cache, "RECORD_USABLE_SEC", 0.0)
    too_old = asyncio.create_task(instances.record(7, fresh=False))
    asked_now = asyncio.create_task(instances.record(7, fresh=True))
    await asyncio.sleep(0)
    registry.held.set()
    await asyncio.wait_for(asyncio.gather(too_old, asked_now), PATIENCE_SEC)
    assert registry.asked == 2


async def test_a_removal_made_here_is_known_however_slow_the_registry_is() -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    registry.declare()
    assert await instances.find(7) is not None
    registry.held.clear()
    under_way = asyncio.create_task(instances.all())
    await eventually(lambda: registry.asked == 2, "a question from before the removal")
    registry.view = RegistryState(version=2)
    instances.forget()
    after = asyncio.create_task(instances.find(7))
    await asyncio.sleep(2 * api.cache._RENEWAL_PATIENCE_SEC)
    assert not after.done()
    registry.held.set()
    assert len(await under_way) == 1
    assert await after is None


async def test_a_topology_is_read_once_and_anew_when_the_instance_is_another_one() -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    registry.declare()
    found = await asyncio.gather(*(instances.find(7) for _ in range(10)))
    assert found == [topology(7)] * 10
    assert registry.read == 1
    assert await instances.find(7) == topology(7)
    assert registry.read == 1
    registry.started_with = topology(7, ranks=2)
    registry.view = RegistryState(instances=(RegisteredInstance.of(topology(7, ranks=2), 2),), version=2)
    await instances.all()
    assert await instances.find(7) == topology(7, ranks=2)


@pytest.mark.parametrize("started_with", [None, topology(7, ranks=2)])
async def test_the_topology_of_an_instance_before_it_is_not_believed(started_with: Topology | None) -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    registry.declare()
    registry.started_with = started_with
    with pytest.raises(HttpError) as refused:
        await instances.find(7)
    assert (refused.value.status, refused.value.reason) == (503, "NO_WORKER")
    assert "declare it again" in refused.value.message
    registry.declare()
    assert await instances.find(7) == topology(7)


async def test_until_its_faultmanager_runs_the_registry_has_the_topology() -> None:
    registry = Registry()
    instances = Instances(registry)  # type: ignore[arg-type]
    registry.declare()
    registry.started_with = topology(7, ranks=2)
    pending = PendingStart(start=start_of(topology(7)), until=0.0)
    registry.view = registry.view.model_copy(update={"starts": {7: pending}})
    assert await instances.find(7) == topology(7)
    assert registry.read == 0
