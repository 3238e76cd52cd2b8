"""A runtime record in words: what an operator would be told on the telephone.

Why the instance waits, until when, and what comes then are the record's own `waiting`; everything else says what stands
around it: who serves, what runs, what a person has switched off, which faults and debts are open.
"""

from collections.abc import Iterable
from datetime import datetime

from domain.model import InstanceId, Rank, Strict
from domain.runtime import Budget, FtPhase, RuntimeRecord, Waiting, undecided_deaths


class Explanation(Strict):
    """`text` has one sentence a fact, the most important first; the other fields are the same for programs.

    `waiting`: why, until when (UTC) and what then; None: nothing is waited for. `left_sec`: seconds until `waiting.until`,
    0 where it has passed; None where the wait has no end of its own.
    """

    instance_id: InstanceId
    phase: FtPhase
    can_serve: bool
    serving_ranks: tuple[Rank, ...]
    waiting: Waiting | None
    left_sec: float | None
    running: str | None
    held: str | None
    hardware_faults: tuple[str, ...]
    budget: Budget | None
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


def explained(record: RuntimeRecord, now: float, refused_pods: Iterable[str] = ()) -> Explanation:
    """The record's facts as sentences, as they stand at `now` (epoch seconds). `refused_pods`: why, a sentence a Pod."""
    left_sec = _left_sec(record.waiting, now)
    return Explanation(
        instance_id=record.instance_id,
        phase=record.phase,
        can_serve=record.can_serve,
        serving_ranks=record.alive_dp_ranks if record.can_serve else (),
        waiting=record.waiting,
        left_sec=left_sec,
        running=record.strategy_workflow_id,
        held=record.held,
        hardware_faults=record.hardware_faults,
        budget=record.budget,
        text=(
            *_now(record, left_sec),
            *_standing(record),
            *_debts(record),
            *_troubles(record),
            *(f"A Pod asks to join and is refused: {why}." for why in refused_pods),
        ),
    )


def _left_sec(waiting: Waiting | None, now: float) -> float | None:
    if waiting is None or waiting.until is None:
        return None
    return round(max(0.0, datetime.fromisoformat(waiting.until).timestamp() - now), 1)


def _now(record: RuntimeRecord, left_sec: float | None) -> list[str]:
    """Does it serve, what is it waiting for, what runs."""
    serves = f"serves with ranks {list(record.alive_dp_ranks)}" if record.can_serve else "does not serve"
    deaths = undecided_deaths(record)
    phase = record.phase if deaths else f"{record.phase}: {_PHASES[record.phase]}"
    text = [f"Instance {record.instance_id} {serves}; phase {phase}."]
    if deaths is not None:
        text.append(f"{deaths[0].upper()}{deaths[1:]}.")
    if record.waiting is not None:
        until = f" until {record.waiting.until} ({left_sec:g} s left)" if left_sec is not None else ""
        then = f" Then: {record.waiting.then}." if record.waiting.then else ""
        text.append(f"It waits{until}: {record.waiting.reason}.{then}")
    elif record.strategy_workflow_id is None and record.can_serve:
        text.append("It waits for nothing.")
    if record.strategy_workflow_id:
        text.append(f"Workflow {record.strategy_workflow_id} runs.")
    elif record.last_strategy_workflow_id:
        text.append(f"The last strategy was workflow {record.last_strategy_workflow_id}.")
    if record.held is not None:
        release = f"autotomy instance release {record.instance_id}"
        text.append(f"The automation is held ({record.held}): what is decided is recorded and not done, until `{release}`.")
    return text


def _standing(record: RuntimeRecord) -> list[str]:
    """What is removed, refused or broken for now."""
    text = []
    if record.dead_committed:
        text.append(f"Ranks {list(record.dead_committed)} were removed; a rebuild brings them back.")
    if record.hardware_faults:
        text.append(f"Hardware faults stand: {'; '.join(record.hardware_faults)}.")
    if record.gate is not None and not record.gate.allowed:
        text.append(f"The gate refuses scale-down: {', '.join(record.gate.reason_codes)}.")
    if record.lost_node_managers:
        text.append(f"NodeManagers {', '.join(record.lost_node_managers)} are silent.")
    return text


def _debts(record: RuntimeRecord) -> list[str]:
    """What is still owed to Coordinators and NodeManagers."""
    text = []
    serving = record.phase in (FtPhase.NORMAL, FtPhase.SCALED_DOWN_RUNNING)
    if record.alive_dp_ranks and not record.serving_published and serving:
        text.append("Its view is not confirmed by every Coordinator yet; it is pushed again and again.")
    if record.pending_finalize:
        text.append(f"NodeManagers {', '.join(record.pending_finalize)} have not taken a verdict yet; they are asked again.")
    return text


def _troubles(record: RuntimeRecord) -> list[str]:
    """What went wrong so far."""
    text = []
    if record.budget is not None and record.budget.used:
        text.append(f"Rebuilds: {record.budget.used} of {record.budget.allowed} within {record.budget.window_sec:g} s.")
    if record.last_error:
        text.append(f"Last error: {record.last_error}.")
    if record.rejected_signals:
        last = record.rejected_signals[-1]
        text.append(f"{len(record.rejected_signals)} signals were refused, the last at {last.at}: {last.name}: {last.reason}.")
    return text
