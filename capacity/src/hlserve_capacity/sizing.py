"""How many replicas a class of traffic needs: ceiling of the batch, capacity at the SLO, replicas for the peak rate.

1 batch  = min(what TPOT allows, what the KV pool allows, the engine's own bound)
2 decode = batch / (E[reply] · mean step), prefill included
3 queue  = highest rate whose simulated percentiles keep the SLO
4 replicas = ⌈peak rate / (utilisation · min(decode, queue))⌉
"""

import math
from dataclasses import dataclass

from hlserve_capacity.batch_choice import BatchChoice, BatchProblem, choose, memory_bound
from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lab.batching import Batching, Chunked, Continuous
from hlserve_capacity.lengths import Lengths
from hlserve_capacity.limits import (
    KV_SHARE,
    batch_step_us,
    completions_per_second,
    itl_ceiling,
    kv_ceiling,
    largest_that_fits,
    prompt_tokens_beside,
)
from hlserve_capacity.queue_check import LatencyTarget, QueueCheck, highest_rate
from hlserve_capacity.units import US_PER_MS
from hlserve_capacity.verdicts import BatchLimit, CapacityLimit, Infeasible, InfeasibleReason, PrefillStyle, SloReason

DEFAULT_UTILISATION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What one class of traffic needs."""

    batch: int
    batch_limit: BatchLimit
    batch_why: str
    kv_ceiling: int
    chunk_tokens: int | None
    """None: prompts are prefilled whole."""
    chunk_why: str
    decode_capacity_rps: float
    queue_capacity_rps: float | None
    """None: there is no latency target, or no check was asked for."""
    capacity_limit: CapacityLimit
    peak_rps: float
    utilisation: float
    replicas: int
    itl_batch: int | None = None
    """Batch that also keeps the percentile of single gaps (ITL) within the TPOT target; None: no such target."""
    sessions_per_replica: int | None = None
    """Sessions whose whole context fits a replica's pool; HumanLess only."""

    @property
    def capacity_rps(self) -> float:
        """What one replica takes at the SLO."""
        if self.queue_capacity_rps is None:
            return self.decode_capacity_rps
        return min(self.decode_capacity_rps, self.queue_capacity_rps)


def size_interactive(
    problem: BatchProblem,
    *,
    peak_rps: float,
    queue_check: QueueCheck | None,
    utilisation: float = DEFAULT_UTILISATION,
) -> Sizing | Infeasible:
    """Size a class with an SLO; `queue_check` None leaves step 3 out.

    Raises ValueError for a peak rate or utilisation that is not positive.
    """
    _check(peak_rps, utilisation)
    no_room = _no_room(problem.cost, problem.lengths)
    if no_room is not None:
        return no_room
    choice = choose(problem)
    whole_prompts = problem.prefill is PrefillStyle.WHOLE_PROMPTS
    if choice.slo_reason is not SloReason.ATTAINABLE:
        return _infeasible(choice)
    decode_rps = completions_per_second(problem.cost, choice.batch, problem.lengths)
    queue_rps = None
    if queue_check is not None and (problem.ttft_ms is not None or problem.tpot_ms is not None):
        queue_rps = _queue_rps(problem, _batching(problem, choice), queue_check, decode_rps)
        if queue_rps <= 0:
            message = (
                f"at any rate tried, p{problem.percentile} of the simulated requests misses the targets although steps fit; "
                "raise the TTFT or TPOT target"
            )
            return Infeasible(InfeasibleReason.TTFT, problem.prefill_ms(1), message)
    limit = CapacityLimit.TTFT_QUEUE if queue_rps is not None and queue_rps < decode_rps else CapacityLimit.DECODE
    capacity = decode_rps if queue_rps is None else min(decode_rps, queue_rps)
    return Sizing(
        batch=choice.batch,
        batch_limit=choice.limit,
        batch_why=choice.batch_why,
        kv_ceiling=kv_ceiling(problem.cost.pool_tokens, problem.lengths),
        chunk_tokens=None if whole_prompts else choice.chunk,
        chunk_why=choice.chunk_why,
        decode_capacity_rps=decode_rps,
        queue_capacity_rps=queue_rps,
        capacity_limit=limit,
        peak_rps=peak_rps,
        utilisation=utilisation,
        replicas=replicas_for(peak_rps, capacity, utilisation),
        itl_batch=_itl_batch(problem, choice),
    )


def size_human_less(
    cost: StepCost, lengths: Lengths, *, max_batch: int, peak_rps: float, utilisation: float = DEFAULT_UTILISATION
) -> Sizing | Infeasible:
    """Size a class without latency targets: memory bounds the batch, decode capacity the rate."""
    _check(peak_rps, utilisation)
    no_room = _no_room(cost, lengths)
    if no_room is not None:
        return no_room
    batch, limit, why = memory_bound(cost, lengths, max_batch)
    decode_rps = completions_per_second(cost, batch, lengths)
    return Sizing(
        batch=batch,
        batch_limit=limit,
        batch_why=why,
        kv_ceiling=kv_ceiling(cost.pool_tokens, lengths),
        chunk_tokens=None,
        chunk_why="no latency target bounds a step: prompts are prefilled as large as the engine can",
        decode_capacity_rps=decode_rps,
        queue_capacity_rps=None,
        capacity_limit=CapacityLimit.DECODE,
        peak_rps=peak_rps,
        utilisation=utilisation,
        replicas=replicas_for(peak_rps, decode_rps, utilisation),
        sessions_per_replica=math.floor(KV_SHARE * cost.pool_tokens / lengths.decode_context_mean),
    )


def replicas_for(peak_rps: float, capacity_rps: float, utilisation: float) -> int:
    """⌈peak / (utilisation · capacity)⌉, at least 1."""
    return max(1, math.ceil(peak_rps / (utilisation * capacity_rps)))


def _batching(problem: BatchProblem, choice: BatchChoice) -> Batching:
    """The lab's counterpart of the engine. Its budget counts prompt tokens only; it is the one beside a full batch."""
    if problem.prefill is PrefillStyle.WHOLE_PROMPTS:
        return Continuous(choice.batch)
    return Chunked(choice.batch, max(1, prompt_tokens_beside(choice.chunk, choice.batch)))


def _itl_batch(problem: BatchProblem, choice: BatchChoice) -> int | None:
    if problem.tpot_ms is None:
        return None
    limit_us = problem.tpot_ms * US_PER_MS * (1 - problem.tpot_margin)
    if problem.prefill is PrefillStyle.WHOLE_PROMPTS:
        return itl_ceiling(problem.cost, limit_us, problem.lengths, problem.percentile, choice.batch)

    def fits(batch: int) -> bool:
        prompt_tokens = prompt_tokens_beside(choice.chunk, batch)
        return batch_step_us(problem.cost, batch, problem.lengths, prompt_tokens) <= limit_us

    return largest_that_fits(fits, choice.batch)


def _check(peak_rps: float, utilisation: float) -> None:
    if peak_rps <= 0:
        raise ValueError(f"the peak rate is {peak_rps:g} requests per second, it must be above 0")
    if not 0 < utilisation <= 1:
        raise ValueError(f"the target utilisation is {utilisation:g}, it must be above 0 and at most 1")


def _no_room(cost: StepCost, lengths: Lengths) -> Infeasible | None:
    if cost.pool_tokens <= 0:
        message = "the weights do not fit into the devices' memory: use more tensor parallelism or larger devices"
        return Infeasible(InfeasibleReason.WEIGHTS, 0, message)
    if kv_ceiling(cost.pool_tokens, lengths) < 1:
        message = (
            f"one long request needs {lengths.peak_tokens:,.0f} KV tokens (P95 prompt + P95 reply), but 0.9 of the pool is "
            f"{KV_SHARE * cost.pool_tokens:,.0f}: use more tensor parallelism, or limit the lengths"
        )
        return Infeasible(InfeasibleReason.KV_POOL, KV_SHARE * cost.pool_tokens, message)
    return None


def _infeasible(choice: BatchChoice) -> Infeasible:
    reason = InfeasibleReason.TPOT if choice.slo_reason is SloReason.TPOT_INFEASIBLE else InfeasibleReason.TTFT
    return Infeasible(reason, choice.floor_ms or 0.0, choice.slo_message)


def _queue_rps(problem: BatchProblem, batching: Batching, check: QueueCheck, decode_rps: float) -> float:
    target = LatencyTarget(ttft_ms=problem.ttft_ms, tpot_ms=problem.tpot_ms, percentile=problem.percentile)
    return highest_rate(problem.cost, batching, target, check, upper_rps=decode_rps)
