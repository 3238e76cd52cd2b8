"""Judges who serves in the end: what Coordinators route to, what NodeManagers hold, which engines live, what clients got."""

from collections import Counter

from lab.drills.check import Seen, check
from lab.drills.judge.processes import pods
from lab.drills.record.evidence import Evidence
from lab.drills.record.figures import count_requests

Ranks = tuple[int, ...]


@check("committed ranks")
def committed(evidence: Evidence, gone: Ranks) -> Seen:
    """Every NodeManager's journal holds exactly these ranks as gone for good."""
    wanted = list(gone)
    faults = [
        f"{name} has {sorted(journal.dead_committed)}, expected {wanted}"
        for name, journal in evidence.journals.items()
        if sorted(journal.dead_committed) != wanted
    ]
    return Seen(len(evidence.journals), faults, f"{wanted} in {len(evidence.journals)} journals")


@check("no fault-tolerance routes")
def routes_are_off(evidence: Evidence) -> Seen:
    """Every NodeManager answered 404 to fault-tolerance requests, and never anything else."""
    faults = [f"{name} answered from its journal" for name in evidence.journals]
    faults += [f"{name} never said 404" for name in pods(evidence.spec) if name not in evidence.ft_refused]
    told = sum(evidence.ft_refused.values())
    return Seen(told, faults, f"404 {told} times")


@check("published ranks")
def published(evidence: Evidence, gone: Ranks) -> Seen:
    """Every Coordinator serves exactly the other ranks."""
    wanted = tuple(rank for rank in evidence.spec.ranks if rank not in gone)
    faults = [f"served at the end: {list(evidence.published)}, expected {list(wanted)}"] if evidence.published != wanted else []
    return Seen(len(evidence.views), faults, f"{list(wanted)} at {len(evidence.views)} Coordinators")


@check("completion on each survivor")
def completion_on_each(evidence: Evidence, gone: Ranks) -> Seen:
    """Each rank that is served gives a completion, asked of its own engine, and names itself in it."""
    wanted = set(evidence.spec.ranks) - set(gone)
    done = {completion.rank for completion in evidence.completions if completion.ok and completion.answered_by == completion.rank}
    failed = [c for c in evidence.completions if c.rank in wanted and c.rank not in done]
    faults = [f"rank {c.rank}: {c.detail or c.text}" for c in failed]
    faults += [f"rank {rank} was not asked" for rank in sorted(wanted - done - {c.rank for c in failed})]
    return Seen(len(evidence.completions), faults, f"ranks {sorted(done)} answered as themselves")


@check("engines kept")
def engines_kept(evidence: Evidence, gone: Ranks) -> Seen:
    """No surviving engine ended or was started anew."""
    survivors = set(evidence.spec.ranks) - set(gone)
    lives = {rank: own for rank, own in evidence.lives.items() if rank in survivors}
    faults = [f"engine {rank} had {len(own)} lives" for rank, own in lives.items() if len(own) != 1]
    faults += [f"engine {rank} ended" for rank, own in lives.items() if own[-1].ended_at is not None]
    return Seen(len(lives), faults, f"engines {sorted(lives)} live on in their first life")


@check("engines renewed")
def engines_renewed(evidence: Evidence) -> Seen:
    """Every rank has a new engine, which is ready."""
    faults = []
    for rank in evidence.spec.ranks:
        own = evidence.lives.get(rank, [])
        if len(own) < 2:
            faults.append(f"engine {rank} has no new life")
        elif own[-1].ready_at is None or own[-1].ended_at is not None:
            faults.append(f"engine {rank}'s new life is not ready")
    return Seen(len(evidence.lives), faults, f"{len(evidence.lives)} ranks in a new life, all ready")


@check("removed ranks stay gone")
def stay_gone(evidence: Evidence, gone: Ranks) -> Seen:
    """No removed rank began another life, whatever came back: nothing registers a dead rank back."""
    lives = {rank: evidence.lives.get(rank, ()) for rank in gone}
    faults = [f"rank {rank} was started {len(own)} times" for rank, own in lives.items() if len(own) != 1]
    return Seen(len(lives), faults, f"ranks {sorted(lives)} had one life")


@check("SET brings nothing back")
def repeated_set(evidence: Evidence) -> Seen:
    """The periodic SET came again after the first round, and was nothing new to any Coordinator."""
    counts = evidence.unchanged_refreshes
    faults = [f"{name} got no repeated SET" for name, count in counts.items() if count < 1]
    told = sum(counts.values())
    return Seen(int(told), faults, f"{told:.0f} repeated entries changed nothing")


@check("nothing starts")
def nothing_starts(evidence: Evidence) -> Seen:
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
    return Seen(judged, faults, f"no other view for {evidence.ended_at - begin:.1f} s")


@check("requests after recovery")
def requests_after_recovery(evidence: Evidence) -> Seen:
    """No request failed that began after the view had been published."""
    after = count_requests(evidence.requests, evidence.windows).after
    failed = [r for r in evidence.requests if not r.ok and count_requests([r], evidence.windows).after.failed]
    faults = [f"request {r.number} failed: {r.why} {r.detail}".strip() for r in failed[:5]]
    if len(failed) > len(faults):
        faults.append(f"and {len(failed) - len(faults)} more")
    return Seen(after.ok + after.failed, faults, f"{after.ok} ok, none failed")


@check("clients reach each survivor")
def clients_reach_each(evidence: Evidence, gone: Ranks) -> Seen:
    """Clients were answered by every rank that is served, through the Coordinator, after the recovery."""
    since = evidence.windows[-1][1] if evidence.windows else None
    answered = Counter(
        r.rank for r in evidence.requests if r.ok and r.rank is not None and since is not None and r.started_at >= since
    )
    wanted = set(evidence.spec.ranks) - set(gone)
    faults = [f"no client was answered by rank {rank}" for rank in sorted(wanted - answered.keys())]
    return Seen(sum(answered.values()), faults, f"answers by rank: {dict(sorted(answered.items()))}")


@check("requests go on")
def requests_go_on(evidence: Evidence, at: Ranks) -> Seen:
    """These ranks answered clients before and after the last injection, and no request failed but at another rank."""
    since = evidence.last_injection if evidence.last_injection is not None else float("inf")
    failed = [r for r in evidence.requests if not r.ok and (r.rank is None or r.rank in at)]
    faults = [f"request {r.number} failed: {r.why} {r.detail}".strip() for r in failed[:5]]
    answered = Counter(r.rank for r in evidence.requests if r.ok and r.started_at >= since)
    faults += [f"no client was answered by rank {rank}" for rank in at if not answered[rank]]
    told = f"answers by rank since the last injection: {dict(sorted(answered.items(), key=str))}"
    return Seen(len(evidence.requests), faults, told)
