"""SGLang's metrics, by name, label and meaning, from the simulated engine. One registry a server."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hlserve_capacity.engine.types import EngineGauges, EngineTotals, FinishReason
from hlserve_sim.live import Live

TTFT_BUCKETS: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E_BUCKETS: Final = (*TTFT_BUCKETS, 600, 1200, 1800, 2400)
ITL_BUCKETS: Final = (
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060,
    0.080, 0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
TOKEN_BUCKETS: Final = (
    100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500, 20000,
    22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000, 1000000,
    1100000,
)  # fmt: skip
QUEUE_BUCKETS: Final = (
    0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300,
    400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000,
)  # fmt: skip
THROUGHPUT_WINDOW_US: Final = 5_000_000


class Source(Protocol):
    """Where the gauges come from: the driver."""

    @property
    def totals(self) -> EngineTotals: ...
    def gauges(self) -> EngineGauges: ...


@dataclass(frozen=True, slots=True)
class Static:
    """What does not change while the server runs."""

    model_name: str
    pool_tokens: int
    context_length: int
    max_running_requests: int
    priority_labels: bool


class Throughput:
    """Tokens per engine second over the last seconds: what `sglang:gen_throughput` shows."""

    def __init__(self, source: Source, clock_us: Callable[[], int]) -> None:
        self._source, self._clock_us = source, clock_us
        self._marks: list[tuple[int, int]] = []

    def rate(self) -> float:
        """Note where the counter stands; tokens per second since the oldest mark of the window."""
        now_us, output_tokens = self._clock_us(), self._source.totals.output_tokens
        self._marks = [mark for mark in self._marks if mark[0] >= now_us - THROUGHPUT_WINDOW_US]
        self._marks.append((now_us, output_tokens))
        first_us, first_tokens = self._marks[0]
        return (output_tokens - first_tokens) * 1e6 / (now_us - first_us) if now_us > first_us else 0.0


def scheduler_labels(static: Static) -> dict[str, str]:
    """The labels of SGLang's scheduler metrics."""
    labels = {
        "model_name": static.model_name,
        "engine_type": "unified",
        "tp_rank": "0",
        "pp_rank": "0",
        "moe_ep_rank": "0",
    }
    return {**labels, "priority": ""} if static.priority_labels else labels


class _EngineCollector(Collector):
    """Scheduler metrics, read from the engine when scraped."""

    def __init__(self, static: Static, source: Source, throughput: "Throughput") -> None:
        self._static, self._source = static, source
        self._throughput = throughput
        labels = scheduler_labels(static)
        self._names, self._values = tuple(labels), tuple(labels.values())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        static, gauges, totals = self._static, self._source.gauges(), self._source.totals
        used = gauges.kv_used_tokens
        hit_rate = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
        rows: Sequence[tuple[str, str, float]] = (
            ("num_running_reqs", "The number of running requests.", gauges.running),
            ("num_queue_reqs", "The number of requests in the waiting queue.", gauges.queued),
            ("num_used_tokens", "The number of used tokens.", used),
            ("token_usage", "The token usage.", gauges.token_usage),
            ("full_token_usage", "The token usage for full attention layers.", gauges.token_usage),
            ("cache_hit_rate", "The prefix cache hit rate.", hit_rate),
            (
                "gen_throughput",
                "The generation throughput (token/s).",
                self._throughput.rate(),
            ),
            ("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", used),
            (
                "kv_evictable_tokens",
                "Number of evictable (radix-cached) token slots in the KV cache pool.",
                gauges.kv_cached_tokens,
            ),
            (
                "kv_available_tokens",
                "Number of free token slots in the KV cache pool.",
                static.pool_tokens - used - gauges.kv_cached_tokens,
            ),
            ("num_retracted_reqs", "The number of retracted requests.", 0),
            ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", static.pool_tokens),
            ("context_len", "Maximum context length.", static.context_length),
        )
        for name, text, value in rows:
            family = GaugeMetricFamily(f"sglang:{name}", text, labels=self._names)
            family.add_metric(self._values, value)
            yield family
        retracted = CounterMetricFamily(
            "sglang:num_retracted_requests", "Total number of retracted requests.", labels=self._names
        )
        retracted.add_metric(self._values, totals.retractions)
        yield retracted
        realtime = CounterMetricFamily(
            "sglang:realtime_tokens", "Total number of tokens processed in real time.", labels=(*self._names, "mode")
        )
        realtime.add_metric((*self._values, "prefill_compute"), totals.prompt_tokens - totals.cached_tokens)
        realtime.add_metric((*self._values, "prefill_cache"), totals.cached_tokens)
        realtime.add_metric((*self._values, "decode"), totals.output_tokens)
        yield realtime


class _Registry(CollectorRegistry):
    """Without the `_created` series, which SGLang's page does not have either."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class EngineMetrics:
    """Metrics of requests, told by the driver, and of the scheduler, read at each scrape. Times are engine seconds."""

    def __init__(self, static: Static) -> None:
        self._static = static
        self.registry = _Registry()
        labels = {"model_name": static.model_name, "engine_type": "unified"}
        if static.priority_labels:
            labels["priority"] = ""
        self._labels = labels
        names = tuple(labels)
        streamed = (*names, "is_streaming")
        scheduler = tuple(scheduler_labels(static))

        def counter(name: str, text: str, labelnames: Sequence[str] = names) -> Counter:
            return Counter(f"sglang:{name}", text, labelnames, registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float], labelnames: Sequence[str] = names) -> Histogram:
            return Histogram(f"sglang:{name}", text, labelnames, buckets=buckets, registry=self.registry)

        self._prompt_tokens = counter("prompt_tokens_total", "Number of prefill tokens processed.", streamed)
        self._generation_tokens = counter("generation_tokens_total", "Number of generation tokens processed.", streamed)
        self._cached_tokens = counter(
            "cached_tokens_total",
            "Number of cached prompt tokens by source (device/host/storage).",
            (*names, "cache_source"),
        )
        self._requests = counter("num_requests_total", "Number of requests processed.", streamed)
        self._aborted = counter("num_aborted_requests_total", "Number of requests aborted.")
        self._ttft = histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", TTFT_BUCKETS, streamed
        )
        self._queue_time = histogram(
            "queue_time_seconds", "Histogram of queueing time in seconds.", QUEUE_BUCKETS, scheduler
        )
        self._itl = histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", ITL_BUCKETS
        )
        self._tpot = histogram(
            "request_time_per_output_token_seconds",
            "Per-request TPOT in seconds: (finished_time - first_token_time) / (completion_tokens - 1).",
            ITL_BUCKETS,
            streamed,
        )
        self._e2e = histogram(
            "e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", E2E_BUCKETS, streamed
        )
        self._prompt_lengths = histogram("prompt_tokens_histogram", "Histogram of prompt token length.", TOKEN_BUCKETS)
        self._reply_lengths = histogram(
            "generation_tokens_histogram", "Histogram of generation token length.", TOKEN_BUCKETS
        )
        # The bound child: one label look-up for every token would cost more than the observation.
        self._itl_child = self._itl.labels(**self._labels) if not static.priority_labels else None

    def watch(self, source: Source, throughput: Throughput) -> None:
        """Read the scheduler's gauges from `source` from now on."""
        self.registry.register(_EngineCollector(self._static, source, throughput))

    def page(self) -> bytes:
        """The exposition page."""
        return generate_latest(self.registry)

    def _of(self, live: Live) -> dict[str, str]:
        return {**self._labels, "priority": str(live.priority)} if self._static.priority_labels else self._labels

    def first_token(self, live: Live) -> None:
        """The first token of a request was made."""
        seconds = (live.last_token_us - live.arrived_us) / 1e6
        if live.prefill_started_us is not None:
            self._queue_time.labels(**scheduler_labels(self._static)).observe(
                (live.prefill_started_us - live.arrived_us) / 1e6
            )
        self._ttft.labels(**self._of(live), is_streaming=_flag(live.streamed)).observe(seconds)

    def next_token(self, live: Live, gap_us: int) -> None:
        """Another token was made, `gap_us` after the one before."""
        child = self._itl_child or self._itl.labels(**self._of(live))
        child.observe(gap_us / 1e6)

    def ended(self, live: Live) -> None:
        """A request left the engine."""
        labels = self._of(live)
        if live.ended is FinishReason.ABORT:
            self._aborted.labels(**labels).inc()
            return
        streamed = {**labels, "is_streaming": _flag(live.streamed)}
        self._requests.labels(**streamed).inc()
        self._prompt_tokens.labels(**streamed).inc(live.prompt_tokens)
        self._generation_tokens.labels(**streamed).inc(live.made)
        if live.cached_tokens:
            self._cached_tokens.labels(**labels, cache_source="total").inc(live.cached_tokens)
        self._prompt_lengths.labels(**labels).observe(live.prompt_tokens)
        self._reply_lengths.labels(**labels).observe(live.made)
        if live.finished_us is None or live.first_token_us is None:
            return
        self._e2e.labels(**streamed).observe((live.finished_us - live.arrived_us) / 1e6)
        if live.made > 1:
            self._tpot.labels(**streamed).observe((live.finished_us - live.first_token_us) / (live.made - 1) / 1e6)


def _flag(value: bool) -> str:
    return "true" if value else "false"
