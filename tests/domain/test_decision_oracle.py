"""`decide` against the oracle: two readings of design §3, by two hands, over the same situations."""

from collections.abc import Iterable

import pytest

from tests.domain import decision_oracle as oracle
from tests.domain.decision_situations import SOFTWARE, TABLES, disagreement, sampled, whole

SHOWN = 5
FASTER: dict[str, tuple[dict[str, object], ...]] = {"now": ({"now": 1_000_061.0},), "looked": ({}, {"looked": True})}


def assert_agreement(situations: Iterable[oracle.Situation], at_least: int) -> None:
    """All answers agree, and so many situations were judged that this says something."""
    differing: list[str] = []
    judged = 0
    for situation in situations:
        judged += 1
        if len(differing) < SHOWN and (found := disagreement(situation)) is not None:
            differing.append(found)
    assert not differing, "\n".join(differing)
    assert judged >= at_least


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_those_of_the_oracle(seed: int) -> None:
    assert_agreement(sampled(SOFTWARE, each=60, seed=seed), at_least=15_000)


def test_every_table_of_statuses_has_the_oracles_answer_around_the_collection_timeout() -> None:
    assert_agreement(whole({"now": SOFTWARE["now"], "looked": SOFTWARE["looked"]}), at_least=len(TABLES) * 4 * 14)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
def test_decisions_are_those_of_the_oracle_in_a_million_situations(seed: int) -> None:
    assert_agreement(sampled(SOFTWARE, each=400, seed=seed), at_least=100_000)
