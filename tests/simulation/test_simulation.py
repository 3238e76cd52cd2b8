"""Thousands of seeded worlds in which everything goes wrong, and what must hold in each of them."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from domain.messages.strategy import RoundOutcome, RoundReason
from lab.oracle.observations import Observation
from tests.simulation.clock import StandstillError, now, run_virtually
from tests.simulation.judge import judge, not_judged, seen_kinds
from tests.simulation.world import play

pytestmark = pytest.mark.verify

WORLDS = 1_600
SOAK_WORLDS, SOAK_CHUNKS = 2_000, 40

HARD_TO_MISS = {
    RoundReason.COMMITTED,
    RoundReason.FALSE_ALARM,
    RoundReason.CANCELLED,
    RoundReason.GATE_REFUSED,
    RoundReason.GUARD_REFUSED,
    RoundReason.GUARD_UNREACHABLE,
    RoundReason.NOT_READY_IN_TIME,
    RoundReason.NO_SURVIVOR,
    RoundReason.ENGINE_PROTOCOL,
    RoundReason.ENGINE_FAILED,
    RoundReason.SURVIVOR_DIED,
    RoundReason.WITHDRAW_UNCONFIRMED,
    RoundReason.APPLY_REFUSED,
    RoundReason.APPLY_UNKNOWN,
    RoundReason.NOT_RECOVERED_IN_TIME,
    RoundReason.VERIFY_FAILED,
    RoundReason.PORT_FAILED,
}
"""Ends of a round that so many worlds must have shown, or the simulation has gone blind."""


def replay_command(seed: int) -> str:
    return f"python -m tests.simulation --seed {seed} --verbose"


def play_all(first_seed: int, count: int) -> Counter[RoundReason]:
    """Plays and judges these worlds; fails with the command that replays the first bad one. Returns how rounds ended."""
    ends: Counter[RoundReason] = Counter()
    seen: Counter[type[Observation]] = Counter()
    for seed in range(first_seed, first_seed + count):
        played = play(seed)
        faults = judge(played)
        if faults:
            pytest.fail("\n".join([*faults, f"replay: {replay_command(seed)}"]), pytrace=False)
        ends.update(this.report.reason for this in played.rounds)
        seen += seen_kinds(played)
    assert not_judged(seen) == []
    return ends


def test_every_world_keeps_the_rules() -> None:
    ends = play_all(0, WORLDS)
    assert ends.total() >= 2_000
    assert HARD_TO_MISS - ends.keys() == set()
    assert ends[RoundReason.COMMITTED] > ends.total() / 3


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(SOAK_CHUNKS))
def test_many_more_worlds_keep_the_rules(chunk: int) -> None:
    ends = play_all(1_000_000 + chunk * SOAK_WORLDS, SOAK_WORLDS)
    assert ends.total() >= 100_000 / SOAK_CHUNKS


def test_calm_worlds_succeed_whoever_dies_and_however() -> None:
    rounds = [(played.scenario, this) for played in map(play, range(300)) if played.scenario.calm for this in played.rounds]
    deaths = Counter(this.plan.death for _, this in rounds if this.report.outcome is RoundOutcome.SUCCEEDED)
    assert len(deaths) == 5
    assert min(deaths.values()) >= 3


def test_a_seed_is_one_world() -> None:
    """The same timeline to the last event, in another process with other hash seeds too."""
    seeds = [3, 4, 5, 62, 106, 186]
    here = [_digest(seed) for seed in seeds]
    assert here == [_digest(seed) for seed in seeds]
    code = f"from tests.simulation.test_simulation import _digest; print([_digest(s) for s in {seeds}])"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert elsewhere.stdout.strip() == str(here)


def _digest(seed: int) -> str:
    return hashlib.sha256("\n".join(play(seed).timeline()).encode()).hexdigest()[:16]


def test_virtual_time_jumps() -> None:
    async def a_day() -> float:
        began = now()
        await asyncio.sleep(86_400)
        return now() - began

    assert run_virtually(a_day()) == pytest.approx(86_400)


def test_a_world_in_which_nothing_is_due_is_an_error_and_no_hang() -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StandstillError):
        run_virtually(for_ever())
