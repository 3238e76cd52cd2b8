"""Situations for the comparison of `decide` with the oracle, and the adapter that asks `decide` about one.

`SOFTWARE` × the other dimensions is everything that a decision can depend on, for four ranks: what each rank says, in
which order that was said, how much time has passed, what runs, and what is configured. Numbers of cases multiply fast:
`whole` enumerates a product, `sampled` draws from it with a seed.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from domain.config import FaultToleranceConfig
from domain.decision import Action, Decision, DecisionReason, Situation, decide
from domain.engine import EngineStatus, EntrySource
from domain.evidence import Evidence, RankEvidence
from domain.topology import Topology
from tests.domain import decision_oracle as oracle
from tests.domain.decision_oracle import DEAD, HEALTHY, UNHEALTHY, UNREPORTED, Act, RankSays, Strategy, Switches
from tests.domain.instance_factories import T0, report, topology

RANKS = (0, 1, 2, 3)
STATUSES = (HEALTHY, UNHEALTHY, DEAD, UNREPORTED)
TABLES = tuple(itertools.product(STATUSES, repeat=len(RANKS)))
"""{healthy, unhealthy, dead, unreported}⁴."""

ORDERS: dict[str, tuple[tuple[float, float], ...]] = {
    "together": ((0, 0), (0, 0), (0, 0), (0, 0)),
    "ascending": ((0, 0), (1, 1), (2, 2), (3, 3)),
    "descending": ((30, 30), (20, 20), (10, 10), (0, 0)),
    "late deaths": ((0, 50), (0, 4), (2, 7), (1, 58)),
}
"""Per rank when it was first UNHEALTHY, and first DEAD (seconds after `T0`); equal: a dead one was never UNHEALTHY."""

ACTS: dict[Action, Act] = {
    Action.NOTHING: Act.NOTHING,
    Action.KEEP: Act.KEEP,
    Action.WAIT: Act.WAIT,
    Action.FRESH_LOOK: Act.LOOK,
    Action.SCALE_DOWN: Act.SCALE_DOWN,
    Action.RECONFIGURE: Act.RECONFIGURE,
    Action.PREEMPT: Act.PREEMPT,
    Action.STAY_WITHDRAWN: Act.PERSON,
}


def said(table: Sequence[str], order: str) -> dict[int, RankSays]:
    """What the four ranks say, in this order of arrival."""
    says: dict[int, RankSays] = {}
    for rank, status, (unhealthy, dead) in zip(RANKS, table, ORDERS[order], strict=True):
        match status:
            case "unhealthy":
                says[rank] = RankSays(UNHEALTHY, unhealthy_at=T0 + unhealthy)
            case "dead":
                says[rank] = RankSays(DEAD, unhealthy_at=T0 + unhealthy if dead > unhealthy else None, dead_at=T0 + dead)
            case _:
                says[rank] = RankSays(status)
    return says


SOFTWARE: dict[str, tuple[dict[str, object], ...]] = {
    "committed": ({}, {"dead_committed": frozenset({1})}, {"dead_committed": frozenset({0, 3})}),
    "runs": (
        {},
        {},
        {},
        {"strategy": Strategy("ScaleDownRound")},
        {"strategy": Strategy("ScaleDownRound", committed=True)},
        {"strategy": Strategy("InstanceReconfiguration")},
    ),
    "ready": ({}, {}, {"all_ever_ready": False}, {"rebuilding": True}),
    "lost": ({}, {"lost": frozenset({0, 1})}, {"lost": frozenset({2, 3})}),
    "owed": ({}, {}, {}, {"forced": True}, {"failed": True}),
    "looked": ({}, {"looked": True}),
    "spent": ({}, {}, {"abandoned_rounds": 2}, {"abandoned_rounds": 4}, {"reconfigurations": 2}, {"reconfigurations": 3}),
    "switches": (
        {},
        {"switches": Switches(feature=False, engine_relaunch=False)},
        {"switches": Switches(collection_timeout_sec=3.0)},
    ),
    "now": tuple({"now": T0 + after} for after in (58, 59.999, 60, 61, 70, 90, 200)),
}
"""The dimensions beside what the ranks say; a value that stands several times is drawn more often."""


def whole(
    dimensions: dict[str, tuple[dict[str, object], ...]], tables: Iterable[Sequence[str]] = TABLES, orders: Iterable[str] = ORDERS
) -> Iterator[oracle.Situation]:
    """Every combination, each once."""
    distinct = [[value for n, value in enumerate(values) if value not in values[:n]] for values in dimensions.values()]
    for table, order in itertools.product(tables, orders):
        says = said(table, order)
        for picks in itertools.product(*distinct):
            yield _situation(says, picks)


def sampled(dimensions: dict[str, tuple[dict[str, object], ...]], each: int, seed: int) -> Iterator[oracle.Situation]:
    """For every table of statuses `each` draws of order and all other dimensions."""
    dice = random.Random(seed)
    orders = tuple(ORDERS)
    for _ in range(each):
        for table in TABLES:
            yield _situation(said(table, dice.choice(orders)), [dice.choice(values) for values in dimensions.values()])


def _situation(says: dict[int, RankSays], picks: Iterable[dict[str, object]]) -> oracle.Situation:
    fields: dict[str, object] = {"original": RANKS, "says": says}
    for pick in picks:
        fields.update(pick)
    return oracle.Situation(**fields)  # type: ignore[arg-type]


@cache
def _rank_evidence(says: RankSays, rank: int, ready: bool) -> RankEvidence:
    """The same words, told by reports."""
    evidence = Evidence()
    told = [(says.unhealthy_at, EngineStatus.UNHEALTHY), (says.dead_at, EngineStatus.DEAD)]
    if says.status == HEALTHY:
        told = [(T0 - 100, EngineStatus.HEALTHY)]
    for at, status in told:
        if at is not None:
            evidence, _ = evidence.merge(report(rank, status, at, source=EntrySource.ENGINE), ())
    return evidence.of(rank).model_copy(update={"ever_ready": ready})


@cache
def _topology() -> Topology:
    return topology()


@cache
def _config(switches: Switches) -> FaultToleranceConfig:
    return FaultToleranceConfig(
        enable_dp_scale_down=switches.feature,
        min_alive_ranks=switches.min_alive_ranks,
        hardware_ft_correlation_window_sec=switches.correlation_window_sec,
        software_collection_timeout_sec=switches.collection_timeout_sec,
        reconfiguration_budget=switches.reconfiguration_budget,
    )


def asked(s: oracle.Situation) -> Decision:
    """`decide`'s answer to a situation of the oracle's."""
    where, config = _topology(), _config(s.switches)
    evidence = Evidence(
        ranks={rank: _rank_evidence(says, rank, s.all_ever_ready or rank == 0) for rank, says in s.says.items()},
        forming=s.rebuilding,
    )
    active = tuple(rank for rank in RANKS if rank not in s.dead_committed)
    owed = DecisionReason.FORCED if s.forced else DecisionReason.ROUND_FAILED if s.failed else None
    situation = Situation(
        dead_committed=tuple(sorted(s.dead_committed)),
        rebuilding=s.rebuilding,
        strategy_runs=s.strategy is not None,
        preemptible=s.strategy is not None and s.strategy.kind == "ScaleDownRound" and not s.strategy.committed,
        owed=owed,
        looked_for=evidence.first_fault_at(active) if s.looked else None,
        abandoned_at=(s.now - 10,) * s.abandoned_rounds,
        rebuilt_at=(s.now - 1000,) * s.reconfigurations,
        lost_node_managers=tuple(manager for manager in where.managers if set(where.ranks_of(manager)) <= s.lost),
    )
    return decide(evidence, situation, where, config, s.now)


RULE_OF: dict[DecisionReason, int] = {
    DecisionReason.FORCED: 0,
    DecisionReason.ROUND_FAILED: 0,
    DecisionReason.FEATURE_OFF: 1,
    DecisionReason.STRATEGY_RUNS: 2,
    DecisionReason.NOT_ACTIVE: 5,
    DecisionReason.ALL_UNHEALTHY: 6,
    DecisionReason.ALL_DEAD: 7,
    DecisionReason.COMPLETE: 8,
    DecisionReason.ABANDONED_TOO_OFTEN: 8,
    DecisionReason.INCOMPLETE: 10,
    DecisionReason.NODE_MANAGER_LOST: 11,
    DecisionReason.NO_EVIDENCE: 11,
}
"""The rule that each reason belongs to; 0 = before all rules. A spent budget hides it."""

Answer = tuple[Act, int | None, float | None, frozenset[int]]
"""What is compared: what to do, by which rule, until when to wait, what to remove."""


def answer_of_decide(s: oracle.Situation) -> Answer:
    decision = asked(s)
    until = decision.until if decision.action is Action.WAIT else None
    return ACTS[decision.action], RULE_OF.get(decision.reason), until, frozenset(decision.ranks)


def answer_of_oracle(s: oracle.Situation, verdict: oracle.Verdict | None = None) -> Answer:
    verdict = verdict or oracle.judge(s)
    rule: int | None = verdict.rule
    if verdict.act is Act.PERSON:
        rule = None
    if verdict.act is Act.PREEMPT:
        rule = 0 if s.forced else 2
    return verdict.act, rule, verdict.until, verdict.removed


def disagreement(s: oracle.Situation) -> str | None:
    """Both answers and the case, where they differ."""
    ours, theirs = answer_of_oracle(s), answer_of_decide(s)
    if ours == theirs:
        return None
    return f"oracle {ours}, decide {theirs} as {asked(s).reason}\n    for {_without_defaults(s)}"


def _without_defaults(s: oracle.Situation) -> str:
    plain = replace(oracle.Situation(original=RANKS, says={}))
    shown = {name: value for name, value in vars(s).items() if value != getattr(plain, name)}
    return ", ".join(f"{name}={value}" for name, value in shown.items())
