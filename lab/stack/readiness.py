"""From started to serving: every process answers, the instance is declared, the Coordinator publishes all its ranks.

Waiting here has no deadline of its own: the supervisor puts one around all of it, and asks `Progress.missing` what it
was still waiting for when the time was over.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import httpx
from pydantic import ValidationError

from domain.errors import Refused
from domain.messages.coordinator import INSTANCES_PATH, CoordinatorView
from domain.topology import Topology
from lab.stack.child import ProcessPlan
from lab.stack.record import EventKind

_LOOK_PAUSE_SEC: Final = 0.1
_REQUEST_TIMEOUT_SEC: Final = 5.0


class DeclarationRefused(Refused):
    """The Controller does not want this instance."""

    default_reason = "DECLARATION_REFUSED"


@dataclass
class Progress:
    """What the start still waits for, for a person to read."""

    say: Callable[[EventKind, str, str], None]
    missing: dict[str, str] = field(default_factory=dict)

    def waits_for(self, thing: str, why: str) -> None:
        self.missing[thing] = why

    def waits(self) -> str:
        """All of it, in a sentence."""
        return "; ".join(f"{thing}: {why}" for thing, why in self.missing.items()) or "nothing in particular"

    def done(self, thing: str) -> None:
        self.missing.pop(thing, None)


async def until_all_answer(plans: Iterable[ProcessPlan], progress: Progress) -> None:
    """Return when each process answers its readiness probe."""
    async with _http() as http, asyncio.TaskGroup() as group:
        for plan in plans:
            group.create_task(_until_answers(http, plan, progress), name=f"ready {plan.name}")


async def _until_answers(http: httpx.AsyncClient, plan: ProcessPlan, progress: Progress) -> None:
    progress.waits_for(plan.name, "not asked yet")
    while (why := await _why_not_ready(http, plan)) is not None:
        progress.waits_for(plan.name, why)
        await asyncio.sleep(_LOOK_PAUSE_SEC)
    progress.done(plan.name)
    progress.say(EventKind.ANSWERS, plan.name, plan.url or "")


async def _why_not_ready(http: httpx.AsyncClient, plan: ProcessPlan) -> str | None:
    if plan.ready_url is not None:
        return await _why_not_200(http, plan.ready_url)
    if plan.ready_address is not None:
        return await _why_not_accepting(*plan.ready_address)
    return None


async def _why_not_200(http: httpx.AsyncClient, url: str) -> str | None:
    try:
        reply = await http.get(url)
    except httpx.HTTPError as error:
        return f"{url}: {error or type(error).__name__}"
    return None if reply.status_code == 200 else f"{url} answers {reply.status_code}: {reply.text[:200]}"


async def _why_not_accepting(host: str, port: int) -> str | None:
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT_SEC):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        return f"{host}:{port}: {error or 'timeout'}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


async def declare(controller_url: str, topology: Topology, progress: Progress) -> None:
    """PUT the instance to the Controller; again while it is not there. Raises DeclarationRefused."""
    url = f"{controller_url}/controller/instances/{topology.instance_id}"
    body = topology.model_dump(mode="json", exclude={"instance_id"})
    async with _http() as http:
        while (why := await _why_not_declared(http, url, body)) is not None:
            progress.waits_for("declaration", why)
            await asyncio.sleep(_LOOK_PAUSE_SEC)
    progress.done("declaration")
    progress.say(EventKind.DECLARED, f"instance {topology.instance_id}", f"{len(topology.ranks)} ranks")


async def _why_not_declared(http: httpx.AsyncClient, url: str, body: dict[str, object]) -> str | None:
    try:
        reply = await http.put(url, json=body)
    except httpx.HTTPError as error:
        return f"{url}: {error or type(error).__name__}"
    if reply.status_code == 503:
        return f"{url} answers 503: {reply.text[:200]}"
    if reply.status_code != 200:
        raise DeclarationRefused(f"PUT {url} was answered {reply.status_code}: {reply.text[:500]}")
    return None


async def until_published(management_url: str, instance_id: int, ranks: Iterable[int], progress: Progress) -> None:
    """Return when the Coordinator's view of the instance is exactly these ranks."""
    wanted, seen = sorted(ranks), None
    thing = f"view of {management_url}"
    async with _http() as http:
        while (now := await published_ranks(http, management_url, instance_id)) != wanted:
            progress.waits_for(thing, f"publishes ranks {now or 'none'}, not yet {wanted}")
            if now != seen:
                progress.say(EventKind.PUBLISHED, f"instance {instance_id}", f"ranks {now or 'none'}")
                seen = now
            await asyncio.sleep(_LOOK_PAUSE_SEC)
    progress.done(thing)
    progress.say(EventKind.PUBLISHED, f"instance {instance_id}", f"ranks {wanted}")


async def published_ranks(http: httpx.AsyncClient, management_url: str, instance_id: int) -> list[int] | None:
    """The ranks that a Coordinator routes to for an instance, ascending; None if it does not know it or does not answer."""
    try:
        reply = await http.get(management_url + INSTANCES_PATH)
        view = CoordinatorView.model_validate_json(reply.raise_for_status().content)
    except (httpx.HTTPError, ValidationError):
        return None
    instance = view.instance(instance_id)
    return list(instance.ranks) if instance is not None else None


def _http() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_REQUEST_TIMEOUT_SEC, trust_env=False)
