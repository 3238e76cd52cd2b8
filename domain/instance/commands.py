"""Which of a person's commands an instance can take now. None: it may; otherwise the refusal, with its reason.

The FaultManager's update validators ask here, so that a refused command never enters history.
"""

from domain.instance.state import InstanceState, Life
from domain.messages.fault_manager import CommandOutcome, CommandReply, ReconfigureCall
from domain.messages.strategy import StrategyKind
from domain.runtime import SERVING_PHASES


def why_not_republish(state: InstanceState) -> CommandReply | None:
    """The published view again: not while a strategy owns the view, nor where there is none."""
    if state.strategy is not None:
        return _no(CommandOutcome.STRATEGY_RUNS, f"{state.strategy.workflow_id} owns the view until it ends")
    if state.phase not in SERVING_PHASES or not state.view.ranks:
        return _no(CommandOutcome.NOT_SERVING, f"phase {state.phase}: there is no published view")
    return None


def why_not_reconfigure(state: InstanceState, call: ReconfigureCall) -> CommandReply | None:
    """A rebuild: not beside a strategy, nor beyond the budget, unless by force; never beside another rebuild."""
    if state.life in (Life.LEARNING, Life.ENDING):
        return _no(CommandOutcome.NOT_READY, f"the FaultManager is {state.life}")
    strategy = state.strategy
    rebuilding = strategy is not None and strategy.kind is StrategyKind.INSTANCE_RECONFIGURATION
    if strategy is not None and (rebuilding or not call.force):
        return _no(CommandOutcome.STRATEGY_RUNS, f"{strategy.workflow_id} runs")
    if state.budget_spent and not call.force:
        return _no(CommandOutcome.BUDGET_SPENT, "the budget is spent; `force` orders one all the same")
    return None


def why_not_hold(state: InstanceState) -> CommandReply | None:
    """Automation off, whatever runs; only a deleted instance has nothing left to hold."""
    if state.life is Life.ENDING:
        return _no(CommandOutcome.NOT_READY, "the instance was deleted, the FaultManager ends")
    return None


def why_not_release(state: InstanceState) -> CommandReply | None:
    """Automation on again, where a person had switched it off."""
    if state.held is None:
        return why_not_hold(state) or _no(CommandOutcome.NOT_HELD, "the automation is not held")
    return why_not_hold(state)


def _no(outcome: CommandOutcome, message: str) -> CommandReply:
    return CommandReply(outcome=outcome, message=message)
