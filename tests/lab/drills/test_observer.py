"""The observer notes what changes at its peers, waits with a bound, and survives peers that go away."""

import asyncio
import json
import time

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from domain.messages.node_manager import GuardRecord, JournalReply, TransactionRecord
from domain.runtime import FtPhase, RuntimeRecord
from lab.drills.record.observer import NotSeen, Observer
from lab.drills.record.repeated_sets import unchanged_refreshes
from lab.drills.record.timeline import Timeline
from lab.oracle.invariants import Invariant, Judgement, check
from lab.oracle.observations import (
    AddressSeen,
    CommitSeen,
    GenerationSeen,
    GuardGone,
    GuardSeen,
    Observed,
    PhaseSeen,
    SourceRead,
    VerdictSeen,
)
from tests.eventually import eventually
from tests.lab.drills.recorded import RANKS, ROUND, SURVIVORS, coordinator_view, journal
from tests.listening import listening


class Peers:
    """Controller, Coordinator and NodeManager behind one address, with replies that a test changes."""

    def __init__(self) -> None:
        self.down = False
        self.refused = 0
        self.journal_takes_sec = 0.0
        self.record = RuntimeRecord(
            instance_id=7,
            phase=FtPhase.NORMAL,
            original_dp_ranks=RANKS,
            alive_dp_ranks=RANKS,
            fallback_strategy="x",
            can_serve=True,
        )
        self.view = coordinator_view(RANKS)
        self.journal = journal("nm", ()).model_copy(update={"transactions": ()})
        self.app = FastAPI()
        self.app.get("/controller/fault_tolerance/status")(self._status)
        self.app.get("/instances")(self._instances)
        self.app.get("/node-manager/fault-tolerance/journal")(self._journal)
        self.app.get("/metrics")(self._metrics)

    async def _status(self) -> Response:
        return self._answer({"code": 200, "message": "Success", "data": self.record.model_dump(mode="json")})

    async def _instances(self) -> Response:
        return self._answer(self.view.model_dump(mode="json"))

    async def _journal(self) -> Response:
        body = self.journal.model_dump(mode="json")
        await asyncio.sleep(self.journal_takes_sec)
        return self._answer(body)

    async def _metrics(self) -> Response:
        return PlainTextResponse('autotomy_coordinator_refresh_entries_total{outcome="unchanged"} 3.0\n')

    def _answer(self, body: object) -> Response:
        self.refused += self.down
        return PlainTextResponse("away", status_code=503) if self.down else JSONResponse(json.loads(json.dumps(body)))

    def observer(self, url: str) -> Observer:
        return Observer(7, url, {"coordinator-0": url}, {"node-manager-0": url}, Timeline())


async def test_a_round_is_seen_from_its_guard_to_its_view() -> None:
    peers = Peers()
    phases: list[str] = []
    async with listening(peers.app) as url:
        observer = peers.observer(url)
        observer.on_phase = lambda record: phases.append(record.phase)
        async with observer.watching():
            await observer.until("served", lambda seen: seen.publishes(RANKS) and seen.committed(()), 10)
            held = GuardRecord(request_id=ROUND, generation=1, expires_in_sec=85.0, live=True, applied=False)
            peers.journal = peers.journal.model_copy(update={"guard": held, "highest_generation": 1})
            peers.record = peers.record.model_copy(update={"phase": FtPhase.SCALING_DOWN, "can_serve": False})
            await observer.until("guarded", lambda seen: any(isinstance(event, GuardSeen) for event in seen.events), 10)
            peers.journal = journal("nm", (1,))
            peers.view = coordinator_view(SURVIVORS)
            await observer.until("shrunk", lambda seen: seen.publishes(SURVIVORS) and seen.committed((1,)), 10)
    kinds = [type(event) for event in observer.events]
    assert [kind for kind in kinds if kind in (GuardSeen, VerdictSeen, GuardGone)] == [GuardSeen, VerdictSeen, GuardGone]
    assert {e.generation for e in observer.events if isinstance(e, GenerationSeen)} == {1}
    assert [e.ranks for e in observer.events if isinstance(e, CommitSeen)] == [frozenset({1})]
    assert [e.rank for e in observer.events if isinstance(e, AddressSeen)] == [*RANKS, *SURVIVORS]
    assert any(isinstance(event, PhaseSeen) and event.asked_at <= event.at for event in observer.events)
    assert phases[0] == "NORMAL"
    assert [source.who for source in observer.sources() if isinstance(source, SourceRead)] == ["node-manager-0"]


async def test_waiting_in_vain_says_what_was_seen_instead() -> None:
    peers = Peers()
    async with listening(peers.app) as url:
        observer = peers.observer(url)
        async with observer.watching():
            await observer.until("served", lambda seen: seen.publishes(RANKS) and seen.record is not None, 10)
            with pytest.raises(
                NotSeen, match=r"not seen within 0.1 s: a miracle; phase NORMAL; coordinator-0 serves \[0, 1, 2, 3\]"
            ):
                await observer.until("a miracle", lambda seen: False, 0.1)


async def test_peers_that_go_away_are_looked_at_again() -> None:
    peers = Peers()
    async with listening(peers.app) as url:
        observer = peers.observer(url)
        async with observer.watching():
            await observer.until("served", lambda seen: seen.publishes(RANKS), 10)
            peers.down = True
            await eventually(lambda: peers.refused >= 4, "asked again and again")
            peers.view, peers.down = coordinator_view(SURVIVORS), False
            await observer.until("back", lambda seen: seen.publishes(SURVIVORS), 10)


async def test_repeated_refreshes_are_counted_where_they_arrive() -> None:
    async with listening(Peers().app) as url:
        assert await unchanged_refreshes({"a": url}) == {"a": 3.0}
    assert await unchanged_refreshes({"a": url}) == {"a": 0.0}


async def test_a_slow_answer_makes_no_lease_longer() -> None:
    """Else the next round's guard would seem to meet a live one."""
    peers = Peers()
    peers.journal_takes_sec = 0.5
    held = GuardRecord(request_id=ROUND, generation=1, expires_in_sec=85.0, live=True, applied=False)
    peers.journal = peers.journal.model_copy(update={"guard": held})
    async with listening(peers.app) as url:
        observer = peers.observer(url)
        ends_by = time.monotonic() + 85.0
        async with observer.watching():
            await observer.until("guarded", lambda seen: any(isinstance(event, GuardSeen) for event in seen.events), 10)
    first = next(event for event in observer.events if isinstance(event, GuardSeen))
    assert first.expires_at - ends_by < 0.4


async def until_read(observer: Observer, wanted: JournalReply) -> None:
    await observer.until("the journal is read", lambda seen: seen.journals.get("node-manager-0") == wanted, 10)


def judged(observer: Observer, invariant: Invariant) -> Judgement:
    events = (*observer.events, *observer.sources())
    return check(Observed(instance_id=7, original=frozenset(RANKS), events=events, ended_at=time.monotonic()), invariant)


def accepted(number: int, generation: int, **changes: object) -> TransactionRecord:
    told = {"request_id": f"scale-down-{number}", "generation": generation, "guarded": True, "verdict": "aborted"}
    return TransactionRecord.model_validate({**told, **changes})


@pytest.mark.parametrize(
    ("transactions", "red"),
    [
        ([accepted(1, 5), accepted(2, 2)], True),
        ([accepted(1, 2), accepted(2, 5), accepted(3, 2, guarded=False)], False),
    ],
    ids=["an old generation took the Pod", "an old generation left its tombstone"],
)
async def test_generation_of_each_transaction_is_seen(transactions: list[TransactionRecord], red: bool) -> None:
    peers = Peers()
    async with listening(peers.app) as url:
        observer = peers.observer(url)
        async with observer.watching():
            for number in range(1, len(transactions) + 1):
                seen = {"highest_generation": 5, "transactions": tuple(transactions[:number])}
                peers.journal = journal("nm", ()).model_copy(update=seen)
                await until_read(observer, peers.journal)
    assert bool(judged(observer, Invariant.I16).violations) is red


@pytest.mark.parametrize(("live", "red"), [(True, True), (False, False)])
async def test_guard_that_lives_on_past_its_lease_must_end_too(live: bool, red: bool) -> None:
    """Between apply and verdict it does: the lease alone would say that it has expired."""
    peers = Peers()
    held = GuardRecord(request_id=ROUND, generation=1, expires_in_sec=0.3, live=True, applied=True)
    peers.journal = peers.journal.model_copy(update={"guard": held})
    async with listening(peers.app) as url:
        observer = peers.observer(url)
        async with observer.watching():
            await observer.until("guarded", lambda seen: any(isinstance(event, GuardSeen) for event in seen.events), 10)
            for now_live in (True, live):
                lapsed = held.model_copy(update={"expires_in_sec": 0.0, "live": now_live})
                peers.journal = peers.journal.model_copy(update={"guard": lapsed})
                await until_read(observer, peers.journal)
    assert bool(judged(observer, Invariant.I10).violations) is red
