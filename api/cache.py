"""What the API remembers for a moment, so that reports and heartbeats do not ask a workflow each.

Declarations never change while an instance lives, so they may be old; an id that is not there is asked for again at once.
Records are kept for about one heartbeat interval. When nobody answers at once, an old record is better than none, for a
while: a heartbeat's reply only ever adds committed ranks; and a report reaches its FaultManager's history also while no worker
lives. Whoever waits for what is known already waits a moment only: the call that follows needs the rest of the two seconds.
Concurrent requests share one question.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from api.errors import ApiReason
from api.gateway import Gateway, WorkflowUnknown
from domain.messages.fault_manager import STATUS_QUERY, fault_manager_id
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCES_QUERY, RegisteredInstance, RegistryView
from domain.registration import Assembly, instances_by_node
from domain.runtime import RuntimeRecord
from domain.topology import Topology
from service.http import HttpError

T = TypeVar("T")

DECLARATIONS_FRESH_SEC: Final = 5.0
RECORD_FRESH_SEC: Final = 1.0
RECORD_USABLE_SEC: Final = 60.0
_MISS_PAUSE_SEC: Final = 0.2
"""Unknown ids are asked for at most so often; whoever asks meanwhile waits for it."""

_RENEWAL_PATIENCE_SEC: Final = 0.2
"""How long something newer is waited for where something older will do."""


class _Kept(Generic[T]):
    """One value with its age, and the question that is under way."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self.value: T | None = None
        self.at = float("-inf")
        self.asked_at = float("-inf")
        """When the question was put that the value answers: what happened later it may not know."""
        self._changed_at = float("-inf")

    @property
    def age_sec(self) -> float:
        return time.monotonic() - self.at

    @property
    def outdated(self) -> bool:
        """Whether it was changed by this process after the question that the value answers was put."""
        return self.asked_at < self._changed_at

    def changed(self) -> None:
        """This process has just changed what the value tells."""
        self._changed_at = time.monotonic()

    async def renewed(self) -> T:
        """The newest value; whoever else asks meanwhile gets the same answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
            self._asking.add_done_callback(_seen)
        return await asyncio.shield(self._asking)

    async def renewed_in_a_moment(self) -> None:
        """Renews the value, if that is a matter of a moment; otherwise the question goes on and the value stays."""
        try:
            async with asyncio.timeout(_RENEWAL_PATIENCE_SEC):
                await self.renewed()
        except (HttpError, TimeoutError):
            pass

    async def _renew(self) -> T:
        asked_at = time.monotonic()
        self.value = await self._ask()
        self.at, self.asked_at = time.monotonic(), asked_at
        return self.value


def _seen(asked: asyncio.Task[T]) -> None:
    """Whoever waited may be gone: an error that nobody fetches is no news."""
    if not asked.cancelled():
        asked.exception()


@dataclass(frozen=True)
class Remembered:
    """What is known of a declared instance without asking anybody. `age_sec`: of its record, inf where there is none."""

    instance_id: int
    record: RuntimeRecord | None
    age_sec: float


class Instances:
    """The declared instances, and each one's newest record."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._view = _Kept(self._ask_view)
        self._records: dict[int, _Kept[RuntimeRecord]] = {}

    async def find(self, instance_id: int) -> Topology | None:
        """The declared topology, or None for an unknown instance. Raises HttpError 503 when nobody can be asked."""
        if self._known(instance_id) is None:
            return await self._missed(instance_id)
        while self._view.outdated:
            await self._view.renewed()
        if self._view.age_sec > DECLARATIONS_FRESH_SEC:
            await self._view.renewed_in_a_moment()
        return self._known(instance_id)

    async def _missed(self, instance_id: int) -> Topology | None:
        """An instance that is not there is unknown only by an answer to a question that was put after it was asked for: its
        Pods may report the moment it was assembled, and take an "unknown" for the last word."""
        missed_at = time.monotonic()
        while self._known(instance_id) is None and self._view.asked_at < missed_at:
            await asyncio.sleep(max(0.0, self._view.at + _MISS_PAUSE_SEC - time.monotonic()))
            if self._view.asked_at < missed_at:
                await self._view.renewed()
        return self._known(instance_id)

    async def all(self) -> tuple[RegisteredInstance, ...]:
        """Every instance, asked now."""
        return (await self._view.renewed()).instances

    async def view(self, *, fresh: bool = False, version: int = 0) -> RegistryView:
        """What the registry knows: up to DECLARATIONS_FRESH_SEC old unless `fresh`, and never older than `version`.

        Raises HttpError 503 when nobody can be asked.
        """
        known = self._view.value
        if fresh or known is None or known.version < version or self._view.age_sec > DECLARATIONS_FRESH_SEC:
            known = await self._view.renewed()
        if known.version < version or self._view.outdated:  # a question that was under way already
            known = await self._view.renewed()
        return known

    async def assembly(self, instance_id: int) -> Assembly | None:
        """An instance whose Pods are still coming, asked now; None: it is not one of those."""
        assemblies = (await self.view(fresh=True)).assemblies
        return next((one for one in assemblies if one.instance_id == instance_id), None)

    async def on_node(self, node_name: str) -> tuple[int, ...]:
        """The instances that have a Pod on a node."""
        view = await self.view()
        return instances_by_node(one.topology for one in view.instances).get(node_name, ())

    def forget(self) -> None:
        """A declaration was made or removed here: what is known is old."""
        self._view.changed()

    async def record(self, instance_id: int, *, fresh: bool) -> RuntimeRecord:
        """An instance's record. Raises WorkflowUnknown (declared, but its FaultManager does not run), HttpError 503.

        `fresh`: asked now. Otherwise up to RECORD_FRESH_SEC old, and when nobody answers up to RECORD_USABLE_SEC.
        """
        kept = self._records.setdefault(instance_id, _Kept(lambda: self._ask_record(instance_id)))
        if fresh or kept.value is None or kept.age_sec > RECORD_USABLE_SEC:
            return await kept.renewed()
        if kept.age_sec >= RECORD_FRESH_SEC:
            await kept.renewed_in_a_moment()
        return kept.value

    def forget_record(self, instance_id: int) -> None:
        """It was just told something: its record is old."""
        if (kept := self._records.get(instance_id)) is not None:
            kept.at = min(kept.at, time.monotonic() - RECORD_FRESH_SEC)

    def remembered(self) -> Iterator[Remembered]:
        """Every instance as it was last heard of; asks nobody."""
        for one in (self._view.value or RegistryView()).instances:
            instance_id = one.topology.instance_id
            kept = self._records.get(instance_id)
            if kept is None:
                yield Remembered(instance_id, None, float("inf"))
            else:
                yield Remembered(instance_id, kept.value, kept.age_sec)

    def _known(self, instance_id: int) -> Topology | None:
        view = self._view.value or RegistryView()
        found = (one.topology for one in view.instances if one.topology.instance_id == instance_id)
        return next(found, None)

    async def _ask_view(self) -> RegistryView:
        """Without a registry nobody can say that an instance is unknown: a report must not be refused for that."""
        try:
            return await self._gateway.query(INSTANCE_REGISTRY_ID, INSTANCES_QUERY, RegistryView)
        except WorkflowUnknown:
            message = f"workflow {INSTANCE_REGISTRY_ID} does not run yet; try again in a moment"
            raise HttpError(503, ApiReason.NO_WORKER, message) from None

    async def _ask_record(self, instance_id: int) -> RuntimeRecord:
        return await self._gateway.query(fault_manager_id(instance_id), STATUS_QUERY, RuntimeRecord, open_only=True)
