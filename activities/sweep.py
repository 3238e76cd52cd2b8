"""One look at engines through their NodeManagers: a sweep asks all of them at once and calls nothing dead by itself.

An unreachable NodeManager gives a `Answer` with fault "unreachable", one that says no or answers nonsense "protocol"; what
either means for a round, `domain.watch` decides.
"""

import httpx

from activities.attempt import concurrently
from activities.node_manager_client import NodeManagerClient
from domain.errors import Refused
from domain.messages.node_manager import StatusReply, StatusRequest
from domain.watch import Answer, Question
from service.peer import PeerSilent


async def sweep(http: httpx.AsyncClient, questions: tuple[Question, ...], timeout_sec: float) -> tuple[Answer, ...]:
    """One answer a question, in their order, within `timeout_sec`."""
    return tuple(answer for answer, _ in await sweep_with_incarnations(http, questions, timeout_sec))


async def sweep_with_incarnations(
    http: httpx.AsyncClient, questions: tuple[Question, ...], timeout_sec: float
) -> list[tuple[Answer, str]]:
    """The same, each with the answering NodeManager's incarnation ("" where it did not answer)."""
    return await concurrently(see(http, question, timeout_sec) for question in questions)


async def see(http: httpx.AsyncClient, question: Question, timeout_sec: float) -> tuple[Answer, str]:
    """What one NodeManager says about some of its ranks, and in which life it says so."""
    request = StatusRequest(endpoint_ids=question.ranks)
    try:
        reply = await NodeManagerClient(http, question.manager).status(request, timeout_sec)
    except PeerSilent as error:
        return Answer(question=question, fault="unreachable", detail=error.message), ""
    except Refused as error:
        return Answer(question=question, fault="protocol", reason=error.reason, detail=f"{error.reason}: {error.message}"), ""
    return _read(question, reply), reply.node_manager_incarnation


def _read(question: Question, reply: StatusReply) -> Answer:
    foreign = sorted(key for key, entry in reply.engines.items() if key != str(entry.id))
    if foreign:
        detail = f"its status reply holds another rank's entry under {foreign}"
        return Answer(question=question, fault="protocol", detail=detail)
    return Answer(question=question, entries=tuple(reply.engines.values()))
