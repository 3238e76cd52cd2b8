"""What a round, and the FaultManager, want of NodeManagers: one fan-out activity a step (design §4).

All are idempotent on the request id and may be repeated by Temporal at any point. A NodeManager's no comes back in the
result; only a bug or a shutdown of the worker ends an attempt without one.
"""

import asyncio
import logging
from typing import Final

import httpx
from temporalio import activity

from activities.apply import apply_to_all
from activities.attempt import Attempt, attempt, concurrently, settled, to_its_end
from activities.node_manager_client import NodeManagerClient
from activities.sweep import sweep_with_incarnations
from activities.watching import Look
from domain.errors import AutotomyError, Transient
from domain.messages.fault_manager import FreshLookCall, FreshLookResult, PaceCall, WakeCall, WakeResult
from domain.messages.node_manager import (
    FinalizeRequest,
    GuardReply,
    GuardRequest,
    PaceRequest,
    ProbeReply,
    ProbeRequest,
    StopRequest,
)
from domain.messages.round import (
    ApplyCall,
    ApplyResult,
    FinalizeCall,
    FinalizeResult,
    GuardCall,
    GuardResult,
    StopPodsCall,
    VerifyCall,
    VerifyResult,
    WatchCall,
    WatchResult,
)
from domain.topology import NodeManagerAddress
from domain.watch import Question, RecoveredWatch
from service.peer import refusal

log = logging.getLogger(__name__)

_ABSENT_TRIES: Final = 2
_ABSENT_TIMEOUT_SEC: Final = 2.0
"""A Pod without survivors is not waited for: nothing depends on its guard."""

_PROBE_SHARE: Final = 0.8
"""Of a request's time, what the engine's completion may take: the NodeManager has to answer before we give up."""

_PROBE_AGAIN_SEC: Final = 0.1


class NodeManagerActivities:
    """The activities that talk to NodeManagers over `http`, the worker's shared client."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def _client(self, manager: NodeManagerAddress) -> NodeManagerClient:
        return NodeManagerClient(self._http, manager)

    @activity.defn
    async def guard(self, call: GuardCall) -> GuardResult:
        """Step 4: own every participant. One no is enough to end the waiting for the others."""
        async with attempt("guard") as run:
            halt = asyncio.Event()
            managers = (*call.must, *call.may_be_absent)
            works = [self._guard(manager, call, run, halt) for manager in call.must]
            works += [self._guard_if_there(manager, call, run) for manager in call.may_be_absent]
            answers = dict(zip(managers, await concurrently(works), strict=True))
            silent = {manager: answer for manager, answer in answers.items() if isinstance(answer, Transient)}
            return GuardResult(
                guarded=tuple(m for m, answer in answers.items() if not isinstance(answer, AutotomyError)),
                absent=tuple(m for m in silent if m in call.may_be_absent),
                refusals=tuple(
                    refusal(m, answer) for m, answer in answers.items() if isinstance(answer, AutotomyError) and m not in silent
                ),
                unreachable=tuple(refusal(m, answer) for m, answer in silent.items() if m in call.must),
            )

    async def _guard(
        self, manager: NodeManagerAddress, call: GuardCall, run: Attempt, halt: asyncio.Event
    ) -> GuardReply | AutotomyError:
        client, request = self._client(manager), _guard_request(call)

        async def ask(timeout_sec: float) -> GuardReply:
            return await client.guard(request, timeout_sec)

        answer = await settled(run.until_answered(ask, call.deadline_at, call.request_timeout_sec, halt=halt))
        if isinstance(answer, AutotomyError):
            halt.set()
        return answer

    async def _guard_if_there(self, manager: NodeManagerAddress, call: GuardCall, run: Attempt) -> GuardReply | AutotomyError:
        client, request = self._client(manager), _guard_request(call)
        timeout_sec = min(call.request_timeout_sec, _ABSENT_TIMEOUT_SEC)
        answer: GuardReply | AutotomyError
        for _ in range(_ABSENT_TRIES):
            answer = await settled(client.guard(request, timeout_sec))
            if not isinstance(answer, Transient):
                break
        return answer

    @activity.defn
    async def look(self, call: WatchCall) -> WatchResult:
        """Steps 5 and 8: look at engines until the watch ends. Cancelled, it returns what it saw last."""
        effect = "look_recovered" if isinstance(call.watch, RecoveredWatch) else "look_apply_ready"
        async with attempt(effect) as run:
            return await Look(self._http, call, run).until_ended()

    @activity.defn
    async def apply(self, call: ApplyCall) -> ApplyResult:
        """Step 7: the one instruction, to all survivors at once."""
        async with attempt("apply") as run:
            return await apply_to_all(self._http, call, run)

    @activity.defn
    async def verify(self, call: VerifyCall) -> VerifyResult:
        """Step 8: one bounded completion on each survivor, repeated for those that have not given one yet."""
        async with attempt("verify") as run:
            groups = await concurrently(self._verify(group, call, run) for group in call.groups)
            failed = {rank: why for group in groups for rank, why in group.items()}
            ranks = sorted(rank for group in call.groups for rank in group.ranks)
            return VerifyResult(ok=tuple(rank for rank in ranks if rank not in failed), failed=failed)

    async def _verify(self, group: Question, call: VerifyCall, run: Attempt) -> dict[int, str]:
        """Why each rank gave no completion until the deadline; empty when all did."""
        failed = dict.fromkeys(group.ranks, "not asked yet")
        timeout_sec = call.request_timeout_sec
        while True:
            request = ProbeRequest(endpoint_ids=tuple(failed), timeout_sec=_PROBE_SHARE * timeout_sec)
            answer = await settled(self._client(group.manager).probe(request, timeout_sec))
            if isinstance(answer, AutotomyError):
                failed = dict.fromkeys(failed, f"{answer.reason}: {answer.message}")
                if not isinstance(answer, Transient):
                    return failed
            else:
                failed = _without_completion(tuple(failed), answer)
            left = run.left(call.deadline_at)
            if not failed or left <= 0:
                return failed
            await run.pause(min(_PROBE_AGAIN_SEC, left))
            timeout_sec = min(call.request_timeout_sec, max(left, 1.0))

    @activity.defn
    async def finalize(self, call: FinalizeCall) -> FinalizeResult:
        """Steps 9 and abort: the verdict, to each NodeManager until it took it or the time is over."""
        async with attempt("finalize" if call.commit else "abort") as run:
            answers = await concurrently(settled(self._finalize(manager, call, run)) for manager in call.managers)
            by_manager = dict(zip(call.managers, answers, strict=True))
            for manager, answer in by_manager.items():
                if isinstance(answer, AutotomyError):
                    log.warning("verdict not taken", extra={"node_manager": str(manager), "why": answer.message})
            return FinalizeResult(
                done=tuple(m for m, answer in by_manager.items() if not isinstance(answer, AutotomyError)),
                pending=tuple(m for m, answer in by_manager.items() if isinstance(answer, Transient)),
                refusals=tuple(
                    refusal(m, answer)
                    for m, answer in by_manager.items()
                    if isinstance(answer, AutotomyError) and not isinstance(answer, Transient)
                ),
            )

    async def _finalize(self, manager: NodeManagerAddress, call: FinalizeCall, run: Attempt) -> None:
        client, request = self._client(manager), _finalize_request(call, manager)

        async def ask(timeout_sec: float) -> None:
            await client.finalize(request, timeout_sec)

        deadline_at = 0.0 if manager in call.once else call.deadline_at
        await run.until_answered(ask, deadline_at, call.request_timeout_sec)

    @activity.defn
    async def stop_pods(self, call: StopPodsCall) -> None:
        """Step 10: once, best effort. What goes wrong is logged and changes nothing.

        The round does not wait for it and usually ends first, which cancels this; what has been begun goes on all the same.
        """
        async with attempt("stop_pods"):
            request = StopRequest(generation=call.generation, instance_id=call.instance_id)
            answers = await to_its_end(
                concurrently(settled(self._client(manager).stop(request, call.request_timeout_sec)) for manager in call.managers)
            )
            for manager, answer in zip(call.managers, answers, strict=True):
                if isinstance(answer, AutotomyError):
                    log.warning("Pod not stopped", extra={"node_manager": str(manager), "why": answer.message})

    @activity.defn
    async def pace(self, call: PaceCall) -> None:
        """Tells NodeManagers how often to look at their engines; best effort, within one timeout."""
        async with attempt("pace"):
            request = PaceRequest(poll_interval_sec=call.poll_interval_sec)
            answers = await concurrently(
                settled(self._client(manager).pace(request, call.request_timeout_sec)) for manager in call.managers
            )
            for manager, answer in zip(call.managers, answers, strict=True):
                if isinstance(answer, AutotomyError):
                    log.info("pace not taken", extra={"node_manager": str(manager), "why": answer.message})

    @activity.defn
    async def fresh_look(self, call: FreshLookCall) -> FreshLookResult:
        """One sweep over these ranks, now (design §3, rule 10)."""
        async with attempt("fresh_look"):
            seen = await sweep_with_incarnations(self._http, call.questions, call.request_timeout_sec)
            answers = [answer for answer, _ in seen]
            looked = {entry.id: entry for answer in answers for entry in answer.entries}
            unreadable = {
                rank: answer.detail or "left out of the reply"
                for answer in answers
                for rank in answer.question.ranks
                if rank not in looked
            }
            lives = {str(answer.question.manager): incarnation for answer, incarnation in seen if incarnation}
            return FreshLookResult(last_entries=looked, unreadable=unreadable, node_manager_incarnations=lives)

    @activity.defn
    async def wake(self, call: WakeCall) -> WakeResult:
        """One completion to each of these ranks, once: idle engines notice a dead peer only when something runs."""
        async with attempt("wake"):
            answers = await concurrently(self._wake(group, call.request_timeout_sec) for group in call.questions)
            return WakeResult(failed={rank: why for answer in answers for rank, why in answer.items()})

    async def _wake(self, group: Question, timeout_sec: float) -> dict[int, str]:
        request = ProbeRequest(endpoint_ids=group.ranks, timeout_sec=_PROBE_SHARE * timeout_sec)
        answer = await settled(self._client(group.manager).probe(request, timeout_sec))
        if isinstance(answer, AutotomyError):
            return dict.fromkeys(group.ranks, f"{answer.reason}: {answer.message}")
        return _without_completion(group.ranks, answer)


def _guard_request(call: GuardCall) -> GuardRequest:
    return GuardRequest(request_id=call.request_id, lease_sec=call.lease_sec, generation=call.generation)


def _finalize_request(call: FinalizeCall, manager: NodeManagerAddress) -> FinalizeRequest:
    retired = tuple(rank for group in call.retired if group.manager == manager for rank in group.ranks)
    return FinalizeRequest(
        request_id=call.request_id,
        commit=call.commit,
        retired_endpoint_ids=retired,
        dead_committed=call.dead_committed if call.commit else None,
        generation=call.generation,
    )


def _without_completion(ranks: tuple[int, ...], answer: ProbeReply) -> dict[int, str]:
    """Those of the ranks that gave no completion, and why."""
    return {
        rank: "missing in the reply" if result is None else _no_completion(result.http, result.detail)
        for rank in ranks
        if (result := answer.engines.get(str(rank))) is None or not result.ok
    }


def _no_completion(http: int | None, detail: str | None) -> str:
    return detail or (f"HTTP {http}" if http is not None else "no answer")
