"""The table of strategies is whole, and says the same as what it names."""

import typing

import pytest

from domain.instance.decision import Action
from domain.instance.strategies import SCALE_DOWN, STARTED_BY, STRATEGIES
from domain.messages.strategy import StrategyKind, StrategyReport
from tests.domain.test_instance import in_round, rebuild_end


def test_every_kind_has_one_row_and_every_report_belongs_to_one() -> None:
    assert set(STRATEGIES) == set(StrategyKind)
    assert {strategy.report for strategy in STRATEGIES.values()} == set(typing.get_args(StrategyReport))
    assert len({strategy.order for strategy in STRATEGIES.values()}) == len(STRATEGIES)
    assert len({strategy.workflow for strategy in STRATEGIES.values()}) == len(STRATEGIES)
    assert len(STARTED_BY) == len(STRATEGIES)


@pytest.mark.parametrize("kind", StrategyKind)
def test_a_report_says_the_kind_of_its_row(kind: StrategyKind) -> None:
    assert typing.get_args(STRATEGIES[kind].report.model_fields["kind"].annotation) == (kind,)
    assert STRATEGIES[kind].report.model_fields["kind"].is_required(), "a dump without defaults would leave it out"


def test_a_strategy_does_not_end_with_the_report_of_another() -> None:
    state, order = in_round()
    assert state.strategy is not None
    with pytest.raises(TypeError, match="cannot end with a ReconfigurationReport"):
        SCALE_DOWN.end(state.but(strategy=None), state.strategy, rebuild_end(order.generation).report, 0.0)


def test_scale_p2d_has_no_row_yet() -> None:
    assert Action.SCALE_P2D not in STARTED_BY
