"""A round whose payloads are packed: its history replays, and the report that it ended with can be read."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from domain.messages.strategy import RoundOutcome, RoundReason
from lab.drills.record.histories import export_histories
from tests.activities.fake_pods import fast_config
from tests.api.installation import a_namespace
from tests.histories.record import has_packed_payloads
from tests.workflows.strategy_world import strategy_world
from workers.replay import replay

pytestmark = pytest.mark.verify

RANKS = 1000
"""So many make the order and the report larger than what travels as it is."""


async def large_round(client: Client) -> "WorkflowHandle[Any, Any]":
    """One that has ended, in two Pods of half the ranks each. Its deadlines leave a busy machine time for that many."""
    patient = fast_config(
        request_timeout_sec=20.0,
        execution_deadline_sec=20.0,
        guard_deadline_sec=20.0,
        coordinator_deadline_sec=20.0,
        apply_deadline_sec=20.0,
        verify_deadline_sec=20.0,
        finalize_deadline_sec=20.0,
    )
    async with strategy_world(client, pods=(range(RANKS // 2), range(RANKS // 2, RANKS))) as world:
        world.instance.kill(1)
        handle = await world.start_round(world.instance.order(1, config=patient, published_ranks=tuple(range(RANKS))))
        await handle.result()
        return handle


async def test_its_history_is_replayed(temporal_client: Client, tmp_path: Path) -> None:
    """In the namespace of which golden histories are made."""
    handle = await large_round(temporal_client)
    history = await handle.fetch_history()
    assert has_packed_payloads(history)
    file = tmp_path / "round.json"
    file.write_text(history.to_json(), encoding="utf-8")
    replayed = await replay([file])
    assert (replayed.tasks > 0, replayed.failures) == (True, ())


async def test_a_drill_reads_its_report(temporal_client: Client, temporal_server: str, tmp_path: Path) -> None:
    client = await a_namespace(temporal_client, temporal_server)
    handle = await large_round(client)
    found = await export_histories(temporal_server, client.namespace, tmp_path)
    assert found.missing == []
    assert any(name.startswith(handle.id) for name in found.files)
    (report,) = found.reports
    assert (report.outcome, report.reason, len(report.survivors)) == (RoundOutcome.SUCCEEDED, RoundReason.COMMITTED, RANKS - 1)
