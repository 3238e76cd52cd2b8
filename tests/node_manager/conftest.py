"""A Controller and two engines whose answers the test chooses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.fake_engine import FakeEngine, serving
from tests.node_manager.controller import FakeController, controller_serving
from tests.node_manager.pod import Pod, running_pod


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async with controller_serving(FakeController()) as controller:
        yield controller


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeEngine]]:
    async with serving(FakeEngine(rank=0)) as zero, serving(FakeEngine(rank=1)) as one:
        yield [zero, one]


@pytest.fixture
async def pod(tmp_path: Path, fakes: list[FakeEngine], controller: FakeController) -> AsyncIterator[Pod]:
    """Idle, with ranks 0 and 1 to come."""
    async with running_pod(tmp_path, fakes, controller) as pod:
        yield pod
