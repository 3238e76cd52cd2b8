"""How long the histories of workflows are: what a time in which nothing happens must not change."""

from collections.abc import Iterable
from typing import Final

from temporalio.client import Client

from lab.stack.client import Stack
from service.temporal import connect_within

_WITHIN_SEC: Final = 10.0


async def temporal_client(stack: Stack) -> Client:
    """A client of the stack's own Temporal server."""
    where = stack.addresses
    return await connect_within(_WITHIN_SEC, {"target_host": where.temporal_address, "namespace": where.temporal_namespace})


async def lengths(client: Client, ids: Iterable[str]) -> dict[str, int]:
    """Events in the newest run of each workflow, by workflow id."""
    return {one: (await client.get_workflow_handle(one).describe()).history_length for one in ids}
