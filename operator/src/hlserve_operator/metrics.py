"""The operator's metrics. Names, labels and buckets come from `hlserve_api.metrics`; others cannot be used."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hlserve_api.metrics import OPERATOR, OTHER, MetricType

Labels = tuple[str, ...]
Sample = tuple[str, Labels, float]
"""Name, label values, value."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics of this process. Gauges are asked for at each scrape, so that series of removed objects go by themselves."""

    def __init__(self, gauges: Callable[[], Iterable[Sample]] = lambda: ()) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for declared in OPERATOR:
            if declared.type is MetricType.COUNTER:
                name = declared.name.removesuffix("_total")
                self._counters[declared.name] = Counter(
                    name, declared.help, declared.label_names, registry=self._registry
                )
            elif declared.type is MetricType.HISTOGRAM:
                self._histograms[declared.name] = Histogram(
                    declared.name,
                    declared.help,
                    declared.label_names,
                    buckets=declared.buckets,
                    registry=self._registry,
                )
        self._registry.register(_Gauges(gauges))

    def count(self, name: str, *labels: str) -> None:
        """Adds one to a counter. Raises KeyError for an undeclared name."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc()

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Adds to a histogram. Raises KeyError for an undeclared name."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    """Gauges as they are at a scrape; values of a capped label beyond its cap become one."""

    def __init__(self, gauges: Callable[[], Iterable[Sample]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Family]:
        """Called at each scrape."""
        found: dict[str, dict[Labels, float]] = {}
        seen: dict[tuple[str, int], set[str]] = {}
        for name, labels, value in self._gauges():
            declared = _GAUGES[name]
            capped = list(labels)
            for index, label in enumerate(declared.labels):
                values = seen.setdefault((name, index), set())
                if label.cap and capped[index] not in values and len(values) >= label.cap:
                    capped[index] = OTHER
                values.add(capped[index])
            series = found.setdefault(name, {})
            key = tuple(capped)
            series[key] = series.get(key, 0.0) + value if key != labels else value
        for name, declared in _GAUGES.items():
            family = GaugeMetricFamily(name, declared.help, labels=declared.label_names)
            for labels, value in found.get(name, {}).items():
                family.add_metric(labels, value)
            yield family


_GAUGES: Final = {declared.name: declared for declared in OPERATOR if declared.type is MetricType.GAUGE}
