"""What the API remembers for a moment, so that reports and heartbeats do not ask a workflow each.

Which instances there are, with their seats, InstanceRegistry says. That never changes while an instance lives, so it may be old;
an id that is not there is asked for again at once. An instance's topology is what its FaultManager was started with; it is
read once, and holds for as long as the registry names that instance with this topology's digest.

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
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCES_QUERY
from domain.registration import Assembly, RegisteredInstance, RegistryState, instances_by_node
from domain.runtime import RuntimeRecord
from domain.topology import Topology
from service.fault_manager_input import fault_manager_input
from service.http import HttpError

T = TypeVar("T")

DECLARATIONS_FRESH_SEC: Final = 5.0
RECORD_FRESH_SEC: Final = 1.0
RECORD_USABLE_SEC: Final = 60.0
_MISS_PAUSE_SEC: Final = 0.2
"""Unknown ids are asked for at most so often; whoever asks meanwhile waits for it."""

_TOPOLOGIES_AT_ONCE: Final = 16

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
        self._topologies: dict[tuple[int, str], _Kept[Topology]] = {}
        self._reading = asyncio.Semaphore(_TOPOLOGIES_AT_ONCE)

    async def find(self, instance_id: int) -> Topology | None:
        """An instance's topology, or None for an unknown one. Raises HttpError 503 when nobody can be asked."""
        one = await self.registered(instance_id)
        return None if one is None else await self.topology(one)

    async def topology(self, one: RegisteredInstance) -> Topology:
        """The topology of an instance that the registry knows. Raises HttpError 503 where nobody can say."""
        kept = self._topologies.setdefault((one.instance_id, one.digest), _Kept(lambda: self._ask_topology(one)))
        return kept.value if kept.value is not None else await kept.renewed()

    async def registered(self, instance_id: int) -> RegisteredInstance | None:
        """What the registry knows of an instance, or None for an unknown one. Raises HttpError 503 when nobody can be asked."""
        if self._known(instance_id) is None:
            return await self._missed(instance_id)
        while self._view.outdated:
            await self._view.renewed()
        if self._view.age_sec > DECLARATIONS_FRESH_SEC:
            await self._view.renewed_in_a_moment()
        return self._known(instance_id)

    async def _missed(self, instance_id: int) -> RegisteredInstance | None:
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

    async def view(self, *, fresh: bool = False, version: int = 0) -> RegistryState:
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
        return (await self.view(fresh=True)).assembly(instance_id)

    async def on_node(self, node_name: str) -> tuple[int, ...]:
        """The instances that have a Pod on a node."""
        return instances_by_node((await self.view()).instances).get(node_name, ())

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
        for one in (self._view.value or RegistryState()).instances:
            instance_id = one.instance_id
            kept = self._records.get(instance_id)
            if kept is None:
                yield Remembered(instance_id, None, float("inf"))
            else:
                yield Remembered(instance_id, kept.value, kept.age_sec)

    def _known(self, instance_id: int) -> RegisteredInstance | None:
        return (self._view.value or RegistryState()).instance(instance_id)

    async def _ask_view(self) -> RegistryState:
        """Without a registry nobody can say that an instance is unknown: a report must not be refused for that."""
        try:
            view = await self._gateway.query(INSTANCE_REGISTRY_ID, INSTANCES_QUERY, RegistryState)
        except WorkflowUnknown:
            message = f"workflow {INSTANCE_REGISTRY_ID} does not run yet; try again in a moment"
            raise HttpError(503, ApiReason.NO_WORKER, message) from None
        named = {(one.instance_id, one.digest) for one in view.instances}
        self._topologies = {key: kept for key, kept in self._topologies.items() if key in named}
        return view

    async def _ask_topology(self, one: RegisteredInstance) -> Topology:
        """Its FaultManager's, or, where that does not run yet, what it is going to be started with.

        Under its id there may still be the FaultManager of an instance before this one: the digest tells.
        """
        instance_id = one.instance_id
        pending = (self._view.value or RegistryState()).starts.get(instance_id)
        start = pending.start if pending is not None else None
        if start is None or start.topology.digest != one.digest:
            async with self._reading:
                start = await self._gateway.ask(lambda client: fault_manager_input(client, fault_manager_id(instance_id)))
        if start is None or start.topology.digest != one.digest:
            message = (
                f"instance {instance_id} has no FaultManager yet; if that stays so, nobody remembers its topology any more: "
                "declare it again, or end it (POST /controller/terminate_instance) and let its Pods register anew"
            )
            raise HttpError(503, ApiReason.NO_WORKER, message)
        return start.topology

    async def _ask_record(self, instance_id: int) -> RuntimeRecord:
        return await self._gateway.query(fault_manager_id(instance_id), STATUS_QUERY, RuntimeRecord, open_only=True)
