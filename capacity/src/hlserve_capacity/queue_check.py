"""The highest arrival rate that a replica serves inside its latency targets, found by simulating its queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lab.batching import Batching
from hlserve_capacity.lab.records import LabRun
from hlserve_capacity.lab.scheduler import run_open_loop
from hlserve_capacity.lab.workload import LengthDraw, RandomSource, open_loop
from hlserve_capacity.percentiles import nearest_rank
from hlserve_capacity.units import US_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTarget:
    """Limits of TTFT and TPOT at one percentile, in milliseconds; None: no limit."""

    ttft_ms: float | None
    tpot_ms: float | None
    percentile: float


def highest_rate(
    cost: StepCost,
    batching: Batching,
    target: LatencyTarget,
    *,
    prompts: LengthDraw,
    outputs: LengthDraw,
    random_for_seed: Callable[[int], RandomSource],
    seeds: Sequence[int],
    seconds: float,
    upper_rps: float,
    tolerance: float = 0.01,
) -> float:
    """Highest rate in (0, upper_rps] at which the means over the seeds of both percentiles keep the target; 0 if none.

    Every run is drained, so that no slow request is left out. Poisson arrivals; bisection to `tolerance` of the upper rate.
    """

    def keeps(rate_per_second: float) -> bool:
        ttfts_ms, tpots_ms = [], []
        for seed in seeds:
            load = open_loop(
                random_for_seed(seed),
                rate_per_second=rate_per_second,
                seconds=seconds,
                prompts=prompts,
                outputs=outputs,
            )
            ttft_ms, tpot_ms = _latencies_ms(run_open_loop(load, batching, cost), target.percentile)
            ttfts_ms.append(ttft_ms)
            tpots_ms.append(tpot_ms)
        if target.ttft_ms is not None and fmean(ttfts_ms) > target.ttft_ms:
            return False
        return target.tpot_ms is None or fmean(tpots_ms) <= target.tpot_ms

    if keeps(upper_rps):
        return upper_rps
    low, high = 0.0, upper_rps
    while high - low > tolerance * upper_rps:
        middle = (low + high) / 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low


def _latencies_ms(run: LabRun, percentile: float) -> tuple[float, float]:
    """(TTFT, TPOT) at the percentile; 0 where no request had one."""
    ttft_us = nearest_rank([ttft for record in run.records if (ttft := record.ttft_us) is not None], percentile)
    tpot_us = nearest_rank([tpot for record in run.records if (tpot := record.tpot_us) is not None], percentile)
    return (ttft_us or 0) / US_PER_MS, (tpot_us or 0.0) / US_PER_MS
