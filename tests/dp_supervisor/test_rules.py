"""Sweep in, verdict out: the tables of contracts §7, and what must hold for any history of sweeps."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_supervisor.rules import Rules, ServerState, Standing, Stop, StopReason, after_sweep, before_ready

H, R, D, W, S, X = (
    ServerState.HEALTHY,
    ServerState.RECOVERING,
    ServerState.DEAD,
    ServerState.WRONG,
    ServerState.SILENT,
    ServerState.EXITED,
)
THRESHOLD = 3
RANKS = 4


def sweep(*looks: ServerState, first: int = 0) -> dict[int, ServerState]:
    return {first + index: look for index, look in enumerate(looks)}


def fold(rules: Rules, sweeps: Sequence[Mapping[int, ServerState]], threshold: int = THRESHOLD) -> list[Standing]:
    standings = [Standing()]
    for looks in sweeps:
        standings.append(after_sweep(rules, standings[-1], looks, threshold))
    return standings[1:]


@pytest.mark.parametrize(
    ("sweeps", "stop"),
    [
        ([sweep(H, H, H, H)] * 10, None),
        ([sweep(H, X, H, H)], Stop(reason=StopReason.SERVER_EXITED, ranks=(1,))),
        ([sweep(H, W, H, W)], Stop(reason=StopReason.NOT_HEALTHY, ranks=(1, 3))),
        ([sweep(H, S, H, H)] * 2, None),
        ([sweep(H, S, H, H)] * 3, Stop(reason=StopReason.NO_ANSWER, ranks=(1,))),
        ([sweep(H, S, H, H), sweep(H, S, H, H), sweep(H, H, H, H), sweep(H, S, H, H)], None),
        ([sweep(S, H), sweep(H, S), sweep(S, H), sweep(H, S)], None),
        ([sweep(X, W, S, H)], Stop(reason=StopReason.SERVER_EXITED, ranks=(0,))),
    ],
)
def test_stock_rules_stop_for_any_one_server(sweeps: list[dict[int, ServerState]], stop: Stop | None) -> None:
    last = fold(Rules.STOCK, sweeps)[-1]
    assert last.stop == stop
    assert last.ready == (stop is None)
    assert last.removed == ()


@pytest.mark.parametrize(
    ("sweeps", "ready", "removed", "stopped"),
    [
        ([sweep(H, H, H, H)], True, (), False),
        ([sweep(R, D, R, R)] * 50, False, (), False),
        ([sweep(H, X, H, H)] * 50, True, (1,), False),
        ([sweep(R, X, R, R)] * 50, False, (1,), False),
        ([sweep(R, D, H, R)], True, (), False),
        ([sweep(H, W, S, D)] * 50, True, (), False),
        ([sweep(W, W, W, W)] * 2, False, (), False),
        ([sweep(W, S, D, X)] * 3, False, (3,), True),
        ([sweep(S, S, S, S)] * 3, False, (), True),
        ([sweep(X, X, X, X)] * 2, False, (), False),
        ([sweep(X, X, X, X)] * 3, False, (), True),
        ([sweep(H, X, H, H), *[sweep(X, X, X, X)] * 3], False, (1,), True),
        ([sweep(S, S), sweep(S, S), sweep(R, S), sweep(S, S), sweep(S, S)], False, (), False),
    ],
)
def test_fault_tolerant_rules_stop_only_when_no_rank_serves_or_recovers(
    sweeps: list[dict[int, ServerState]], ready: bool, removed: tuple[int, ...], stopped: bool
) -> None:
    last = fold(Rules.FAULT_TOLERANT, sweeps)[-1]
    assert (last.ready, last.removed, last.stop is not None) == (ready, removed, stopped)
    assert last.stop is None or last.stop == Stop(reason=StopReason.NO_RANK_SERVES, ranks=tuple(sorted(sweeps[-1])))


@pytest.mark.parametrize("look", [H, R, D, W, S])
def test_before_the_first_readiness_only_an_exit_counts(look: ServerState) -> None:
    assert before_ready(sweep(look, look)) is None
    assert before_ready(sweep(look, X, first=4)) == Stop(reason=StopReason.EXITED_BEFORE_READY, ranks=(5,))


def test_nothing_changes_a_stop() -> None:
    stopped = fold(Rules.STOCK, [sweep(X, H)])[-1]
    assert after_sweep(Rules.STOCK, stopped, sweep(H, H), THRESHOLD) == stopped


@st.composite
def histories(draw: st.DrawFn) -> list[dict[int, ServerState]]:
    """Sweeps in which a server that exited stays so."""
    gone: set[int] = set()
    sweeps = []
    for _ in range(draw(st.integers(1, 12))):
        looks = {rank: X if rank in gone else draw(st.sampled_from(ServerState)) for rank in range(RANKS)}
        gone |= {rank for rank, look in looks.items() if look is X}
        sweeps.append(looks)
    return sweeps


@given(histories(), st.integers(1, 5))
def test_fault_tolerant_rules_for_any_history(sweeps: list[dict[int, ServerState]], threshold: int) -> None:
    before: set[int] = set()
    idle = 0
    for looks, standing in zip(sweeps, fold(Rules.FAULT_TOLERANT, sweeps, threshold), strict=True):
        lives_on = {H, R} & set(looks.values())
        idle = 0 if lives_on else idle + 1
        assert (standing.stop is not None) == (idle >= threshold)
        if standing.stop is not None:
            assert not standing.ready
            break
        assert standing.ready == (H in looks.values())
        removed = set(standing.removed)
        assert before <= removed <= {rank for rank, look in looks.items() if look is X}, "an unreadable status removes nobody"
        before = removed


@given(histories(), st.integers(1, 5))
def test_stock_rules_for_any_history(sweeps: list[dict[int, ServerState]], threshold: int) -> None:
    silent = dict.fromkeys(range(RANKS), 0)
    for looks, standing in zip(sweeps, fold(Rules.STOCK, sweeps, threshold), strict=True):
        silent = {rank: silent[rank] + 1 if look is S else 0 for rank, look in looks.items()}
        wanted = bool(set(looks.values()) - {H, S}) or max(silent.values()) >= threshold
        assert (standing.stop is not None) == wanted
        assert standing.ready != wanted
        if wanted:
            break
