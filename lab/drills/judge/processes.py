"""Judges what became of our own processes: those that the drill kills or stops, those that must live on, and all others.

The supervisor's account tells it (`lab.stack.record`): a process that ends comes back whatever it ended of, so nothing else
would show that one of ours had crashed in the middle of a round.
"""

import signal
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from lab.drills.check import Seen, check
from lab.drills.record.evidence import Evidence
from lab.stack.record import EventKind, StackEvent
from lab.stack.spec import StackSpec

Names = tuple[str, ...]

_LEFT: Final = "exit code 0"
"""A NodeManager that was told to stop its Pod."""

_STOP_MARGIN_SEC: Final = 0.5
"""A SIGSTOP is told just after it was sent, its SIGCONT too: on a busy machine the one may be told later than the other."""


def pods(spec: StackSpec) -> Names:
    """Every Pod by the name of its NodeManager."""
    return tuple(f"node-manager-{index}" for index in range(len(spec.pods)))


def _unplanned_ends(evidence: Evidence, may_leave: Collection[str]) -> list[StackEvent]:
    """Ends of our processes that nobody asked for, since the installation was ready.

    Asked for are one SIGKILL for each that the drill sent to that process, and an exit with code 0 of a NodeManager whose
    Pod may be stopped on purpose.
    """
    ready_at = max((e.mono for e in evidence.stack_events if e.event is EventKind.READY), default=float("-inf"))
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


@check("nobody else ended")
def nobody_else_ended(evidence: Evidence, may_leave: Names) -> Seen:
    """No process of ours ended but those that the drill killed and the Pods that were stopped on purpose."""
    zero = evidence.injections[0] if evidence.injections else evidence.ended_at
    ends = _unplanned_ends(evidence, may_leave)
    faults = [f"{e.name} ended {e.mono - zero:.2f} s after the injection: {e.detail}" for e in ends]
    started = {event.name for event in evidence.stack_events if event.event is EventKind.STARTED}
    return Seen(len(started), faults, f"{len(started)} processes, none ended by itself")


@check("Pod not stopped")
def kept_pods(evidence: Evidence, *names: str) -> Seen:
    """These Pods' NodeManagers were neither stopped nor replaced."""
    ended = {event.name for event in evidence.stack_events if event.event in (EventKind.EXITED, EventKind.RESTARTED)}
    faults = [f"{name} ended" for name in names if name in ended - evidence.killed]
    return Seen(len(names), faults, f"{', '.join(names)} live on")


@check("Pod stopped once")
def pods_stopped_once(evidence: Evidence, *names: str) -> Seen:
    """These Pods' NodeManagers ended exactly once."""
    ends = Counter(event.name for event in evidence.stack_events if event.event is EventKind.EXITED)
    faults = [f"{name} ended {ends[name]} times" for name in names if ends[name] != 1]
    return Seen(len(names), faults, f"{', '.join(names)} ended once")


@check("failed stop changes nothing")
def failed_stop_changes_nothing(evidence: Evidence, *names: str) -> Seen:
    """These Pods were asked to stop, once, and could not: the survivors were published all the same, and no Pod ended."""
    faults: list[str] = []
    told: list[str] = []
    published_at = evidence.serving_again_at
    restarted = {event.name for event in evidence.stack_events if event.event is EventKind.POD_RESTARTED}
    for name in names:
        asked = evidence.stops_asked.get(name, ())
        if len(asked) != 1:
            faults.append(f"{name} was asked to stop {len(asked)} times")
            continue
        (stop,) = asked
        patience_sec = float("inf") if stop.given_up_at is None else stop.given_up_at - stop.at
        if published_at is None or not published_at < stop.at + patience_sec:
            faults.append(f"the survivors were not published while {name} was still being asked to stop")
        told.append(f"{name} was asked once, for {patience_sec:.1f} s; the survivors were served meanwhile")
        pod = f"pod-{name.rpartition('-')[2]}"
        faults += [f"{pod} was restarted"] if pod in restarted else []
    count = sum(len(asked) for asked in evidence.stops_asked.values())
    return Seen(count, faults, "; ".join(told))


@check("killed and back")
def killed(evidence: Evidence, count: int) -> Seen:
    """So many of our processes were killed by the drill after the rank's death, before all was over, and came back."""
    faults: list[str] = []
    begin = evidence.injections[0]
    ends = [e for e in evidence.stack_events if e.event is EventKind.EXITED and e.mono > begin and e.name in evidence.killed]
    backs = {e.name for e in evidence.stack_events if e.event is EventKind.RESTARTED and e.mono > begin}
    ends = [e for e in ends if e.detail == signal.SIGKILL.name]
    if len(ends) != count:
        faults.append(f"{len(ends)} processes were killed, {count} expected")
    faults += [f"{e.name} did not come back" for e in ends if e.name not in backs]
    told = ", ".join(f"{e.name} {e.mono - begin:.2f} s after the rank" for e in ends)
    return Seen(len(ends), faults, told)


@check("stopped and continued")
def stopped(evidence: Evidence, count: int, for_sec: float = 0.0, may_leave: Names = ()) -> Seen:
    """So many of our processes stood still for at least so long after the rank's death, and lived on afterwards."""
    stops = evidence.stops
    faults = [f"{len(stops)} processes were stopped, {count} expected"] if len(stops) != count else []
    faults += [f"{stop.process} was never continued" for stop in stops if stop.ended_at is None]
    faults += [
        f"{stop.process} stood still for {stop.ended_at - stop.at:.1f} s only, not {for_sec:g} s"
        for stop in stops
        if stop.ended_at is not None and stop.ended_at - stop.at < for_sec - _STOP_MARGIN_SEC
    ]
    names = {stop.process for stop in stops}
    faults += [f"{e.name} ended: {e.detail}" for e in _unplanned_ends(evidence, may_leave) if e.name in names]
    told = ", ".join(f"{s.process} for {(s.ended_at or s.at) - s.at:.1f} s" for s in stops)
    return Seen(len(stops), faults, told)


@check("the other worker went on")
def went_on(evidence: Evidence, within_sec: Mapping[str, float]) -> Seen:
    """Where one of two workers was killed or stopped, the round's next step began within the cell's bound.

    That step comes after the one that stood still. So the time holds all that a worker's end costs: the heartbeat that
    fails to come, the step's second attempt at the other worker, and the first workflow task that is handed to nobody.
    """
    faults, told = [], []
    for cell, bound_sec in within_sec.items():
        late_sec = evidence.late_sec.get(cell)
        if late_sec is None:
            faults.append(f"{cell}: the round's next step was not seen")
        elif late_sec > bound_sec:
            faults.append(f"{cell}: the round's next step began {late_sec:.1f} s later, more than {bound_sec:g} s")
        else:
            told.append(f"{late_sec:.1f} s later ({cell})")
    return Seen(len(within_sec), faults, ", ".join(told))


@check("nothing left behind")
def nothing_left(evidence: Evidence) -> Seen:
    """After the installation was stopped no process carried its run id."""
    faults = [f"left behind: {orphan}" for orphan in evidence.orphans]
    started = len({event.name for event in evidence.stack_events if event.event is EventKind.STARTED})
    return Seen(started, faults, f"of {started} processes and their engines none is left")
