"""The process that owns a local installation: it starts everything, brings back what ends, and stops everything.

Its life has three parts. *Start*: plan (ports, command lines, configuration files), launch all processes at once, wait
until each answers, declare the instance, wait until its ranks are published. *Watch*: bring back what ends, obey the
control socket. *Down*: stop what it started, then sweep whatever else carries the run id, engines above all, which live
in sessions of their own.

It goes down when it is told to (control socket, SIGTERM, SIGINT), when the start fails, and when its owner dies: a
drill that is SIGKILLed leaves nothing running. Should the supervisor itself be SIGKILLed, its watcher sweeps.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Final

from domain.errors import AutotomyError
from lab.stack.adopted import become_subreaper, reap_adopted
from lab.stack.child import Child, ProcessPlan
from lab.stack.control import Command, ControlRefused, Down, Hold, Kill, Release, Reply, Status, listening
from lab.stack.environment import base_environment
from lab.stack.errors import PortTaken, StartFailed
from lab.stack.plan import StackPlan, plan_stack
from lab.stack.ports import PortLease
from lab.stack.processes import sweep
from lab.stack.readiness import Progress, declare, until_all_answer, until_published
from lab.stack.record import EventKind, ProcessKind, StackEvent, StackRecord, StackState
from lab.stack.run_dir import LaunchOrder, RunDir
from lab.stack.waiting import cancelled, until_gone
from service.process_identity import ProcessIdentity, own_identity
from service.stop import Stopped, unless_stopped

_PLAN_ATTEMPTS: Final = 3
_STOP_GRACE_SEC: Final = 3.0
_MAX_DEATHS_DURING_START: Final = 3
_COULD_NOT_START: Final = 2
"""Exit code of a process whose configuration or address is no good (`service.process`)."""

_CLASH_WORDS: Final = ("address already in use", "another process listens there")


Planner = Callable[[LaunchOrder, RunDir, PortLease], StackPlan]


class Supervisor:
    """One installation, from `run` to its end.

    Args:
        run_dir: where everything is written; exists already.
        order: what to start.
        owner: whose death ends it; None: nobody's.
        lock: the descriptor of the directory's lock, where somebody took it for this process.
        planner: decides ports and command lines.
    """

    def __init__(
        self,
        run_dir: RunDir,
        order: LaunchOrder,
        owner: ProcessIdentity | None,
        *,
        lock: int | None = None,
        planner: Planner = plan_stack,
    ) -> None:
        self._lock = lock
        self._planner = planner
        self._run_dir = run_dir
        self._order = order
        self._spec = order.spec
        self._owner = owner
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._plan: StackPlan | None = None
        self._state = StackState.STARTING
        self._failure: str | None = None
        self._start_failure: asyncio.Future[None] | None = None
        self._going_down = asyncio.Event()
        self._owner_is_gone = False
        self._started_at = _wall_time()
        self._watcher: Child | None = None
        self._watcher_task: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Start, watch, go down. Raises RunDirInUse, and StartFailed once everything is down again."""
        lock = self._lock if self._lock is not None else self._run_dir.lock()
        os.set_inheritable(lock, False)
        try:
            become_subreaper()
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
            async with self._told_to_stop(stop), listening(self._run_dir.path, self._obey):
                with PortLease(again=self._order.ports if self._order.resumed else None) as ports:
                    await self._live(ports)
            self._publish_end()
        finally:
            os.close(lock)
        if self._failure is not None:
            raise StartFailed(self._failure)

    async def _live(self, ports: PortLease) -> None:
        self._start_watcher()
        try:
            await self._start(ports)
            await self._going_down.wait()
        except AutotomyError as error:
            self._failure = error.message
            self._move_to(StackState.FAILED, EventKind.FAILED, error.message)
        finally:
            await self._down()

    # --- start ---------------------------------------------------------------------------------------------------

    async def _start(self, ports: PortLease) -> None:
        attempts = 1 if self._order.resumed else _PLAN_ATTEMPTS  # elsewhere nothing of it would be found again
        for attempt in range(1, attempts + 1):
            try:
                await unless_stopped(self._start_once(ports), self._going_down)
            except PortTaken as clash:
                if attempt == attempts:
                    raise
                self._say(EventKind.REPLANNED, detail=clash.message)
                await self._stop_all()
            except Stopped:
                return
            else:
                return

    async def _start_once(self, ports: PortLease) -> None:
        ports.drawn = []
        self._plan = self._planner(self._order, self._run_dir, ports)
        self._start_failure = asyncio.get_running_loop().create_future()
        self._children = {plan.name: self._child(plan) for plan in self._plan.processes}
        self._say(EventKind.PLANNED, detail=self._plan.addresses.controller_url)
        self._run_dir.write_order(self._order.model_copy(update={"ports": tuple(ports.drawn)}))
        self._keepers = [asyncio.create_task(self._keep(child), name=f"keep {name}") for name, child in self._children.items()]
        progress = Progress(say=lambda kind, name, detail: self._say(kind, name=name, detail=detail))
        getting_ready = asyncio.create_task(self._get_ready(self._plan, progress), name="get ready")
        try:
            await self._first_of(getting_ready, self._start_failure, progress)
        finally:
            await cancelled(getting_ready)
            self._start_failure = None
        self._move_to(StackState.READY, EventKind.READY)

    async def _first_of(self, getting_ready: asyncio.Task[None], failure: asyncio.Future[None], progress: Progress) -> None:
        done, _ = await asyncio.wait(
            {getting_ready, failure}, timeout=self._spec.start_deadline_sec, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise StartFailed(
                f"not ready after {self._spec.start_deadline_sec:g} s, still waiting for: {progress.waits()}; "
                f"logs are in {self._run_dir.logs}"
            )
        for finished in done:
            finished.result()

    async def _get_ready(self, plan: StackPlan, progress: Progress) -> None:
        try:
            await until_all_answer(plan.processes, progress)
            if not self._spec.declare:
                return
            if not self._spec.registers:
                await declare(plan.addresses.controller_url, plan.topology, progress)
            if self._order.resumed:
                return  # whether it serves is what recovery sees to now, however long that takes
            for coordinator in plan.addresses.coordinators:
                await until_published(coordinator.management_url, self._spec.instance_id, self._spec.ranks, progress)
        except* AutotomyError as group:
            raise StartFailed(str(group.exceptions[0])) from None

    def _child(self, plan: ProcessPlan) -> Child:
        return Child(plan, self._on_event, self._on_exit)

    async def _keep(self, child: Child) -> None:
        try:
            await child.keep_running()
        except OSError as error:  # its program or its log file is gone: nothing that a restart would mend
            self._failure = self._failure or f"{child.name} cannot be started: {error}"
            self._going_down.set()

    def _start_watcher(self) -> None:
        plan = ProcessPlan(
            name="watcher",
            kind=ProcessKind.WATCHER,
            command=(sys.executable, "-m", "lab.stack.watcher", str(own_identity()), self._order.run_id),
            environment=base_environment(self._order.run_id, "watcher", run_dir=self._run_dir.path),
            log_file=self._run_dir.log_file("watcher"),
        )
        self._watcher = Child(plan, self._on_event, self._on_exit)
        self._watcher_task = asyncio.create_task(self._watcher.keep_running(), name="keep watcher")

    # --- watch ---------------------------------------------------------------------------------------------------

    async def _on_exit(self, child: Child, code: int) -> None:
        if self._start_failure is not None and not self._start_failure.done():
            self._judge_early_exit(child, code, self._start_failure)
        if child.plan.pod is not None and code == 0 and not self._going_down.is_set():
            await self._restart_pod(child.plan.pod)

    def _judge_early_exit(self, child: Child, code: int, failure: asyncio.Future[None]) -> None:
        if code != _COULD_NOT_START and child.restarts < _MAX_DEATHS_DURING_START:
            return
        last = _last_line(child)
        why = f"{child.name} ended with exit code {code}: {last}; its log is {child.plan.log_file}"
        clash = any(word in last.lower() for word in _CLASH_WORDS)
        failure.set_exception(PortTaken(why) if clash else StartFailed(why))

    async def _restart_pod(self, pod: str) -> None:
        """A NodeManager that ends with code 0 ends its Pod, and whatever else lived in there goes with it."""
        found = await asyncio.to_thread(sweep, self._order.run_id, pod=pod, spare=self._own_pids(), grace_sec=1.0)
        self._say(EventKind.POD_RESTARTED, name=pod, detail=f"{len(found)} other processes stopped with it")

    async def _obey(self, command: Command) -> Reply:
        match command:
            case Status():
                return Reply(ok=True, pid=os.getpid())
            case Kill():
                return self._kill(command)
            case Hold():
                self._named(command.name).hold()
                return Reply(ok=True)
            case Release():
                self._named(command.name).release()
                return Reply(ok=True)
            case Down():
                self._going_down.set()
                return Reply(ok=True, pid=os.getpid())

    def _kill(self, command: Kill) -> Reply:
        child = self._named(command.name)
        pid = child.pid
        if command.restart_after_sec is not None:
            child.delay_next(command.restart_after_sec)
        if command.hold:
            child.hold()
        if pid is None or not child.signal(signal.Signals[command.signal]):
            raise ControlRefused(f"{child.name} does not run now (it is {child.state})", reason="NOT_RUNNING")
        self._say(EventKind.SIGNALLED, name=child.name, pid=pid, detail=command.signal)
        return Reply(ok=True, pid=pid)

    def _named(self, name: str) -> Child:
        """`worker` stands for `worker-0` where there is but one worker."""
        if name in self._children:
            return self._children[name]
        alike = [child for child in self._children.values() if child.plan.kind == name]
        if len(alike) == 1:
            return alike[0]
        raise ControlRefused(f"no process {name!r}; there are: {', '.join(self._children)}", reason="UNKNOWN_PROCESS")

    def _on_event(self, kind: EventKind, child: Child, detail: str) -> None:
        self._say(kind, name=child.name, pid=child.pid, detail=detail)

    @contextlib.asynccontextmanager
    async def _told_to_stop(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """`_going_down` is set by the process's stop event and by the owner's death."""
        waiting = [asyncio.create_task(self._on_stop(stop)), asyncio.create_task(self._on_owner_gone())]
        try:
            yield
        finally:
            for task in waiting:
                await cancelled(task)

    async def _on_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._going_down.set()

    async def _on_owner_gone(self) -> None:
        if self._owner is None:
            return
        await until_gone(self._owner)
        self._owner_is_gone = True
        self._say(EventKind.OWNER_GONE, detail=f"pid {self._owner.pid}")
        self._going_down.set()

    # --- down ----------------------------------------------------------------------------------------------------

    async def _down(self) -> None:
        self._going_down.set()
        if self._failure is None:
            self._move_to(StackState.STOPPING, EventKind.STOPPING)
        await self._stop_all()
        if self._watcher is not None and self._watcher_task is not None:
            await self._watcher.stop(1.0)
            await self._watcher_task

    async def _stop_all(self) -> None:
        """What we started first; then the Temporal server, and whatever else carries the run id."""
        servers = [child for child in self._children.values() if child.plan.kind is ProcessKind.TEMPORAL]
        await asyncio.gather(*(child.stop(_STOP_GRACE_SEC) for child in self._children.values() if child not in servers))
        await asyncio.gather(
            asyncio.to_thread(sweep, self._order.run_id, spare=self._own_pids(), grace_sec=1.0),
            *(child.stop(_STOP_GRACE_SEC) for child in servers),
        )
        await asyncio.gather(*self._keepers)
        self._keepers = []

    def _publish_end(self) -> None:
        self._state = StackState.STOPPED
        self._say(EventKind.STOPPED)
        if self._order.ephemeral and self._owner_is_gone:
            shutil.rmtree(self._run_dir.path, ignore_errors=True)

    # --- bookkeeping ---------------------------------------------------------------------------------------------

    def _own_pids(self) -> frozenset[int]:
        children = [*self._children.values(), *([self._watcher] if self._watcher is not None else [])]
        return frozenset(child.pid for child in children if child.pid is not None)

    def _reap(self) -> None:
        reap_adopted(self._own_pids())

    def _move_to(self, state: StackState, event: EventKind, detail: str = "") -> None:
        self._state = state
        self._say(event, detail=detail)

    def _say(self, event: EventKind, *, name: str = "", pid: int | None = None, detail: str = "") -> None:
        """Write it down. A stack that cannot is of no use to anybody: it goes down, and nothing keeps it from that."""
        line = StackEvent(mono=time.monotonic(), time=_wall_time(), event=event, name=name, pid=pid, detail=detail)
        try:
            self._run_dir.write_record(self._record())
            with self._run_dir.events_file.open("a", encoding="utf-8") as file:
                file.write(line.model_dump_json(exclude_defaults=True) + "\n")
        except OSError as error:
            self._failure = self._failure or f"{self._run_dir} cannot be written: {error.strerror}; make room there"
            self._going_down.set()

    def _record(self) -> StackRecord:
        me = own_identity()
        return StackRecord(
            name=self._spec.name,
            run_id=self._order.run_id,
            state=self._state,
            failure=self._failure,
            run_dir=str(self._run_dir),
            started_at=self._started_at,
            supervisor_pid=me.pid,
            supervisor_incarnation=str(me),
            owner_pid=self._owner.pid if self._owner is not None else None,
            instance_id=self._spec.instance_id,
            addresses=self._plan.addresses if self._plan is not None else None,
            topology=self._plan.topology if self._plan is not None else None,
            processes=tuple(child.record() for child in self._children.values()),
            non_default_timers=self._spec.non_default_timers(),
        )


def _last_line(child: Child) -> str:
    try:
        lines = child.plan.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "it said nothing"
    return lines[-1][:500] if lines else "it said nothing"


def _wall_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
