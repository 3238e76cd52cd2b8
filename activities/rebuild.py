"""The steps of a rebuild or relaunch at the NodeManagers: all stopped, all started, all engines ready (design §3).

**Stopped** means, in a rebuild, a new life: the NodeManager stopped its engines, exited, and its Pod came back under
another incarnation. The stop names the incarnation that it means, so that neither a repeated nor a late one hits the new
life. In a relaunch the NodeManagers stay; the generation does the same for the engines. An unreachable NodeManager may
still run its engines; it is waited for until the deadline, unless it is known to be gone.

With `enable_dp_scale_down` off the FT routes answer 404; then a Pod's readiness is its plain `/node-manager/status`.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import httpx
from pydantic import Field
from temporalio import activity

from activities.attempt import Attempt, attempt, concurrently, settled
from activities.node_manager_client import NodeManagerClient
from activities.sweep import see
from domain.engine import EngineStatus, ProcessState, RankEntry
from domain.errors import AutotomyError, Transient
from domain.messages.node_manager import (
    EngineRestartAction,
    EngineRestartReply,
    EngineRestartRequest,
    FtPacing,
    NodeManagerReason,
    StartReply,
    StartRequest,
    StopReply,
    StopRequest,
)
from domain.messages.rebuild import (
    EnginesReadyCall,
    EnginesReadyResult,
    StartNodeManagersCall,
    StartNodeManagersResult,
    StopNodeManagersCall,
    StopNodeManagersResult,
)
from domain.model import Strict
from domain.topology import NodeManagerAddress
from domain.watch import Question
from service.peer import PeerRefused, refusal

log = logging.getLogger(__name__)

R = TypeVar("R")

_STOP_POLL_SEC: Final = 0.2
_START_TIMEOUT_SEC: Final = 30.0
"""A start may first have to stop engines of an older generation."""


class Lives(Strict):
    """The incarnation that each NodeManager ("ip:port") had when its stop began."""

    before: dict[str, str] = Field(default_factory=dict)


class RebuildActivities:
    """What InstanceReconfiguration and EngineRelaunch want of NodeManagers, over `http`, the worker's shared client."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def _client(self, manager: NodeManagerAddress) -> NodeManagerClient:
        return NodeManagerClient(self._http, manager)

    @activity.defn
    async def stop_node_managers(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        """Stops all, concurrently, each until it is back in a new life."""
        async with attempt("stop_node_managers") as run:
            lives = dict((run.recall(Lives) or Lives()).before)
            return await self._stop_all(call, lambda manager: self._stop(manager, call, run, lives))

    @activity.defn
    async def stop_engines(self, call: StopNodeManagersCall) -> StopNodeManagersResult:
        """Ends all engines, concurrently, and leaves the NodeManagers running."""
        async with attempt("stop_engines") as run:
            return await self._stop_all(call, lambda manager: self._stop_engines(manager, call, run))

    async def _stop_all(
        self, call: StopNodeManagersCall, stop: Callable[[NodeManagerAddress], Awaitable[None]]
    ) -> StopNodeManagersResult:
        works = [settled(self._stop_unless_gone(manager, call, stop)) for manager in call.managers]
        answers = dict(zip(call.managers, await concurrently(works), strict=True))
        silent = {manager: answer for manager, answer in answers.items() if isinstance(answer, Transient)}
        return StopNodeManagersResult(
            stopped=tuple(m for m, answer in answers.items() if not isinstance(answer, AutotomyError)),
            gone=tuple(m for m in silent if m in call.may_be_gone),
            unreachable=tuple(refusal(m, answer) for m, answer in silent.items() if m not in call.may_be_gone),
            refusals=tuple(
                refusal(m, answer) for m, answer in answers.items() if isinstance(answer, AutotomyError) and m not in silent
            ),
        )

    async def _stop_unless_gone(
        self,
        manager: NodeManagerAddress,
        call: StopNodeManagersCall,
        stop: Callable[[NodeManagerAddress], Awaitable[None]],
    ) -> None:
        if manager in call.may_be_gone:
            await self._client(manager).liveness(call.request_timeout_sec)
        await stop(manager)

    async def _stop_engines(self, manager: NodeManagerAddress, call: StopNodeManagersCall, run: Attempt) -> None:
        """Returns when the engines are gone. Raises Transient when they are not by the deadline, Refused."""
        client = self._client(manager)
        request = EngineRestartRequest(action=EngineRestartAction.STOP, generation=call.generation, instance_id=call.instance_id)

        async def ask(timeout_sec: float) -> EngineRestartReply:
            return await unless_stopping(client.engine_restart(request, timeout_sec))

        while (await run.until_answered(ask, call.deadline_at, call.request_timeout_sec)).status != "stopped":
            left = run.left(call.deadline_at)
            if left <= 0:
                raise Transient(f"{manager} has been stopping its engines since, they are not gone yet", reason="NOT_GONE")
            await run.pause(min(_STOP_POLL_SEC, left))

    async def _stop(self, manager: NodeManagerAddress, call: StopNodeManagersCall, run: Attempt, lives: dict[str, str]) -> None:
        """Returns in the NodeManager's new life. Raises Transient when that does not come until the deadline, Refused."""
        client = self._client(manager)
        before = lives.get(str(manager))
        if before is None:
            alive = await run.until_answered(client.liveness, call.deadline_at, call.request_timeout_sec)
            before = lives[str(manager)] = alive.incarnation
            run.remember(Lives(before=lives))
            run.heartbeat()
        request = StopRequest(generation=call.generation, incarnation=before, instance_id=call.instance_id)

        async def ask(timeout_sec: float) -> StopReply:
            return await client.stop(request, timeout_sec)

        while (await run.until_answered(ask, call.deadline_at, call.request_timeout_sec)).incarnation == before:
            left = run.left(call.deadline_at)
            if left <= 0:
                raise Transient(f"{manager} has been stopping since, it is not back yet", reason="NOT_BACK")
            await run.pause(min(_STOP_POLL_SEC, left))

    @activity.defn
    async def start_node_managers(self, call: StartNodeManagersCall) -> StartNodeManagersResult:
        """Starts all, concurrently, each until it took it; repeated with the same generation it changes nothing."""
        async with attempt("start_node_managers") as run:
            managers = call.topology.managers
            works = [settled(self._start(manager, call, run)) for manager in managers]
            answers = dict(zip(managers, await concurrently(works), strict=True))
            replies = {m: answer for m, answer in answers.items() if isinstance(answer, StartReply)}
            return StartNodeManagersResult(
                started={str(m): reply.incarnation for m, reply in replies.items()},
                engines={int(rank): life for reply in replies.values() for rank, life in reply.engines.items()},
                refusals=tuple(
                    refusal(m, answer)
                    for m, answer in answers.items()
                    if isinstance(answer, AutotomyError) and m not in call.optional
                ),
            )

    async def _start(self, manager: NodeManagerAddress, call: StartNodeManagersCall, run: Attempt) -> StartReply:
        client, request = self._client(manager), start_request(call)

        async def ask(timeout_sec: float) -> StartReply:
            return await unless_stopping(client.start(request, timeout_sec))

        if manager in call.optional:
            return await ask(call.config.dp_scale_down_config.request_timeout_sec)
        timeout_sec = max(_START_TIMEOUT_SEC, call.config.dp_scale_down_config.request_timeout_sec)
        return await run.until_answered(ask, call.deadline_at, timeout_sec)

    @activity.defn
    async def await_engines_ready(self, call: EnginesReadyCall) -> EnginesReadyResult:
        """Looks until every rank is healthy in its new life, or until the deadline; looks at least once."""
        async with attempt("await_engines_ready") as run:
            looked: dict[int, RankEntry] = {}
            while True:
                found = await concurrently(self._unready(question, call, looked) for question in call.questions)
                waiting = {rank: why for group in found for rank, why in group.items()}
                left = run.left(call.deadline_at)
                if not waiting or left <= 0:
                    return EnginesReadyResult(last_entries=looked, waiting=waiting)
                await run.pause(min(call.poll_interval_sec, left))

    async def _unready(self, question: Question, call: EnginesReadyCall, looked: dict[int, RankEntry]) -> dict[int, str]:
        """Which of a Pod's ranks are not ready, and why. The entries seen go to `last_entries`."""
        answer, _ = await see(self._http, question, call.request_timeout_sec)
        if answer.fault == "protocol" and answer.reason == NodeManagerReason.DISABLED:
            return await self._unready_without_ft(question, call.request_timeout_sec)
        if answer.fault is not None:
            return dict.fromkeys(question.ranks, answer.detail)
        entries = {entry.id: entry for entry in answer.entries}
        looked.update(entries)
        reasons = {rank: _why_not_ready(entries.get(rank), call.started.get(rank)) for rank in question.ranks}
        return {rank: why for rank, why in reasons.items() if why}

    async def _unready_without_ft(self, question: Question, timeout_sec: float) -> dict[int, str]:
        answer = await settled(self._client(question.manager).ready(timeout_sec))
        if isinstance(answer, AutotomyError):
            return dict.fromkeys(question.ranks, answer.message)
        return {} if answer.status else dict.fromkeys(question.ranks, "its NodeManager says that the Pod is not ready")


async def unless_stopping(answer: Awaitable[R]) -> R:
    """The answer; a NodeManager that is about to exit counts as not there, because its next life will take the command."""
    try:
        return await answer
    except PeerRefused as no:
        if no.reason != NodeManagerReason.STOPPING:
            raise
        raise Transient(no.message, reason=no.reason) from None


def start_request(call: StartNodeManagersCall) -> StartRequest:
    """The start body, the same for all: the whole group, of which each NodeManager takes its Pod's part."""
    topology, config = call.topology, call.config.dp_scale_down_config
    return StartRequest(
        job_name=topology.job_name,
        role=topology.role,
        instance_id=topology.instance_id,
        generation=call.generation,
        dead_committed=call.dead_committed,
        endpoints=topology.endpoints,
        master_dp_ip=topology.endpoint(0).ip,
        dp_master_port=topology.dp_master_port,
        fault_tolerance_config=FtPacing(
            enable_dp_scale_down_proxy=call.config.enable_dp_scale_down_proxy,
            poll_interval_sec=config.poll_interval_sec,
            fault_poll_interval_sec=config.fault_poll_interval_sec,
            engine_request_timeout_sec=config.engine_request_timeout_sec,
        ),
    )


def _why_not_ready(entry: RankEntry | None, started: str | None) -> str:
    """Empty when ready."""
    if entry is None:
        return "left out of the reply"
    if entry.process is ProcessState.EXITED:
        return "its process has exited"
    if started is not None and entry.incarnation is not None and entry.incarnation != started:
        return f"another process answers ({entry.incarnation}) than was started ({started})"
    if entry.status != EngineStatus.HEALTHY or entry.ft_state is not None:
        return f"{entry.status}{f', {entry.ft_state}' if entry.ft_state else ''}"
    return ""
