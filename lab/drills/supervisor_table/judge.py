"""What the runs must show: the published columns, judged by what happened in which order, never by seconds.

The invariants that a run can show are judged over all of them. Seconds are figures. Divided times say little about a real
cluster's; that readiness is lost before the victim's server exits and not after it, and that no request fails once the
survivors serve, holds at any pace.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lab.drills.outcome import Finding, RequestCount
from lab.drills.supervisor_table.experiment import GIVES_UP_AT, SURVIVORS, Column, SupervisorRules
from lab.drills.supervisor_table.invariants import JUDGED
from lab.drills.supervisor_table.run import RunReport
from lab.oracle.invariants import Invariant

_SERVER_GONE: Final = ("SERVER_EXITED", "NO_ANSWER")
"""How the stock rules see it go: its process first, or its port, which closes a little earlier."""

_Fault = Callable[[RunReport], Iterable[str]]


def judge(columns: Sequence[Column], runs: Sequence[RunReport]) -> tuple[Finding, ...]:
    """All checks over all runs; each column must have been run."""
    checks = [_each("runs came to their end", runs, lambda run: [run.failure] if run.failure else [], "all did")]
    ended = [run for run in runs if run.failure is None]
    for column in columns:
        checks += list(_of_column(column, [run for run in ended if run.column == column.name]))
    checks += [_holds(invariant, ended) for invariant in JUDGED]
    return (*checks, _each("nothing left behind", runs, lambda run: run.left_behind, "no process of any run was left"))


def _of_column(column: Column, runs: Sequence[RunReport]) -> Iterable[Finding]:
    ours = column.rules is SupervisorRules.OURS
    yield _each(f"{column}: commands", runs, _applies(column), "each survivor one" if column.scale_down else "none")
    if column.scale_down and ours:
        yield _each(f"{column}: serves on 3 ranks at +125 s", runs, _serves, "a completion from each survivor, health 200")
        yield _requests(f"{column}: no request fails after the recovery", runs, lambda run: run.requests_after_recovery)
        yield _requests(f"{column}: no request fails after +120 s", runs, lambda run: run.requests_after_120)
    if column.scale_down and not ours:
        yield _each(f"{column}: killed when the victim's server exits", runs, _killed, "though the survivors had recovered")
    if not column.scale_down and ours:
        yield _each(f"{column}: NotReady once the group has halted", runs, _not_ready_early, _told(runs))
    if not column.scale_down and not ours:
        yield _each(f"{column}: NotReady only when the victim's server exits", runs, _not_ready_late, _told(runs))


def _each(name: str, runs: Sequence[RunReport], faults_of: _Fault, fine: str) -> Finding:
    faults = [f"run {run.column} {run.number}: {fault}" for run in runs for fault in faults_of(run)]
    return Finding.of(name, len(runs), faults, fine)


def _holds(invariant: Invariant, runs: Sequence[RunReport]) -> Finding:
    judged = [(run, check) for run in runs for check in run.invariants if check.name.split()[0] == invariant]
    faults = [f"run {run.column} {run.number}: {check.detail}" for run, check in judged if not check.ok]
    name = judged[0][1].name if judged else str(invariant)
    return Finding.of(name, sum(check.observations for _, check in judged), faults, f"holds in {len(judged)} runs")


def _requests(name: str, runs: Sequence[RunReport], counted: Callable[[RunReport], RequestCount]) -> Finding:
    counts = [(run, counted(run)) for run in runs]
    faults = [f"run {run.number}: {count.failed} failed" for run, count in counts if count.failed]
    return Finding.of(name, sum(count.ok + count.failed for _, count in counts), faults, f"in {len(runs)} runs")


def _told(runs: Sequence[RunReport]) -> str:
    return ", ".join(f"+{run.not_ready_at} s (halted +{run.detected_at}, exit +{run.victim_exited_at})" for run in runs)


def _applies(column: Column) -> _Fault:
    wanted = {str(rank): 1 for rank in SURVIVORS} if column.scale_down else {}

    def faults(run: RunReport) -> Iterable[str]:
        if run.applies_per_engine != wanted:
            yield f"commands per engine {run.applies_per_engine}, expected {wanted}"

    return faults


def _serves(run: RunReport) -> Iterable[str]:
    if run.serving_ranks_at_125 != SURVIVORS:
        yield f"{run.state_at_125}: ranks {list(run.serving_ranks_at_125)} completed"
    if run.stop_reason is not None:
        yield f"it stopped everything: {run.stop_reason}"


def _killed(run: RunReport) -> Iterable[str]:
    if run.state_at_125 != "killed" or run.stop_reason not in _SERVER_GONE or run.exit_code != 1:
        yield f"{run.state_at_125}, {run.stop_reason}, exit code {run.exit_code}"
    if run.recovered_at is None or run.recovered_at >= GIVES_UP_AT:
        yield f"the survivors recovered at {run.recovered_at}"
    if run.stopped_at is None or run.stopped_at < GIVES_UP_AT:
        yield f"stopped at {run.stopped_at}, before the victim's server exited at {run.victim_exited_at}"


def _not_ready_early(run: RunReport) -> Iterable[str]:
    if run.not_ready_at is None or run.not_ready_at >= GIVES_UP_AT:
        yield f"NotReady at {run.not_ready_at}, the victim's server exited at {run.victim_exited_at}"
    if run.stopped_at is not None and run.stopped_at < GIVES_UP_AT:
        yield f"/health failed at {run.stopped_at}, while the group could still recover"


def _not_ready_late(run: RunReport) -> Iterable[str]:
    if run.not_ready_at is None or run.not_ready_at < GIVES_UP_AT:
        yield f"NotReady at {run.not_ready_at}, the victim's server exited at {run.victim_exited_at}"
