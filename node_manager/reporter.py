"""News to the Controller, until it has them.

What waits is one entry a rank, the newest: a Controller that was away wants to know how things are, not how they came
about. Reports leave one after the other, so they arrive in order; each carries everything that waits. Whether a report
needs to be sent again depends on the answer alone:

| answer | |
|---|---|
| 200, accepted or refused with a reason | it has it |
| other 4xx | it will never take it: said in the log, dropped |
| 5xx (503 while Temporal is away), 408, 425, 429, none | again, see below |

Again means 0.1 s later, then twice as long each time up to 2 s, and at once when there is more news.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import httpx

from domain.engine import EngineStatus, EntrySource, RankEntry
from domain.messages.controller import MotorStatus
from domain.messages.node_manager import PodReport, RankReport
from node_manager.waiting import set_within
from service.failpoints import failpoint

log = logging.getLogger(__name__)

FIRST_DELAY_SEC: Final = 0.1
MAX_DELAY_SEC: Final = 2.0
_AGAIN: Final = frozenset({408, 425, 429})


class Delivery(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    AGAIN = "again"


class Reporter:
    """`address` gives (instance id, pod ip, port) of this NodeManager, or None while it belongs to no instance."""

    def __init__(
        self,
        *,
        http: httpx.AsyncClient,
        controller_url: str,
        incarnation: str,
        address: Callable[[], tuple[int, str, int] | None],
        timeout_sec: float,
        count: Callable[[Delivery], None] = lambda delivery: None,
    ) -> None:
        self._http = http
        self._url = f"{controller_url.rstrip('/')}/controller/report_software_fault"
        self._incarnation = incarnation
        self._address = address
        self._timeout_sec = timeout_sec
        self._count = count
        self._collected: dict[int, RankReport] = {}
        self._waiting: dict[int, RankReport] = {}
        self._news = asyncio.Event()
        self._may_report = asyncio.Event()
        self._may_report.set()
        self._obstacle = ""

    def add(self, entry: RankEntry) -> None:
        """Collects one rank's news for the next report; `flush` lets it go."""
        report = rank_report(entry)
        if report is not None:
            self._collected[report.engine_id] = report

    def flush(self) -> None:
        """What was collected leaves as one report."""
        if self._collected:
            self._waiting |= self._collected
            self._collected.clear()
            self._news.set()

    def forget(self, ranks: set[int]) -> None:
        """These ranks are retired, or belong to engines that were replaced: nothing more about them."""
        for kept in (self._collected, self._waiting):
            for rank in ranks & kept.keys():
                del kept[rank]

    def pause(self) -> None:
        """Reports wait: this Pod is being taken down on purpose, the end of its engines is no fault."""
        self._may_report.clear()

    def resume(self) -> None:
        """What waited leaves now."""
        self._may_report.set()

    @property
    def paused(self) -> bool:
        return not self._may_report.is_set()

    @property
    def waiting(self) -> int:
        """How many ranks' news the Controller does not have yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Until cancelled."""
        delay_sec = FIRST_DELAY_SEC
        while True:
            if not self._waiting:
                await self._news.wait()
            await self._may_report.wait()
            self._news.clear()
            if await self._deliver() is not Delivery.AGAIN:
                delay_sec = FIRST_DELAY_SEC
                continue
            if await set_within(self._news, delay_sec):
                delay_sec = FIRST_DELAY_SEC
            else:
                delay_sec = min(2 * delay_sec, MAX_DELAY_SEC)

    async def _deliver(self) -> Delivery:
        address = self._address()
        sent = dict(self._waiting)
        if address is None or not sent:
            self._waiting.clear()
            return Delivery.DONE
        instance_id, pod_ip, port = address
        report = PodReport(
            instance_id=instance_id,
            pod_ip=pod_ip,
            node_manager_port=port,
            incarnation=self._incarnation,
            reports=tuple(sorted(sent.values(), key=lambda one: one.sequence)),
        )
        await failpoint("node-manager.before-report")
        delivery = await self._send(report)
        self._count(delivery)
        if delivery is not Delivery.AGAIN:
            for rank, one in sent.items():
                if self._waiting.get(rank) == one:
                    del self._waiting[rank]
        return delivery

    async def _send(self, report: PodReport) -> Delivery:
        try:
            async with asyncio.timeout(self._timeout_sec):
                response = await self._http.post(self._url, json=report.model_dump(mode="json", exclude_none=True))
        except (httpx.HTTPError, TimeoutError) as error:
            return self._try_again(f"no answer: {error or type(error).__name__}")
        code, answer = response.status_code, response.text[:300]
        told = {"ranks": [one.engine_id for one in report.reports], "answer": answer}
        if code == 200:
            log.info("reported", extra=told)
        elif 400 <= code < 500 and code not in _AGAIN:
            log.error("controller refuses the report", extra={"http": code, **told})
        else:
            return self._try_again(f"HTTP {code}: {answer}")
        self._obstacle = ""
        return Delivery.DONE if code == 200 else Delivery.REFUSED

    def _try_again(self, obstacle: str) -> Delivery:
        """Says each obstacle once, however often it is met."""
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            log.warning("controller cannot take the report yet", extra={"why": obstacle, "ranks": sorted(self._waiting)})
        return Delivery.AGAIN


def rank_report(entry: RankEntry) -> RankReport | None:
    """An entry in the report's form; None for a status word that the Controller has no number for.

    A protocol error is number 2, "unhealthy", with its source: it never counts as a death.
    """
    numbers = {
        EngineStatus.HEALTHY.value: MotorStatus.HEALTHY,
        EngineStatus.DEAD.value: MotorStatus.DEAD,
        EngineStatus.UNHEALTHY.value: MotorStatus.UNHEALTHY,
    }
    number = MotorStatus.UNHEALTHY if entry.source is EntrySource.PROTOCOL_ERROR else numbers.get(entry.status)
    if number is None:
        return None
    return RankReport(
        engine_id=entry.id,
        engine_status=int(number),
        engine_incarnation=entry.incarnation,
        sequence=entry.sequence,
        source=entry.source,
        exception_type=None if number is MotorStatus.HEALTHY else entry.source.value,
        exception_message=entry.fault_info,
        ft_state=entry.ft_state,
        ft_error=entry.ft_error,
        mask=entry.mask,
        last_ft_request_id=entry.last_ft_request_id,
    )
