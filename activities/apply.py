"""One instruction to every NodeManager with survivors, the same request until each has answered.

Repeating is safe because the NodeManager calls each engine at most once per request id, whatever reaches it (contracts
§2). What is never done here: another body, another id, or a second try after a no. A lease that has become short or has
lapsed is renewed first; whether the Pod is still ours, the NodeManager decides.
"""

import asyncio

import httpx

from activities.attempt import Attempt, concurrently
from activities.node_manager_client import NodeManagerClient
from domain.engine import ACCEPTED_HTTP
from domain.errors import AutotomyError, ProtocolError
from domain.messages.node_manager import ApplyReply, EngineApplied, GuardRequest, NodeManagerReason
from domain.messages.round import ApplyCall, ApplyResult, PeerRefusal
from domain.model import Strict
from domain.round.instruction import apply_request
from domain.watch import Question
from service.peer import PeerRefused, PeerSilent, refusal

_RENEW_FIRST = frozenset({NodeManagerReason.LEASE_TOO_SHORT, NodeManagerReason.NOT_GUARDED})


class GroupOutcome(Strict):
    """What became of one NodeManager's ranks. Neither refused nor unknown: accepted."""

    engines: dict[int, int | None]
    refused: PeerRefusal | None = None
    unknown: PeerRefusal | None = None


async def apply_to_all(http: httpx.AsyncClient, call: ApplyCall, run: Attempt) -> ApplyResult:
    """Concurrently to all groups: the engines' recovery is a collective, the first waits for the last."""
    halt = asyncio.Event()
    outcomes = await concurrently(_apply(http, call, group, run, halt) for group in call.groups)
    refusals = tuple(outcome.refused for outcome in outcomes if outcome.refused is not None)
    unknown = tuple(outcome.unknown for outcome in outcomes if outcome.unknown is not None)
    engines = {rank: status for outcome in outcomes for rank, status in outcome.engines.items()}
    return ApplyResult(accepted=not refusals and not unknown, engines=engines, refusals=refusals, unknown=unknown)


async def _apply(http: httpx.AsyncClient, call: ApplyCall, group: Question, run: Attempt, halt: asyncio.Event) -> GroupOutcome:
    """One NodeManager, until it said yes or no or the time is over. A no ends the repetition for the others too."""
    client = NodeManagerClient(http, group.manager)
    heard = run.number > 1  # an attempt before this one may have reached it
    nothing: dict[int, int | None] = dict.fromkeys(group.ranks)

    async def ask(timeout_sec: float) -> ApplyReply:
        nonlocal heard
        try:
            return await _apply_under_guard(client, call, group, timeout_sec)
        except PeerSilent as error:
            heard = heard or error.may_have_heard
            raise

    try:
        reply = await run.until_answered(ask, call.deadline_at, call.request_timeout_sec, halt=halt)
        engines = _statuses(reply.engines, group)
        return GroupOutcome(engines=engines)
    except PeerSilent as error:
        halt.set()
        told = refusal(group.manager, error)
        return GroupOutcome(engines=nothing, unknown=told) if heard else GroupOutcome(engines=nothing, refused=told)
    except AutotomyError as error:
        halt.set()
        told = refusal(group.manager, error)
        if error.reason == NodeManagerReason.OUTCOME_UNKNOWN or isinstance(error, ProtocolError):
            return GroupOutcome(engines=nothing, unknown=told)
        return GroupOutcome(engines={**nothing, **_told(error)}, refused=told)


async def _apply_under_guard(client: NodeManagerClient, call: ApplyCall, group: Question, timeout_sec: float) -> ApplyReply:
    request = apply_request(call, group)
    try:
        return await client.apply(request, timeout_sec)
    except PeerRefused as no:
        if no.reason not in _RENEW_FIRST:
            raise
    guard = GuardRequest(request_id=call.request_id, lease_sec=call.lease_sec, generation=call.generation)
    await client.guard(guard, timeout_sec)
    return await client.apply(request, timeout_sec)


def _statuses(engines: dict[str, EngineApplied], group: Question) -> dict[int, int | None]:
    """The engines' HTTP statuses. Raises ProtocolError unless each of the group's ranks, and no other, accepted."""
    statuses = {int(key): applied.http for key, applied in engines.items() if key.isdecimal()}
    if statuses != dict.fromkeys(group.ranks, ACCEPTED_HTTP):
        raise ProtocolError(f"NodeManager {group.manager} accepted for ranks {list(group.ranks)}, but lists {statuses}")
    return statuses


def _told(error: AutotomyError) -> dict[int, int | None]:
    """Per engine, what a refusal says its HTTP status was; anything unreadable is left out."""
    engines = error.data.get("engines") if isinstance(error, PeerRefused) else None
    if not isinstance(engines, dict):
        return {}
    found = {rank: told.get("http") for rank, told in engines.items() if str(rank).isdecimal() and isinstance(told, dict)}
    return {int(rank): http for rank, http in found.items() if http is None or isinstance(http, int)}
