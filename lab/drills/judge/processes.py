"""Judges what became of our own processes: those that the drill kills or stops, those that must live on, and all others.

The supervisor's account tells it (`lab.stack.record`): a process that ends comes back whatever it ended of, so nothing else
would show that one of ours had crashed in the middle of a round.
"""

import signal
from collections import Counter
from typing import Final

from lab.drills.drill import Expectation, Outcome
from lab.drills.outcome import Check
from lab.drills.record.evidence import Evidence
from lab.stack.record import EventKind, StackEvent

_LEFT: Final = "exit code 0"
"""A NodeManager that was told to stop its Pod."""

_STOP_MARGIN_SEC: Final = 0.5
"""A SIGSTOP is told just after it was sent, its SIGCONT too: on a busy machine the one may be told later than the other."""


def unplanned_ends(evidence: Evidence, expected: Expectation) -> list[StackEvent]:
    """Ends of our processes that nobody asked for, since the installation was ready.

    Asked for are one SIGKILL for each that the drill sent to that process, and an exit with code 0 of a NodeManager whose
    Pod is stopped on purpose: every one in a rebuild, in place only the expected ones.
    """
    ready_at = max((e.mono for e in evidence.stack_events if e.event is EventKind.READY), default=float("-inf"))
    may_leave = pods(evidence) if expected.outcome is Outcome.REBUILT else expected.stopped_pods
    sent: Counter[str] = Counter()
    found = []
    for event in sorted(evidence.stack_events, key=lambda event: event.mono):
        if event.event is EventKind.SIGNALLED and event.detail == signal.SIGKILL.name:
            sent[event.name] += 1
        elif event.event is EventKind.EXITED and event.mono >= ready_at:
            if event.detail == signal.SIGKILL.name and sent[event.name]:
                sent[event.name] -= 1
            elif not (event.detail == _LEFT and event.name in may_leave):
                found.append(event)
    return found


def pods(evidence: Evidence) -> list[str]:
    """Every Pod by the name of its NodeManager."""
    return [f"node-manager-{index}" for index in range(len(evidence.spec.pods))]


def nobody_else_ended(evidence: Evidence, expected: Expectation) -> Check:
    """No process of ours ended but those that the drill killed and the Pods that were stopped on purpose."""
    zero = evidence.injections[0] if evidence.injections else evidence.ended_at
    faults = [f"{e.name} ended {e.mono - zero:.2f} s after the injection: {e.detail}" for e in unplanned_ends(evidence, expected)]
    started = {event.name for event in evidence.stack_events if event.event is EventKind.STARTED}
    return Check.of("nobody else ended", len(started), faults, f"{len(started)} processes, none ended by itself")


def pods_kept(evidence: Evidence, expected: Expectation) -> Check:
    """These Pods' NodeManagers were neither stopped nor replaced."""
    ended = {event.name for event in evidence.stack_events if event.event in (EventKind.EXITED, EventKind.RESTARTED)}
    faults = [f"{name} ended" for name in expected.kept_pods if name in ended - evidence.killed]
    return Check.of("Pod not stopped", len(expected.kept_pods), faults, f"{', '.join(expected.kept_pods)} live on")


def killed_in_the_round(evidence: Evidence, expected: Expectation) -> Check:
    """The process that the drill was to kill ended after the rank's death, before all was over, and came back."""
    faults: list[str] = []
    begin = evidence.injections[0]
    ends = [e for e in evidence.stack_events if e.event is EventKind.EXITED and e.mono > begin and e.name in evidence.killed]
    backs = {e.name for e in evidence.stack_events if e.event is EventKind.RESTARTED and e.mono > begin}
    ends = [e for e in ends if e.detail == signal.SIGKILL.name]
    if len(ends) != expected.killed:
        faults.append(f"{len(ends)} processes were killed, {expected.killed} expected")
    faults += [f"{e.name} did not come back" for e in ends if e.name not in backs]
    told = ", ".join(f"{e.name} {e.mono - begin:.2f} s after the rank" for e in ends)
    return Check.of("killed and back", len(ends), faults, told)


def stopped_in_the_round(evidence: Evidence, expected: Expectation) -> Check:
    """The processes that the drill was to stop stood still for long enough after the rank's death, and lived on afterwards."""
    stops = evidence.stops
    faults = [f"{len(stops)} processes were stopped, {expected.stopped} expected"] if len(stops) != expected.stopped else []
    faults += [f"{stop.process} was never continued" for stop in stops if stop.ended_at is None]
    faults += [
        f"{stop.process} stood still for {stop.ended_at - stop.at:.1f} s only, not {expected.stopped_for_sec:g} s"
        for stop in stops
        if stop.ended_at is not None and stop.ended_at - stop.at < expected.stopped_for_sec - _STOP_MARGIN_SEC
    ]
    stopped = {stop.process for stop in stops}
    faults += [f"{e.name} ended: {e.detail}" for e in unplanned_ends(evidence, expected) if e.name in stopped]
    told = ", ".join(f"{s.process} for {(s.ended_at or s.at) - s.at:.1f} s" for s in stops)
    return Check.of("stopped and continued", len(stops), faults, told)


def went_on(evidence: Evidence, expected: Expectation) -> Check:
    """Where one of two workers was killed or stopped, the round's next step began within the cell's bound.

    That step comes after the one that stood still. So the time holds all that a worker's end costs: the heartbeat that
    fails to come, the step's second attempt at the other worker, and the first workflow task that is handed to nobody.
    """
    faults, told = [], []
    for cell, within_sec in expected.goes_on_within_sec.items():
        late_sec = evidence.late_sec.get(cell)
        if late_sec is None:
            faults.append(f"{cell}: the round's next step was not seen")
        elif late_sec > within_sec:
            faults.append(f"{cell}: the round's next step began {late_sec:.1f} s later, more than {within_sec:g} s")
        else:
            told.append(f"{late_sec:.1f} s later ({cell})")
    return Check.of("the other worker went on", len(expected.goes_on_within_sec), faults, ", ".join(told))
