"""One fast recovery: every active rank is told to `retry` in place (design §3, rule 6).

When all active ranks are UNHEALTHY and none is DEAD, nobody has to leave: the collective was broken, and the engines can
build it anew with the same members. That is what released vLLM can do today, in both dialects.

    guard all → all `unhealthy`? → DEL → one `retry` to each → all healthy → still so after a while → a completion on each
                                                                                  → verdict (nobody retired) → ADD

It is a transaction like a scale-down round and shares its steps (`domain.round.transaction`), at most one apply per request id
included. Ranks that were removed earlier stay removed. If a rank turns out dead, or all are healthy, before anything was
withdrawn, it is **abandoned** and the evidence decides anew; whatever fails later ends in a reconfiguration, never in a
scale-down (I9): after a retry that failed nobody knows which rank to blame.
"""

from domain.engine import Instruction
from domain.errors import AutotomyError
from domain.messages.strategy import FastRecoveryOrder, FastRecoveryReport, RoundOutcome, RoundReason, StrategyKind
from domain.round import transaction
from domain.round.gate import retry_gate
from domain.round.ledger import TransactionLedger, TransactionStopped
from domain.round.transaction import TransactionPorts
from domain.runtime import FtPhase
from domain.strategy import LedgerPorts
from domain.watch import RecoveredWatch, RetryReadyWatch, WatchState, questions


class FastRecoveryLedger(TransactionLedger[FastRecoveryOrder]):
    """A fast recovery's: nobody leaves, the survivors are the active ranks."""

    def __init__(self, order: FastRecoveryOrder, ports: LedgerPorts) -> None:
        super().__init__(order, ports)
        active = [rank for rank in order.topology.ranks if rank not in order.dead_committed]
        self.watch = RetryReadyWatch(survivors=questions(order.topology, active))

    @property
    def leaving(self) -> tuple[int, ...]:
        return ()

    def report(self, outcome: RoundOutcome, reason: RoundReason, detail: str = "") -> FastRecoveryReport:
        recovered = self.survivors if self.committed else ()
        ended = self.ended(outcome, reason, detail)
        return FastRecoveryReport(kind=StrategyKind.FAST_RECOVERY, **dict(ended), recovered=recovered)


async def run_fast_recovery(order: FastRecoveryOrder, ports: TransactionPorts) -> FastRecoveryReport:
    """Runs one fast recovery to its end and reports it. The workflow and the simulation drive it, as they do a round."""
    ledger = FastRecoveryLedger(order, ports)
    try:
        admit(ledger)
        await transaction.guard_all(ledger, ports)  # from here on, somebody must give a verdict
        await transaction.until_ready(ledger, ports, FtPhase.DECIDING)
        await transaction.withdraw(ledger, ports)
        await retry_once(ledger, ports)
        recovered = transaction.recovered_watch(ledger).model_copy(update={"before": ledger.watch.entries})
        await transaction.until_recovered(ledger, ports, recovered)
        await until_stable(ledger, ports, recovered)
        await transaction.verify(ledger, ports)  # its completion is the commit point: never roll back below this line
    except TransactionStopped as stop:
        return await abort(ledger, stop, ports)
    except AutotomyError as error:
        return await abort(ledger, TransactionStopped(RoundReason.PORT_FAILED, error.message), ports)
    ledger.say(FtPhase.DECIDING, f"ranks {list(ledger.survivors)} have recovered; finalizing and publishing")
    await transaction.finalize(ledger, ports)
    await transaction.publish(ledger, ports)
    await transaction.finalize_the_late(ledger, ports)
    return ledger.report(RoundOutcome.SUCCEEDED, RoundReason.RECOVERED, ledger.last_detail)


def admit(ledger: FastRecoveryLedger) -> None:
    """The gate, and an order with somebody in it. Nothing has been touched yet."""
    order = ledger.order
    ledger.say(FtPhase.DECIDING, f"fast recovery of ranks {list(ledger.survivors)}")
    if not ledger.survivors:
        raise TransactionStopped(RoundReason.BAD_ORDER, f"every rank of instance {order.instance_id} was removed")
    ledger.gate = retry_gate(order.config, order.topology.ft_capability, capability_consistent=order.capability_consistent)
    if not ledger.gate.allowed:
        raise TransactionStopped(RoundReason.GATE_REFUSED, "the gate refuses: " + ", ".join(ledger.gate.reason_codes))


async def retry_once(ledger: FastRecoveryLedger, ports: TransactionPorts) -> None:
    """One `retry` to every active rank, concurrently and under one request id: the engines meet under it."""
    ledger.check_stop()
    ledger.say(FtPhase.DECIDING, f"apply retry to ranks {list(ledger.survivors)}")
    await transaction.apply_once(ledger, ports, transaction.instruct(ledger, Instruction.RETRY))


async def until_stable(ledger: FastRecoveryLedger, ports: TransactionPorts, watch: RecoveredWatch) -> None:
    """A second look: a group that has met again may break again at its first steps."""
    await ports.pause(ledger.order.config.fast_recovery_stability_sec, "do the ranks stay healthy")
    deadline_at = ledger.deadline(ledger.config.request_timeout_sec)  # for one who cannot be read just now
    verdict = await transaction.look(ledger, ports, watch, deadline_at, once=False)
    ledger.stage_done("stable")
    if verdict is not WatchState.DONE:
        raise TransactionStopped(RoundReason.RELAPSED, ledger.last_detail)


async def abort(ledger: FastRecoveryLedger, stop: TransactionStopped, ports: TransactionPorts) -> FastRecoveryReport:
    """The verdict "aborted", wherever a guard was attempted."""
    detail = await transaction.abort(ledger, stop, ports)
    return ledger.report(stop.outcome, stop.reason, detail)
