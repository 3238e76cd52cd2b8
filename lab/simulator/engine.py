"""What the API server knows of its engine, and what it asks of it.

Three things meet here:

* the **status cache**: it starts `healthy` and changes only when the engine pushes a fault, dies, or recovers; entries
  are replaced whole, so a success shows neither request id nor error;
* **FT commands**: queued by apply, executed one after the other; refused or failed ones leave `ft_error`;
* **requests**: token bursts from the worker, ended by `Aborted` when a fault takes the group away.

An engine that is not recovered `engine_recovery_timeout_sec` after its own fault exits; no command extends that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Any

from lab.simulator import pipe
from lab.simulator.event_log import EventLog
from lab.simulator.ft_rules import Facts, FtState, ScaleDown, Status, read_scale_down, refuse_by_state
from lab.simulator.misbehaviour import Misbehaviour
from lab.simulator.options import Options
from lab.simulator.worker_process import WorkerProcess


@dataclass(frozen=True)
class Entry:
    """The status cache's one entry."""

    status: Status = Status.HEALTHY
    fault_info: str | None = None
    mask: tuple[int, ...] | None = None
    ft_state: FtState | None = None
    last_ft_request_id: str | None = None
    ft_error: str | None = None


@dataclass(frozen=True)
class Command:
    """An accepted apply."""

    instruction: str
    params: dict[str, Any]
    request_id: str


@dataclass(frozen=True)
class Exit:
    """Why and how the API server ends."""

    reason: str
    code: int


@dataclass(frozen=True)
class _Recovery:
    """A command that is being executed; `order` is None for a retry."""

    command: Command
    order: ScaleDown | None
    ended: asyncio.Event

    @property
    def removed(self) -> list[int]:
        return sorted(self.order.removed) if self.order is not None else []


class Aborted(Exception):
    """The group is gone under a running request."""


class NotServing(Exception):
    """A new request while the rank is not healthy, or while it ends."""


class Engine:
    """One rank, seen from its API server; see the module.

    Args:
        leave: called when the process has to end.
    """

    def __init__(self, options: Options, log: EventLog, leave: Callable[[Exit], None]) -> None:
        self.options = options
        self.misbehaviour: Misbehaviour = options.misbehaviour
        self.log = log
        self.epoch = 0
        self.ready = asyncio.Event()
        self.entry = Entry()
        self._leave = leave
        self.dead: frozenset[int] = frozenset()
        self.store_rank = 0
        self._store = (options.store_host, options.store_port)
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._requests: dict[int, asyncio.Queue[pipe.Tokens | None]] = {}
        self._last_request = 0
        self._serving = asyncio.Event()
        self._closing = False
        self._recovery: _Recovery | None = None
        self._looks: list[asyncio.Future[pipe.State]] = []
        self._identified: list[int | None] | None = None
        self._give_up: asyncio.TimerHandle | None = None
        self.worker = WorkerProcess(_settings(options), self._hear, self._worker_gone)

    async def run(self) -> None:
        """Attach the worker and execute commands until cancelled."""
        await self.worker.attach()
        while True:
            await self._execute(await self._commands.get())

    def close(self) -> None:
        """End requests, those that wait included, and the worker."""
        self._closing = True
        self._serving.set()
        self._abort_requests()
        self.worker.end()

    def identify(self, ids: list[int | None]) -> None:
        """The status path answers with entries of these ids."""
        if ids != self._identified:
            self._identified = ids
            self.log.write("identity", ids=ids)

    # requests

    async def generate(self, tokens: int) -> AsyncGenerator[pipe.Tokens, None]:
        """Have `tokens` tokens made by the group.

        Raises:
            NotServing: v1, and the rank is not healthy. (legacy waits, as long as it takes.)
            Aborted: a fault took the group away in the middle.
        """
        await self._until_serving()
        self._last_request += 1
        request = self._last_request
        bursts: asyncio.Queue[pipe.Tokens | None] = asyncio.Queue()
        self._requests[request] = bursts
        self.worker.say(pipe.Generate(request, tokens))
        try:
            while True:
                burst = await bursts.get()
                if burst is None:
                    raise Aborted
                yield burst
                if burst.done:
                    return
        finally:
            if self._requests.pop(request, None) is not None:
                self.worker.say(pipe.Cancel(request))

    @property
    def running(self) -> int:
        """Requests in progress."""
        return len(self._requests)

    async def _until_serving(self) -> None:
        if not self._serving.is_set() and self.options.dialect == "v1":
            raise NotServing(f"Engine {self.options.rank} is {self.entry.status}.")
        await self._serving.wait()
        if self._closing:
            raise NotServing(f"Engine {self.options.rank} is shutting down.")

    def _abort_requests(self) -> None:
        for bursts in self._requests.values():
            bursts.put_nowait(None)

    # fault-tolerance commands

    def submit(self, command: Command) -> None:
        """Queue an accepted apply."""
        self._commands.put_nowait(command)

    async def _execute(self, command: Command) -> None:
        entry, rank = self.entry, self.options.rank
        if (why := refuse_by_state(command.instruction, rank, entry.status, entry.ft_state)) is not None:
            self._refuse(command, why, entry.ft_state)
            return
        order: ScaleDown | str | None = None
        if command.instruction == "scale_down":
            order = read_scale_down(command.params, self._facts())
        if isinstance(order, str):
            self._refuse(command, order, FtState.FAILED)
            return
        # no timeout of its own: the worker's meetings are bounded, and a stopped worker ends with `_give_up`
        await self._begin_recovery(command, order).ended.wait()

    def _refuse(self, command: Command, why: str, ft_state: FtState | None) -> None:
        self.log.write("refused", instruction=command.instruction, request_id=command.request_id, error=why)
        self._set(replace(self.entry, ft_state=ft_state, last_ft_request_id=command.request_id, ft_error=why))

    def _begin_recovery(self, command: Command, order: ScaleDown | None) -> _Recovery:
        """Ask the worker to meet the others and go on with them; `order` is None for a retry."""
        self._recovery = recovery = _Recovery(command, order, asyncio.Event())
        self.log.write(
            "recovery_start",
            instruction=command.instruction,
            request_id=command.request_id,
            removed=recovery.removed,
            epoch=self.epoch,
        )
        recovering = FtState.RECOVERING if self.options.dialect == "v1" else None
        self._set(replace(self.entry, ft_state=recovering, last_ft_request_id=command.request_id, ft_error=None))
        if (why := self.misbehaviour.value("recovery-fails")) is not None:
            self._end_recovery(why or "simulated failure of the recovery")
        elif not self.worker.alive:
            self._end_recovery(self._worker_is_gone)
        else:
            self.worker.say(self._recover_message(recovery))
        return recovery

    def _recover_message(self, recovery: _Recovery) -> pipe.Recover:
        order = recovery.order
        members = order.survivors if order is not None else tuple(sorted(self._facts().active))
        new_store = order.new_store if order is not None else None
        host, port = new_store or self._store
        return pipe.Recover(
            members=list(members),
            epoch=self.epoch + 1,
            round=self._round(recovery),
            store_host=host,
            store_port=port,
            host_new_store=new_store is not None and members[0] == self.options.rank,
            recovery_sec=self.options.recovery_sec,
        )

    def _end_recovery(self, error: str) -> None:
        """Take over the outcome, "" = success, at once: the very next word of the worker may be a new fault."""
        recovery, self._recovery = self._recovery, None
        if recovery is None:
            return
        command, order = recovery.command, recovery.order
        if not error:
            self.epoch += 1
            if order is not None:
                self.dead |= order.removed
                self.store_rank, self._store = order.store_rank, order.new_store or self._store
        self.log.write(
            "recovery_end",
            ok=not error,
            error=error or None,
            instruction=command.instruction,
            request_id=command.request_id,
            removed=recovery.removed,
            epoch=self.epoch,
        )
        if error:
            self._set(replace(self.entry, ft_state=FtState.FAILED if order is not None else None, ft_error=error))
        else:
            self._set(Entry())
        recovery.ended.set()

    def _round(self, recovery: _Recovery) -> str:
        """The meeting's name: only ranks with the same words meet. In legacy each server makes its own request id."""
        request_id = recovery.command.request_id if self.options.dialect == "v1" else None
        return json.dumps([recovery.command.instruction, self.epoch + 1, request_id, recovery.removed])

    @property
    def _worker_is_gone(self) -> str:
        return f"worker process of engine {self.options.rank} is gone"

    def _facts(self) -> Facts:
        options = self.options
        return Facts(
            rank=options.rank,
            size=options.size,
            dead=self.dead,
            store_rank=self.store_rank,
            num_experts=options.num_experts,
            num_redundant_experts=options.num_redundant_experts,
        )

    # what the worker says

    async def look(self) -> pipe.State | None:
        """The worker's state; None when it is gone or does not answer within a second (stopped)."""
        if not self.worker.alive:
            return None
        answer: asyncio.Future[pipe.State] = asyncio.get_running_loop().create_future()
        self._looks.append(answer)
        self.worker.say(pipe.Look())
        try:
            async with asyncio.timeout(1.0):
                return await answer
        except TimeoutError:
            return None

    def _hear(self, message: pipe.Message) -> None:
        match message:
            case pipe.Ready():
                self.ready.set()
                self._serving.set()
            case pipe.Unstartable(why):
                self._leave(Exit(f"cannot start: {why}", 1))
            case pipe.Tokens(request):
                if request in self._requests:
                    self._requests[request].put_nowait(message)
            case pipe.Fault(missing, step):
                self._fault(missing, step)
            case pipe.Recovered(error):
                self._end_recovery(error)
            case pipe.State():
                for answer in self._looks:
                    if not answer.done():
                        answer.set_result(message)
                self._looks.clear()
            case _:
                raise ValueError(f"not for an API server: {message}")

    def _fault(self, missing: list[int], step: int) -> None:
        self.log.write("fault_noticed", missing=missing, step=step, epoch=self.epoch)
        self._lose_group(Entry(Status.UNHEALTHY, fault_info="RuntimeError", mask=self._mask(missing)))

    def _worker_gone(self, code: int) -> None:
        self.log.write("worker_exit", worker_pid=self.worker.pid, code=code)
        if not self.ready.is_set():
            self._leave(Exit(f"worker ended with {code} before the engine was ready", 1))
            return
        self._end_recovery(self._worker_is_gone)
        if "core-death" in self.misbehaviour:
            delay_sec = self.misbehaviour.seconds("core-death", otherwise=2.0)
            asyncio.get_running_loop().call_later(delay_sec, self._leave, Exit("engine core is gone", 0))
        elif self.entry.status is Status.HEALTHY:
            self._lose_group(Entry(Status.DEAD))

    def _lose_group(self, entry: Entry) -> None:
        """A fault of this engine: running requests end, and its time to recover begins."""
        self._set(entry)
        self._abort_requests()
        if not self.options.fault_tolerance:
            self._leave(Exit("a fault, and fault tolerance is off", 1))
            return
        timeout_sec = self.options.engine_recovery_timeout_sec
        gave_up = Exit(f"not recovered within engine_recovery_timeout_sec ({timeout_sec:g} s)", 1)
        self._give_up = asyncio.get_running_loop().call_later(timeout_sec, self._leave, gave_up)

    def _mask(self, missing: list[int]) -> tuple[int, ...]:
        """1 for each EP rank whose contribution did not come."""
        options = self.options
        if "wrong-mask" in self.misbehaviour:
            others = sorted(self._facts().active - {options.rank, *missing}) or [options.rank]
            missing = others[:1]
        if "zero-mask" in self.misbehaviour:
            missing = []
        return tuple(int(ep_rank // options.tensor_parallel_size in missing) for ep_rank in range(self._ep_size))

    @property
    def _ep_size(self) -> int:
        return self.options.size * self.options.tensor_parallel_size

    def _set(self, entry: Entry) -> None:
        before, self.entry = self.entry, entry
        if (before.status, before.ft_state) != (entry.status, entry.ft_state):
            self.log.write("status", status=entry.status, ft_state=entry.ft_state, ft_error=entry.ft_error)
        if entry.status is not Status.HEALTHY:
            self._serving.clear()
        else:
            if self._give_up is not None:
                self._give_up.cancel()
                self._give_up = None
            self._serving.set()


def _settings(options: Options) -> pipe.Settings:
    return pipe.Settings(
        host=options.host,
        rank=options.rank,
        size=options.size,
        store_host=options.store_host,
        store_port=options.store_port,
        detection_sec=options.detection_sec,
        store_timeout_sec=options.store_timeout_sec,
        startup_sec=options.startup_sec,
        startup_timeout_sec=options.startup_timeout_sec,
        step_ms=options.step_ms,
        token_ms=options.token_ms,
    )
