"""How long the histories of workflows are: what a time in which nothing happens must not change."""

from collections.abc import Iterable

from temporalio.client import Client

from lab.stack.client import Stack


async def temporal_client(stack: Stack) -> Client:
    """A client of the stack's own Temporal server."""
    return await Client.connect(stack.addresses.temporal_address, namespace=stack.addresses.temporal_namespace)


async def lengths(client: Client, ids: Iterable[str]) -> dict[str, int]:
    """Events in the newest run of each workflow, by workflow id."""
    return {one: (await client.get_workflow_handle(one).describe()).history_length for one in ids}
