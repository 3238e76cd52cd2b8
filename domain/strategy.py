"""What every strategy is run with: the world that it asks (`StrategyPorts`), and what it knows so far (`StrategyLedger`).

A strategy's logic is plain asyncio over ports: `async run_x(order, ports) -> report`. It reads no clock but the ports', and
it is never cancelled in the middle of an await: who wants it stopped says so through `stop_requested`, which it looks at
before each step that matters. What a strategy asks beyond this is a protocol of its own; what it has learnt in particular
is a ledger of its own, or the state of the class that runs its steps.
"""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from domain.engine import RankEntry
from domain.messages.round import PeerRefusal, VerifyCall, VerifyResult, ViewCall, ViewResult
from domain.messages.strategy import StepReport, StrategyOrder
from domain.runtime import FtPhase
from domain.watch import Question

O_co = TypeVar("O_co", bound=StrategyOrder, covariant=True)


class LedgerPorts(Protocol):
    """The part of a strategy's ports that needs no await."""

    def now(self) -> float:
        """Seconds since the epoch by this world's clock."""

    def stop_requested(self) -> str | None:
        """Why somebody wants this to end; None: nobody does. From then on a wait without effects returns early."""

    def progress(self, report: StepReport) -> None:
        """Tell the FaultManager; not awaited, may arrive late or never."""


class StrategyPorts(LedgerPorts, Protocol):
    """What any strategy may ask of the world. Calls may take long, never for ever, and each may be repeated.

    A port that cannot do its job raises one of `domain.errors`.
    """

    async def pause(self, seconds: float, why: str) -> None:
        """Lets this time pass; returns early once a stop is requested."""

    async def push_view(self, call: ViewCall) -> ViewResult: ...

    async def verify(self, call: VerifyCall) -> VerifyResult: ...


class StrategyLedger(Generic[O_co]):
    """What a strategy has said, seen and taken so far. `view_revision`: the last one that it used.

    `request_id` is shown with each step: a transaction's own, or the strategy's workflow id.
    """

    def __init__(self, order: O_co, ports: LedgerPorts, *, request_id: str, view_revision: int = 0) -> None:
        self.order = order
        self.config = order.config.dp_scale_down_config
        self.topology = order.topology
        self.view_revision = view_revision
        self.last_entries: dict[int, RankEntry] = {}
        self.stage_times: dict[str, float] = {}
        self._ports = ports
        self._request_id = request_id
        self._step = 0
        self._stage_began = ports.now()

    @property
    def pending(self) -> tuple[int, ...]:
        """The ranks that are about to be removed."""
        return ()

    def say(self, phase: FtPhase, detail: str) -> None:
        """One step more, for the FaultManager and for people."""
        self._step += 1
        self._ports.progress(
            StepReport(
                step=self._step,
                phase=phase,
                detail=detail,
                request_id=self._request_id,
                pending_ranks=self.pending,
                at=self._ports.now(),
            )
        )

    def stage_done(self, name: str) -> None:
        """What has passed since the last stage belongs to this one."""
        now = self._ports.now()
        self.stage_times[name] = round(self.stage_times.get(name, 0.0) + now - self._stage_began, 6)
        self._stage_began = now

    def deadline(self, seconds: float) -> float:
        """So many seconds from now, by the ports' clock."""
        return self._ports.now() + seconds

    def view_call(self, ranks: tuple[int, ...], deadline_at: float | None = None) -> ViewCall:
        """Push these ranks, or the withdrawal, under the present revision; `coordinator_deadline_sec` where no end is given."""
        return ViewCall(
            topology=self.topology,
            revision=self.view_revision,
            ranks=ranks,
            request_timeout_sec=self.config.request_timeout_sec,
            deadline_at=deadline_at if deadline_at is not None else self.deadline(self.config.coordinator_deadline_sec),
        )

    def verify_call(self, groups: tuple[Question, ...], deadline_at: float | None = None) -> VerifyCall:
        """One completion on each of these ranks; within `verify_deadline_sec` where no end is given."""
        return VerifyCall(
            groups=groups,
            request_timeout_sec=self.config.request_timeout_sec,
            deadline_at=deadline_at if deadline_at is not None else self.deadline(self.config.verify_deadline_sec),
        )


def by_rank(reasons: dict[int, str]) -> str:
    """Why each of these ranks is not well, for people."""
    return "; ".join(f"rank {rank}: {why}" for rank, why in sorted(reasons.items()))


def listed(refusals: Iterable[PeerRefusal]) -> str:
    """Refusals as people read them. Who wants to know one reads its fields."""
    return "; ".join(f"{refusal.peer}: {refusal.reason} ({refusal.message})" for refusal in refusals)
