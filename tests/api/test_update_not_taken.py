"""An update that met a run which was just making room for the next was not taken by anybody: it is sent again."""

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from activities.temporal_calls import update_with_start
from api.gateway import Gateway, UpdateRefused
from domain.errors import Refused, Transient
from domain.messages.event_pusher import EventPusherState
from domain.model import Strict
from domain.receivers import event_pusher


class Taken(Strict):
    """What the workflow answers."""

    attempts: int


class Workflows:
    """Stands where the Temporal client does: updates fail with these types, one after the other, then are taken."""

    def __init__(self, *failures: str) -> None:
        self._failures = list(failures)
        self.asked = 0

    def get_workflow_handle(self, workflow_id: str) -> "Workflows":
        return self

    async def execute_update(self, *_: object, **__: object) -> Taken:
        self.asked += 1
        if self._failures:
            raise WorkflowUpdateFailedError(ApplicationError("rejected", type=self._failures.pop(0)))
        return Taken(attempts=self.asked)

    execute_update_with_start_workflow = execute_update


def gateway(workflows: Workflows) -> Gateway:
    reached = Gateway("queue", {"target_host": "127.0.0.1:1"})
    reached._client = workflows  # type: ignore[assignment]
    return reached


async def test_the_api_sends_it_again() -> None:
    workflows = Workflows("UnprocessedUpdate", "UnprocessedUpdate")
    assert (await gateway(workflows).update("registry", "declare", None, Taken)).attempts == 3


async def test_a_refusal_is_not_sent_again() -> None:
    workflows = Workflows("CONFLICT")
    with pytest.raises(UpdateRefused):
        await gateway(workflows).update("registry", "declare", None, Taken)
    assert workflows.asked == 1


@pytest.mark.parametrize(
    ("failure", "becomes"),
    [("UnprocessedUpdate", Transient), ("AcceptedUpdateCompletedWorkflow", Transient), ("CONFLICT", Refused)],
)
async def test_an_activity_asks_again_only_what_was_not_taken(
    failure: str, becomes: type[Exception], temporal_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rejected(*_: object, **__: object) -> object:
        raise WorkflowUpdateFailedError(ApplicationError("rejected", type=failure))

    monkeypatch.setattr(temporal_client, "execute_update_with_start_workflow", rejected)
    with pytest.raises(becomes):
        await update_with_start(
            temporal_client,
            "queue",
            event_pusher(),
            "record_views",
            EventPusherState(),
            Taken,
            timeout_sec=1.0,
        )
