"""ScaleDownRound on a real Temporal server, against NodeManagers and a Coordinator that are real HTTP servers."""

from temporalio.client import Client

from domain.messages.round import RoundOutcome, RoundReason
from tests.workflows.strategy_world import strategy_world


async def test_a_dead_rank_is_removed_and_the_survivors_are_published(temporal_client: Client) -> None:
    async with strategy_world(temporal_client) as world:
        world.instance.kill(1)
        report = await world.run_round(world.instance.order(1))
        assert (report.outcome, report.reason) == (RoundOutcome.SUCCEEDED, RoundReason.COMMITTED), report.detail
        assert report.dead_committed == (1,)
        assert report.serving_published
        assert world.coordinator.ranks(world.instance.instance_id) == (0, 2, 3)
        assert len(world.instance.applies()) == 2
        heard = await world.heard()
        assert [commit.dead_committed for commit in heard.commits] == [(1,)]
        assert [end.round for end in heard.ends] == [report]
        print(report.stage_times)
