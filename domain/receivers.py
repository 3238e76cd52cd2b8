"""The workflows that are started where they do not run, by whoever turns to them: a worker, an activity, the API.

None of them is known to run at any moment: a person may terminate each. So whoever has a word for one brings along with what
it starts, and Temporal's workflow id decides who came first; the others find it running.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pydantic import BaseModel

from domain.config import FaultToleranceConfig
from domain.messages.event_pusher import EVENT_PUSHER_ID, EVENT_PUSHER_WORKFLOW, EventPusherState
from domain.messages.fault_manager import FAULT_MANAGER_WORKFLOW, FaultManagerStart, fault_manager_id
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID, INSTANCE_REGISTRY_WORKFLOW
from domain.registration import RegistryState

TASK_TIMEOUT: Final = timedelta(seconds=2)
"""Of every workflow of ours: a killed worker's workflow task is given to another one after this. Temporal's default costs 10 s.
Another worker must be able to replay a whole run within it, busy as its machine may be, or it would never get on."""


@dataclass(frozen=True)
class Receiver:
    """A workflow by its type and id, and the input with which it starts where it does not run."""

    workflow: str
    workflow_id: str
    start: BaseModel


def event_pusher(config: FaultToleranceConfig | None = None) -> Receiver:
    """The one EventPusher. Without a configuration it begins with the default one, and is told another by the next worker."""
    state = EventPusherState() if config is None else EventPusherState(set_interval_sec=config.set_interval_sec)
    return Receiver(EVENT_PUSHER_WORKFLOW, EVENT_PUSHER_ID, state)


def instance_registry(start: RegistryState) -> Receiver:
    """The one InstanceRegistry. `start`: what is remembered of the one before it, so that no declaration is lost with it."""
    return Receiver(INSTANCE_REGISTRY_WORKFLOW, INSTANCE_REGISTRY_ID, start)


def fault_manager(start: FaultManagerStart) -> Receiver:
    """An instance's FaultManager. One that starts asks the journals what its instance has been through."""
    return Receiver(FAULT_MANAGER_WORKFLOW, fault_manager_id(start.instance_id), start)
