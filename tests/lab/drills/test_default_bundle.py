"""Runs that nobody gave a directory to must not share one."""

from pathlib import Path

import pytest

from lab.drills.record.bundle import default_bundle


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_two_runs_in_the_same_second_get_directories_of_their_own(state_home: Path) -> None:
    taken = [default_bundle("soft-rank") for _ in range(3)]
    assert len(set(taken)) == 3
    assert all(path.is_dir() and path.is_relative_to(state_home) for path in taken)
