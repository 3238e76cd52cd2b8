"""A Coordinator's management side over real HTTP: the real rules, without anything to route to."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from coordinator.figures import Figures
from coordinator.management import management_app
from coordinator.routing import Router
from coordinator.state import CoordinatorState, new_incarnation
from coordinator.view import View
from coordinator.view_log import ViewLog
from domain.messages.coordinator import PublishedInstance
from domain.messages.event_pusher import CoordinatorRecord
from service.http import bind
from service.metrics import new_registry
from tests.listening import listening


class FakeCoordinator:
    """One Coordinator at a fixed address, over its lives."""

    def __init__(self) -> None:
        self._port = 0
        self._listening = AsyncExitStack()
        self.state: CoordinatorState

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def incarnation(self) -> str:
        return self.state.view.incarnation

    def record(self) -> CoordinatorRecord:
        """How it announces itself now."""
        has_view = self.state.view.opened
        return CoordinatorRecord(url=self.url, incarnation=self.incarnation, has_view=has_view, last_answer_at=time.time())

    def instance(self, instance_id: int) -> PublishedInstance | None:
        return self.state.published().instance(instance_id)

    def ranks(self, instance_id: int) -> tuple[int, ...]:
        found = self.instance(instance_id)
        return found.ranks if found is not None else ()

    async def listen(self) -> None:
        """A new life, without a view."""
        router, registry = Router(), new_registry()
        self.state = CoordinatorState(View(new_incarnation()), router, Figures(registry, router), ViewLog(None))
        sock = bind("127.0.0.1", self._port)
        self._port = int(sock.getsockname()[1])
        await self._listening.enter_async_context(listening(management_app(self.state, registry), sock))

    async def vanish(self) -> None:
        """Nobody listens there any more."""
        await self._listening.aclose()


@asynccontextmanager
async def fake_coordinator() -> AsyncIterator[FakeCoordinator]:
    coordinator = FakeCoordinator()
    await coordinator.listen()
    try:
        yield coordinator
    finally:
        await coordinator.vanish()
