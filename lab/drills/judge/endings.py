"""Judges how rounds ended: their reasons, the gate's codes, their verdicts, what was stopped, and who was left in peace."""

from collections import Counter

from domain.messages.round import RoundReason
from lab.drills.drill import Expectation
from lab.drills.outcome import Check
from lab.drills.record.evidence import Evidence
from lab.oracle.observations import VerdictSeen
from lab.stack.record import EventKind


def rounds_ended(evidence: Evidence, expected: Expectation) -> Check:
    """Each round ended for the reason that was provoked, and there were no others."""
    found = [report.reason for report in evidence.reports]
    faults = [] if found == [*expected.endings] else [f"rounds ended with {list(found)}, expected {list(expected.endings)}"]
    told = "; ".join(f"{report.reason}: {report.detail}" for report in evidence.reports)
    return Check.of("how the rounds ended", len(found), [f"{fault} ({told})" for fault in faults], told)


def gate_codes(evidence: Evidence, expected: Expectation) -> Check:
    """The gate refused each round with exactly the code of what was missing."""
    found = [report.gate.reason_codes if report.gate is not None else () for report in evidence.reports]
    faults = [f"refused with {found}, expected {list(expected.gates)}"] if found != [*expected.gates] else []
    return Check.of("gate codes", len(found), faults, ", ".join(code for codes in found for code in codes))


def aborted(evidence: Evidence, _expected: Expectation) -> Check:
    """A round that failed was aborted by the NodeManagers it had guarded, and none of them committed it."""
    verdicts = [event for event in evidence.observed.events if isinstance(event, VerdictSeen)]
    failed = [report for report in evidence.reports if report.reason is not RoundReason.COMMITTED]
    faults: list[str] = []
    for report in failed:
        own = {verdict.committed for verdict in verdicts if verdict.request_id == report.request_id}
        if own != {False}:
            words = "no NodeManager took a verdict" if not own else "a NodeManager committed"
            faults.append(f"{report.request_id} ({report.reason}): {words}")
    return Check.of("failed rounds aborted", len(failed), faults, f"{len(failed)} rounds failed, each was aborted")


def removed_stay_gone(evidence: Evidence, expected: Expectation) -> Check:
    """No removed rank began another life, whatever came back: nothing registers a dead rank back."""
    lives = {rank: evidence.lives.get(rank, ()) for rank in expected.dead_committed}
    faults = [f"rank {rank} was started {len(own)} times" for rank, own in lives.items() if len(own) != 1]
    return Check.of("removed ranks stay gone", len(lives), faults, f"ranks {sorted(lives)} had one life")


def pods_stopped_once(evidence: Evidence, expected: Expectation) -> Check:
    """These Pods' NodeManagers ended exactly once."""
    ends = Counter(event.name for event in evidence.stack_events if event.event is EventKind.EXITED)
    faults = [f"{name} ended {ends[name]} times" for name in expected.stopped_pods if ends[name] != 1]
    return Check.of("Pod stopped once", len(expected.stopped_pods), faults, f"{', '.join(expected.stopped_pods)} ended once")


def stop_failed(evidence: Evidence, expected: Expectation) -> Check:
    """These Pods were asked to stop, once, and could not: the survivors were published all the same, and no Pod ended."""
    faults: list[str] = []
    told: list[str] = []
    published_at = evidence.serving_again_at
    restarted = {event.name for event in evidence.stack_events if event.event is EventKind.POD_RESTARTED}
    for name in expected.unstoppable_pods:
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
    return Check.of("failed stop changes nothing", count, faults, "; ".join(told))


def quiet_after(evidence: Evidence, _expected: Expectation) -> Check:
    """No Coordinator was told another view after the last injection; the SETs meanwhile repeat what is known."""
    begin = evidence.last_injection if evidence.last_injection is not None else float("-inf")  # nothing injected, nothing judged
    faults, judged = [], 0
    for name, lines in evidence.view_lines.items():
        before = [line for line in lines if line.mono < begin and line.applied]
        served = before[-1].ranks or () if before else ()
        judged += len(before)
        faults += [
            f"{name} was told {list(line.ranks or ())} {line.mono - begin:.2f} s after the last injection"
            for line in lines
            if line.mono >= begin and line.applied and (line.ranks or ()) != served
        ]
    return Check.of("nothing starts", judged, faults, f"no other view for {evidence.ended_at - begin:.1f} s")


def ranks_undisturbed(evidence: Evidence, expected: Expectation) -> Check:
    """These ranks answered clients before and after the last injection, and no request failed but at another rank."""
    since = evidence.last_injection if evidence.last_injection is not None else float("inf")
    failed = [r for r in evidence.requests if not r.ok and (r.rank is None or r.rank in expected.undisturbed)]
    faults = [f"request {r.number} failed: {r.why} {r.detail}".strip() for r in failed[:5]]
    answered = Counter(r.rank for r in evidence.requests if r.ok and r.started_at >= since)
    faults += [f"no client was answered by rank {rank}" for rank in expected.undisturbed if not answered[rank]]
    told = f"answers by rank since the last injection: {dict(sorted(answered.items(), key=str))}"
    return Check.of("requests go on", len(evidence.requests), faults, told)
