"""An attempt's clock is the server's, carried on by the monotonic clock: what the wall clock of its machine does is no matter."""

import time

import pytest

from activities.attempt import Attempt
from tests.activities.attempts import environment, within

AN_HOUR_SEC = 3600.0


@pytest.mark.parametrize("step_sec", [AN_HOUR_SEC, -AN_HOUR_SEC])
async def test_a_wall_clock_that_is_stepped_moves_no_deadline(step_sec: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """D 15, on the worker."""
    deadline_at, wall = within(60.0), time.time

    async def activity() -> float:
        attempt = Attempt()
        monkeypatch.setattr(time, "time", lambda: wall() + step_sec)
        return attempt.left(deadline_at)

    assert 0 < await environment().run(activity) <= 60.0
