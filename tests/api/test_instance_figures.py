"""What the API's /metrics says of instances: the newest record, how old it is, and nothing of what was removed."""

import math
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from api.cache import Instances
from api.instance_figures import InstanceFigures
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID
from domain.registration import RegisteredInstance, RegistryState
from domain.runtime import Budget, FtPhase, RuntimeRecord
from tests.workflows.factories import topology

Samples = dict[tuple[str, str, str | None], float]


def shrunk(instance_id: int) -> RuntimeRecord:
    """An instance of two ranks that lost one, and was published again."""
    return RuntimeRecord(
        instance_id=instance_id,
        phase=FtPhase.SCALED_DOWN_RUNNING,
        original_dp_ranks=(0, 1),
        dead_committed=(1,),
        alive_dp_ranks=(0,),
        fallback_strategy="InstanceReconfiguration",
        serving_published=True,
        can_serve=True,
        budget=Budget(used=2, allowed=3, window_sec=1800.0),
    )


class World:
    """The registry and the FaultManagers, as the gateway would reach them."""

    def __init__(self, *instance_ids: int) -> None:
        self.records = {instance_id: shrunk(instance_id) for instance_id in instance_ids}
        self.asked = 0

    async def query(self, workflow_id: str, *_given: Any, **_named: Any) -> RegistryState | RuntimeRecord:
        self.asked += 1
        if workflow_id == INSTANCE_REGISTRY_ID:
            return RegistryState(instances=tuple(RegisteredInstance.of(topology(one), 1) for one in self.records))
        return self.records[int(workflow_id.rsplit("-", 1)[1])]


@pytest.fixture
def world() -> World:
    return World(7, 8)


@pytest.fixture
def instances(world: World) -> Instances:
    return Instances(world)  # type: ignore[arg-type]


def scraped(instances: Instances) -> Samples:
    """(name after the common prefix, instance, phase) → value."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(InstanceFigures(instances))
    return {
        (sample.name.removeprefix("autotomy_instance_"), sample.labels["instance_id"], sample.labels.get("phase")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


async def test_a_record_that_is_known_is_shown_and_nobody_is_asked(world: World, instances: Instances) -> None:
    await instances.all()
    await instances.record(7, fresh=True)
    asked = world.asked
    found = scraped(instances)
    assert world.asked == asked
    of_seven = {(name, phase): value for (name, instance, phase), value in found.items() if instance == "7"}
    assert 0 <= of_seven.pop(("record_age_seconds", None)) < 5
    assert of_seven == {
        ("can_serve", None): 1,
        ("serving_published", None): 1,
        ("dead_ranks", None): 1,
        ("phase", "SCALED_DOWN_RUNNING"): 1,
        ("budget_used", None): 2,
        ("budget_allowed", None): 3,
    }


async def test_of_an_instance_that_nobody_has_spoken_of_only_the_age_is_told(instances: Instances) -> None:
    await instances.all()
    assert scraped(instances) == {("record_age_seconds", one, None): math.inf for one in ("7", "8")}


async def test_the_phase_before_leaves_no_series(world: World, instances: Instances) -> None:
    await instances.all()
    await instances.record(7, fresh=True)
    scraped(instances)
    world.records[7] = shrunk(7).model_copy(update={"phase": FtPhase.DECIDING, "can_serve": False})
    await instances.record(7, fresh=True)
    found = scraped(instances)
    assert [phase for name, _, phase in found if name == "phase"] == ["DECIDING"]
    assert found["can_serve", "7", None] == 0


async def test_an_instance_that_was_removed_leaves_no_series(world: World, instances: Instances) -> None:
    await instances.all()
    await instances.record(7, fresh=True)
    await instances.record(8, fresh=True)
    del world.records[7]
    await instances.all()
    assert {instance for _, instance, _ in scraped(instances)} == {"8"}


def test_before_anything_is_known_nothing_is_said(instances: Instances) -> None:
    assert scraped(instances) == {}
