"""Numbers of one virtual run's window, and what several seeds say together. Pure but for a seeded bootstrap."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean

from hlserve_capacity.virtual.cluster import Timeline
from hlserve_capacity.virtual.records import Outcome, RequestRecord
from hlserve_capacity.virtual.testing import Slo
from hlserve_local.policy.load import BATCH, CHAT, Done

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. Rates are per second of the window; None: nothing to measure."""

    chat_goodput: float | None
    """Share of chat requests that met TTFT and TPOT; refused and unfinished ones did not."""
    chat_ttft_p95_seconds: float | None
    agent_tokens_per_second: float
    agent_sessions_per_hour: float
    agent_hit_rate: float | None
    agent_round_p50_seconds: float | None
    agent_round_p95_seconds: float | None
    batch_tokens_per_second: float
    hottest_over_mean: float | None
    """Prompt and reply tokens that the busiest engine of the agents' pool was sent, over the mean of all."""
    jain: float | None
    """Jain's index over the agent clients' reply tokens: 1 = all got the same, 1/n = one got all."""
    refused: int
    longest_wait_seconds: float
    """From when a request of an agent was due to when an engine had it, or to the end of the run."""
    spilled: int

    def values(self) -> dict[str, float | int | None]:
        """By name."""
        return asdict(self)


def measure(done: Mapping[str, Done], timeline: Timeline, slo: Slo, agent_pool: str) -> Measured:
    """Measures the window of a run."""
    start_us, end_us = timeline.warm_up_us, timeline.window_end_us
    seconds = timeline.window_us / 1e6
    chat = [r for r in _records(done, CHAT) if start_us <= r.scheduled_us < end_us]
    agents = {client: each.records for client, each in done.items() if client not in (CHAT, BATCH)}
    everyone = [record for records in agents.values() for record in records]
    ended = [r for r in everyone if r.outcome is Outcome.OK and r.end_us is not None and start_us <= r.end_us < end_us]
    prompts = sum(r.input_tokens for r in ended)
    shares = [sum(r.tokens_between(start_us, end_us) for r in records) for records in agents.values()]
    latencies = sorted((r.end_us - r.scheduled_us) / 1e6 for r in ended if r.end_us is not None)
    ttfts = sorted(r.ttft_us / 1e6 for r in chat if r.ttft_us is not None)
    return Measured(
        chat_goodput=sum(slo.met_by(r) for r in chat) / len(chat) if chat else None,
        chat_ttft_p95_seconds=_rank(ttfts, 0.95),
        agent_tokens_per_second=sum(shares) / seconds,
        agent_sessions_per_hour=sum(1 / (r.session_rounds or 1) for r in ended) * 3600 / seconds,
        agent_hit_rate=sum(r.cached_tokens or 0 for r in ended) / prompts if prompts else None,
        agent_round_p50_seconds=_rank(latencies, 0.5),
        agent_round_p95_seconds=_rank(latencies, 0.95),
        batch_tokens_per_second=sum(r.tokens_between(start_us, end_us) for r in _records(done, BATCH)) / seconds,
        hottest_over_mean=_hottest([r for r in ended if r.pool == agent_pool]),
        jain=jain_index(shares) if len(shares) > 1 else None,
        refused=sum(r.outcome is Outcome.SHED for each in done.values() for r in each.records),
        longest_wait_seconds=max(
            (((r.sent_us if r.sent_us is not None else timeline.end_us) - r.scheduled_us) / 1e6 for r in everyone),
            default=0.0,
        ),
        spilled=sum(r.reason == "queue_wait" for each in done.values() for r in each.records),
    )


def jain_index(shares: Sequence[float]) -> float:
    """(Σx)² / (n·Σx²)."""
    squares = sum(share * share for share in shares)
    return 1.0 if squares == 0 else sum(shares) ** 2 / (len(shares) * squares)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """`0.98 [0.97, 0.99]`."""
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap over seeds."""
    random = Random(0)
    means = sorted(fmean(random.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Interval(fmean(values), means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval | None:
    """Of two arms, paired by seed. None: the other arm made nothing at some seed."""
    if any(value <= 0 for value in theirs):
        return None
    return interval([mine / other for mine, other in zip(ours, theirs, strict=True)])


def _records(done: Mapping[str, Done], client: str) -> list[RequestRecord]:
    return done[client].records if client in done else []


def _rank(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank."""
    return ordered[max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1)] if ordered else None


def _hottest(records: Sequence[RequestRecord]) -> float | None:
    sums: dict[int, int] = {}
    for record in records:
        if record.replica is not None:
            sums[record.replica] = sums.get(record.replica, 0) + record.input_tokens + record.output_tokens
    return max(sums.values()) * len(sums) / sum(sums.values()) if sums else None
