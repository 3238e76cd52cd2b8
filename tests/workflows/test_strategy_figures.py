"""The worker's own counter, as Prometheus finds it at --metrics-port."""

import urllib.request

from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from domain.messages.strategy import StrategyKind
from service.http import bind
from workflows.parts.strategy_shell import STRATEGIES_ENDED, count_end


def test_ends_are_counted_by_kind_outcome_and_reason() -> None:
    with bind("127.0.0.1", 0) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    runtime = Runtime(telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=address)))
    for _ in range(2):
        count_end(runtime.metric_meter, StrategyKind.SCALE_DOWN, "failed", "GUARD_REFUSED")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = [line for line in reply.read().decode().splitlines() if line.startswith(f"{STRATEGIES_ENDED}{{")]
    (line,) = lines
    for label in ('kind="scale-down"', 'outcome="failed"', 'reason="GUARD_REFUSED"'):
        assert label in line
    assert line.endswith(" 2")
