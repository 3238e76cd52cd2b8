"""The replayer is quiet while it runs, and leaves the process's logging as it found it."""

import logging
from pathlib import Path

import pytest

from workers.replay import main


def test_logging_is_as_before_after_a_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.manager.disable
    main([str(tmp_path)])
    assert logging.root.manager.disable == before
    assert capsys.readouterr().out
