"""The `hlserve_engine_*` metrics that a simulated engine can know, created from their declarations."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from hlserve_api import metrics as declared
from hlserve_capacity.engine.types import EngineConfig, EngineTotals, FinishReason
from hlserve_sim.live import Live

Wrapper = TypeVar("Wrapper", bound=MetricWrapperBase)


class _TotalsCollector(Collector):
    """Counters that the engine keeps itself, read when scraped."""

    def __init__(self, declarations: Mapping[str, declared.Metric], totals: Callable[[], EngineTotals]) -> None:
        self._declarations, self._totals = declarations, totals

    def collect(self) -> Iterator[CounterMetricFamily]:
        totals = self._totals()
        for name, value in (
            ("hlserve_engine_stage_flips_total", totals.stage_flips),
            ("hlserve_engine_retractions_total", totals.retractions),
        ):
            yield CounterMetricFamily(name.removesuffix("_total"), self._declarations[name].help, value=value)


class OwnMetrics:
    """What HlServe's engine plugin also exports. Times are engine seconds."""

    def __init__(self, registry: CollectorRegistry, config: EngineConfig, totals: Callable[[], EngineTotals]) -> None:
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
        registry.register(_TotalsCollector(declarations, totals))

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
