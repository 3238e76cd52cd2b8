"""Watches an installation from outside while a drill runs.

Logs are read when all is over; what leaves no log is looked at while it lasts: the NodeManagers' journals (guards come
and go), the Coordinators' present view, and the Controller's status record. The record serves the timeline and I6, which
judges it against the rest; no figure and no other check believes it. A peer that does not answer is looked at again
later: drills kill them on purpose.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import httpx
from pydantic import ValidationError

from domain.errors import Transient
from domain.messages.coordinator import INSTANCES_PATH, CoordinatorView
from domain.messages.node_manager import FT_PREFIX, GuardRecord, JournalReply
from domain.runtime import RuntimeRecord
from lab.drills.record.timeline import Timeline
from lab.oracle.observations import (
    AddressSeen,
    CommitSeen,
    Event,
    GenerationSeen,
    GuardGone,
    GuardSeen,
    PhaseSeen,
    SourceKind,
    SourceRead,
    VerdictSeen,
)

_LOOK_EVERY_SEC: Final = 0.2
_STATUS_EVERY_SEC: Final = 0.4
_TIMEOUT_SEC: Final = 2.0
_RENEWED_SEC: Final = 1.0
"""A guard whose expiry moved by more than this was renewed, or lives on past its lease."""

T = TypeVar("T")


class NotSeen(Transient):
    """What a drill waited for did not happen in time; the message says what was seen instead."""

    default_reason = "NOT_SEEN"


class Observer:
    """Polls peers into observations and a timeline.

    Args:
        instance_id: whose views and record are looked at.
        controller_url: of the Controller API.
        coordinators: name → management address.
        node_managers: name → address.
        timeline: where changes are put.

    `on_phase`, `on_strategy` and `on_view`, where set, are told of each new phase, of each strategy's workflow id, and of
    each new published set.
    """

    def __init__(
        self,
        instance_id: int,
        controller_url: str,
        coordinators: Mapping[str, str],
        node_managers: Mapping[str, str],
        timeline: Timeline,
    ) -> None:
        self.on_phase: Callable[[RuntimeRecord], None] | None = None
        self.on_strategy: Callable[[str], None] | None = None
        self.on_view: Callable[[tuple[int, ...]], None] | None = None
        self.events: list[Event] = []
        self.record: RuntimeRecord | None = None
        self.record_asked_at = 0.0
        self.journals: dict[str, JournalReply] = {}
        self.views: dict[str, CoordinatorView] = {}
        self.ft_refused: dict[str, int] = {}
        """Per NodeManager, how often it answered that it has no fault-tolerance routes."""

        self._instance_id = instance_id
        self._status_url = f"{controller_url}/controller/fault_tolerance/status"
        self._coordinators = coordinators
        self._node_managers = node_managers
        self._timeline = timeline
        self._receivers: dict[str, str] = {}
        self._guards: dict[str, GuardSeen] = {}
        self._accepted: set[tuple[str, str]] = set()
        self._verdicts: set[tuple[str, str]] = set()
        self._committed: set[str] = set()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at everything, over and over, while the context lasts; and once more at its end."""
        async with httpx.AsyncClient(timeout=_TIMEOUT_SEC, trust_env=False) as client:
            looks: list[Callable[[], Awaitable[None]]] = [
                *(lambda n=name, u=url: self._look_at_journal(client, n, u) for name, url in self._node_managers.items()),
                *(lambda n=name, u=url: self._look_at_view(client, n, u) for name, url in self._coordinators.items()),
            ]
            tasks = [asyncio.create_task(self._repeat(look, _LOOK_EVERY_SEC)) for look in looks]
            tasks.append(asyncio.create_task(self._repeat(lambda: self._look_at_status(client), _STATUS_EVERY_SEC)))
            try:
                yield
                await asyncio.gather(*(look() for look in looks), self._look_at_status(client))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, what: str, holds: Callable[["Observer"], bool], within_sec: float) -> None:
        """Wait for something to be seen. Raises NotSeen."""
        deadline = time.monotonic() + within_sec
        while not holds(self):
            self._changed.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotSeen(f"not seen within {within_sec:g} s: {what}; {self.describe()}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1.0)):  # wait_for would swallow a Ctrl-C that meets a change
                    await self._changed.wait()

    @property
    def published(self) -> dict[str, tuple[int, ...]]:
        """The ranks that each Coordinator routes to, as it last said."""
        return {name: served_ranks(view, self._instance_id) for name, view in self.views.items()}

    def publishes(self, ranks: Sequence[int]) -> bool:
        """Every Coordinator routes to exactly these ranks."""
        published = self.published
        return published.keys() == self._coordinators.keys() and set(published.values()) == {tuple(sorted(ranks))}

    def committed(self, ranks: Sequence[int]) -> bool:
        """Every NodeManager has exactly these ranks as removed for good."""
        journals = self.journals
        return journals.keys() == self._node_managers.keys() and all(
            sorted(journal.dead_committed) == sorted(ranks) for journal in journals.values()
        )

    def describe(self) -> str:
        """What was last seen, for a message."""
        phase = self.record.phase if self.record else "unknown"
        waiting = self.record.waiting.reason if self.record and self.record.waiting else ""
        error = f", last_error: {self.record.last_error}" if self.record and self.record.last_error else ""
        views = ", ".join(f"{name} serves {list(ranks)}" for name, ranks in self.published.items())
        return f"phase {phase}{f' (waits: {waiting})' if waiting else ''}{error}; {views or 'no Coordinator answered'}"

    def new_disk(self, name: str) -> None:
        """The Pod of this NodeManager comes back with an empty disk: to the invariants another receiver answers from now on.

        What the former one held ended with its disk.
        """
        who, at = self._receivers.get(name, name), time.monotonic()
        if (held := self._guards.pop(who, None)) is not None:
            self.events.append(held.model_copy(update={"at": at, "expires_at": at}))
        self._receivers[name] = f"{name} (new disk)"
        self.journals.pop(name, None)

    async def _repeat(self, look: Callable[[], Awaitable[None]], every_sec: float) -> None:
        while True:
            await look()
            await asyncio.sleep(every_sec)

    async def _look_at_status(self, client: httpx.AsyncClient) -> None:
        asked_at = time.monotonic()
        record = await _get(client, self._status_url, _record, {"instance_id": self._instance_id})
        if record is None:
            return
        at = time.monotonic()
        before, self.record, self.record_asked_at = self.record, record, asked_at
        self.events.append(
            PhaseSeen(
                at=at,
                asked_at=asked_at,
                phase=record.phase,
                can_serve=record.can_serve,
                serving_published=record.serving_published,
                dead_committed=frozenset(record.dead_committed),
            )
        )
        self._changed.set()
        strategy = record.strategy_workflow_id
        if strategy and (before is None or before.strategy_workflow_id != strategy):
            self._timeline.add(at, "controller", "strategy", strategy)
            if self.on_strategy:
                self.on_strategy(strategy)
        if before is None or before.phase is not record.phase:
            self._timeline.add(at, "controller", "phase", record.phase)
            if self.on_phase:
                self.on_phase(record)

    async def _look_at_view(self, client: httpx.AsyncClient, name: str, url: str) -> None:
        view = await _get(client, url + INSTANCES_PATH, _view)
        if view is None:
            return
        before = self.views.get(name)
        self.views[name] = view
        if before is not None and before == view:
            return
        published = view.instance(self._instance_id)
        if published is not None and view.has_view:
            at = time.monotonic()
            self.events += [
                AddressSeen(at=at, rank=endpoint.id, address=f"{endpoint.ip}:{endpoint.business_port}")
                for in_pod in published.endpoints.values()
                for endpoint in in_pod.values()
            ]
        self._changed.set()
        if self.on_view:
            self.on_view(served_ranks(view, self._instance_id))

    async def _look_at_journal(self, client: httpx.AsyncClient, name: str, url: str) -> None:
        asked_at = time.monotonic()
        who = self._receivers.get(name, name)
        journal = await _get(client, f"{url}{FT_PREFIX}/journal", _journal, on_missing=lambda: self._count_refusal(name))
        if journal is None or who != self._receivers.get(name, name):  # the answer of a disk that is gone
            return
        at, before = time.monotonic(), self.journals.get(name)
        self.journals[name] = journal
        self._see_accepted(who, at, journal)
        if before is None or before.highest_generation != journal.highest_generation:
            self.events.append(GenerationSeen(at=at, receiver=who, generation=journal.highest_generation))
            self._timeline.add(at, name, "generation", journal.highest_generation)
        self._see_verdicts(who, at, journal)
        self._see_guard(who, asked_at, at, journal)
        self._changed.set()

    def _count_refusal(self, name: str) -> None:
        self.ft_refused[name] = self.ft_refused.get(name, 0) + 1

    def _see_accepted(self, name: str, at: float, journal: JournalReply) -> None:
        """The generation of each new transaction that took the Pod, oldest first: `highest_generation` cannot go back.

        The tombstone of one that never had the Pod says nothing of this receiver.
        """
        for transaction in journal.transactions:
            known = (name, transaction.request_id) in self._accepted
            if not known and transaction.guarded and transaction.generation is not None:
                self._accepted.add((name, transaction.request_id))
                self.events.append(GenerationSeen(at=at, receiver=name, generation=transaction.generation))

    def _see_verdicts(self, name: str, at: float, journal: JournalReply) -> None:
        for transaction in journal.transactions:
            if transaction.verdict is None or (name, transaction.request_id) in self._verdicts:
                continue
            self._verdicts.add((name, transaction.request_id))
            committed = transaction.verdict == "committed"
            self.events.append(VerdictSeen(at=at, manager=name, request_id=transaction.request_id, committed=committed))
            self._timeline.add(at, name, "verdict", f"{transaction.verdict} {transaction.request_id}")
            if committed and transaction.request_id not in self._committed:
                self._committed.add(transaction.request_id)
                ranks = frozenset(journal.dead_committed)
                self.events.append(CommitSeen(at=at, request_id=transaction.request_id, ranks=ranks))

    def _see_guard(self, name: str, asked_at: float, at: float, journal: JournalReply) -> None:
        """What it says of a lease's rest was true between question and answer: the lease ends no earlier than that.

        A guard that lives on past its lease, after an apply, ends with its verdict, or when the journal says so.
        """
        held, known = journal.guard, self._guards.get(name)
        if known is not None and (held is None or held.request_id != known.request_id):
            self.events.append(GuardGone(at=at, manager=name, request_id=known.request_id))
            self._timeline.add(at, name, "guard gone", known.request_id)
            del self._guards[name]
            known = None
        if held is None:
            return
        expires_at = _ends_at(held, asked_at)
        if held.live if known is None else _moved(known.expires_at, expires_at, live=held.live):
            seen = GuardSeen(at=at, manager=name, request_id=held.request_id, expires_at=expires_at)
            self._guards[name] = seen
            self.events.append(seen)
            self._timeline.add(at, name, "guarded" if known is None else "renewed", held.request_id)

    def sources(self) -> list[Event]:
        """The journals that were read, for the invariants."""
        at = time.monotonic()
        return [SourceRead(at=at, kind=SourceKind.JOURNAL, who=name) for name in self.journals]


def _ends_at(held: GuardRecord, asked_at: float) -> float:
    """When a guard ends by itself: with its lease; nobody knows of one that is live past it."""
    return math.inf if held.live and not held.expires_in_sec else asked_at + held.expires_in_sec


def _moved(known: float, expires_at: float, *, live: bool) -> bool:
    """Whether a guard will end at another time than was known, small differences aside."""
    return (live and expires_at > known + _RENEWED_SEC) or expires_at < known == math.inf


async def _get(
    client: httpx.AsyncClient,
    url: str,
    parse: Callable[[object], T],
    params: Mapping[str, int] | None = None,
    on_missing: Callable[[], None] = lambda: None,
) -> T | None:
    """The parsed answer; None where there is none now, or one that cannot be read. `on_missing` hears of a 404."""
    try:
        response = await client.get(url, params=dict(params or {}))
        if response.status_code == httpx.codes.NOT_FOUND:
            on_missing()
        return parse(response.json()) if response.status_code == 200 else None
    except (httpx.HTTPError, json.JSONDecodeError, ValidationError):
        return None


def _data(body: object) -> object:
    """What the Controller's envelope holds."""
    return body.get("data") if isinstance(body, dict) else None


def _record(body: object) -> RuntimeRecord:
    return RuntimeRecord.model_validate_json(json.dumps(_data(body)))


def _view(body: object) -> CoordinatorView:
    return CoordinatorView.model_validate_json(json.dumps(body))


def _journal(body: object) -> JournalReply:
    return JournalReply.model_validate_json(json.dumps(body))


def served_ranks(view: CoordinatorView, instance_id: int) -> tuple[int, ...]:
    """The ranks of one instance that a Coordinator routes to."""
    published = view.instance(instance_id)
    return published.ranks if published is not None and view.has_view else ()
