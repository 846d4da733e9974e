"""Latency, throughput and goodput of a lab run. Percentiles are nearest-rank."""

from collections.abc import Iterable
from dataclasses import dataclass

from hlserve_capacity.lab.records import LabRun, RequestRecord
from hlserve_capacity.percentiles import nearest_rank, nearest_rank_weighted
from hlserve_capacity.units import US_PER_SECOND, ms_from_us, us_from_ms

DEFAULT_STALL_MS = 50.0
"""A gap between two tokens that a reader notices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Nearest-rank percentiles in milliseconds; None: nothing was observed."""

    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSummary:
    """What a run did. TPOT is a mean over each reply; ITL is every single gap, and its maximum shows stalls."""

    arrivals: int
    finished: int
    duration_ms: float
    steps: int
    tokens_per_second: float
    requests_per_second: float
    useful_share: float
    """Tokens produced per slot and step paid for."""
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles
    stall_count: int
    """Gaps longer than the stall threshold."""
    max_waiting: int
    waiting_at_end: int


def summarise(run: LabRun, *, stall_ms: float = DEFAULT_STALL_MS) -> LabSummary:
    """All metrics of a run but goodput, which needs an SLO."""
    finished = sum(1 for record in run.records if record.finished_us is not None)
    seconds = run.end_us / US_PER_SECOND
    stall_us = us_from_ms(stall_ms)
    return LabSummary(
        arrivals=len(run.records) + run.not_arrived,
        finished=finished,
        duration_ms=ms_from_us(run.end_us),
        steps=run.steps,
        tokens_per_second=run.tokens / seconds if seconds else 0.0,
        requests_per_second=finished / seconds if seconds else 0.0,
        useful_share=run.tokens / run.slot_steps if run.slot_steps else 0.0,
        ttft=_percentiles(record.ttft_us for record in run.records),
        tpot=_percentiles(record.tpot_us for record in run.records),
        itl=_itl(run),
        e2e=_percentiles(record.e2e_us for record in run.records),
        stall_count=sum(count for gap_us, count in run.itl_counts.items() if gap_us > stall_us),
        max_waiting=run.max_waiting,
        waiting_at_end=run.waiting_at_end,
    )


def goodput_share(run: LabRun, *, ttft_ms: float, tpot_ms: float) -> float:
    """Share of all scheduled arrivals that finished inside both limits. What a cut run left unfinished counts as missed.

    A reply of one token has no TPOT and is judged by TTFT alone. 0 for an empty schedule.
    """
    scheduled = len(run.records) + run.not_arrived
    return _good(run, ttft_ms, tpot_ms) / scheduled if scheduled else 0.0


def goodput_share_of_finished(run: LabRun, *, ttft_ms: float, tpot_ms: float) -> float:
    """The flattering variant: share of the finished replies only. On a cut run it hides those that still wait."""
    finished = sum(1 for record in run.records if record.finished_us is not None)
    return _good(run, ttft_ms, tpot_ms) / finished if finished else 0.0


def _good(run: LabRun, ttft_ms: float, tpot_ms: float) -> int:
    return sum(1 for record in run.records if _is_good(record, ttft_ms * 1000, tpot_ms * 1000))


def _is_good(record: RequestRecord, ttft_us: float, tpot_us: float) -> bool:
    if record.finished_us is None or record.ttft_us is None or record.ttft_us > ttft_us:
        return False
    return record.tpot_us is None or record.tpot_us <= tpot_us


def _percentiles(values_us: Iterable[float | None]) -> Percentiles:
    ordered = sorted(value for value in values_us if value is not None)

    def rank(percent: float) -> float | None:
        value = nearest_rank(ordered, percent)
        return None if value is None else ms_from_us(value)

    return Percentiles(p50_ms=rank(50), p90_ms=rank(90), p95_ms=rank(95), p99_ms=rank(99), max_ms=rank(100))


def _itl(run: LabRun) -> Percentiles:
    def rank(percent: float) -> float | None:
        value = nearest_rank_weighted(run.itl_counts, percent)
        return None if value is None else ms_from_us(value)

    return Percentiles(p50_ms=rank(50), p90_ms=rank(90), p95_ms=rank(95), p99_ms=rank(99), max_ms=rank(100))
