"""Judges a run against what its drill expects, over what was recorded outside the Controller.

Each check is a small function from the evidence to one `Check`. A check names how many observations it judged; one that
had nothing to look at is not ok. Besides a drill's own expectation, the invariants are judged in every drill.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from domain.engine import Dialect, Instruction
from lab.drills.drill import Drill, Expectation, Outcome
from lab.drills.judge import endings, processes
from lab.drills.outcome import Check
from lab.drills.record.engine_log import EngineLine
from lab.drills.record.evidence import Evidence
from lab.drills.record.figures import count_requests
from lab.drills.record.view_log import ViewLine
from lab.oracle.invariants import Invariant, check_all
from lab.stack.record import EventKind

REPLAYED: Final = "replaying the histories gives the same commands"
"""Whole ones, each workflow task of them; that every prefix replays too is tested in tests/workflows/test_replay.py."""
FEATURE_INVARIANTS: Final = frozenset({Invariant.I4, Invariant.I6, Invariant.I8, Invariant.I10, Invariant.I11})
"""These are seen in journals, guards and the runtime record, none of which is there while the feature is off."""

CheckFunction = Callable[[Evidence, Expectation], Check]


def judge(drill: Drill, evidence: Evidence) -> tuple[Check, ...]:
    """All checks of a drill, its own first."""
    own = [function(evidence, drill.expected) for function in checks_of(drill)]
    unseen = FEATURE_INVARIANTS if drill.expected.feature_off else frozenset()
    return (*own, *invariant_checks(evidence, unseen))


def checks_of(drill: Drill) -> list[CheckFunction]:
    """Which checks a drill's expectation asks for."""
    expected = drill.expected
    wanted: list[CheckFunction] = []
    if expected.retried:
        wanted += [one_retry_each, withdrawn_before_apply]
        wanted += [published_after_recovery] if expected.outcome is Outcome.IN_PLACE else []
    elif expected.losses:
        wanted += [one_apply_per_engine, removed_sets, withdrawn_before_apply, published_after_recovery]
    elif not expected.may_apply:
        wanted += [no_apply]
    if expected.masters:
        wanted.append(masters)
    if expected.no_round:
        wanted.append(no_round)
    if expected.rebuild_not_before_sec is not None:
        wanted.append(not_withdrawn_early)
    wanted.append(routes_are_off if expected.feature_off else committed_ranks)
    wanted += [published_ranks, completion_on_each]
    wanted.append(engines_kept if expected.outcome is Outcome.IN_PLACE else engines_renewed)
    if expected.dead_committed:
        wanted.append(endings.removed_stay_gone)
    wanted.append(processes.nobody_else_ended)
    if expected.kept_pods:
        wanted.append(processes.pods_kept)
    if expected.killed:
        wanted.append(processes.killed_in_the_round)
    if expected.stopped:
        wanted.append(processes.stopped_in_the_round)
    if expected.goes_on_within_sec:
        wanted.append(processes.went_on)
    if expected.reasons:
        wanted.append(reason_given)
    if expected.repeated_set:
        wanted.append(repeated_set)
    wanted += _of_endings(expected)
    if drill.traffic:
        wanted += [endings.ranks_undisturbed] if expected.undisturbed else [requests_after, client_reached_each]
    return [*wanted, histories_exported, nothing_left]


def _of_endings(expected: Expectation) -> list[CheckFunction]:
    """What is asked about the ends of rounds and what came after them."""
    asked: list[tuple[object, CheckFunction]] = [
        (expected.endings, endings.rounds_ended),
        (expected.gates, endings.gate_codes),
        (expected.aborted, endings.aborted),
        (expected.stopped_pods, endings.pods_stopped_once),
        (expected.unstoppable_pods, endings.stop_failed),
        (expected.quiet_after, endings.quiet_after),
    ]
    return [check for wanted, check in asked if wanted]


def _rounds(evidence: Evidence) -> dict[str, list[EngineLine]]:
    """The commands that reached engines, by request id, in the order of the rounds."""
    rounds: dict[str, list[EngineLine]] = {}
    for line in evidence.applies:
        rounds.setdefault(line.request_id or "without request_id", []).append(line)
    return rounds


def one_apply_per_engine(evidence: Evidence, expected: Expectation) -> Check:
    """In each round every survivor got exactly one command, accepted, and nobody else any."""
    faults: list[str] = []
    rounds = _rounds(evidence)
    if len(rounds) != len(expected.losses):
        faults.append(f"{len(rounds)} rounds reached engines, {len(expected.losses)} expected")
    gone: set[int] = set()
    for (request_id, lines), loss in zip(rounds.items(), expected.losses, strict=False):
        gone |= set(loss)
        wanted = dict.fromkeys(sorted(set(evidence.spec.ranks) - gone), 1)
        counted = dict(sorted(Counter(line.rank for line in lines).items()))
        if counted != wanted:
            faults.append(f"{request_id}: applies per engine {counted}, expected {wanted}")
        faults += [f"engine {line.rank} answered {line.http}" for line in lines if line.http != 202]
    logs = sum(len(own) for own in evidence.lives.values())
    return Check.of(
        "one apply per engine",
        len(evidence.applies),
        faults,
        f"{len(evidence.applies)} commands in {logs} engine logs, each survivor one a round, all answered 202",
    )


def one_retry_each(evidence: Evidence, _expected: Expectation) -> Check:
    """Every engine was told to retry exactly once, all under one request id, and nothing else was ever told to anybody.

    In the legacy dialect each engine's server makes the id.
    """
    told = [line for line in evidence.applies if line.instruction == Instruction.RETRY]
    counted = dict(sorted(Counter(line.rank for line in told).items()))
    wanted = dict.fromkeys(evidence.spec.ranks, 1)
    faults = [f"retries per engine {counted}, expected {wanted}"] if counted != wanted else []
    faults += [f"engine {line.rank} answered {line.http}" for line in told if line.http != 202]
    faults += [f"engine {line.rank} was told to {line.instruction}" for line in evidence.applies if line not in told]
    ids = sorted({line.request_id or "none" for line in told})
    if len(ids) > 1 and evidence.spec.engine.dialect is not Dialect.LEGACY:
        faults.append(f"retries under several request ids: {', '.join(ids)}")
    return Check.of("one retry per engine", len(evidence.applies), faults, f"{len(told)} engines retried together, once")


def removed_sets(evidence: Evidence, expected: Expectation) -> Check:
    """Each round's commands carried exactly what was removed before and this round's dead, and nothing else."""
    faults: list[str] = []
    total: set[int] = set()
    for lines, loss in zip(_rounds(evidence).values(), expected.losses, strict=False):
        total |= set(loss)
        wanted = tuple(sorted(total))
        faults += [
            f"engine {line.rank} was told to remove {line.told_removed}, expected {wanted}"
            for line in lines
            if line.told_removed != wanted
        ]
    return Check.of("removed set", len(evidence.applies), faults, f"removed in turn: {[list(loss) for loss in expected.losses]}")


def masters(evidence: Evidence, expected: Expectation) -> Check:
    """Each command names the lowest survivor's address and its store port."""
    faults: list[str] = []
    for lines, rank in zip(_rounds(evidence).values(), expected.masters, strict=False):
        ip = evidence.topology.endpoint(rank).ip
        port = evidence.topology.dp_master_port + rank
        for line in lines:
            told = ((line.params or {}).get("dp_master_ip"), (line.params or {}).get("dp_store_port"))
            if told != (ip, port):
                faults.append(f"engine {line.rank} was told master {told}, expected {(ip, port)} (rank {rank})")
    return Check.of(
        "master is the lowest survivor", len(evidence.applies), faults, f"masters in turn: ranks {list(expected.masters)}"
    )


def no_apply(evidence: Evidence, _expected: Expectation) -> Check:
    """No engine got any command."""
    faults = [f"engine {line.rank} got {line.instruction}" for line in evidence.applies]
    logs = sum(len(own) for own in evidence.lives.values())
    return Check.of("no apply", logs, faults, f"{logs} engine logs hold no command")


def no_round(evidence: Evidence, _expected: Expectation) -> Check:
    """No NodeManager was ever guarded or given a verdict."""
    faults = [
        f"{name} knows {transaction.request_id}"
        for name, journal in evidence.journals.items()
        for transaction in journal.transactions
    ]
    return Check.of("no round", len(evidence.journals), faults, f"{len(evidence.journals)} journals hold no transaction")


def not_withdrawn_early(evidence: Evidence, expected: Expectation) -> Check:
    """No Coordinator was told to withdraw before the collection time was over."""
    wait_sec = expected.rebuild_not_before_sec or 0.0
    begin = evidence.injections[0]
    later = [
        (line.mono - begin, name, line) for name, line in _view_lines(evidence) if line.mono > begin and line.event != "start"
    ]
    withdrawn = [(t, name) for t, name, line in later if not line.ranks]
    faults = [f"{name} withdrew after {t:.2f} s, before {wait_sec:g} s were over" for t, name in withdrawn if t < wait_sec]
    first = min((t for t, _ in withdrawn), default=float("inf"))
    return Check.of("not withdrawn early", len(later), faults, f"first withdrawn {first:.2f} s after the injection")


def _view_lines(evidence: Evidence) -> Iterator[tuple[str, ViewLine]]:
    for name, lines in evidence.view_lines.items():
        yield from ((name, line) for line in lines)


def withdrawn_before_apply(evidence: Evidence, _expected: Expectation) -> Check:
    """When the first engine of a round got its command, no Coordinator was routing to the instance."""
    faults: list[str] = []
    judged = 0
    for request_id, lines in _rounds(evidence).items():
        first = lines[0].mono
        for name, own in evidence.view_lines.items():
            judged += 1
            before = [line for line in own if line.mono < first and (line.applied or line.event == "start")]
            if before and before[-1].ranks:
                faults.append(f"{name} still routed to {list(before[-1].ranks)} when {request_id} was applied")
    return Check.of("withdrawn before apply", judged, faults, "every Coordinator had been told to route to nobody")


def published_after_recovery(evidence: Evidence, _expected: Expectation) -> Check:
    """Every round ended with a view, taken over after the last engine had recovered."""
    episodes = [episode for episode in evidence.episodes if episode.request_id]
    faults = [f"{e.request_id} was not followed by a view at every Coordinator" for e in episodes if e.published_at is None]
    early = [
        e
        for e in episodes
        if e.recovery_ended_at is not None and _routed_during_recovery(evidence, e.applied_at, e.recovery_ended_at)
    ]
    faults += [f"a view was published while engines recovered under {e.request_id}" for e in early]
    return Check.of("published after recovery", len(episodes), faults, f"{len(episodes)} rounds, each followed by its view")


def _routed_during_recovery(evidence: Evidence, begin: float | None, end: float) -> bool:
    return begin is not None and any(
        line.applied and line.ranks and begin <= line.mono < end for _, line in _view_lines(evidence)
    )


def committed_ranks(evidence: Evidence, expected: Expectation) -> Check:
    """Every NodeManager's journal holds exactly the expected ranks as gone for good."""
    wanted = list(expected.dead_committed)
    faults = [
        f"{name} has {sorted(journal.dead_committed)}, expected {wanted}"
        for name, journal in evidence.journals.items()
        if sorted(journal.dead_committed) != wanted
    ]
    return Check.of("committed ranks", len(evidence.journals), faults, f"{wanted} in {len(evidence.journals)} journals")


def routes_are_off(evidence: Evidence, _expected: Expectation) -> Check:
    """Every NodeManager answered 404 to fault-tolerance requests, and never anything else."""
    faults = [f"{name} answered from its journal" for name in evidence.journals]
    faults += [f"{name} never said 404" for name in processes.pods(evidence) if name not in evidence.ft_refused]
    told = sum(evidence.ft_refused.values())
    return Check.of("no fault-tolerance routes", told, faults, f"404 {told} times")


def published_ranks(evidence: Evidence, expected: Expectation) -> Check:
    """Every Coordinator serves exactly the survivors."""
    wanted = tuple(rank for rank in evidence.spec.ranks if rank not in expected.dead_committed)
    faults = [f"served at the end: {list(evidence.published)}, expected {list(wanted)}"] if evidence.published != wanted else []
    return Check.of("published ranks", len(evidence.views), faults, f"{list(wanted)} at {len(evidence.views)} Coordinators")


def completion_on_each(evidence: Evidence, expected: Expectation) -> Check:
    """Each rank that is served gives a completion, asked of its own engine, and names itself in it."""
    wanted = set(evidence.spec.ranks) - set(expected.dead_committed)
    done = {completion.rank for completion in evidence.completions if completion.ok and completion.answered_by == completion.rank}
    failed = [c for c in evidence.completions if c.rank in wanted and c.rank not in done]
    faults = [f"rank {c.rank}: {c.detail or c.text}" for c in failed]
    faults += [f"rank {rank} was not asked" for rank in sorted(wanted - done - {c.rank for c in failed})]
    return Check.of(
        "completion on each survivor", len(evidence.completions), faults, f"ranks {sorted(done)} answered as themselves"
    )


def engines_kept(evidence: Evidence, expected: Expectation) -> Check:
    """No surviving engine ended or was started anew."""
    survivors = set(evidence.spec.ranks) - set(expected.dead_committed)
    lives = {rank: own for rank, own in evidence.lives.items() if rank in survivors}
    faults = [f"engine {rank} had {len(own)} lives" for rank, own in lives.items() if len(own) != 1]
    faults += [f"engine {rank} ended" for rank, own in lives.items() if own[-1].ended_at is not None]
    return Check.of("engines kept", len(lives), faults, f"engines {sorted(lives)} live on in their first life")


def engines_renewed(evidence: Evidence, _expected: Expectation) -> Check:
    """Every rank has a new engine, which is ready."""
    faults = []
    for rank in evidence.spec.ranks:
        own = evidence.lives.get(rank, [])
        if len(own) < 2:
            faults.append(f"engine {rank} has no new life")
        elif own[-1].ready_at is None or own[-1].ended_at is not None:
            faults.append(f"engine {rank}'s new life is not ready")
    return Check.of("engines renewed", len(evidence.lives), faults, f"{len(evidence.lives)} ranks in a new life, all ready")


def reason_given(evidence: Evidence, expected: Expectation) -> Check:
    """The first round ended with one of these reasons, in its own report."""
    reports = evidence.reports[:1]
    faults = [
        f"{report.request_id} ended with {report.reason} ({report.detail}), expected one of {', '.join(expected.reasons)}"
        for report in reports
        if report.reason not in expected.reasons
    ]
    return Check.of("reason of the fallback", len(reports), faults, "; ".join(f"{r.reason}: {r.detail}" for r in reports))


def repeated_set(evidence: Evidence, _expected: Expectation) -> Check:
    """The periodic SET came again after the first round, and was nothing new to any Coordinator."""
    counts = evidence.unchanged_refreshes
    faults = [f"{name} got no repeated SET" for name, count in counts.items() if count < 1]
    told = sum(counts.values())
    return Check.of("SET brings nothing back", int(told), faults, f"{told:.0f} repeated entries changed nothing")


def requests_after(evidence: Evidence, _expected: Expectation) -> Check:
    """No request failed that began after the view had been published."""
    after = count_requests(evidence.requests, evidence.windows).after
    failed = [r for r in evidence.requests if not r.ok and count_requests([r], evidence.windows).after.failed]
    faults = [f"request {r.number} failed: {r.why} {r.detail}".strip() for r in failed[:5]]
    if len(failed) > len(faults):
        faults.append(f"and {len(failed) - len(faults)} more")
    return Check.of("requests after recovery", after.ok + after.failed, faults, f"{after.ok} ok, none failed")


def client_reached_each(evidence: Evidence, expected: Expectation) -> Check:
    """Clients were answered by every rank that is served, through the Coordinator, after the recovery."""
    since = evidence.windows[-1][1] if evidence.windows else None
    answered = Counter(
        r.rank for r in evidence.requests if r.ok and r.rank is not None and since is not None and r.started_at >= since
    )
    wanted = set(evidence.spec.ranks) - set(expected.dead_committed)
    faults = [f"no client was answered by rank {rank}" for rank in sorted(wanted - answered.keys())]
    return Check.of(
        "clients reach each survivor", sum(answered.values()), faults, f"answers by rank: {dict(sorted(answered.items()))}"
    )


def histories_exported(evidence: Evidence, _expected: Expectation) -> Check:
    """The bundle holds every workflow's history, and each round that ended has told its report."""
    faults = [f"not read: {what}" for what in evidence.unread]
    return Check.of("histories", len(evidence.workflows), faults, f"{len(evidence.workflows)} workflow runs")


def nothing_left(evidence: Evidence, _expected: Expectation) -> Check:
    """After the installation was stopped no process carried its run id."""
    faults = [f"left behind: {orphan}" for orphan in evidence.orphans]
    started = len({event.name for event in evidence.stack_events if event.event is EventKind.STARTED})
    return Check.of("nothing left behind", started, faults, f"of {started} processes and their engines none is left")


def invariant_checks(evidence: Evidence, unseen: frozenset[Invariant] = frozenset()) -> Iterator[Check]:
    """I1–I17 over the whole run, without `unseen`; I12 over its exported histories."""
    for judgement in check_all(evidence.observed):
        if judgement.invariant in unseen:
            continue
        if judgement.invariant is Invariant.I13:
            replay, unread = evidence.replay, [f"not read, not replayed: {what}" for what in evidence.unread]
            yield Check.of(
                f"I12 {REPLAYED}", replay.tasks, [*replay.faults, *unread], "each workflow task gave the same commands"
            )
        faults = [violation.what for violation in judgement.violations]
        yield Check.of(f"{judgement.invariant} {judgement.text}", judgement.observations, faults, "holds")
