"""The benchmark of heartbeats, at its smallest: Pods register, are served, and living costs no history."""

import pytest

from lab.bench.heartbeats import bench_heartbeats
from lab.bench.site import Shape


@pytest.mark.soak
async def test_living_pods_add_no_history() -> None:
    report = await bench_heartbeats(Shape(ranks=4, node_managers=2, poll_sec=1.0, light=True), 10.0, lambda _text: None)
    figures = report.figures
    assert figures.heartbeats >= 15
    assert figures.refused == 0
    assert {growth for name, growth in figures.history_growth.items() if name != "event-pusher"} == {0}
    assert figures.api_mib_most > 0
    assert figures.serving_sec >= 0
