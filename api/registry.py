"""The API's way to InstanceRegistry: told what is new, and started again where it was terminated, with what it knew."""

from functools import partial
from typing import TypeVar

from pydantic import BaseModel

from api.gateway import WorkflowUnknown
from api.state import Api
from domain.messages.instance_registry import INSTANCE_REGISTRY_ID
from domain.receivers import instance_registry
from service.registry_memory import registry_start

M = TypeVar("M", bound=BaseModel)


async def tell_registry(api: Api, update: str, call: BaseModel, result: type[M]) -> M:
    """An update's result. Raises UpdateRefused, WorkflowUnknown (it is being started), HttpError 503.

    What a registry would be started with is half a megabyte in a large installation: it is sent only where none runs.
    """
    gateway = api.gateway
    try:
        return await gateway.update(INSTANCE_REGISTRY_ID, update, call, result)
    except WorkflowUnknown:
        remembered = await gateway.ask(partial(registry_start, task_queue=gateway.task_queue))
    if remembered is None:  # somebody else has started it meanwhile
        return await gateway.update(INSTANCE_REGISTRY_ID, update, call, result)
    return await gateway.update_with_start(instance_registry(remembered), update, call, result)
