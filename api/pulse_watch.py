"""Asks the Pods whose heartbeats stay away, and tells the FaultManager what comes of it (see `pulse`)."""

import asyncio
import logging
from typing import Final

import httpx

from api.gateway import WorkflowUnknown, stamp
from api.pulse import is_lost
from api.state import Api
from domain.errors import AutotomyError
from domain.messages.fault_manager import (
    NODE_MANAGER_BACK_SIGNAL,
    NODE_MANAGER_LOST_SIGNAL,
    NodeManagerWord,
)
from domain.messages.node_manager import LivenessReply
from domain.runtime import FtPhase, RuntimeRecord
from domain.topology import NodeManagerAddress
from service.http import HttpError
from service.peer import get

log = logging.getLogger(__name__)

_ASK_LIMIT_SEC: Final = 2.0
_ASKED_AT_ONCE: Final = 16
_LONGEST_TURN_SEC: Final = 1.0


class PulseWatch:
    """Looks for Pods whose heartbeats stay away, until cancelled."""

    def __init__(self, api: Api, http: httpx.AsyncClient) -> None:
        self._api = api
        self._http = http
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def run(self) -> None:
        timeout_sec = self._api.config.heartbeat_timeout_sec
        while True:
            await asyncio.sleep(min(_LONGEST_TURN_SEC, timeout_sec / 4))
            try:
                await self._turn(timeout_sec)
            except HttpError as error:
                log.debug("nobody can be asked for instances now", extra={"why": error.message})

    async def _turn(self, timeout_sec: float) -> None:
        instances = (await self._api.instances.view()).instances
        self._api.pulse.keep_only(one.instance_id for one in instances)
        overdue = [(one.instance_id, manager) for one in instances for manager in self._api.pulse.overdue(one, timeout_sec)]
        await asyncio.gather(*(self._judge(instance_id, manager) for instance_id, manager in overdue))

    async def _judge(self, instance_id: int, manager: NodeManagerAddress) -> None:
        try:
            async with self._asking:
                answer = await self._ask(manager)
            record = await self._api.instances.record(instance_id, fresh=False)
            if answer is None and self._still_to_come(instance_id, manager, record):
                return
            lost = is_lost(answer, instance_id, record.phase)
            await tell(self._api, instance_id, manager, record, lost=lost)
        except (HttpError, WorkflowUnknown) as error:
            log.debug("a silent Pod is judged later", extra={"node_manager": str(manager), "why": str(error)})
        else:
            if not lost:
                self._api.pulse.heard(instance_id, manager)

    def _still_to_come(self, instance_id: int, manager: NodeManagerAddress, record: RuntimeRecord) -> bool:
        """While an instance is assembled a Pod may simply not have started yet: who was never there is not lost."""
        return record.phase is FtPhase.RECONFIGURING and not self._api.pulse.ever_heard(instance_id, manager)

    async def _ask(self, manager: NodeManagerAddress) -> LivenessReply | None:
        try:
            return await get(self._http, f"{manager.url}/liveness", LivenessReply, _ASK_LIMIT_SEC)
        except AutotomyError as error:
            log.debug("a silent Pod gives no answer", extra={"node_manager": str(manager), "why": error.message})
            return None


async def tell(api: Api, instance_id: int, manager: NodeManagerAddress, record: RuntimeRecord, *, lost: bool) -> None:
    """Tells the FaultManager, if it holds the opposite. Raises HttpError 503."""
    if lost == (str(manager) in record.lost_node_managers):
        return
    receiver = api.fault_manager(await api.topology(instance_id))
    if not api.pulse.may_tell(instance_id, manager, lost=lost, again_after_sec=api.config.heartbeat_timeout_sec):
        return
    log.warning(
        "NodeManager is lost" if lost else "NodeManager is back",
        extra={"instance": instance_id, "node_manager": str(manager)},
    )
    await api.gateway.signal_with_start(
        receiver,
        NODE_MANAGER_LOST_SIGNAL if lost else NODE_MANAGER_BACK_SIGNAL,
        NodeManagerWord(node_manager=manager, received_at=stamp()),
    )
    api.instances.forget_record(instance_id)
