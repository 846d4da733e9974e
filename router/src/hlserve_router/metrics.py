"""The router's metrics: plain numbers on the hot path, turned into Prometheus families only when somebody scrapes.

Names, labels and buckets come from `hlserve_api.metrics`; a name that is not declared there cannot be used.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from hlserve_api.metrics import CLIENT, OTHER, ROUTER, Metric, MetricType

Labels = tuple[str, ...]
Gauge = tuple[str, Labels, float]
"""Name, label values, value."""

_DECLARED: Final = {metric.name: metric for metric in ROUTER}


class Counter:
    """One series. The hot path holds it and adds to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Histogram:
    """One series: counts per bucket and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts `value`, in the metric's unit."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them."""
        seen = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
        return rows


@dataclass(slots=True)
class Metrics:
    """All counters and histograms of this process. Gauges are read from `gauges` at scrape time."""

    gauges: Callable[[], Iterable[Gauge]] = field(default=lambda: ())
    _counters: dict[str, dict[Labels, Counter]] = field(default_factory=dict)
    _histograms: dict[str, dict[Labels, Histogram]] = field(default_factory=dict)
    _clients: set[str] = field(default_factory=set)

    def count(self, name: str, labels: Labels = (), amount: float = 1.0) -> None:
        """Adds to a counter. Raises KeyError for an undeclared name."""
        self.counter(name, labels).value += amount

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Adds to a histogram. Raises KeyError for an undeclared name."""
        self.histogram(name, labels).observe(value)

    def counter(self, name: str, labels: Labels = ()) -> Counter:
        """A counter's series, to be held by what adds to it often; it is exported once it has counted. Raises KeyError."""
        series = self._counters.get(name)
        if series is None:
            series = self._counters[_declared(name, MetricType.COUNTER).name] = {}
        counter = series.get(labels)
        if counter is None:
            counter = series[labels] = Counter()
        return counter

    def histogram(self, name: str, labels: Labels = ()) -> Histogram:
        """A histogram's series, likewise."""
        series = self._histograms.get(name)
        if series is None:
            series = self._histograms[_declared(name, MetricType.HISTOGRAM).name] = {}
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = Histogram(_DECLARED[name].buckets)
        return histogram

    def client_label(self, client: str) -> str:
        """The client's name, or `other` once as many names as the cap have been seen."""
        if client in self._clients:
            return client
        if len(self._clients) >= CLIENT.cap:
            return OTHER
        self._clients.add(client)
        return client

    def value(self, name: str, labels: Labels = ()) -> float:
        """A counter's value now (0 if it never counted)."""
        counter = self._counters.get(name, {}).get(labels)
        return 0.0 if counter is None else counter.value

    def series(self, name: str) -> dict[Labels, float]:
        """A counter's series that have counted."""
        return {labels: counter.value for labels, counter in self._counters.get(name, {}).items() if counter.value}

    def total(self, name: str) -> float:
        """A counter's value over all labels."""
        return sum(self.series(name).values())

    def families(self) -> Iterator[Family]:
        """Everything, in declared order."""
        gauges: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, value in self.gauges():
            gauges.setdefault(_declared(name, MetricType.GAUGE).name, []).append((labels, value))
        for metric in ROUTER:
            yield self._family(metric, gauges.get(metric.name, []))

    def _family(self, metric: Metric, gauges: list[tuple[Labels, float]]) -> Family:
        names = metric.label_names
        if metric.type is MetricType.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=names)
            series = self.series(metric.name)
            for labels, value in series.items() if names or series else [((), 0.0)]:
                counter.add_metric(labels, value)
            return counter
        if metric.type is MetricType.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=names)
            for labels, value in gauges:
                gauge.add_metric(labels, value)
            return gauge
        family = HistogramMetricFamily(metric.name, metric.help, labels=names)
        for labels, histogram in self._histograms.get(metric.name, {}).items():
            if not any(histogram.counts):
                continue
            family.add_metric(labels, histogram.cumulative(), histogram.total)
        return family


def _declared(name: str, type_: MetricType) -> Metric:
    metric = _DECLARED[name]
    if metric.type is not type_:
        raise KeyError(f"{name} is a {metric.type}, not a {type_}")
    return metric


class RouterCollector(Collector):
    """Hands the families to a Prometheus registry."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """Called at each scrape."""
        return self._metrics.families()
