"""The two workflows of which there is one, started by whichever process comes first: a worker or an API.

Raises what Temporal's client raises: nobody can say now what runs, so nothing may be started yet. Both need a worker that polls.
"""

from datetime import timedelta
from typing import Final

from temporalio.client import Client

from domain.config import FaultToleranceConfig
from domain.receivers import event_pusher, instance_registry
from service.registry_memory import registry_start
from service.workflow_starts import ensure_running

_RPC_TIMEOUT: Final = timedelta(seconds=5)


async def ensure_event_pusher(client: Client, task_queue: str, config: FaultToleranceConfig) -> None:
    """EventPusher runs."""
    await ensure_running(client, task_queue, event_pusher(config), rpc_timeout=_RPC_TIMEOUT)


async def ensure_instance_registry(client: Client, task_queue: str) -> None:
    """InstanceRegistry runs: never an empty one over instances that live."""
    remembered = await registry_start(client, task_queue)
    if remembered is not None:
        await ensure_running(client, task_queue, instance_registry(remembered), rpc_timeout=_RPC_TIMEOUT)
