"""What a worker sees to as it begins: the workflows of which there is one run, and all know its configuration.

A FaultManager hears of the configuration by signal, never by reading settings (design §3); one that has it
already changes nothing.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from domain.config import FaultToleranceConfig
from domain.messages.event_pusher import EVENT_PUSHER_ID, EventPusherState
from domain.messages.fault_manager import CONFIG_SIGNAL, fault_manager_id
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCES_QUERY
from domain.registration import RegistryState
from service.singletons import ensure_event_pusher, ensure_instance_registry

log = logging.getLogger(__name__)

_RPC_TIMEOUT: Final = timedelta(seconds=5)
_AGAIN_SEC: Final = 2.0


async def keep_singletons(client: Client, task_queue: str, config: FaultToleranceConfig) -> None:
    """Starts what does not run and tells the configuration; tried again until it was done. Needs a polling worker."""
    while True:
        try:
            await ensure_event_pusher(client, task_queue, config)
            await ensure_instance_registry(client, task_queue)
            await _tell_config(client, config)
        except (RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError) as error:
            log.warning("singletons cannot be started or told yet, trying again", extra={"why": str(error)})
            await asyncio.sleep(_AGAIN_SEC)
        else:
            return


async def _tell_config(client: Client, config: FaultToleranceConfig) -> None:
    pusher = client.get_workflow_handle(EVENT_PUSHER_ID)
    state: EventPusherState = await pusher.query("state", result_type=EventPusherState, rpc_timeout=_RPC_TIMEOUT)
    if state.set_interval_sec != config.set_interval_sec:
        await pusher.signal(CONFIG_SIGNAL, config, rpc_timeout=_RPC_TIMEOUT)
    registry = client.get_workflow_handle(INSTANCE_REGISTRY_ID)
    known: RegistryState = await registry.query(INSTANCES_QUERY, result_type=RegistryState, rpc_timeout=_RPC_TIMEOUT)
    if not known.instances:
        return
    await registry.signal(CONFIG_SIGNAL, config, rpc_timeout=_RPC_TIMEOUT)
    for instance in known.instances:
        await _tell_fault_manager(client, instance.instance_id, config)


async def _tell_fault_manager(client: Client, instance_id: int, config: FaultToleranceConfig) -> None:
    try:
        handle = client.get_workflow_handle(fault_manager_id(instance_id))
        await handle.signal(CONFIG_SIGNAL, config, rpc_timeout=_RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        log.warning("instance has no running FaultManager to tell the configuration", extra={"instance": instance_id})
