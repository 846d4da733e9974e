"""The highest arrival rate that a replica serves inside its latency targets, found by simulating its queue."""

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCheck:
    """How a queue is simulated: lengths to draw, and a generator for each seed (such as `random.Random`)."""

    prompts: LengthDraw
    outputs: LengthDraw
    random_for_seed: Callable[[int], RandomSource]
    seeds: tuple[int, ...] = (0, 1, 2)
    seconds: float = 300.0


def keeps(cost: StepCost, batching: Batching, target: LatencyTarget, check: QueueCheck, rate_per_second: float) -> bool:
    """Whether the means over the seeds of both percentiles are within the target at a Poisson rate.

    Every run is drained, so that no slow request is left out. Stops early once the seeds so far decide it. A rate so low
    that nothing arrives keeps nothing.
    """
    arrivals = 0
    ttft_budget_ms, tpot_budget_ms = (
        float("inf") if limit is None else limit * len(check.seeds) for limit in (target.ttft_ms, target.tpot_ms)
    )
    for seed in check.seeds:
        load = open_loop(
            check.random_for_seed(seed),
            rate_per_second=rate_per_second,
            seconds=check.seconds,
            prompts=check.prompts,
            outputs=check.outputs,
        )
        arrivals += len(load)
        ttft_ms, tpot_ms = _latencies_ms(run_open_loop(load, batching, cost), target.percentile)
        ttft_budget_ms -= ttft_ms
        tpot_budget_ms -= tpot_ms
        if ttft_budget_ms < 0 or tpot_budget_ms < 0:
            return False
    return arrivals > 0


def highest_rate(
    cost: StepCost,
    batching: Batching,
    target: LatencyTarget,
    check: QueueCheck,
    *,
    upper_rps: float,
    tolerance: float = 0.01,
) -> float:
    """Highest rate up to `upper_rps` that keeps the target, by bisection to `tolerance` of the upper rate; 0 if none."""
    if keeps(cost, batching, target, check, upper_rps):
        return upper_rps
    low, high = 0.0, upper_rps
    while high - low > tolerance * upper_rps:
        middle = (low + high) / 2
        if keeps(cost, batching, target, check, middle):
            low = middle
        else:
            high = middle
    return low


def _latencies_ms(run: LabRun, percentile: float) -> tuple[float, float]:
    """(TTFT, TPOT) at the percentile; 0 where no request had one."""
    ttft_us = nearest_rank([ttft for record in run.records if (ttft := record.ttft_us) is not None], percentile)
    tpot_us = nearest_rank([tpot for record in run.records if (tpot := record.tpot_us) is not None], percentile)
    return (ttft_us or 0) / US_PER_MS, (tpot_us or 0.0) / US_PER_MS
