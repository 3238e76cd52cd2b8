"""`decide` against the oracle: two readings of design §3, by two hands, over the same situations."""

import math
from collections.abc import Iterable

import pytest

from lab.oracle import decision as oracle
from tests.domain.decision_situations import (
    A_NODE_IS_GONE,
    HARDWARE,
    ORDERS,
    SOFTWARE,
    TABLES,
    WITH_HARDWARE,
    Dimensions,
    Values,
    disagreement,
    sampled,
    whole,
)

SHOWN = 5
MOMENTS: Values = tuple(
    value for value in WITH_HARDWARE["now"] if value["now"] in {1_000_000.0 + at for at in (1, 5, 30, 60, 200)}
)


def assert_agreement(situations: Iterable[oracle.Situation], at_least: int) -> None:
    """All answers agree, and so many situations were judged that this says something."""
    differing: list[str] = []
    judged = 0
    for situation in situations:
        judged += 1
        if len(differing) < SHOWN and (found := disagreement(situation)) is not None:
            differing.append(found)
    assert not differing, "\n".join(differing)
    assert judged >= at_least, f"{judged} situations were compared, {at_least} should have been"


@pytest.mark.parametrize(("dimensions", "each"), [(SOFTWARE, 50), (WITH_HARDWARE, 90), (A_NODE_IS_GONE, 20)])
def test_decisions_are_those_of_the_oracle(dimensions: Dimensions, each: int) -> None:
    assert_agreement(sampled(dimensions, each, seed=1), at_least=len(TABLES) * each)


def test_every_table_of_statuses_has_the_oracles_answer_around_the_collection_timeout() -> None:
    assert_agreement(whole({"now": SOFTWARE["now"], "looked": SOFTWARE["looked"]}), at_least=len(TABLES) * 4 * 14)


def test_the_situations_reach_every_rule_and_every_action() -> None:
    verdicts = [
        oracle.judge(situation)
        for dimensions in (SOFTWARE, WITH_HARDWARE, A_NODE_IS_GONE)
        for situation in sampled(dimensions, each=20, seed=1)
    ]
    assert {verdict.act for verdict in verdicts} == set(oracle.Act)
    assert {verdict.rule for verdict in verdicts} == {0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11}
    assert any(verdict.dropped for verdict in verdicts), "rule 4"
    assert any(verdict.isolated for verdict in verdicts)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("dimensions", [SOFTWARE, WITH_HARDWARE, A_NODE_IS_GONE])
def test_decisions_are_those_of_the_oracle_in_a_million_situations(dimensions: Dimensions, seed: int) -> None:
    assert_agreement(sampled(dimensions, each=400, seed=seed), at_least=len(TABLES) * 400)


def matters(switches: oracle.Switches) -> Dimensions:
    """What the enumeration varies under these switches: time and the look always, the rest where an option asks for it."""
    dimensions: Dimensions = {"hardware": HARDWARE, "now": MOMENTS, "looked": SOFTWARE["looked"]}
    dimensions["switches"] = ({"switches": switches},)
    if switches.wake_idle_survivors:
        dimensions["woken"] = SOFTWARE["woken"]
    if switches.node_loss_is_death:
        dimensions["lost"] = SOFTWARE["lost"]
    return dimensions


@pytest.mark.soak
@pytest.mark.parametrize("switches", dict.fromkeys(value["switches"] for value in WITH_HARDWARE["switches"]))
def test_every_combination_of_statuses_hardware_order_and_time_has_the_oracles_answer(switches: oracle.Switches) -> None:
    """Nothing is drawn here: 256,000 situations a setting of the switches, up to six times that where its option adds some."""
    dimensions = matters(switches)
    combinations = math.prod(map(len, dimensions.values()))
    assert_agreement(whole(dimensions), at_least=len(TABLES) * len(ORDERS) * combinations)
