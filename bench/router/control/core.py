"""What the bare control does for each request: look the key up, read two fields, take an engine, count. Nothing else."""

import gc
import hashlib
import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import msgspec
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

ENGINES = os.environ["ENGINES"].split(",")
KEYS = {hashlib.sha256(os.environ["BENCH_KEY"].encode()).hexdigest(): "tenant-a"} | {
    hashlib.sha256(b"sk-%d" % index).hexdigest(): f"tenant-{index % 50}" for index in range(1000)
}
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HOP_BY_HOP = frozenset(
    (
        b"host", b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-authorization",
        b"proxy-authenticate", b"content-length", b"authorization", b"expect",
    )
)  # fmt: skip
NOT_FORWARDED = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"))


class Peek(msgspec.Struct):
    """The fields that are read."""

    model: str
    stream: bool = False


peek = msgspec.json.Decoder(Peek).decode


class Histogram:
    """Counts by bucket."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BUCKETS) + 1), 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.sum += value


class Series:
    """All series of one model and tenant, as plain numbers."""

    __slots__ = ("bytes", "chunks", "codes", "seconds", "ttft")

    def __init__(self) -> None:
        self.codes: dict[tuple[str, str], int] = {}
        self.seconds, self.ttft, self.bytes, self.chunks = Histogram(), Histogram(), 0, 0


class Engine:
    """One replica and its idle connections."""

    __slots__ = ("free", "host", "host_line", "in_flight", "name", "port")

    def __init__(self, url: str) -> None:
        self.name = url.split("//")[1]
        self.host, port = self.name.split(":")
        self.port, self.in_flight = int(port), 0
        self.free: list[Any] = []
        self.host_line = b"host: " + self.name.encode() + b"\r\n"


SERIES: dict[tuple[str, str], Series] = {}
POOL = [Engine(url) for url in ENGINES]
_turn = 0


class Collector:
    """Turns the numbers into Prometheus families when they are scraped."""

    def collect(self) -> Iterable[Metric]:
        """The page's families."""
        requests = CounterMetricFamily("control_requests", "requests", labels=["model", "tenant", "engine", "code"])
        sent = CounterMetricFamily("control_response_bytes", "bytes", labels=["model", "tenant"])
        chunks = CounterMetricFamily("control_stream_chunks", "chunks", labels=["model", "tenant"])
        histograms = {
            name: HistogramMetricFamily(f"control_{name}_seconds", name, labels=["model", "tenant"])
            for name in ("seconds", "ttft")
        }
        for labels, series in SERIES.items():
            for (engine, code), count in series.codes.items():
                requests.add_metric([*labels, engine, code], count)
            sent.add_metric(labels, series.bytes)
            chunks.add_metric(labels, series.chunks)
            for name, family in histograms.items():
                histogram, sum_so_far, buckets = getattr(series, name), 0, []
                for bound, count in zip((*BUCKETS, float("inf")), histogram.counts, strict=True):
                    sum_so_far += count
                    buckets.append(("+Inf" if bound == float("inf") else str(bound), sum_so_far))
                family.add_metric(labels, buckets, histogram.sum)
        in_flight = GaugeMetricFamily("control_inflight", "in flight", labels=["engine"])
        for engine in POOL:
            in_flight.add_metric([engine.name], engine.in_flight)
        return [requests, sent, chunks, in_flight, *histograms.values()]


REGISTRY.register(Collector())


def pick() -> Engine:
    """The engine with the fewest requests; in turn among equals."""
    global _turn
    _turn += 1
    count = len(POOL)
    best = POOL[_turn % count]
    for step in range(1, count):
        engine = POOL[(_turn + step) % count]
        if engine.in_flight < best.in_flight:
            best = engine
    return best


class Call:
    """One request: in flight, first byte, bytes, end."""

    __slots__ = ("began", "bytes", "chunks", "engine", "first", "model", "tenant")

    def __init__(self, engine: Engine, model: str, tenant: str) -> None:
        self.engine, self.model, self.tenant, self.first, self.bytes, self.chunks = engine, model, tenant, 0.0, 0, 0
        self.began = time.perf_counter()
        engine.in_flight += 1

    def data(self, size: int) -> None:
        """Some bytes of the reply."""
        if not self.chunks:
            self.first = time.perf_counter()
        self.chunks += 1
        self.bytes += size

    def end(self, code: str) -> None:
        """The end of the request."""
        engine, labels = self.engine, (self.model, self.tenant)
        engine.in_flight -= 1
        series = SERIES.get(labels)
        if series is None:
            series = SERIES[labels] = Series()
        where = (engine.name, code)
        series.codes[where] = series.codes.get(where, 0) + 1
        series.seconds.observe(time.perf_counter() - self.began)
        if self.first:
            series.ttft.observe(self.first - self.began)
        series.bytes += self.bytes
        series.chunks += self.chunks


def tenant_of(authorization: bytes | None) -> str | None:
    """Whose key it is."""
    if not authorization or authorization[:7].lower() != b"bearer ":
        return None
    return KEYS.get(hashlib.sha256(authorization[7:]).hexdigest())


def metrics_text() -> bytes:
    """The metrics page."""
    return generate_latest(REGISTRY)


def request_id() -> bytes:
    """A new one."""
    return os.urandom(12).hex().encode()


gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 100)
