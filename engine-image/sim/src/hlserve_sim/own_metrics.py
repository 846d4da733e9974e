"""The `hlserve_engine_*` metrics that a simulated engine can know, created from their declarations."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from hlserve_api import metrics as declared
from hlserve_capacity.engine.types import EngineConfig, FinishReason
from hlserve_sim.engine_view import EngineView
from hlserve_sim.live import Live

Wrapper = TypeVar("Wrapper", bound=MetricWrapperBase)


class _EngineCollector(Collector):
    """What the engine knows itself, read when scraped."""

    def __init__(self, declarations: Mapping[str, declared.Metric], view: EngineView) -> None:
        self._declarations, self._view = declarations, view

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        view = self._view
        waiting = view.waiting()
        yield self._by_label("hlserve_engine_stage_info", view.stage(), 1)
        yield self._by_label("hlserve_engine_queue_reason_requests", waiting.reason, waiting.requests)
        held = "hlserve_engine_kv_admission_tokens"
        yield GaugeMetricFamily(held, self._declarations[held].help, value=view.admission().tokens)
        totals = view.totals()
        for name, value in (
            ("hlserve_engine_stage_flips_total", totals.stage_flips),
            ("hlserve_engine_retractions_total", totals.retractions),
        ):
            yield CounterMetricFamily(name.removesuffix("_total"), self._declarations[name].help, value=value)

    def _by_label(self, name: str, present: str, value: float) -> GaugeMetricFamily:
        """A gauge with all values of its one label; all but the present one are 0."""
        metric = self._declarations[name]
        (label,) = metric.labels
        family = GaugeMetricFamily(name, metric.help, labels=[label.name])
        for known in label.values:
            family.add_metric([known], value if known == present else 0)
        return family


class OwnMetrics:
    """What HlServe's engine plugin also exports. Times are engine seconds."""

    def __init__(self, registry: CollectorRegistry, config: EngineConfig, view: EngineView) -> None:
        declarations = {metric.name: metric for metric in declared.ENGINE}

        def make(wrapper: type[Wrapper], name: str) -> Wrapper:
            metric = declarations[name]
            return wrapper(metric.name, metric.help, metric.label_names, registry=registry)

        self._draining = make(Gauge, "hlserve_engine_draining")
        self._aborts = make(Counter, "hlserve_engine_aborts_total")
        steps = declarations["hlserve_engine_step_seconds"]
        self._steps = Histogram(steps.name, steps.help, steps.label_names, buckets=steps.buckets, registry=registry)
        make(Gauge, "hlserve_engine_throughput_mode").set(int(config.throughput_mode))
        make(Gauge, "hlserve_engine_max_running_requests").set(config.max_running_requests)
        make(Gauge, "hlserve_engine_token_budget").set(_token_budget(config))
        make(Gauge, "hlserve_engine_policy_info").labels(policy=config.schedule_policy.value).set(1)
        registry.register(_EngineCollector(declarations, view))

    def draining(self, draining: bool) -> None:
        """The engine was asked to take no new requests, or to take them again."""
        self._draining.set(int(draining))

    def step(self, duration_us: int) -> None:
        """One step ended."""
        self._steps.observe(duration_us / 1e6)

    def ended(self, live: Live) -> None:
        """A request left the engine."""
        if live.ended is FinishReason.ABORT:
            stage = "decode" if live.made else "queue" if live.prefill_started_us is None else "prefill"
            self._aborts.labels(stage=stage).inc()


def _token_budget(config: EngineConfig) -> int:
    if config.throughput_mode or config.chunked_prefill_size is None:
        return config.max_prefill_tokens
    return min(config.chunked_prefill_size, config.max_prefill_tokens)
