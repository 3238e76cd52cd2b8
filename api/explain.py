"""A runtime record in words: what an operator would be told on the telephone."""

from domain.model import Strict
from domain.runtime import FtPhase, RuntimeRecord


class Explanation(Strict):
    """`text` has one sentence a fact, the most important first."""

    instance_id: int
    can_serve: bool
    text: tuple[str, ...]


_PHASES = {
    FtPhase.NORMAL: "all ranks are there",
    FtPhase.DECIDING: "a strategy was chosen; nothing has been touched yet",
    FtPhase.WAITING_ENGINE_FAULT: "a round waits until every survivor has noticed the fault",
    FtPhase.SCALING_DOWN: "a round has withdrawn the instance and shrinks the group",
    FtPhase.POST_SCALE_CLEANUP: "a round has committed and tells everybody",
    FtPhase.SCALED_DOWN_RUNNING: "the survivors of a lost rank are the instance now",
    FtPhase.RECONFIGURING: "the instance does not serve: it is being assembled or rebuilt, or waits for that",
    FtPhase.DISABLED: "the feature is off",
}


def explained(record: RuntimeRecord) -> Explanation:
    """The record's facts as sentences."""
    serves = f"serves with ranks {list(record.alive_dp_ranks)}" if record.can_serve else "does not serve"
    text = [f"Instance {record.instance_id} {serves}; phase {record.phase}: {_PHASES[record.phase]}."]
    if record.waiting is not None:
        until = f" until {record.waiting.until}" if record.waiting.until else ""
        then = f" Then: {record.waiting.then}." if record.waiting.then else ""
        text.append(f"It waits{until}: {record.waiting.reason}.{then}")
    if record.strategy_workflow_id:
        text.append(f"Workflow {record.strategy_workflow_id} runs.")
    if record.dead_committed:
        text.append(f"Ranks {list(record.dead_committed)} were removed for good, until the instance is rebuilt.")
    if record.gate is not None and not record.gate.allowed:
        text.append(f"The gate refuses scale-down: {', '.join(record.gate.reason_codes)}.")
    if record.alive_dp_ranks and not record.serving_published and record.phase in (FtPhase.NORMAL, FtPhase.SCALED_DOWN_RUNNING):
        text.append("Its view is not confirmed by every Coordinator yet; it is pushed again and again.")
    if record.pending_finalize:
        text.append(f"NodeManagers {', '.join(record.pending_finalize)} have not taken a verdict yet; they are asked again.")
    if record.budget is not None and record.budget.used:
        text.append(f"Rebuilds: {record.budget.used} of {record.budget.allowed} within {record.budget.window_sec:g} s.")
    if record.last_error:
        text.append(f"Last error: {record.last_error}.")
    if record.rejected_signals:
        last = record.rejected_signals[-1]
        text.append(f"{len(record.rejected_signals)} signals were refused, the last at {last.at}: {last.name}: {last.reason}.")
    return Explanation(instance_id=record.instance_id, can_serve=record.can_serve, text=tuple(text))
