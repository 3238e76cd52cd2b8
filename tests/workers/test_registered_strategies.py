"""Each row of the table of strategies has its workflow in every worker, for the same order and the same report."""

from typing import Any

import pytest

from domain.instance.strategies import STRATEGIES
from domain.messages.strategy import StrategyKind
from workers.controller_worker import WORKFLOWS
from workflows.strategies import STRATEGY_WORKFLOWS


def definitions() -> dict[str, Any]:
    found = [getattr(workflow, "__temporal_workflow_definition") for workflow in WORKFLOWS]
    return {definition.name: definition for definition in found}


@pytest.mark.parametrize("kind", StrategyKind)
def test_a_worker_runs_the_workflow_of_each_row(kind: StrategyKind) -> None:
    row = STRATEGIES[kind]
    definition = definitions()[row.workflow]
    assert definition.arg_types == [row.order]
    assert definition.ret_type is row.report


def test_no_strategy_workflow_is_without_a_row() -> None:
    assert {getattr(workflow, "__temporal_workflow_definition").name for workflow in STRATEGY_WORKFLOWS} == {
        row.workflow for row in STRATEGIES.values()
    }
