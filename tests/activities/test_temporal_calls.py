"""What a strategy tells another workflow, where nobody takes it."""

import asyncio
import gc
import uuid
from typing import Any

import pytest
from temporalio.client import Client

from activities.temporal_calls import update_with_start
from domain.errors import Transient
from domain.messages.event_pusher import EVENT_PUSHER_WORKFLOW, RECORD_VIEWS_UPDATE, EventPusherState, RecordedViews, ViewsRecord
from domain.receivers import Receiver


async def test_an_update_that_nobody_takes_leaves_no_failure_behind_that_nobody_fetches(temporal_client: Client) -> None:
    """The SDK tells the failure of such a call in two places, and a future that is not asked complains when it goes."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    nobody = f"nobody-{uuid.uuid4().hex}"
    receiver = Receiver(EVENT_PUSHER_WORKFLOW, nobody, EventPusherState())
    try:
        with pytest.raises(Transient):
            await update_with_start(
                temporal_client, nobody, receiver, RECORD_VIEWS_UPDATE, ViewsRecord(views={}), RecordedViews, timeout_sec=0.5
            )
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
        await temporal_client.get_workflow_handle(nobody).terminate()
    assert complaints == []
