"""Views travel to EventPusher together, and each asker hears of its own."""

import asyncio
from collections.abc import Sequence

import pytest

from activities.view_recorder import AT_ONCE, ViewRecorder
from domain.errors import Refused, Transient
from domain.messages.event_pusher import CoordinatorRecord, RecordedViews, ViewRecord, ViewsRecord
from tests.eventually import eventually
from tests.workflows.test_event_pusher_at_size import topology

COORDINATOR = CoordinatorRecord(url="http://coordinator", incarnation="1", has_view=True, last_answer_at=1.0)


class Pusher:
    """Answers when it is let, with the revisions that it was told, or raises."""

    def __init__(self) -> None:
        self.told: list[dict[int, int]] = []
        self.open = asyncio.Event()
        self.failures: list[Exception] = []

    async def tell(self, views: ViewsRecord) -> RecordedViews:
        revisions = {instance_id: view.revision for instance_id, view in views.views.items()}
        self.told.append(revisions)
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        return RecordedViews(coordinators=(COORDINATOR,), revisions=revisions)


def view(instance_id: int, revision: int = 1, ranks: Sequence[int] = (0,)) -> ViewRecord:
    return ViewRecord(topology=topology(instance_id, 2), revision=revision, ranks=tuple(ranks))


async def test_what_comes_while_one_is_under_way_travels_together() -> None:
    pusher = Pusher()
    recorder = ViewRecorder(pusher.tell)
    asked = [asyncio.create_task(recorder.record(view(0), 5.0))]
    await eventually(lambda: len(pusher.told) == 1, "the first is under way")
    asked += [asyncio.create_task(recorder.record(view(instance_id), 5.0)) for instance_id in range(1, 2 * AT_ONCE)]
    await asyncio.sleep(0)
    pusher.open.set()
    replies = await asyncio.gather(*asked)
    assert [len(told) for told in pusher.told] == [1, AT_ONCE, AT_ONCE - 1]
    assert all(reply.coordinators == (COORDINATOR,) and reply.known_revision == 1 for reply in replies)


async def test_of_two_revisions_the_higher_one_is_told_and_the_lower_hears_of_it() -> None:
    pusher = Pusher()
    recorder = ViewRecorder(pusher.tell)
    pusher.open.set()
    newer, older = await asyncio.gather(recorder.record(view(1, 7), 5.0), recorder.record(view(1, 6, ()), 5.0))
    assert pusher.told == [{1: 7}]
    assert (newer.known_revision, older.known_revision) == (7, 7)


@pytest.mark.parametrize("failure", [Transient("no answer"), Refused("no", reason="NO"), RuntimeError("a bug")])
async def test_a_failure_is_heard_by_everybody_in_it_and_by_nobody_after(failure: Exception) -> None:
    pusher = Pusher()
    pusher.failures = [failure]
    pusher.open.set()
    recorder = ViewRecorder(pusher.tell)
    found = await asyncio.gather(*(recorder.record(view(i), 5.0) for i in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [type(failure)] * 3
    assert (await recorder.record(view(1), 5.0)).known_revision == 1


async def test_who_has_left_is_not_waited_for_and_spoils_nothing() -> None:
    pusher = Pusher()
    recorder = ViewRecorder(pusher.tell)
    with pytest.raises(Transient, match=r"did not answer record_views in 0\.05 s"):
        await recorder.record(view(1), 0.05)
    leaving = asyncio.create_task(recorder.record(view(2), 5.0))
    staying = asyncio.create_task(recorder.record(view(3), 5.0))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    pusher.open.set()
    assert (await staying).known_revision == 1
    assert pusher.told == [{1: 1}, {3: 1}]
