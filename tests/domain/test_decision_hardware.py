"""The rules that hardware, options and the other strategies bring: one row each; where a rule moves, one of these turns red."""

from typing import Any

import pytest

from domain.engine import EngineStatus
from domain.hardware import HardwareEvidence, mapped_fault
from domain.instance.decision import RULES, Action, Decision, DecisionReason, Rule, Situation, decide
from domain.instance.evidence import Evidence
from domain.instance.situation import Case
from domain.topology import NodeManagerAddress, Role
from tests.domain.instance_factories import T0, D, H, U, config, on_nodes, ready, report, with_statuses

Statuses = dict[int, EngineStatus]
WINDOW = config().hardware_ft_correlation_window_sec
COLLECTION = config().software_collection_timeout_sec
LISTED_L2 = "0x00F1FEF5"
NODE_0 = NodeManagerAddress(ip="10.0.0.1", port=1026)
OFF = config(enable_dp_scale_down=False)
COMPLETE: Statuses = {1: D, 0: U, 2: U, 3: U}
ALL_U: Statuses = dict.fromkeys(range(4), U)

BROKEN = "switch0"
"""A name that no card has: what it means cannot be mapped."""


class Fault:
    """A reported hardware fault; by default of rank 1's card, one second before the software evidence of T0."""

    def __init__(self, level: str = "L5", npu: str = "Ascend910-1", node: str = "node-0", **more: Any) -> None:
        self.level, self.npu, self.node = level, npu, node
        self.at: float = more.get("at", T0 - 1)
        self.code: str = more.get("code", "80E24E00")
        self.handled: bool = more.get("handled", False)


def with_hardware(evidence: Evidence, *faults: Fault) -> Evidence:
    hardware = HardwareEvidence()
    for fault in faults:
        told = mapped_fault(on_nodes(), fault.node, fault.code, fault.npu, fault.level, fault.at)
        hardware = hardware.report(told.model_copy(update={"handled": fault.handled}))
    return evidence.model_copy(update={"hardware": hardware})


def decided(
    statuses: Statuses, *faults: Fault, at: float = T0 + 1, settings: Any = None, role: Role = Role.UNION, **situation: Any
) -> Decision:
    evidence = with_hardware(with_statuses(statuses), *faults)
    return decide(evidence, Situation(**situation), on_nodes(role=role), settings or config(), at)


def told(decision: Decision) -> tuple[Action, DecisionReason]:
    return decision.action, decision.reason


A, R = Action, DecisionReason
A_ROUND: dict[str, Any] = {"strategy_runs": True, "preemptible": True}
LOST: dict[str, Any] = {"lost_node_managers": (NODE_0,)}
LISTED = Fault("L2", code=LISTED_L2)
GONE: dict[str, Any] = {"settings": OFF, "dead_committed": (1,)}
ROWS: list[tuple[str, Statuses, tuple[Fault, ...], dict[str, Any], tuple[Action, DecisionReason]]] = [
    ("1: off, an L5", {}, (Fault(),), {"settings": OFF}, (A.RECONFIGURE, R.FEATURE_OFF_HARDWARE)),
    ("1: off, an L5, decode", {}, (Fault(),), {"settings": OFF, "role": Role.DECODE}, (A.SCALE_P2D, R.FEATURE_OFF_HARDWARE)),
    ("1: off, an L5 of a removed rank", {}, (Fault(),), GONE, (A.NOTHING, R.REMOVED_RANKS_ONLY)),
    ("1: off, hardware before software", COMPLETE, (Fault(),), {"settings": OFF}, (A.RECONFIGURE, R.FEATURE_OFF_HARDWARE)),
    ("1: off, a listed L2", {1: D}, (LISTED,), {"settings": OFF}, (A.TOKEN_REINFERENCE, R.TOKEN_REINFERENCE)),
    ("1: off, an L1", {}, (Fault("L1"),), {"settings": OFF}, (A.NOTHING, R.NO_EVIDENCE)),
    ("2: unmappable, a round", {}, (Fault(npu=BROKEN),), A_ROUND, (A.PREEMPT, R.UNMAPPABLE_PREEMPTS)),
    ("2: unmappable, a rebuild", {}, (Fault(npu=BROKEN),), {"strategy_runs": True}, (A.KEEP, R.STRATEGY_RUNS)),
    ("2: mappable, a round", COMPLETE, (Fault(),), A_ROUND, (A.KEEP, R.STRATEGY_RUNS)),
    ("2: unmappable L3, a round", {}, (Fault("L3", npu=BROKEN),), A_ROUND, (A.KEEP, R.STRATEGY_RUNS)),
    ("3: a listed L2", COMPLETE, (LISTED,), {}, (A.TOKEN_REINFERENCE, R.TOKEN_REINFERENCE)),
    ("3: a listed L2, tried", COMPLETE, (Fault("L2", code=LISTED_L2, handled=True),), {}, (A.SCALE_DOWN, R.COMPLETE)),
    ("3: another L2", {}, (Fault("L2"),), {}, (A.NOTHING, R.NO_EVIDENCE)),
    ("3: the code at another level", COMPLETE, (Fault("L1", code=LISTED_L2),), {}, (A.SCALE_DOWN, R.COMPLETE)),
    ("4: a removed rank's card", {}, (Fault(),), {"dead_committed": (1,)}, (A.NOTHING, R.REMOVED_RANKS_ONLY)),
    ("4: a card of nobody", {}, (Fault(npu="npu-7"),), {}, (A.NOTHING, R.REMOVED_RANKS_ONLY)),
    ("4: does not hide what else there is", {0: U, 2: D, 3: U}, (Fault(),), {"dead_committed": (1,)}, (A.SCALE_DOWN, R.COMPLETE)),
    ("5: unmappable", {}, (Fault(npu=BROKEN),), {}, (A.RECONFIGURE, R.UNMAPPABLE_HARDWARE)),
    ("5: unmappable, decode", {}, (Fault(npu=BROKEN),), {"role": Role.DECODE}, (A.SCALE_P2D, R.UNMAPPABLE_HARDWARE)),
    ("5: unmappable wins over complete", COMPLETE, (Fault(npu=BROKEN),), {}, (A.RECONFIGURE, R.UNMAPPABLE_HARDWARE)),
    ("5: one of several", COMPLETE, (Fault(), Fault(npu=BROKEN)), {}, (A.RECONFIGURE, R.UNMAPPABLE_HARDWARE)),
    ("5: unknown level", {}, (Fault("L9"),), {}, (A.RECONFIGURE, R.UNMAPPABLE_HARDWARE)),
    ("5: unmappable, handled", COMPLETE, (Fault(npu=BROKEN, handled=True),), {}, (A.SCALE_DOWN, R.COMPLETE)),
    ("5: unmappable L3 isolates only", {}, (Fault("L3", npu=BROKEN),), {}, (A.NOTHING, R.ISOLATED)),
    ("5: mappable, not ACTIVE", {}, (Fault(),), {"rebuilding": True}, (A.RECONFIGURE, R.NOT_ACTIVE)),
    ("8: hardware of the dead", COMPLETE, (Fault(),), {}, (A.SCALE_DOWN, R.COMPLETE)),
    ("8: hardware of a survivor, first", COMPLETE, (Fault(npu="Ascend910-0"),), {}, (A.WAIT, R.HARDWARE_FIRST)),
    ("8: hardware of a survivor, later", COMPLETE, (Fault(npu="Ascend910-0", at=T0 + 1),), {}, (A.SCALE_DOWN, R.COMPLETE)),
    ("8: a tie is software first", COMPLETE, (Fault(npu="Ascend910-0", at=T0),), {}, (A.SCALE_DOWN, R.COMPLETE)),
    ("8: hardware of the dead and of a survivor", COMPLETE, (Fault(), Fault(npu="npu-0")), {}, (A.WAIT, R.HARDWARE_FIRST)),
    ("8: too few would be left", COMPLETE, (), {"settings": config(min_alive_ranks=4)}, (A.RECONFIGURE, R.TOO_FEW_SURVIVORS)),
    ("9: within the window", {}, (Fault(),), {"at": T0 - 1 + WINDOW - 0.1}, (A.WAIT, R.HARDWARE_FIRST)),
    ("9: the window is over", {}, (Fault(),), {"at": T0 - 1 + WINDOW}, (A.RECONFIGURE, R.HARDWARE_NOT_PERCEIVED)),
    ("9: another rank is dead", {2: D}, (Fault(),), {"at": T0 + WINDOW}, (A.RECONFIGURE, R.HARDWARE_NOT_PERCEIVED)),
    ("9: perceived, incomplete", {1: D}, (Fault(),), {"at": T0 + WINDOW}, (A.WAIT, R.INCOMPLETE)),
    ("9: perceived by all", ALL_U, (Fault(),), {"at": T0 + WINDOW}, (A.WAIT, R.ALL_UNHEALTHY)),
    ("9: perceived too late", {1: D}, (Fault(at=T0 - WINDOW - 1),), {}, (A.RECONFIGURE, R.HARDWARE_NOT_PERCEIVED)),
    ("9: software first never waits", {2: D}, (Fault(at=T0 + 1),), {"at": T0 + WINDOW + 2}, (A.WAIT, R.INCOMPLETE)),
    ("9: handled", {}, (Fault(handled=True),), {"at": T0 + 100}, (A.NOTHING, R.NO_EVIDENCE)),
    ("11: lost, and nothing else", {}, (), LOST, (A.RECONFIGURE, R.NODE_MANAGER_LOST)),
    ("11: lost, with hardware", {}, (Fault(),), LOST, (A.WAIT, R.HARDWARE_FIRST)),
    ("11: lost, hardware of removed ranks", {}, (Fault(npu="npu-7"),), LOST, (A.RECONFIGURE, R.NODE_MANAGER_LOST)),
    ("L3 isolates", {}, (Fault("L3"),), {}, (A.NOTHING, R.ISOLATED)),
    ("L3 does not keep a round from starting", COMPLETE, (Fault("L3"),), {}, (A.SCALE_DOWN, R.COMPLETE)),
]  # fmt: skip


@pytest.mark.parametrize(("statuses", "faults", "more", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_rule(
    statuses: Statuses, faults: tuple[Fault, ...], more: dict[str, Any], expected: tuple[Action, DecisionReason]
) -> None:
    assert told(decided(statuses, *faults, **more)) == expected


def test_rule_4_names_what_is_handled_whatever_else_is_decided() -> None:
    decision = decided({0: U, 2: D, 3: U}, Fault(), Fault(npu="npu-0", code="X", handled=True), dead_committed=(1,))
    assert decision.handled == ("node-0/80E24E00/Ascend910-1",)
    assert decided({}, Fault()).handled == ()


RETRY = on_nodes().ft_capability
ABLE = RETRY.model_copy(update={"retry_supported": True}) if RETRY is not None else None


@pytest.mark.parametrize(
    ("enabled", "able", "action"),
    [(True, True, A.FAST_RECOVERY), (False, True, A.WAIT), (True, False, A.WAIT)],
    ids=["applicable", "switched off", "the engines cannot"],
)
def test_rule_6_fast_recovery_where_it_is_wanted_and_all_engines_can(enabled: bool, able: bool, action: Action) -> None:
    where = on_nodes(ft_capability=ABLE if able else RETRY)
    decision = decide(with_statuses(ALL_U), Situation(), where, config(enable_fast_recovery=enabled), T0 + 1)
    assert decision.action is action


def test_rule_6_one_dead_rank_is_a_round_and_no_fast_recovery() -> None:
    settings = config(enable_fast_recovery=True)
    assert decide(with_statuses(COMPLETE), Situation(), on_nodes(ft_capability=ABLE), settings, T0 + 1).action is A.SCALE_DOWN


@pytest.mark.parametrize(
    ("settings", "faults", "statuses", "withdraw"),
    [
        (config(), (Fault(),), {}, False),
        (config(), (Fault(npu=BROKEN),), {}, True),
        (OFF, (Fault(),), {}, True),
        (config(), (Fault("L3"),), {}, True),
        (OFF, (Fault("L3"),), {}, True),
        (config(), (Fault("L2"),), {}, False),
        (config(), (), {1: D}, False),
        (config(withdraw_on_first_fault=True), (), {1: U}, True),
        (config(withdraw_on_first_fault=True), (), {1: H}, False),
        (config(withdraw_on_first_fault=True), (Fault(),), {}, True),
    ],
)
def test_isolation_is_deferred_to_the_round_or_immediate(
    settings: Any, faults: tuple[Fault, ...], statuses: Statuses, withdraw: bool
) -> None:
    decision = decided(statuses, *faults, settings=settings)
    assert decision.withdraw is withdraw
    assert decision.isolated is any(fault.level == "L3" for fault in faults)


def test_wake_idle_survivors_once_and_then_the_normal_rules() -> None:
    wake = config(wake_idle_survivors=True)
    first = decided({1: D, 0: H, 2: H, 3: H}, settings=wake)
    assert (told(first), first.ranks) == ((A.WAKE, R.WAKE_SURVIVORS), (0, 2, 3))
    assert told(decided({1: D}, settings=wake, woken_for=T0)) == (A.WAIT, R.INCOMPLETE)
    assert told(decided({1: D, 0: U}, settings=wake)) == (A.WAIT, R.INCOMPLETE), "they are noticing"
    assert told(decided({1: U}, settings=wake)) == (A.WAIT, R.INCOMPLETE), "nobody is known dead"
    assert told(decided({1: D})) == (A.WAIT, R.INCOMPLETE), "off by default"


DIES = config(node_loss_is_death=True)
NODE_FAULT = Fault("L6", npu="")


def test_node_loss_is_death_when_the_pods_are_silent_and_everybody_else_noticed() -> None:
    rest = {2: U, 3: U}
    shed = decided(rest, NODE_FAULT, settings=DIES, lost_node_managers=(NODE_0,))
    assert (told(shed), shed.ranks) == ((A.SCALE_DOWN, R.COMPLETE), (0, 1))
    assert told(decided(rest, NODE_FAULT, settings=DIES))[0] is A.WAIT, "its Pods still send heartbeats"
    assert told(decided({2: U}, NODE_FAULT, settings=DIES, lost_node_managers=(NODE_0,)))[0] is A.WAIT, "rank 3 has not noticed"
    assert told(decided(rest, Fault("L5", npu=""), settings=DIES, lost_node_managers=(NODE_0,)))[0] is not A.SCALE_DOWN
    assert told(decided(rest, Fault("L6"), settings=DIES, lost_node_managers=(NODE_0,)))[0] is not A.SCALE_DOWN, "a card only"
    assert told(decided(rest, NODE_FAULT, lost_node_managers=(NODE_0,)))[0] is not A.SCALE_DOWN, "off by default"


def test_a_node_that_may_be_dead_waits_for_the_survivors_and_not_for_perception() -> None:
    late = T0 + WINDOW + 10
    assert told(decided({}, NODE_FAULT, at=late)) == (A.RECONFIGURE, R.HARDWARE_NOT_PERCEIVED)
    waiting = decided({}, NODE_FAULT, at=late, settings=DIES)
    assert (told(waiting), waiting.until) == ((A.WAIT, R.NODE_LOSS), T0 - 1 + COLLECTION)
    over = T0 - 1 + COLLECTION
    assert told(decided({}, NODE_FAULT, at=over, settings=DIES))[0] is A.FRESH_LOOK
    assert told(decided({}, NODE_FAULT, at=over, settings=DIES, looked_for=T0 - 1)) == (A.RECONFIGURE, R.NODE_LOSS)


def case(statuses: Statuses, *faults: Fault, settings: Any = None, active: bool = True, **situation: Any) -> Case:
    evidence = with_hardware(with_statuses(statuses, ranks=range(4) if active else ()), *faults)
    return Case(evidence, Situation(**situation), on_nodes(), settings or config(), T0 + 1)


ORDER: list[tuple[str, str, Case]] = [
    ("_rule_1_feature_off", "_rule_5_no_group_or_no_mapping", case({1: D}, settings=OFF, rebuilding=True)),
    ("_rule_1_feature_off", "_rule_11_node_manager_lost", case({1: D}, settings=OFF, lost_node_managers=(NODE_0,))),
    ("_rule_2_strategy_runs", "_rule_3_token_reinference", case({}, Fault("L2", code=LISTED_L2), strategy_runs=True)),
    ("_rule_2_strategy_runs", "_rule_8_complete", case(COMPLETE, strategy_runs=True)),
    ("_rule_3_token_reinference", "_rule_5_no_group_or_no_mapping", case({1: D}, Fault("L2", code=LISTED_L2), rebuilding=True)),
    ("_rule_3_token_reinference", "_rule_8_complete", case(COMPLETE, Fault("L2", code=LISTED_L2))),
    ("_rule_5_no_group_or_no_mapping", "_rule_6_all_unhealthy", case(ALL_U, Fault(npu=BROKEN))),
    ("_rule_5_no_group_or_no_mapping", "_rule_8_complete", case(COMPLETE, rebuilding=True)),
    ("_rule_5_no_group_or_no_mapping", "_rule_9_hardware_first", case({}, Fault(npu="npu-1,card9"))),
    ("_rule_6_all_unhealthy", "_rule_10_incomplete", case(ALL_U)),
    ("_rule_7_all_dead", "_rule_10_incomplete", case(dict.fromkeys(range(4), D))),
    ("_rule_8_complete", "_rule_9_hardware_first", case(COMPLETE, Fault(at=T0 - WINDOW - 2))),
    ("_rule_8_complete", "_rule_10_incomplete", case(COMPLETE)),
    ("_rule_9_hardware_first", "_rule_10_incomplete", case({2: D}, Fault(at=T0 - WINDOW - 2))),
    ("_rule_10_incomplete", "_rule_11_node_manager_lost", case({1: D}, lost_node_managers=(NODE_0,))),
]
"""Two rules that both have something to say about a case: the one that comes first, the other, and the case."""


@pytest.mark.parametrize(
    ("first", "second", "about"), ORDER, ids=[f"{first[:7]} before {second[:8]}" for first, second, _ in ORDER]
)
def test_the_order_of_the_rules_decides(first: str, second: str, about: Case) -> None:
    by_name = {rule.__name__: rule for rule in RULES}
    words = [by_name[name](about) for name in (first, second)]
    assert None not in words
    assert words[0] != words[1], "moving one before the other would go unnoticed"
    assert first_match(RULES, about) == words[0]


def first_match(rules: tuple[Rule, ...], about: Case) -> Decision | None:
    return next((found for rule in rules if (found := rule(about)) is not None), None)


def test_back_off_is_told_with_its_reason_and_never_exceeds_the_window() -> None:
    many = config(reconfiguration_budget=100)
    decision = decided({}, Fault(npu=BROKEN), settings=many, rebuilt_at=(T0 - 5,) * 90, rebuild_ended_at=T0)
    assert decision.reason is R.BACK_OFF
    assert decision.until == T0 + many.reconfiguration_window_sec
    assert "switch0" in decision.detail


def test_what_was_handled_before_does_not_fire_when_everything_is_ready_again() -> None:
    evidence = with_hardware(ready().merge_all([report(1, H, T0)], ()), Fault(handled=True), Fault("L3", npu="npu-0"))
    assert told(decide(evidence, Situation(), on_nodes(), config(), T0 + 1)) == (A.NOTHING, R.ISOLATED)
