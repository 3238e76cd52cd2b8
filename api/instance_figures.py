"""What the API remembers of each instance, as gauges for alerts.

Whoever scrapes asks no workflow: heartbeats and reports renew the records, and each gauge says what the newest one says. How
old that is, is a gauge too; an API that hears nothing of an instance must not be believed about it. The families are made
anew at each scrape, so an instance that was removed leaves no series behind.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from api.cache import Instances
from domain.runtime import RuntimeRecord
from service.metrics import NAMESPACE


class InstanceFigures(Collector):
    """Gauges of the instances that this API knows."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def collect(self) -> Iterator[GaugeMetricFamily]:
        known = list(self._instances.remembered())
        age = _gauge("record_age_seconds", "How old what the other gauges say is; +Inf: nothing is known yet")
        for one in known:
            age.add_metric([str(one.instance_id)], one.age_sec)
        yield age
        yield from _of_records([one.record for one in known if one.record is not None])


def _of_records(records: list[RuntimeRecord]) -> Iterator[GaugeMetricFamily]:
    can_serve = _gauge("can_serve", "1 while the phase is a serving one and the view is published")
    published = _gauge("serving_published", "1 while every Coordinator has acknowledged the view")
    dead = _gauge("dead_ranks", "Ranks that were removed and not brought back")
    phase = _gauge("phase", "1 for the phase of its recovery", "phase")
    used = _gauge("budget_used", "Rebuilds that began within the budget's window")
    allowed = _gauge("budget_allowed", "So many may begin within it; the next one needs a person")
    for record in records:
        labels = [str(record.instance_id)]
        can_serve.add_metric(labels, float(record.can_serve))
        published.add_metric(labels, float(record.serving_published))
        dead.add_metric(labels, len(record.dead_committed))
        phase.add_metric([*labels, record.phase.value], 1.0)
        if record.budget is not None:
            used.add_metric(labels, record.budget.used)
            allowed.add_metric(labels, record.budget.allowed)
    return iter((can_serve, published, dead, phase, used, allowed))


def _gauge(name: str, words: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{NAMESPACE}_instance_{name}", words, labels=["instance_id", *labels])
