"""Judges how rounds ended, by their own reports: the reasons, the gate's codes, and the verdicts at the NodeManagers."""

from domain.messages.strategy import RoundReason
from lab.drills.check import Seen, check
from lab.drills.record.evidence import Evidence
from lab.oracle.observations import VerdictSeen


@check("how the rounds ended")
def rounds_ended(evidence: Evidence, *reasons: RoundReason) -> Seen:
    """Each round ended for the reason that was provoked, in this order, and there were no others."""
    found = [report.reason for report in evidence.reports]
    told = "; ".join(f"{report.reason}: {report.detail}" for report in evidence.reports)
    faults = [] if found == [*reasons] else [f"rounds ended with {list(found)}, expected {list(reasons)} ({told})"]
    return Seen(len(found), faults, told)


@check("reason of the fallback")
def first_round_ended(evidence: Evidence, *one_of: RoundReason) -> Seen:
    """The first round ended with one of these reasons, in its own report."""
    reports = evidence.reports[:1]
    faults = [
        f"{report.request_id} ended with {report.reason} ({report.detail}), expected one of {', '.join(one_of)}"
        for report in reports
        if report.reason not in one_of
    ]
    return Seen(len(reports), faults, "; ".join(f"{r.reason}: {r.detail}" for r in reports))


@check("gate codes")
def gate_refused(evidence: Evidence, *codes: str) -> Seen:
    """The gate refused each round, in this order, with exactly the code of what was missing."""
    found = [report.gate.reason_codes if report.gate is not None else () for report in evidence.reports]
    wanted = [(code,) for code in codes]
    faults = [f"refused with {found}, expected {wanted}"] if found != wanted else []
    return Seen(len(found), faults, ", ".join(code for codes in found for code in codes))


@check("failed rounds aborted")
def failed_rounds_aborted(evidence: Evidence) -> Seen:
    """A round that failed was aborted by the NodeManagers it had guarded, and none of them committed it."""
    verdicts = [event for event in evidence.observed.events if isinstance(event, VerdictSeen)]
    failed = [report for report in evidence.reports if report.reason is not RoundReason.COMMITTED]
    faults: list[str] = []
    for report in failed:
        own = {verdict.committed for verdict in verdicts if verdict.request_id == report.request_id}
        if own != {False}:
            words = "no NodeManager took a verdict" if not own else "a NodeManager committed"
            faults.append(f"{report.request_id} ({report.reason}): {words}")
    return Seen(len(failed), faults, f"{len(failed)} rounds failed, each was aborted")
