"""What a Coordinator counts, for `/metrics`."""

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.routing import Router
from service.metrics import NAMESPACE

_SUBSYSTEM = "coordinator"


class Figures:
    """Counters of one Coordinator; gauges are read from the router when somebody asks."""

    def __init__(self, registry: CollectorRegistry, router: Router) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace=NAMESPACE, subsystem=_SUBSYSTEM, registry=registry)

        self.routed = counter("requests_routed", "Requests answered by an engine", "instance_id", "rank")
        self.failed = counter("requests_failed", "Requests that an engine failed after it had them", "instance_id", "rank")
        self.refused = counter("requests_refused", "Requests without an endpoint to go to", "reason")
        self.retried = counter("connections_retried", "Connections that failed before a byte was sent")
        self.cancelled = counter("requests_cancelled", "Requests whose client hung up, or that a stop cut")
        self.refreshes = counter("refresh_entries", "Entries of refreshes by what became of them", "outcome")
        registry.register(_Loads(router))


class _Loads(Collector):
    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> list[GaugeMetricFamily]:
        in_flight = GaugeMetricFamily(
            f"{NAMESPACE}_{_SUBSYSTEM}_requests_in_flight", "Requests on their way, by rank", labels=["instance_id", "rank"]
        )
        for (instance, rank), count in self._router.loads.items():
            in_flight.add_metric([str(instance), str(rank)], count)
        has_view = GaugeMetricFamily(f"{NAMESPACE}_{_SUBSYSTEM}_has_view", "1 while requests are routed")
        has_view.add_metric([], float(self._router.has_view))
        return [in_flight, has_view]
