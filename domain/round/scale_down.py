"""One scale-down round, from the gate to the published view (RFC §5, design §4).

A round is one transaction; the steps that it shares with a fast recovery are in `domain.round.transaction`. Its commit point is
the end of the verification: the survivors have recovered and have answered a request.

`run_round` is plain asyncio over `RoundPorts`; three worlds drive it: the `ScaleDownRound` workflow (ports = activities),
the simulation (virtual clock, fake NodeManagers) and the benchmark's bare loop (ports = HTTP). It reads no clock but the
ports', and it is never cancelled in the middle of an await: who wants it stopped says so through `ports.stop_requested`,
which is looked at before each step that matters. So a stop comes before the commit point or not at all.
"""

from typing import Protocol

from domain.errors import AutotomyError
from domain.messages.round import CommitRecord, StopPodsCall
from domain.messages.strategy import RoundOrder, RoundOutcome, RoundReason, RoundReport
from domain.round import transaction
from domain.round.gate import gate
from domain.round.instruction import scale_down_call
from domain.round.ledger import RoundLedger, TransactionStopped
from domain.round.transaction import TransactionPorts, unless_failing
from domain.runtime import FtPhase


class RoundPorts(TransactionPorts, Protocol):
    """What a round needs of the world beyond what every transaction does."""

    def stop_pods(self, call: StopPodsCall) -> None:
        """Start the stop of emptied Pods and do not wait for it."""

    async def record_commit(self, record: CommitRecord) -> bool: ...


async def run_round(order: RoundOrder, ports: RoundPorts) -> RoundReport:
    """Runs one scale-down transaction to its end and reports it."""
    ledger = RoundLedger(order, ports)
    if set(order.pending_ranks) <= set(order.dead_committed):
        return ledger.already_committed()
    try:
        admit(ledger)  # gate and order: refuse before touching anything
        await guard_all(ledger, ports)  # from here on, somebody must give a verdict
        await until_apply_ready(ledger, ports)
        await transaction.withdraw(ledger, ports)
        await apply_once(ledger, ports)
        await transaction.until_recovered(ledger, ports, transaction.recovered_watch(ledger))
        await transaction.verify(ledger, ports)  # its completion is the commit point: never roll back below this line
    except TransactionStopped as stop:
        return await abort(ledger, stop, ports)
    except AutotomyError as error:
        return await abort(ledger, TransactionStopped(RoundReason.PORT_FAILED, error.message), ports)
    await commit(ledger, ports)
    await publish(ledger, ports)
    await transaction.finalize_the_late(ledger, ports)
    return ledger.report(RoundOutcome.SUCCEEDED, RoundReason.COMMITTED, ledger.last_detail)


def admit(ledger: RoundLedger) -> None:
    """Steps 2 and 3: the gate, and an order that fits its topology. Nothing has been touched yet."""
    order = ledger.order
    ledger.say(FtPhase.DECIDING, f"removing ranks {list(order.pending_ranks)}")
    foreign = sorted(set(order.pending_ranks) - set(order.topology.ranks))
    if foreign:
        raise TransactionStopped(RoundReason.BAD_ORDER, f"ranks {foreign} are not ranks of instance {order.instance_id}")
    ledger.gate = gate(
        order.config,
        order.topology.ft_capability,
        len(ledger.survivors),
        capability_consistent=order.capability_consistent,
    )
    if not ledger.gate.allowed:
        raise TransactionStopped(RoundReason.GATE_REFUSED, "the gate refuses: " + ", ".join(ledger.gate.reason_codes))


async def guard_all(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 4. A dead-only Pod in which nobody answers is absent ▲, and the round goes on."""
    try:
        await transaction.guard_all(ledger, ports)
    finally:
        ledger.watch = ledger.watch.with_absent(ledger.absent)


async def until_apply_ready(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 5: every survivor takes an instruction, every rank to be removed is confirmed dead, late deaths are absorbed."""
    await transaction.until_ready(ledger, ports, FtPhase.WAITING_ENGINE_FAULT)
    if len(ledger.survivors) < ledger.order.config.min_alive_ranks:
        raise TransactionStopped(
            RoundReason.NO_SURVIVOR,
            f"{len(ledger.survivors)} survivors are fewer than min_alive_ranks={ledger.order.config.min_alive_ranks}",
        )


async def apply_once(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 7: the cumulative set, and the lowest survivor as master."""
    ledger.check_stop()
    ledger.say(FtPhase.SCALING_DOWN, f"apply scale_down {list(ledger.removed)} to ranks {list(ledger.survivors)}")
    await transaction.apply_once(ledger, ports, scale_down_call(ledger))


async def abort(ledger: RoundLedger, stop: TransactionStopped, ports: RoundPorts) -> RoundReport:
    """The verdict "aborted", wherever a guard was attempted."""
    detail = await transaction.abort(ledger, stop, ports)
    return ledger.report(stop.outcome, stop.reason, detail)


async def commit(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 9: the FaultManager knows first ▲, then every participant retires the removed ranks. Nothing here can undo it."""
    ledger.say(FtPhase.POST_SCALE_CLEANUP, f"ranks {list(ledger.removed)} are removed; finalizing")
    record = CommitRecord(
        instance_id=ledger.order.instance_id,
        generation=ledger.order.generation,
        request_id=ledger.order.request_id,
        dead_committed=ledger.removed,
        view_revision=ledger.view_revision,
    )
    await unless_failing(ports.record_commit(record), False)
    await transaction.finalize(ledger, ports)
    emptied = tuple(m for m in ledger.topology.managers if not set(ledger.topology.ranks_of(m)) - set(ledger.removed))
    newly = tuple(m for m in emptied if set(ledger.topology.ranks_of(m)) & set(ledger.leaving))
    if ledger.order.config.enable_dp_scale_up and newly:  # step 10
        ports.stop_pods(
            StopPodsCall(
                managers=newly,
                generation=ledger.order.generation,
                request_timeout_sec=ledger.config.request_timeout_sec,
                instance_id=ledger.order.instance_id,
            )
        )


async def publish(ledger: RoundLedger, ports: RoundPorts) -> None:
    """Step 11: the survivors are routed to again."""
    ledger.say(FtPhase.SCALED_DOWN_RUNNING, f"publishing ranks {list(ledger.survivors)}")
    await transaction.publish(ledger, ports)
