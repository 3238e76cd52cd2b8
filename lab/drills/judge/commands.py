"""Judges what engines were told, by their own logs: which commands, once, and what the Coordinators' views were around them."""

from collections import Counter
from collections.abc import Iterator, Sequence

from domain.engine import ACCEPTED_HTTP, Dialect, Instruction
from lab.drills.check import Check, Seen, check
from lab.drills.record.engine_log import EngineLine
from lab.drills.record.evidence import Evidence
from lab.drills.record.view_log import ViewLine

Loss = tuple[int, ...]
"""The ranks that one in-place round removes."""


def shrunk(*losses: Loss) -> tuple[Check, ...]:
    """In-place rounds, by the ranks that each removes: one command to each survivor, with exactly the dead, and nobody routes."""
    return (
        applied_once(*losses),
        removed_sets(*losses),
        lowest_survivor_is_master(*losses),
        withdrawn_before_apply(),
        published_after_recovery(),
    )


def _rounds(evidence: Evidence) -> dict[str, list[EngineLine]]:
    """The commands that reached engines, by request id, in the order of the rounds."""
    rounds: dict[str, list[EngineLine]] = {}
    for line in evidence.applies:
        rounds.setdefault(line.request_id or "without request_id", []).append(line)
    return rounds


def _gone(losses: Sequence[Loss]) -> list[tuple[int, ...]]:
    """Per round all ranks that are gone when it has ended."""
    return [tuple(sorted({rank for loss in losses[:number] for rank in loss})) for number in range(1, len(losses) + 1)]


@check("one apply per engine")
def applied_once(evidence: Evidence, *losses: Loss) -> Seen:
    """In each round every survivor got exactly one command, accepted, and nobody else any."""
    faults: list[str] = []
    rounds = _rounds(evidence)
    if len(rounds) != len(losses):
        faults.append(f"{len(rounds)} rounds reached engines, {len(losses)} expected")
    for (request_id, lines), gone in zip(rounds.items(), _gone(losses), strict=False):
        wanted = dict.fromkeys(sorted(set(evidence.spec.ranks) - set(gone)), 1)
        counted = dict(sorted(Counter(line.rank for line in lines).items()))
        if counted != wanted:
            faults.append(f"{request_id}: applies per engine {counted}, expected {wanted}")
        faults += [f"engine {line.rank} answered {line.http}" for line in lines if line.http != ACCEPTED_HTTP]
    logs = sum(len(own) for own in evidence.lives.values())
    fine = f"{len(evidence.applies)} commands in {logs} engine logs, each survivor one a round, all answered 202"
    return Seen(len(evidence.applies), faults, fine)


@check("removed set")
def removed_sets(evidence: Evidence, *losses: Loss) -> Seen:
    """Each round's commands carried exactly what was removed before and this round's dead, and nothing else."""
    faults = [
        f"engine {line.rank} was told to remove {line.told_removed}, expected {gone}"
        for lines, gone in zip(_rounds(evidence).values(), _gone(losses), strict=False)
        for line in lines
        if line.told_removed != gone
    ]
    return Seen(len(evidence.applies), faults, f"removed in turn: {[list(loss) for loss in losses]}")


@check("master is the lowest survivor")
def lowest_survivor_is_master(evidence: Evidence, *losses: Loss) -> Seen:
    """Each command names the lowest survivor's address and its store port."""
    faults: list[str] = []
    masters = [min(set(evidence.spec.ranks) - set(gone)) for gone in _gone(losses)]
    for lines, rank in zip(_rounds(evidence).values(), masters, strict=False):
        ip = evidence.topology.endpoint(rank).ip
        port = evidence.topology.dp_master_port + rank
        for line in lines:
            told = ((line.params or {}).get("dp_master_ip"), (line.params or {}).get("dp_store_port"))
            if told != (ip, port):
                faults.append(f"engine {line.rank} was told master {told}, expected {(ip, port)} (rank {rank})")
    return Seen(len(evidence.applies), faults, f"masters in turn: ranks {masters}")


@check("withdrawn before apply")
def withdrawn_before_apply(evidence: Evidence) -> Seen:
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
    return Seen(judged, faults, "every Coordinator had been told to route to nobody")


@check("published after recovery")
def published_after_recovery(evidence: Evidence) -> Seen:
    """Every round ended with a view, taken over after the last engine had recovered."""
    episodes = [episode for episode in evidence.episodes if episode.request_id]
    faults = [f"{e.request_id} was not followed by a view at every Coordinator" for e in episodes if e.published_at is None]
    early = [
        e
        for e in episodes
        if e.recovery_ended_at is not None and _routed_during_recovery(evidence, e.applied_at, e.recovery_ended_at)
    ]
    faults += [f"a view was published while engines recovered under {e.request_id}" for e in early]
    return Seen(len(episodes), faults, f"{len(episodes)} rounds, each followed by its view")


def _routed_during_recovery(evidence: Evidence, begin: float | None, end: float) -> bool:
    return begin is not None and any(
        line.applied and line.ranks and begin <= line.mono < end for _, line in _view_lines(evidence)
    )


@check("one retry per engine")
def retried_once(evidence: Evidence) -> Seen:
    """Every engine was told to retry exactly once, all under one request id, and nothing else was ever told to anybody.

    In the legacy dialect each engine's server makes the id.
    """
    told = [line for line in evidence.applies if line.instruction == Instruction.RETRY]
    counted = dict(sorted(Counter(line.rank for line in told).items()))
    wanted = dict.fromkeys(evidence.spec.ranks, 1)
    faults = [f"retries per engine {counted}, expected {wanted}"] if counted != wanted else []
    faults += [f"engine {line.rank} answered {line.http}" for line in told if line.http != ACCEPTED_HTTP]
    faults += [f"engine {line.rank} was told to {line.instruction}" for line in evidence.applies if line not in told]
    ids = sorted({line.request_id or "none" for line in told})
    if len(ids) > 1 and evidence.spec.engine.dialect is not Dialect.LEGACY:
        faults.append(f"retries under several request ids: {', '.join(ids)}")
    return Seen(len(evidence.applies), faults, f"{len(told)} engines retried together, once")


@check("no apply")
def no_apply(evidence: Evidence) -> Seen:
    """No engine got any command."""
    faults = [f"engine {line.rank} got {line.instruction}" for line in evidence.applies]
    logs = sum(len(own) for own in evidence.lives.values())
    return Seen(logs, faults, f"{logs} engine logs hold no command")


@check("no round")
def no_round(evidence: Evidence) -> Seen:
    """No NodeManager was ever guarded or given a verdict."""
    faults = [
        f"{name} knows {transaction.request_id}"
        for name, journal in evidence.journals.items()
        for transaction in journal.transactions
    ]
    return Seen(len(evidence.journals), faults, f"{len(evidence.journals)} journals hold no transaction")


@check("not withdrawn early")
def not_withdrawn_before(evidence: Evidence, wait_sec: float) -> Seen:
    """No Coordinator was told to withdraw earlier than this after the injection."""
    begin = evidence.injections[0]
    later = [
        (line.mono - begin, name, line) for name, line in _view_lines(evidence) if line.mono > begin and line.event != "start"
    ]
    withdrawn = [(t, name) for t, name, line in later if not line.ranks]
    faults = [f"{name} withdrew after {t:.2f} s, before {wait_sec:g} s were over" for t, name in withdrawn if t < wait_sec]
    first = min((t for t, _ in withdrawn), default=float("inf"))
    return Seen(len(later), faults, f"first withdrawn {first:.2f} s after the injection")


def _view_lines(evidence: Evidence) -> Iterator[tuple[str, ViewLine]]:
    for name, lines in evidence.view_lines.items():
        yield from ((name, line) for line in lines)
