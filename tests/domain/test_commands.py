"""What a person may command, and why not."""

from domain.instance.commands import why_not_hold, why_not_reconfigure, why_not_release, why_not_republish
from domain.instance.decision import Action, Decision, DecisionReason
from domain.instance.state import Life
from domain.instance.strategies import INSTANCE_RECONFIGURATION, SCALE_DOWN
from domain.messages.fault_manager import CommandOutcome, CommandReply, ReconfigureCall
from domain.runtime import FtPhase
from tests.domain.instance_factories import T0, serving_state

SHED = Decision(action=Action.SCALE_DOWN, reason=DecisionReason.COMPLETE, ranks=(1,))
REBUILD = Decision(action=Action.RECONFIGURE, reason=DecisionReason.ALL_DEAD)
FORCE, ASK = ReconfigureCall(force=True), ReconfigureCall()

SERVING = serving_state()
IN_ROUND = SCALE_DOWN.start(SERVING, SHED, "0" * 32, T0)[0]
IN_REBUILD = INSTANCE_RECONFIGURATION.start(SERVING, REBUILD, "", T0)[0]


def outcome(reply: CommandReply | None) -> CommandOutcome | None:
    return None if reply is None else reply.outcome


def test_a_view_is_pushed_again_where_there_is_one_and_nobody_owns_it() -> None:
    assert outcome(why_not_republish(SERVING)) is None
    assert outcome(why_not_republish(IN_ROUND)) is CommandOutcome.STRATEGY_RUNS
    assert outcome(why_not_republish(SERVING.withdrawn(T0))) is CommandOutcome.NOT_SERVING


def test_a_rebuild_waits_for_what_runs_unless_by_force_and_never_doubles() -> None:
    assert outcome(why_not_reconfigure(SERVING, ASK)) is None
    assert outcome(why_not_reconfigure(IN_ROUND, ASK)) is CommandOutcome.STRATEGY_RUNS
    assert outcome(why_not_reconfigure(IN_ROUND, FORCE)) is None
    assert outcome(why_not_reconfigure(IN_REBUILD, FORCE)) is CommandOutcome.STRATEGY_RUNS
    spent = SERVING.but(budget_spent=True, phase=FtPhase.RECONFIGURING)
    assert outcome(why_not_reconfigure(spent, ASK)) is CommandOutcome.BUDGET_SPENT
    assert outcome(why_not_reconfigure(spent, FORCE)) is None
    for life in (Life.LEARNING, Life.ENDING):
        assert outcome(why_not_reconfigure(SERVING.but(life=life), FORCE)) is CommandOutcome.NOT_READY


def test_the_automation_is_held_at_any_time_and_released_where_it_is_held() -> None:
    assert outcome(why_not_hold(IN_ROUND)) is None
    assert outcome(why_not_hold(SERVING.but(life=Life.ENDING))) is CommandOutcome.NOT_READY
    assert outcome(why_not_release(SERVING)) is CommandOutcome.NOT_HELD
    assert outcome(why_not_release(SERVING.but(held="maintenance"))) is None
    assert outcome(why_not_release(SERVING.but(held="maintenance", life=Life.ENDING))) is CommandOutcome.NOT_READY
