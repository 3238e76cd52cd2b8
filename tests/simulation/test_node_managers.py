"""The simulation's NodeManager answers a command as the real one does."""

from random import Random

import pytest

from domain.errors import OutcomeUnknown, Refused
from domain.messages.node_manager import NodeManagerReason
from domain.pod.records import Verdict
from domain.topology import NodeManagerAddress
from tests.simulation.clock import run_virtually
from tests.simulation.engines import Group
from tests.simulation.node_managers import FakeNodeManager
from tests.simulation.record import Record


def a_node_manager() -> FakeNodeManager:
    """Of ranks 0 and 1, of three."""
    record, rng = Record(), Random(1)
    return FakeNodeManager(
        NodeManagerAddress(ip="10.0.0.1", port=1026),
        (0, 1),
        Group(3, record, rng, recovery_sec=0.1, store_timeout_sec=5.0, engine_recovery_timeout_sec=120.0),
        record,
        rng,
        engine_request_timeout_sec=0.5,
        engine_recovery_timeout_sec=120.0,
        engine_link_loss=0.0,
    )


def test_who_is_turned_away_leaves_no_trace_but_its_tombstone() -> None:
    """Generations of two instances are not comparable: the owner's must not become old by a stranger's number."""

    async def told() -> FakeNodeManager:
        manager = a_node_manager()
        await manager.guard("A", 85.0, 3)
        with pytest.raises(Refused) as held:
            await manager.guard("B", 85.0, 9)
        assert held.value.reason == NodeManagerReason.GUARD_HELD
        await manager.finalize("B", False, (), (), 9)
        await manager.guard("A", 85.0, 3)
        return manager

    manager = run_virtually(told())
    assert manager.journal.standing.highest_generation == 3
    assert manager.journal.transactions["B"].verdict is Verdict.ABORTED
    assert manager.journal.transactions["A"].verdict is None


def test_one_engine_of_which_nothing_was_heard_makes_the_apply_unknown_whatever_the_other_said() -> None:
    async def told() -> FakeNodeManager:
        manager = a_node_manager()
        manager.group.engines[0].refuses = True
        manager.group.hang(1)
        await manager.guard("A", 85.0, 3)
        with pytest.raises(OutcomeUnknown):
            await manager.apply("A", (0, 1), (2,), 3, 1.0)
        return manager

    apply = run_virtually(told()).journal.transactions["A"].apply
    assert apply is not None
    assert apply.outcome == NodeManagerReason.OUTCOME_UNKNOWN
