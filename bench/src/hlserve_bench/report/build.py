"""Records of one arm → its figures. Pure.

Which requests count. Chat is an open loop: all requests *scheduled* in the window, whatever became of them; one that has not ended
when the drain is over has missed its SLO. Agents are a closed loop: what *happened* in the window (a first token for TTFT, an end
for the rest), because a round that waits across the window's edge has no better place.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from hlserve_bench.records import Client, Ended, RequestRecord
from hlserve_bench.report.model import ClassReport, Percentiles, Series
from hlserve_capacity.percentiles import nearest_rank

NO_POOL = "none"


@dataclass(frozen=True, slots=True)
class SloBounds:
    """Bounds of a good chat request, in milliseconds; both must hold."""

    ttft_ms: float
    tpot_ms: float

    def met_by(self, record: RequestRecord) -> bool:
        """Whether a record ended well inside both bounds. A reply of one token has no TPOT to miss."""
        ttft, tpot = record.ttft_seconds, record.tpot_seconds
        if record.ended is not Ended.OK or ttft is None or ttft * 1000 > self.ttft_ms:
            return False
        return tpot is None or tpot * 1000 <= self.tpot_ms


@dataclass(frozen=True, slots=True)
class Span:
    """The measured window and the end of the drain, in seconds since the start of the run."""

    start: float
    end: float
    drained: float

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start

    def holds(self, at: float | None) -> bool:
        """Whether `at` is in the window."""
        return at is not None and self.start <= at < self.end


def chat_report(records: Sequence[RequestRecord], span: Span, slo: SloBounds) -> ClassReport:
    """Figures of the chat class."""
    chat = [record for record in records if record.client is Client.CHAT]
    due = [record for record in chat if span.holds(record.scheduled_seconds)]
    good = sum(slo.met_by(record) for record in due)
    return ClassReport(
        requests=len(due),
        ok=_count(due, Ended.OK),
        failed=_count(due, Ended.FAILED),
        unfinished=_count(due, Ended.UNFINISHED),
        ttft_ms=_censored(due, [record.ttft_seconds for record in due], span.drained),
        tpot_ms=_tpot(due),
        e2e_ms=_censored(due, [record.e2e_seconds for record in due], span.drained),
        goodput_rps=good / span.seconds,
        goodput_share=good / len(due) if due else None,
        sessions_per_hour=None,
        requests_by_pool=_pools(due),
        requests_by_outcome=dict(Counter(_outcome(record) for record in due)),
        spill_reasons=_reasons(due),
        **_token_rates(chat, span),
    )


def agent_report(records: Sequence[RequestRecord], span: Span) -> ClassReport:
    """Figures of the agent class."""
    agents = [record for record in records if record.client is Client.AGENT]
    ended = [record for record in agents if span.holds(record.end_seconds)]
    done = [record for record in ended if record.ended is Ended.OK]
    first = [record.ttft_seconds for record in agents if span.holds(record.first_token_seconds)]
    open_rounds = [
        record
        for record in agents
        if record.scheduled_seconds < span.end and (record.end_seconds is None or record.end_seconds >= span.end)
    ]
    sessions = sum(1 / record.session_rounds for record in done if record.session_rounds)
    return ClassReport(
        requests=len(ended),
        ok=len(done),
        failed=len(ended) - len(done),
        unfinished=len(open_rounds),
        ttft_ms=percentiles([value for value in first if value is not None]),
        tpot_ms=_tpot(ended),
        e2e_ms=percentiles([record.e2e_seconds for record in done if record.e2e_seconds is not None]),
        goodput_rps=len(done) / span.seconds,
        goodput_share=None,
        sessions_per_hour=sessions * 3600 / span.seconds,
        # Where rounds went is known as soon as they have a pool, so open rounds count here as well.
        requests_by_pool=_pools([*ended, *(record for record in open_rounds if record.pool is not None)]),
        requests_by_outcome=dict(Counter(_outcome(record) for record in ended)),
        spill_reasons=_reasons([*ended, *open_rounds]),
        **_token_rates(agents, span),
    )


def throughput_series(records: Sequence[RequestRecord], until: float, bin_seconds: float) -> Series:
    """Output tokens a second in bins from 0 to `until`."""
    bins = max(1, int(-(-until // bin_seconds)))
    rates = {client: [0.0] * bins for client in Client}
    for record in records:
        if record.first_token_seconds is None or record.last_token_seconds is None:
            continue
        first = int(record.first_token_seconds // bin_seconds)
        last = int(record.last_token_seconds // bin_seconds)
        for index in range(max(0, first), min(bins - 1, last) + 1):
            tokens = record.tokens_between(index * bin_seconds, (index + 1) * bin_seconds)
            rates[record.client][index] += tokens / bin_seconds
    return Series(bin_seconds=bin_seconds, interactive=rates[Client.CHAT], agent=rates[Client.AGENT])


def percentiles(seconds: Sequence[float], lower_bounds: int = 0) -> Percentiles | None:
    """Percentiles in milliseconds; None without samples."""
    if not seconds:
        return None
    ordered = sorted(value * 1000 for value in seconds)
    ranks = [rank for percent in range(1, 101) if (rank := nearest_rank(ordered, percent)) is not None]
    return Percentiles(
        p50=ranks[49],
        p95=ranks[94],
        p99=ranks[98],
        samples=len(ordered),
        lower_bounds=lower_bounds,
        quantiles=ranks,
    )


def _censored(records: Sequence[RequestRecord], values: Sequence[float | None], run_end: float) -> Percentiles | None:
    """Failed requests have no latency; unfinished ones enter at their age, a lower bound."""
    samples: list[float] = []
    bounds = 0
    for record, value in zip(records, values, strict=True):
        if value is not None and record.ended is not Ended.FAILED:
            samples.append(value)
        elif record.ended is Ended.UNFINISHED:
            samples.append(max(0.0, run_end - record.scheduled_seconds))
            bounds += 1
    return percentiles(samples, bounds)


def _tpot(records: Sequence[RequestRecord]) -> Percentiles | None:
    values = [record.tpot_seconds for record in records if record.ended is Ended.OK]
    return percentiles([value for value in values if value is not None])


class _TokenRates(TypedDict):
    output_tokens_per_second: float
    input_tokens_per_second: float
    prefix_hit_rate: float | None


def _token_rates(records: Sequence[RequestRecord], span: Span) -> _TokenRates:
    """Output and input tokens a second, and the prefix hit rate: numerator and denominator from the same requests."""
    prefilled = [record for record in records if span.holds(record.first_token_seconds)]
    reported = [record for record in prefilled if record.cached_tokens is not None]
    prompt = sum(record.input_tokens for record in reported)
    cached = sum(record.cached_tokens or 0 for record in reported)
    output = sum(record.tokens_between(span.start, span.end) for record in records)
    return {
        "output_tokens_per_second": output / span.seconds,
        "input_tokens_per_second": sum(record.input_tokens for record in prefilled) / span.seconds,
        "prefix_hit_rate": cached / prompt if prompt else None,
    }


def _count(records: Sequence[RequestRecord], ended: Ended) -> int:
    return sum(record.ended is ended for record in records)


def _pools(records: Sequence[RequestRecord]) -> dict[str, int]:
    return dict(sorted(Counter(record.pool or NO_POOL for record in records).items()))


def _reasons(records: Sequence[RequestRecord]) -> dict[str, int]:
    return dict(sorted(Counter(record.reason for record in records if record.reason is not None).items()))


def _outcome(record: RequestRecord) -> str:
    return record.outcome or record.ended.value
