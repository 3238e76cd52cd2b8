"""What one transaction has learnt and done so far: written by its steps, read by its report.

The ledger holds no rule of its own but the arithmetic of the sets: survivors, this round's removals, and the cumulative
`removed_dp_ranks` = committed before ∪ this round's (I2). A fast recovery removes nobody: its survivors are the active
ranks, all of them.
"""

from abc import ABC, abstractmethod
from typing import TypeVar

from domain.messages.round import Lease, PeerRefusal
from domain.messages.strategy import (
    RoundOrder,
    RoundOutcome,
    RoundReason,
    RoundReport,
    StrategyKind,
    TransactionOrder,
    TransactionReport,
)
from domain.runtime import FtPhase, GateRecord
from domain.strategy import LedgerPorts, StrategyLedger, listed
from domain.topology import NodeManagerAddress
from domain.watch import ApplyReadyWatch, Confirmation, Question, ReadyWatch, RecoveredWatch, Removal, Watch, questions

T_co = TypeVar("T_co", bound=TransactionOrder, covariant=True)


class TransactionStopped(Exception):
    """The transaction ends before its commit point. `outcome` says how, `reason` and `detail` why, `refusals` by whose no."""

    def __init__(
        self,
        reason: RoundReason,
        detail: str = "",
        outcome: RoundOutcome = RoundOutcome.FAILED,
        *,
        refusals: tuple[PeerRefusal, ...] = (),
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.outcome = outcome
        self.refusals = refusals

    @classmethod
    def by_peers(cls, reason: RoundReason, refusals: tuple[PeerRefusal, ...], otherwise: str = "") -> "TransactionStopped":
        """Peers said no, or nothing. `otherwise`: the detail where none of them is named."""
        return cls(reason, listed(refusals) or otherwise, refusals=refusals)


class TransactionLedger(StrategyLedger[T_co], ABC):
    """One place for what a transaction knows. `watch`: the wait before the instruction, as it stands now."""

    watch: ReadyWatch

    def __init__(self, order: T_co, ports: LedgerPorts) -> None:
        super().__init__(order, ports, request_id=order.request_id, view_revision=order.view_revision)
        self.gate: GateRecord | None = None
        self.absent: set[NodeManagerAddress] = set()
        self.unreachable: set[NodeManagerAddress] = set()
        self.guard_attempted: tuple[NodeManagerAddress, ...] = ()
        self.applied: dict[int, int | None] = {}
        self.last_detail = ""
        self.refusals: tuple[PeerRefusal, ...] = ()
        self.withdrawn = False
        self.committed = False
        self.published = False
        self.pending_finalize: list[NodeManagerAddress] = []

    @property
    def survivor_groups(self) -> tuple[Question, ...]:
        """The ranks that go on, by NodeManager."""
        return self.watch.survivors

    @property
    @abstractmethod
    def leaving(self) -> tuple[int, ...]:
        """The ranks that this transaction removes."""

    @property
    def survivors(self) -> tuple[int, ...]:
        return self.watch.survivor_ranks

    @property
    def removed(self) -> tuple[int, ...]:
        """The cumulative set: committed before ∪ this round's, sorted (I2)."""
        return tuple(sorted({*self.order.dead_committed, *self.leaving}))

    @property
    def pending(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.removed if rank not in self.order.dead_committed)

    def note(self, watch: Watch) -> None:
        """What a look has seen."""
        self.last_entries.update(watch.entries)
        if not isinstance(watch, RecoveredWatch):
            self.watch = watch

    def participants(self) -> tuple[tuple[NodeManagerAddress, ...], tuple[NodeManagerAddress, ...]]:
        """Who is guarded: NodeManagers with something left to lose, and those of dead-only Pods, which may be absent.

        A headless member counts with its rank. A Pod that an earlier round emptied takes no part: it may be stopped, or its
        ip be another instance's by now, and its refusal would say nothing about this round.
        """
        behind: dict[NodeManagerAddress, set[int]] = {manager: set() for manager in self.topology.managers}
        for endpoint in self.topology.endpoints:
            behind[self.topology.manager_of(endpoint)].add(endpoint.id)
        gone, going = set(self.removed), set(self.leaving)
        must = tuple(manager for manager, ranks in behind.items() if ranks - gone)
        dead_only = tuple(manager for manager, ranks in behind.items() if not ranks - gone and ranks & going)
        return must, dead_only

    def retired_groups(self) -> tuple[Question, ...]:
        return questions(self.topology, self.leaving)

    def lease(self) -> Lease:
        present = tuple(manager for manager in self.guard_attempted if manager not in self.absent)
        return Lease(managers=present, lease_sec=self.config.lease_sec, renew_every_sec=self.config.lease_sec / 4)

    def check_stop(self) -> None:
        """Ends the transaction if somebody wants it to. Called before each step, never at or after the commit point."""
        if self._ports.stop_requested() is not None:
            raise TransactionStopped(RoundReason.CANCELLED, "stopped before the commit point", RoundOutcome.CANCELLED)

    def ended(self, outcome: RoundOutcome, reason: RoundReason, detail: str) -> TransactionReport:
        """What there is to report of every transaction."""
        return TransactionReport(
            instance_id=self.order.instance_id,
            generation=self.order.generation,
            request_id=self.order.request_id,
            outcome=outcome,
            reason=reason,
            detail=detail,
            refusals=self.refusals,
            gate=self.gate,
            withdrawn=self.withdrawn,
            serving_published=self.published,
            view_revision=self.view_revision,
            applied=self.applied,
            pending_finalize=tuple(sorted(set(map(str, self.pending_finalize)))),
            last_entries=dict(self.last_entries),
            stage_times=self.stage_times,
        )


class RoundLedger(TransactionLedger[RoundOrder]):
    """A scale-down round's."""

    watch: ApplyReadyWatch

    def __init__(self, order: RoundOrder, ports: LedgerPorts) -> None:
        super().__init__(order, ports)
        self.watch = _first_watch(order)

    @property
    def leaving(self) -> tuple[int, ...]:
        return self.watch.removed_ranks

    def note(self, watch: Watch) -> None:
        """A Pod in which nobody answers any more is absent from here on."""
        super().note(watch)
        self.absent |= {removal.manager for removal in self.watch.removing if removal.confirmed is Confirmation.ABSENT}

    def already_committed(self) -> RoundReport:
        """Step 1: a round for ranks that are removed already succeeds only where the group runs without them."""
        running = self.order.phase_before is FtPhase.SCALED_DOWN_RUNNING
        outcome = RoundOutcome.SUCCEEDED if running else RoundOutcome.FAILED
        self.published = running and bool(self.order.published_ranks)
        return self.report(outcome, RoundReason.ALREADY_COMMITTED, f"ranks {list(self.order.pending_ranks)} are removed already")

    def report(self, outcome: RoundOutcome, reason: RoundReason, detail: str = "") -> RoundReport:
        return RoundReport(
            kind=StrategyKind.SCALE_DOWN,
            **dict(self.ended(outcome, reason, detail)),
            committed=self.committed,
            dead_committed=self.removed if self.committed else self.order.dead_committed,
            removed_dp_ranks=self.removed,
            survivors=self.survivors,
            absent_node_managers=tuple(sorted(map(str, self.absent))),
        )


def _first_watch(order: RoundOrder) -> ApplyReadyWatch:
    active = set(order.topology.ranks) - set(order.dead_committed)
    candidates = set(order.pending_ranks) - set(order.dead_committed)
    survivors = order.topology.by_manager(active - candidates)
    known = candidates & set(order.topology.ranks)
    return ApplyReadyWatch(
        survivors=questions(order.topology, active - candidates),
        removing=tuple(
            Removal(
                rank=rank,
                manager=order.topology.manager_of_rank(rank),
                manager_has_survivors=order.topology.manager_of_rank(rank) in survivors,
                reported_incarnation=order.reported_incarnations.get(rank),
            )
            for rank in sorted(known)
        ),
        dead_confirm_sec=order.config.dp_scale_down_config.dead_confirm_sec,
    )
