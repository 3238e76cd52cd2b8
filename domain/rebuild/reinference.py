"""TokenReinference: engines that heal by themselves are given time to (design §3, rule 3).

Some hardware faults of level L2 (`token_reinference_codes`) cost the engines only the tokens that they were computing;
they compute them again. Nothing is withdrawn, stopped or commanded: it is waited until the ranks are healthy, each has
given a completion, and they still are healthy after it. What was not healed within `token_reinference_deadline_sec` is
left to the other rules; either way the fault has been tried once.

An engine whose process is gone does not heal: that ends the wait at its next look.
"""

from typing import Final, Protocol

from domain.engine import EngineStatus, ProcessState, RankEntry
from domain.errors import AutotomyError
from domain.messages.rebuild import EnginesReadyCall, EnginesReadyResult
from domain.messages.strategy import ReinferenceOrder, ReinferenceReason, ReinferenceReport, StrategyKind
from domain.runtime import FtPhase
from domain.strategy import StrategyLedger, StrategyPorts, by_rank
from domain.watch import questions

_LOOK_SEC: Final = 5.0
_LOOKS: Final = 20
"""A look waits at least so long, and for a twentieth of the whole: then it is judged whether waiting still makes sense."""


class ReinferencePorts(StrategyPorts, Protocol):
    """What it needs of the world beyond what every strategy does. A look that a stop has ended returns an empty result."""

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult: ...


async def run_reinference(order: ReinferenceOrder, ports: ReinferencePorts) -> ReinferenceReport:
    """Waits for these ranks to heal and reports it."""
    wait = _Wait(order, ports)
    try:
        reason, detail = await wait.until_healed()
    except AutotomyError as error:
        reason, detail = ReinferenceReason.PORT_FAILED, error.message
    wait.ledger.stage_done("heal")
    return ReinferenceReport(
        kind=StrategyKind.TOKEN_REINFERENCE,
        instance_id=order.instance_id,
        generation=order.generation,
        healed=reason is ReinferenceReason.HEALED,
        reason=reason,
        detail=detail,
        last_entries=wait.ledger.last_entries,
        stage_times=wait.ledger.stage_times,
    )


class _Wait:
    """The wait, and what has been seen in it."""

    def __init__(self, order: ReinferenceOrder, ports: ReinferencePorts) -> None:
        workflow_id = StrategyKind.TOKEN_REINFERENCE.workflow_id(order.instance_id, order.generation)
        self.ledger = StrategyLedger(order, ports, request_id=workflow_id)
        self._order = order
        self._ports = ports
        self._config = order.config.dp_scale_down_config
        self._questions = questions(order.topology, order.ranks)
        within_sec = order.config.token_reinference_deadline_sec
        self._deadline_at = self.ledger.deadline(within_sec)
        self._look_sec = max(_LOOK_SEC, within_sec / _LOOKS)

    async def until_healed(self) -> tuple[ReinferenceReason, str]:
        order = self._order
        foreign = sorted(set(order.ranks) - set(order.topology.ranks))
        if foreign or not order.ranks:
            return ReinferenceReason.BAD_ORDER, f"ranks {foreign or list(order.ranks)} are not ranks of the instance"
        self._say(f"ranks {list(order.ranks)} may heal by themselves: {order.why}")
        while True:
            over = self._ports.now() >= self._deadline_at
            looked_at = self._ports.now()
            waiting = await self._look(min(self._deadline_at, looked_at + self._look_sec))
            if not waiting:
                waiting = await self._proof()
            stop = self._ports.stop_requested()
            if stop is not None:
                return ReinferenceReason.CANCELLED, f"stopped: {stop}"
            died = sorted(rank for rank, entry in self.ledger.last_entries.items() if _is_gone(entry))
            if died:
                return ReinferenceReason.RANK_DIED, f"ranks {died} are gone"
            if not waiting:
                return ReinferenceReason.HEALED, ""
            if over:
                return ReinferenceReason.NOT_HEALED_IN_TIME, by_rank(waiting)
            early_sec = min(self._deadline_at, looked_at + self._look_sec) - self._ports.now()
            if early_sec > 0:  # healthy, but without a completion
                await self._ports.pause(early_sec, "before the next look")

    async def _proof(self) -> dict[int, str]:
        """A completion on each, and a look after it; without the FT routes there is nobody to ask for one."""
        if self._ports.stop_requested() is not None or not self._order.config.enable_dp_scale_down_proxy:
            return {}
        self._say("all are healthy; one completion on each")
        deadline_at = min(self._deadline_at, self.ledger.deadline(self._config.verify_deadline_sec))
        result = await self._ports.verify(self.ledger.verify_call(self._questions, deadline_at))
        missing = {rank: result.failed.get(rank, "no completion") for rank in self._order.ranks if rank not in result.ok}
        return missing or await self._look(self._ports.now())

    async def _look(self, deadline_at: float) -> dict[int, str]:
        """Which ranks are not healthy by then, and why."""
        result = await self._ports.await_ready(
            EnginesReadyCall(
                questions=self._questions,
                poll_interval_sec=self._config.fault_poll_interval_sec,
                request_timeout_sec=self._config.request_timeout_sec,
                deadline_at=deadline_at,
            )
        )
        self.ledger.last_entries.update(result.last_entries)
        return result.waiting

    def _say(self, detail: str) -> None:
        self.ledger.say(FtPhase.DECIDING, detail)


def _is_gone(entry: RankEntry) -> bool:
    return entry.status == EngineStatus.DEAD or entry.process is ProcessState.EXITED
