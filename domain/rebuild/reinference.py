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
from domain.messages.round import VerifyCall, VerifyResult
from domain.messages.strategy import ReinferenceOrder, ReinferenceReason, ReinferenceReport, StepReport, StrategyKind
from domain.runtime import FtPhase
from domain.watch import Question

_LOOK_SEC: Final = 5.0
_LOOKS: Final = 20
"""A look waits at least so long, and for a twentieth of the whole: then it is judged whether waiting still makes sense."""


class ReinferencePorts(Protocol):
    """What it needs of the world. A look that is ended by a wish to stop returns an empty result."""

    def now(self) -> float:
        """Seconds since the epoch by this world's clock."""

    def stop_requested(self) -> str | None:
        """Why somebody wants this to end; None: nobody does."""

    def progress(self, report: StepReport) -> None:
        """Tell the FaultManager; not awaited, may arrive late or never."""

    async def pause(self, seconds: float, why: str) -> None:
        """Lets this time pass; returns early once a stop is requested."""

    async def await_ready(self, call: EnginesReadyCall) -> EnginesReadyResult: ...

    async def verify(self, call: VerifyCall) -> VerifyResult: ...


async def run_reinference(order: ReinferenceOrder, ports: ReinferencePorts) -> ReinferenceReport:
    """Waits for these ranks to heal and reports it."""
    wait = _Wait(order, ports)
    try:
        reason, detail = await wait.until_healed()
    except AutotomyError as error:
        reason, detail = ReinferenceReason.PORT_FAILED, error.message
    return ReinferenceReport(
        kind=StrategyKind.TOKEN_REINFERENCE,
        instance_id=order.instance_id,
        generation=order.generation,
        healed=reason is ReinferenceReason.HEALED,
        reason=reason,
        detail=detail,
        looked=wait.looked,
        stage_times={"heal": round(ports.now() - wait.began_at, 6)},
    )


class _Wait:
    """The wait, and what has been seen in it."""

    def __init__(self, order: ReinferenceOrder, ports: ReinferencePorts) -> None:
        self.looked: dict[int, RankEntry] = {}
        self.began_at = ports.now()
        self._order = order
        self._ports = ports
        self._config = order.config.dp_scale_down_config
        within_sec = order.config.token_reinference_deadline_sec
        self._deadline_at = self.began_at + within_sec
        self._look_sec = max(_LOOK_SEC, within_sec / _LOOKS)
        self._steps = 0

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
            died = sorted(rank for rank, entry in self.looked.items() if _is_gone(entry))
            if died:
                return ReinferenceReason.RANK_DIED, f"ranks {died} are gone"
            if not waiting:
                return ReinferenceReason.HEALED, ""
            if over:
                return ReinferenceReason.NOT_HEALED_IN_TIME, "; ".join(f"rank {r}: {why}" for r, why in sorted(waiting.items()))
            early_sec = min(self._deadline_at, looked_at + self._look_sec) - self._ports.now()
            if early_sec > 0:  # healthy, but without a completion
                await self._ports.pause(early_sec, "before the next look")

    async def _proof(self) -> dict[int, str]:
        """A completion on each, and a look after it; without the FT routes there is nobody to ask for one."""
        if self._ports.stop_requested() is not None or not self._order.config.enable_dp_scale_down_proxy:
            return {}
        self._say("all are healthy; one completion on each")
        result = await self._ports.verify(
            VerifyCall(
                groups=self._questions,
                request_timeout_sec=self._config.request_timeout_sec,
                deadline_at=min(self._deadline_at, self._ports.now() + self._config.verify_deadline_sec),
            )
        )
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
        self.looked.update(result.looked)
        return result.waiting

    @property
    def _questions(self) -> tuple[Question, ...]:
        by_manager = self._order.topology.by_manager(self._order.ranks)
        return tuple(Question(manager=manager, ranks=ranks) for manager, ranks in by_manager.items())

    def _say(self, detail: str) -> None:
        self._steps += 1
        order = self._order
        self._ports.progress(
            StepReport(
                step=self._steps,
                phase=FtPhase.DECIDING,
                detail=detail,
                request_id=StrategyKind.TOKEN_REINFERENCE.workflow_id(order.instance_id, order.generation),
                pending_ranks=(),
                at=self._ports.now(),
            )
        )


def _is_gone(entry: RankEntry) -> bool:
    return entry.status == EngineStatus.DEAD or entry.process is ProcessState.EXITED
