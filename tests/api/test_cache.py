"""What the API remembers of instances: an unknown one is never unknown by an answer that is older than the question."""

import asyncio
from typing import Any

from api.cache import Instances
from domain.messages.instance_registry import RegisteredInstance, RegistryView
from tests.eventually import eventually
from tests.workflows.factories import topology


class Registry:
    """Answers as the gateway would. While `held` is clear an answer is computed at once, and given later."""

    def __init__(self) -> None:
        self.view = RegistryView()
        self.asked = 0
        self.held = asyncio.Event()
        self.held.set()

    async def query(self, *_given: Any, **_named: Any) -> RegistryView:
        self.asked += 1
        answer = self.view
        await self.held.wait()
        return answer

    def declare(self) -> None:
        self.view = RegistryView(instances=(RegisteredInstance(topology=topology(7), version=1),), version=1)


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
