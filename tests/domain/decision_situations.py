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
from typing import Any, NamedTuple

from domain.config import FaultToleranceConfig
from domain.engine import EngineStatus, EntrySource
from domain.hardware import FaultLevel, HardwareEvidence, HardwareFault
from domain.instance.decision import Action, Decision, DecisionReason, Situation, decide
from domain.instance.evidence import Evidence, RankEvidence
from domain.instance.situation import Case
from domain.topology import Role, Topology
from lab.oracle import decision as oracle
from lab.oracle.decision import DEAD, HEALTHY, UNHEALTHY, UNREPORTED, Act, Hardware, RankSays, Strategy, Switches
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
    Action.WAKE: Act.WAKE,
    Action.FAST_RECOVERY: Act.FAST_RECOVERY,
    Action.TOKEN_REINFERENCE: Act.TOKEN_REINFERENCE,
    Action.ENGINE_RELAUNCH: Act.RELAUNCH,
    Action.SCALE_P2D: Act.SCALE_P2D,
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


Values = tuple[dict[str, object], ...]
Dimensions = dict[str, Values]


def _removed(*ranks: int) -> dict[str, object]:
    return {"dead_committed": frozenset(ranks)}


SOFTWARE: Dimensions = {
    "committed": ({}, _removed(1), _removed(0, 3), _removed(0, 1)),
    "runs": (
        {},
        {"strategy": Strategy("ScaleDownRound")},
        {"strategy": Strategy("ScaleDownRound", committed=True)},
        {"strategy": Strategy("FastRecovery")},
        {"strategy": Strategy("EngineRelaunch")},
        {"strategy": Strategy("TokenReinference")},
        {"strategy": Strategy("InstanceReconfiguration")},
    ),
    "ready": ({}, {"all_ever_ready": False}, {"rebuilding": True}),
    "lost": ({}, {"lost": frozenset({0, 1})}, {"lost": frozenset({2, 3})}),
    "owed": ({}, {"forced": True}, {"failed": True}),
    "spent": ({}, {"abandoned_rounds": 3}, {"abandoned_rounds": 4}, {"reconfigurations": 2}, {"reconfigurations": 3}),
    "role": ({}, {"decode": True}),
    "looked": ({"looked": False}, {"looked": True}),
    "woken": ({"woken": False}, {"woken": True}),
    "switches": (
        {"switches": Switches()},
        {"switches": Switches(feature=False)},
        {"switches": Switches(feature=False, engine_relaunch=False)},
        {"switches": Switches(min_alive_ranks=2)},
        {"switches": Switches(collection_timeout_sec=3.0)},
        {"switches": Switches(fast_recovery=True, retry_supported=True)},
        {"switches": Switches(fast_recovery=True)},
        {"switches": Switches(retry_supported=True, withdraw_on_first_fault=True)},
        {"switches": Switches(wake_idle_survivors=True)},
    ),
    "now": tuple({"now": T0 + after} for after in (58, 59.999, 60, 61, 70, 90, 200)),
}
"""The dimensions beside what the ranks say. Where the first value is empty, that is what usually holds."""

USUALLY = 0.85
"""How often a draw keeps to what usually holds: else something runs nearly always, and no rule after it is judged."""


def _hardware(*faults: Hardware) -> dict[str, object]:
    return {"hardware": faults}


def _card(level: str, *ranks: int, at: float, **changes: Any) -> Hardware:
    code, card = changes.get("code", "0x80E01801"), changes.pop("card", "0")
    fields = {"key": f"node/{code}/Ascend910-{card}", "level": level, "mapped": frozenset(ranks), "at": T0 + at, "code": code}
    return Hardware(**{**fields, **changes})


def _node(*ranks: int, at: float) -> Hardware:
    return Hardware("node/NotReady/", "L6", frozenset(ranks), T0 + at, code="NotReady", node_wide=True)


HEALING = "0x00F1FEF5"
FIRST, TIE, BETWEEN, LATE = -3.0, 0.0, 2.5, 100.0

HARDWARE: Values = (
    {"hardware": ()},
    *(_hardware(_card("L5", 1, at=at)) for at in (FIRST, TIE, BETWEEN, LATE)),
    *(_hardware(_card("L4", 0, 1, at=at)) for at in (FIRST, BETWEEN)),
    _hardware(_card("L6", 1, at=FIRST, handled=True)),
    _hardware(_card("L6", at=FIRST)),
    *(_hardware(_card("L5", 1, at=at, complete=False)) for at in (FIRST, LATE)),
    _hardware(_card("L5", at=FIRST, complete=False, handled=True)),
    _hardware(_card("SomethingNew", 1, at=FIRST)),
    _hardware(_card("L5", 1, at=FIRST), _card("L6", 3, at=LATE, card="7")),
    _hardware(_card("L5", 1, at=FIRST, handled=True), _card("L6", 0, at=BETWEEN, card="7")),
    _hardware(_card("L4", 2, at=BETWEEN), _card("L4", at=FIRST, complete=False, card="x")),
    _hardware(_card("L1", 1, at=FIRST)),
    _hardware(_card("L2", 1, at=FIRST)),
    _hardware(_card("L2", 1, at=LATE, code=HEALING)),
    _hardware(_card("L2", 1, at=FIRST, code=HEALING, handled=True)),
    _hardware(_card("L2", 1, at=FIRST, code=HEALING), _card("L5", at=FIRST, complete=False)),
    _hardware(_card("L3", 1, at=FIRST)),
    _hardware(_card("L3", at=FIRST, complete=False), _card("L5", 2, at=FIRST, card="7")),
    _hardware(_node(2, 3, at=FIRST)),
    _hardware(_node(2, 3, at=BETWEEN), _card("L5", 1, at=FIRST)),
)
"""None, mapped, handled, unmappable, several; before, with, between and after the software reports of `ORDERS`."""

NODE_LOSS: Values = (
    {"switches": Switches(node_loss_is_death=True)},
    {"switches": Switches(node_loss_is_death=True, wake_idle_survivors=True)},
)
WITH_HARDWARE: Dimensions = {
    **SOFTWARE,
    "hardware": HARDWARE,
    "switches": (*SOFTWARE["switches"], *NODE_LOSS, {"switches": Switches(correlation_window_sec=64.0)}),
    "now": tuple({"now": T0 + after} for after in (1, 2, 4.999, 5, 7, 30, 59.999, 60, 61, 104, 106, 200)),
}
"""The same with hardware faults: every moment around both timers."""

A_NODE_IS_GONE: Dimensions = {
    **WITH_HARDWARE,
    "hardware": HARDWARE[-2:],
    "lost": ({"lost": frozenset({2, 3})},),
    "switches": NODE_LOSS,
}
"""What the option `node_loss_is_death` is about."""


def whole(dimensions: Dimensions, tables: Iterable[Sequence[str]] = TABLES) -> Iterator[oracle.Situation]:
    """Every combination, each once."""
    for table, order in itertools.product(tables, ORDERS):
        says = said(table, order)
        for picks in itertools.product(*dimensions.values()):
            yield _situation(says, picks)


def sampled(dimensions: Dimensions, each: int, seed: int) -> Iterator[oracle.Situation]:
    """For every table of statuses `each` draws of order and all other dimensions."""
    dice = random.Random(seed)
    orders = tuple(ORDERS)
    for _ in range(each):
        for table in TABLES:
            yield _situation(said(table, dice.choice(orders)), [_drawn(values, dice) for values in dimensions.values()])


def _drawn(values: Values, dice: random.Random) -> dict[str, object]:
    if not values[0] and dice.random() < USUALLY:
        return values[0]
    return dice.choice(values)


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
def _hardware_evidence(faults: tuple[Hardware, ...]) -> HardwareEvidence:
    evidence = HardwareEvidence()
    for fault in faults:
        node, code, npu = fault.key.split("/")
        known = fault.level in FaultLevel.__members__
        told = HardwareFault(
            node_name=node,
            fault_code=code,
            npu_name=npu,
            level=FaultLevel(fault.level) if known else FaultLevel.L6,
            ranks=tuple(sorted(fault.mapped)),
            unmapped="" if fault.complete and known else "not known",
            received_at=fault.at,
            last_at=fault.at,
            handled=fault.handled,
        )
        evidence = evidence.report(told)
    return evidence


@cache
def _topology(decode: bool, retry: bool) -> Topology:
    plain = topology()
    assert plain.ft_capability is not None
    capability = plain.ft_capability.model_copy(update={"retry_supported": retry})
    return plain.model_copy(update={"role": Role.DECODE if decode else Role.UNION, "ft_capability": capability})


@cache
def _config(switches: Switches) -> FaultToleranceConfig:
    return FaultToleranceConfig(
        enable_dp_scale_down=switches.feature,
        enable_engine_relaunch=switches.engine_relaunch,
        enable_fast_recovery=switches.fast_recovery,
        wake_idle_survivors=switches.wake_idle_survivors,
        withdraw_on_first_fault=switches.withdraw_on_first_fault,
        node_loss_is_death=switches.node_loss_is_death,
        min_alive_ranks=switches.min_alive_ranks,
        hardware_ft_correlation_window_sec=switches.correlation_window_sec,
        software_collection_timeout_sec=switches.collection_timeout_sec,
        reconfiguration_budget=switches.reconfiguration_budget,
        token_reinference_codes=tuple(sorted(switches.reinference_codes)),
    )


def _may_be_stopped(strategy: Strategy | None) -> bool:
    """As the state of an instance tells it; `test_instance.py` has its own tests of that."""
    if strategy is None:
        return False
    return strategy.kind in ("FastRecovery", "EngineRelaunch") or (strategy.kind == "ScaleDownRound" and not strategy.committed)


def asked(s: oracle.Situation) -> Decision:
    """`decide`'s answer to a situation of the oracle's."""
    where, config = _topology(s.decode, s.switches.retry_supported), _config(s.switches)
    evidence = Evidence(
        ranks={rank: _rank_evidence(says, rank, s.all_ever_ready or rank == 0) for rank, says in s.says.items()},
        forming=s.rebuilding,
        hardware=_hardware_evidence(s.hardware),
    )
    owed = DecisionReason.FORCED if s.forced else DecisionReason.ROUND_FAILED if s.failed else None
    situation = Situation(
        dead_committed=tuple(sorted(s.dead_committed)),
        rebuilding=s.rebuilding,
        strategy_runs=s.strategy is not None,
        preemptible=_may_be_stopped(s.strategy),
        owed=owed,
        abandoned_at=(s.now - 10,) * s.abandoned_rounds,
        rebuilt_at=(s.now - 1000,) * s.reconfigurations,
        lost_node_managers=tuple(manager for manager in where.managers if set(where.ranks_of(manager)) <= s.lost),
    )
    since = Case(evidence, situation, where, config, s.now).collecting_since
    done = {"looked_for": since if s.looked else None, "woken_for": since if s.woken else None}
    return decide(evidence, situation.model_copy(update=done), where, config, s.now)


RULE_OF: dict[DecisionReason, int] = {
    DecisionReason.FORCED: 0,
    DecisionReason.ROUND_FAILED: 0,
    DecisionReason.FEATURE_OFF: 1,
    DecisionReason.FEATURE_OFF_HARDWARE: 1,
    DecisionReason.STRATEGY_RUNS: 2,
    DecisionReason.UNMAPPABLE_PREEMPTS: 2,
    DecisionReason.TOKEN_REINFERENCE: 3,
    DecisionReason.NOT_ACTIVE: 5,
    DecisionReason.UNMAPPABLE_HARDWARE: 5,
    DecisionReason.FAST_RECOVERY: 6,
    DecisionReason.ALL_UNHEALTHY: 6,
    DecisionReason.ALL_DEAD: 7,
    DecisionReason.COMPLETE: 8,
    DecisionReason.TOO_FEW_SURVIVORS: 8,
    DecisionReason.ABANDONED_TOO_OFTEN: 8,
    DecisionReason.HARDWARE_FIRST: 9,
    DecisionReason.HARDWARE_NOT_PERCEIVED: 9,
    DecisionReason.INCOMPLETE: 10,
    DecisionReason.WAKE_SURVIVORS: 10,
    DecisionReason.NODE_LOSS: 10,
    DecisionReason.NODE_MANAGER_LOST: 11,
    DecisionReason.REMOVED_RANKS_ONLY: 11,
    DecisionReason.ISOLATED: 11,
    DecisionReason.NO_EVIDENCE: 11,
}
"""The rule that each reason belongs to; 0 = before all rules. A spent budget hides it."""


ABOUT_RANKS = (Action.SCALE_DOWN, Action.FAST_RECOVERY, Action.WAKE)


class Answer(NamedTuple):
    """What is compared. `ranks` where the oracle names any; of what rule 4 drops, the keys."""

    act: Act
    rule: int | None
    until: float | None
    ranks: frozenset[int]
    dropped: frozenset[str]
    isolated: bool
    withdrawn: bool


def answer_of_decide(s: oracle.Situation) -> Answer:
    decision = asked(s)
    return Answer(
        ACTS[decision.action],
        RULE_OF.get(decision.reason),
        decision.until if decision.action is Action.WAIT else None,
        frozenset(decision.ranks if decision.action in ABOUT_RANKS else ()),
        frozenset(decision.handled),
        decision.isolated,
        decision.withdraw,
    )


def answer_of_oracle(s: oracle.Situation, verdict: oracle.Verdict | None = None) -> Answer:
    verdict = verdict or oracle.judge(s)
    rule: int | None = verdict.rule
    if verdict.act is Act.PERSON:
        rule = None
    if verdict.act is Act.PREEMPT:
        rule = 0 if s.forced else 2
    return Answer(verdict.act, rule, verdict.until, verdict.ranks, verdict.dropped, verdict.isolated, verdict.withdrawn)


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
