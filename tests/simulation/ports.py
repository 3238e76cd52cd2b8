"""`RoundPorts` over the fake network: what the activities must do, and nothing more.

Each port runs as an activity: when the worker dies, the attempt is gone and another one begins with the same call, a look
from what it heartbeated last. Requests are repeated on transport errors until the deadline, at least once; a refusal ends
the peer's part at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from domain.engine import EngineStatus, EntrySource
from domain.errors import AutotomyError, OutcomeUnknown, Refused, Transient
from domain.messages.node_manager import NodeManagerReason
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    CommitRecord,
    FinalizeCall,
    FinalizeResult,
    GuardCall,
    GuardResult,
    PeerRefusal,
    StopPodsCall,
    VerifyCall,
    VerifyResult,
    ViewCall,
    ViewResult,
    WatchCall,
    WatchResult,
)
from domain.messages.strategy import StepReport
from domain.topology import NodeManagerAddress
from domain.watch import Answer, Question, WatchState
from lab.oracle.observations import CommitSeen, PhaseSeen, StatusSeen
from tests.simulation.clock import now
from tests.simulation.coordinators import Pusher
from tests.simulation.network import Wire, until
from tests.simulation.node_managers import FakeNodeManager
from tests.simulation.record import Record

T = TypeVar("T")

RETRY_SEC = 0.2
NEEDS_RENEWAL = (NodeManagerReason.LEASE_TOO_SHORT, NodeManagerReason.NOT_GUARDED)
"""Refusals of apply that say that nothing was done: the guard is renewed once, then it is sent again."""


_given_up: ContextVar[asyncio.Event] = ContextVar("given up")
"""Set when nobody hears the attempt any more in which this runs: what it sees is not told to the round."""


class Heartbeat:
    """What an activity told last: the next attempt starts there. Attempts that were given up are not heard any more."""

    def __init__(self, first: WatchCall) -> None:
        self.last = first
        self._attempt = 0

    def begin(self) -> int:
        self._attempt += 1
        return self._attempt

    def tell(self, attempt: int, call: WatchCall) -> None:
        if attempt == self._attempt:
            self.last = call


class SimulatedPorts:
    """The world as a round sees it, and the worker that its activities run on."""

    def __init__(self, managers: dict[NodeManagerAddress, FakeNodeManager], pusher: Pusher, wire: Wire, record: Record) -> None:
        self.managers, self.pusher, self.wire, self.record = managers, pusher, wire, record
        self.stopping = False
        self.fails_next = False
        self.before_push: Callable[[], None] | None = None
        self.steps: list[StepReport] = []
        self.stopped_pods: list[NodeManagerAddress] = []
        self.outages_sec = 0.0
        self.worker_deaths = 0
        self.dead_committed: tuple[int, ...] = ()
        self._worker_back_at = 0.0
        self._statuses: dict[int, EngineStatus] = {}
        self._running: dict[asyncio.Future[Any], asyncio.Event] = {}

    def kill_worker(self, for_sec: float) -> None:
        """Every activity attempt is gone; others begin when a worker is back."""
        self.record.told(f"the worker dies for {for_sec:.2f} s")
        self._lose_worker(for_sec)
        for task in tuple(self._running):
            task.cancel()

    def stall_worker(self, for_sec: float) -> None:
        """Every attempt is given up, and goes on all the same beside the one that replaces it."""
        self.record.told(f"the worker is given up; another starts after {for_sec:.2f} s")
        self._lose_worker(for_sec)
        for given_up in self._running.values():
            given_up.set()

    def _lose_worker(self, for_sec: float) -> None:
        self._worker_back_at = now() + for_sec
        self.outages_sec += for_sec
        self.worker_deaths += 1

    def saw_status(self, rank: int, status: EngineStatus, *, final: bool) -> None:
        """A report, or a look, said something new of a rank."""
        self._statuses[rank] = status
        self.record.saw(StatusSeen(at=now(), rank=rank, status=status, final=final))

    def now(self) -> float:
        return now()

    def stop_requested(self) -> str | None:
        return "somebody asks for it" if self.stopping else None

    def progress(self, report: StepReport) -> None:
        self.record.told(f"{report.phase}: {report.detail}")
        self.steps.append(report)
        self.record.saw(
            PhaseSeen(
                at=now(),
                asked_at=now(),
                phase=report.phase,
                can_serve=False,
                serving_published=False,
                dead_committed=frozenset(self.dead_committed),
            )
        )

    def stop_pods(self, call: StopPodsCall) -> None:
        for manager in call.managers:
            self.stopped_pods.append(manager)
            self.record.told(f"Pod {manager} is stopped")
            self.managers[manager].stop()

    async def guard(self, call: GuardCall) -> GuardResult:
        return await self._activity("guard", lambda: self._guard(call))

    async def look(self, call: WatchCall) -> WatchResult:
        heartbeat = Heartbeat(call)
        return await self._activity("look", lambda: self._look(heartbeat))

    async def pause(self, seconds: float, why: str) -> None:
        await asyncio.sleep(seconds)

    async def push_view(self, call: ViewCall) -> ViewResult:
        return await (self.publish(call) if call.ranks else self.withdraw(call))

    async def withdraw(self, call: ViewCall) -> ViewResult:
        await self._strike_before_push()
        return await self._activity("withdraw", lambda: self._push(call))

    async def apply(self, call: ApplyCall) -> ApplyResult:
        return await self._activity("apply", lambda: self._apply(call))

    async def verify(self, call: VerifyCall) -> VerifyResult:
        return await self._activity("verify", lambda: self._verify(call))

    async def record_commit(self, record: CommitRecord) -> bool:
        self.record.saw(CommitSeen(at=now(), request_id=record.request_id, ranks=frozenset(record.dead_committed)))
        self.dead_committed = record.dead_committed
        return await self._activity("record_commit", _acknowledged)

    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        return await self._activity("finalize", lambda: self._finalize(call))

    async def publish(self, call: ViewCall) -> ViewResult:
        await self._strike_before_push()
        return await self._activity("publish", lambda: self._push(call))

    async def _strike_before_push(self) -> None:
        """A blow that waits for the moment before a view is pushed."""
        if self.before_push is not None:
            strike, self.before_push = self.before_push, None
            strike()
            await asyncio.sleep(0.06)

    async def _activity(self, name: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempts until one ends that was neither killed nor given up. An activity that fails may have had its effect."""
        while True:
            await asyncio.sleep(max(0.0, self._worker_back_at - now()))
            given_up = asyncio.Event()
            _given_up.set(given_up)
            task = asyncio.ensure_future(attempt())
            self._running[task] = given_up
            task.add_done_callback(self._ended)
            if self.fails_next:
                self.fails_next = False
                raise Transient(f"activity {name} ended without an answer")
            gone = asyncio.ensure_future(given_up.wait())
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if task.done() and not task.cancelled():
                return task.result()

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running.pop(task, None)

    async def _guard(self, call: GuardCall) -> GuardResult:
        managers = (*call.must, *call.may_be_absent)
        told = await asyncio.gather(*(self._guard_one(call, manager) for manager in managers))
        errors = {manager: error for manager, error in zip(managers, told, strict=True) if error is not None}
        silent = {manager: error for manager, error in errors.items() if isinstance(error, Transient)}
        return GuardResult(
            guarded=tuple(manager for manager in managers if manager not in errors),
            absent=tuple(manager for manager in call.may_be_absent if manager in silent),
            refusals=_refusals({manager: error for manager, error in errors.items() if manager not in silent}),
            unreachable=_refusals({manager: silent[manager] for manager in call.must if manager in silent}),
        )

    async def _guard_one(self, call: GuardCall, manager: NodeManagerAddress) -> AutotomyError | None:
        while True:
            error = await self._guarded(manager, call.request_id, call.lease_sec, call.generation, call.request_timeout_sec)
            if not isinstance(error, Transient) or manager in call.may_be_absent:
                return error
            if not await until(call.deadline_at, RETRY_SEC):
                return error

    async def _guarded(
        self, manager: NodeManagerAddress, request_id: str, lease_sec: float, generation: int, timeout_sec: float
    ) -> AutotomyError | None:
        receiver = self.managers[manager]
        try:
            await self.wire.call(receiver, lambda: receiver.guard(request_id, lease_sec, generation), timeout_sec)
        except AutotomyError as error:
            return error
        return None

    async def _look(self, heartbeat: "Heartbeat") -> WatchResult:
        attempt, call, sweeps = heartbeat.begin(), heartbeat.last, 0
        renew_at = now() + call.lease.renew_every_sec
        while True:
            lost = None
            if now() >= renew_at:
                lost = await self._renew(call)
                renew_at = now() + call.lease.renew_every_sec
            last_look = now() >= call.deadline_at
            answers = await asyncio.gather(*(self._see(question, call) for question in call.watch.questions()))
            watch, observation = call.watch.fold(tuple(answers), now())
            sweeps += 1
            call = call.model_copy(update={"watch": watch})
            heartbeat.tell(attempt, call)
            over = call.once or last_look or self.stopping or lost is not None
            if over or observation.verdict is not WatchState.WAIT:
                return WatchResult(watch=watch, observation=observation, sweeps=sweeps, lost_guard=lost)
            await asyncio.sleep(min(call.poll_interval_sec, max(0.0, call.deadline_at - now())))

    async def _renew(self, call: WatchCall) -> PeerRefusal | None:
        lease = call.lease
        told = await asyncio.gather(
            *(
                self._guarded(manager, call.request_id, lease.lease_sec, call.generation, call.request_timeout_sec)
                for manager in lease.managers
            )
        )
        refused = {m: e for m, e in zip(lease.managers, told, strict=True) if e is not None and not isinstance(e, Transient)}
        return next(iter(_refusals(refused)), None)

    async def _see(self, question: Question, call: WatchCall) -> Answer:
        receiver = self.managers[question.manager]
        try:
            entries = await self.wire.call(receiver, lambda: receiver.status(question.ranks), call.request_timeout_sec)
        except Transient as error:
            return Answer(question=question, fault="unreachable", detail=error.message)
        except Refused as error:
            return Answer(question=question, fault="protocol", detail=error.message)
        for entry in entries:
            status = EngineStatus(entry.status)
            if self._statuses.get(entry.id) is not status and not _given_up.get().is_set():
                self.saw_status(entry.id, status, final=entry.source is EntrySource.PROCESS_EXIT)
        return Answer(question=question, entries=entries)

    async def _push(self, call: ViewCall) -> ViewResult:
        return await self.pusher.push(call.revision, call.ranks, call.request_timeout_sec, call.deadline_at)

    async def _apply(self, call: ApplyCall) -> ApplyResult:
        told = await asyncio.gather(*(self._apply_one(call, group) for group in call.groups))
        engines: dict[int, int | None] = {}
        refused: dict[NodeManagerAddress, AutotomyError] = {}
        unknown: dict[NodeManagerAddress, AutotomyError] = {}
        for group, answer in zip(call.groups, told, strict=True):
            if isinstance(answer, dict):
                engines |= answer
            else:
                (refused if isinstance(answer, Refused) else unknown)[group.manager] = answer
        return ApplyResult(
            accepted=not refused and not unknown,
            engines=engines,
            refusals=_refusals(refused),
            unknown=_refusals(unknown),
        )

    async def _apply_one(self, call: ApplyCall, group: Question) -> dict[int, int | None] | AutotomyError:
        receiver, renewed = self.managers[group.manager], False
        while True:
            try:
                return await self.wire.call(
                    receiver,
                    lambda: receiver.apply(
                        call.request_id, group.ranks, call.removed_dp_ranks, call.generation, call.apply_margin_sec
                    ),
                    call.request_timeout_sec,
                )
            except Refused as error:
                if renewed or error.reason not in NEEDS_RENEWAL:
                    return error
                renewed = True
                await self._guarded(group.manager, call.request_id, call.lease_sec, call.generation, call.request_timeout_sec)
            except OutcomeUnknown as error:
                return error
            except Transient as error:
                if not await until(call.deadline_at, RETRY_SEC):
                    return error

    async def _verify(self, call: VerifyCall) -> VerifyResult:
        failed: dict[int, str] = {}
        for told in await asyncio.gather(*(self._verify_one(call, group) for group in call.groups)):
            failed |= told
        ranks = [rank for group in call.groups for rank in group.ranks]
        return VerifyResult(ok=tuple(rank for rank in ranks if rank not in failed), failed=failed)

    async def _verify_one(self, call: VerifyCall, group: Question) -> dict[int, str]:
        receiver = self.managers[group.manager]
        left = dict.fromkeys(group.ranks, "not asked")
        while True:
            ranks = tuple(left)
            try:
                told = await self.wire.call(
                    receiver, partial(receiver.probe, ranks, call.request_timeout_sec), call.request_timeout_sec
                )
                left = {rank: why for rank, why in told.items() if why is not None}
            except AutotomyError as error:
                left = dict.fromkeys(ranks, error.message)
            if not left or not await until(call.deadline_at, RETRY_SEC):
                return left

    async def _finalize(self, call: FinalizeCall) -> FinalizeResult:
        told = await asyncio.gather(*(self._finalize_one(call, manager) for manager in call.managers))
        errors = {manager: error for manager, error in zip(call.managers, told, strict=True) if error is not None}
        return FinalizeResult(
            done=tuple(manager for manager in call.managers if manager not in errors),
            pending=tuple(manager for manager, error in errors.items() if isinstance(error, Transient)),
            refusals=_refusals({m: error for m, error in errors.items() if not isinstance(error, Transient)}),
        )

    async def _finalize_one(self, call: FinalizeCall, manager: NodeManagerAddress) -> AutotomyError | None:
        receiver = self.managers[manager]
        retired = next((group.ranks for group in call.retired if group.manager == manager), ())
        while True:
            try:
                await self.wire.call(
                    receiver,
                    lambda: receiver.finalize(call.request_id, call.commit, retired, call.dead_committed, call.generation),
                    call.request_timeout_sec,
                )
                return None
            except Transient as error:
                if manager in call.once or not await until(call.deadline_at, RETRY_SEC):
                    return error
            except AutotomyError as error:
                return error


async def _acknowledged() -> bool:
    await asyncio.sleep(0.005)
    return True


def _refusals(errors: dict[NodeManagerAddress, AutotomyError]) -> tuple[PeerRefusal, ...]:
    return tuple(PeerRefusal(peer=str(manager), reason=error.reason, message=error.message) for manager, error in errors.items())
