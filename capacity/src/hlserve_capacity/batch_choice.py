"""The pair that an SLO decides: how many requests run together, and how large a chunk may join them."""

import math
from dataclasses import dataclass

from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lengths import Lengths
from hlserve_capacity.limits import (
    CHUNK_STEP_TOKENS,
    TPOT_MARGIN,
    kv_ceiling,
    largest_chunk,
    largest_that_fits,
    prefill_alone_us,
    prefill_beside_batch_us,
    prompt_tokens_beside,
    steady_step_us,
    tpot_ceiling,
)
from hlserve_capacity.units import US_PER_MS, ms_from_us
from hlserve_capacity.verdicts import BatchLimit, PrefillStyle, SloReason

TTFT_QUEUE_SHARE = 0.2
"""Share of the TTFT target that prefill leaves to queueing; without it every short wait would be a miss."""
DEFAULT_CHUNK_TOKENS = 8192
"""The engine's default chunk where the device is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProblem:
    """What the choice is made from. Targets in milliseconds; None: no target."""

    cost: StepCost
    lengths: Lengths
    ttft_ms: float | None
    tpot_ms: float | None
    percentile: int
    max_batch: int
    """The engine's largest batch."""
    default_chunk_tokens: int | None
    """The engine's default for the device."""
    fixed_batch: int | None = None
    """The batch is given, only judge it."""
    fixed_chunk: int | None = None
    tpot_margin: float = TPOT_MARGIN
    prefill: PrefillStyle = PrefillStyle.CHUNKS

    @property
    def largest_chunk_tokens(self) -> int:
        """Bound of a chunk, and its size where no target bounds a step."""
        return self.default_chunk_tokens or DEFAULT_CHUNK_TOKENS

    def chunk_tokens(self, batch: int) -> int:
        """The largest chunk size that fits beside `batch` running requests; 0: none."""
        if self.prefill is PrefillStyle.WHOLE_PROMPTS:
            return max(1, math.ceil(self.lengths.input_p95))
        if self.fixed_chunk is not None:
            return self.fixed_chunk
        if self.tpot_ms is None:
            return self.largest_chunk_tokens
        limit_us = self.tpot_ms * US_PER_MS
        return largest_chunk(self.cost, batch, self.lengths, limit_us, self.largest_chunk_tokens)

    def prompt_tokens(self, batch: int) -> int:
        """Prompt tokens that a full mixed step takes, or a whole prompt; 0: none."""
        chunk = self.chunk_tokens(batch)
        return chunk if self.prefill is PrefillStyle.WHOLE_PROMPTS else prompt_tokens_beside(chunk, batch)

    def prefill_ms(self, batch: int) -> float:
        """Prefill of a P95 prompt beside the batch, in the chunks that fit there."""
        return ms_from_us(prefill_beside_batch_us(self.cost, batch, self.lengths, max(1, self.prompt_tokens(batch))))

    def step_ms(self, batch: int) -> float:
        """Mean step in a steady state."""
        return ms_from_us(steady_step_us(self.cost, batch, self.lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """A batch and a chunk, why, and whether the SLO holds with them."""

    batch: int
    batch_why: str
    chunk: int
    chunk_why: str
    prefill_ms: float
    """Prefill of a P95 prompt beside the batch."""
    limit: BatchLimit
    slo_reason: SloReason
    slo_message: str
    floor_ms: float | None = None
    """For a target out of reach: the best possible."""


def memory_bound(cost: StepCost, lengths: Lengths, max_batch: int) -> tuple[int, BatchLimit, str]:
    """The batch that memory and engine allow, at least 1: a pool serves even if one P95 request is over the limit."""
    ceiling = kv_ceiling(cost.pool_tokens, lengths)
    if ceiling > max_batch:
        return max_batch, BatchLimit.ENGINE, f"the engine's largest batch; the KV pool would allow {ceiling:,}"
    why = f"0.9 × {cost.pool_tokens:,} KV tokens / {lengths.peak_tokens:,.0f} (P95 prompt + P95 reply)"
    return max(1, ceiling), BatchLimit.KV_POOL, why


def choose(problem: BatchProblem) -> BatchChoice:
    """The largest batch for which a chunk exists that keeps both targets.

    TPOT is a mean over a reply, so the mean step of a steady state bounds the batch, at the target less a margin. A single
    mixed step may take the whole target, which bounds the chunk. The chunk must carry the prefill that the batch brings,
    and finish a P95 prompt within the TTFT target less a share for queueing.
    """
    upper, limit, why = memory_bound(problem.cost, problem.lengths, problem.max_batch)
    if problem.fixed_batch is not None:
        return _judge(problem, problem.fixed_batch)
    tpot = _tpot_ceiling(problem, upper)
    sustained = largest_that_fits(lambda batch: _carries_its_prefill(problem, batch), tpot)
    if not sustained:
        return _tpot_infeasible(problem)
    batch = _ttft_ceiling(problem, sustained)
    if not batch:
        return _ttft_infeasible(problem, sustained)
    if batch < sustained:
        limit, why = BatchLimit.TTFT, _ttft_why(problem, batch)
    elif batch < tpot:
        limit = BatchLimit.PREFILL
        why = f"TPOT {problem.tpot_ms:g} ms leaves a chunk that carries the prompts of {batch} running requests, not of more"
    elif batch < upper:
        limit = BatchLimit.TPOT
        share = f"{100 * (1 - problem.tpot_margin):.0f} %"
        why = f"mean step {problem.step_ms(batch):.1f} ms within {share} of TPOT {problem.tpot_ms:g} ms, p{problem.percentile}"
    return _attainable(problem, batch, limit, why)


def _tpot_ceiling(problem: BatchProblem, upper: int) -> int:
    if problem.tpot_ms is None:
        return upper
    limit_us = problem.tpot_ms * US_PER_MS * (1 - problem.tpot_margin)
    return tpot_ceiling(problem.cost, limit_us, problem.lengths, upper)


def _carries_its_prefill(problem: BatchProblem, batch: int) -> bool:
    if problem.tpot_ms is None or problem.prefill is PrefillStyle.WHOLE_PROMPTS:
        return True
    return problem.prompt_tokens(batch) >= batch * problem.lengths.prefill_tokens_per_output_token


def _ttft_ceiling(problem: BatchProblem, upper: int) -> int:
    ttft_ms = problem.ttft_ms
    if ttft_ms is None:
        return upper
    batch = largest_that_fits(lambda size: problem.prefill_ms(size) <= _roomy_ms(ttft_ms), upper)
    if not batch and problem.prefill_ms(1) <= ttft_ms:
        return 1
    return batch


def _roomy_ms(ttft_ms: float) -> float:
    return ttft_ms * (1 - TTFT_QUEUE_SHARE)


def _ttft_why(problem: BatchProblem, batch: int) -> str:
    ttft_ms = problem.ttft_ms or 0.0
    share = f"{100 * (1 - TTFT_QUEUE_SHARE):.0f} % of TTFT {ttft_ms:g} ms"
    if problem.prefill_ms(batch) > _roomy_ms(ttft_ms):
        return f"even a lone P95 prompt takes {problem.prefill_ms(batch):.0f} ms, above {share}: little is left for a queue"
    return f"beside {batch} running requests a P95 prompt is prefilled within {share}, beside {batch + 1} not"


def _judge(problem: BatchProblem, batch: int) -> BatchChoice:
    """Whether a batch that was given keeps the targets."""
    why = "set by the user"
    allowed = _tpot_ceiling(problem, batch)
    if allowed < batch:
        return _choice(
            problem,
            batch,
            BatchLimit.ENGINE,
            why,
            SloReason.TPOT_INFEASIBLE,
            f"{batch} running requests have a mean step of {problem.step_ms(batch):.1f} ms, above "
            f"{100 * (1 - problem.tpot_margin):.0f} % of TPOT {problem.tpot_ms:g} ms: allow at most {allowed}",
            problem.step_ms(1),
        )
    if problem.ttft_ms is not None and problem.prefill_ms(batch) > problem.ttft_ms:
        return _ttft_infeasible(problem, batch)
    return _attainable(problem, batch, BatchLimit.ENGINE, why)


def _attainable(problem: BatchProblem, batch: int, limit: BatchLimit, why: str) -> BatchChoice:
    message = (
        f"{batch} running requests: mean step {problem.step_ms(batch):.1f} ms, P95 prompt prefilled in "
        f"{problem.prefill_ms(batch):.0f} ms"
    )
    return _choice(problem, batch, limit, why, SloReason.ATTAINABLE, message, None)


def _tpot_infeasible(problem: BatchProblem) -> BatchChoice:
    floor_ms = problem.step_ms(1)
    message = (
        f"TPOT {problem.tpot_ms:g} ms less {100 * problem.tpot_margin:.0f} % margin is out of reach: one request alone takes "
        f"{floor_ms:.1f} ms a token; raise the target, use more tensor parallelism, or a faster device"
    )
    why = "the SLO is out of reach, served one at a time"
    return _choice(problem, 1, BatchLimit.TPOT, why, SloReason.TPOT_INFEASIBLE, message, floor_ms)


def _ttft_infeasible(problem: BatchProblem, batch: int) -> BatchChoice:
    alone_ms = ms_from_us(prefill_alone_us(problem.cost, problem.lengths, problem.largest_chunk_tokens))
    prompt = f"a prompt of {problem.lengths.input_p95:,.0f} tokens (P95)"
    if problem.ttft_ms is not None and alone_ms > problem.ttft_ms:
        message = (
            f"TTFT {problem.ttft_ms:g} ms is out of reach: {prompt} takes {alone_ms:.0f} ms alone on an idle engine; raise the "
            "target, use more tensor parallelism, or limit the prompts"
        )
        floor_ms = alone_ms
    else:
        slots = batch if problem.fixed_batch is not None else 1
        chunk, floor_ms = problem.chunk_tokens(slots), problem.prefill_ms(slots)
        message = (
            f"TTFT {problem.ttft_ms:g} ms cannot be kept beside TPOT: {prompt} takes {floor_ms:.0f} ms in the chunks of {chunk} "
            f"tokens that fit beside {slots} running, {alone_ms:.0f} ms in large ones; raise one of the targets"
        )
    why = f"TPOT allows {batch}; TTFT is out of reach"
    return _choice(problem, batch, BatchLimit.TPOT, why, SloReason.TTFT_INFEASIBLE, message, floor_ms)


def _choice(
    problem: BatchProblem,
    batch: int,
    limit: BatchLimit,
    why: str,
    reason: SloReason,
    message: str,
    floor_ms: float | None,
) -> BatchChoice:
    chunk = problem.chunk_tokens(batch)
    if problem.prefill is PrefillStyle.WHOLE_PROMPTS:
        chunk_why = "prompts are prefilled whole"
    elif problem.fixed_chunk is not None:
        chunk_why = "set by the user"
    elif problem.tpot_ms is None:
        chunk_why = "the engine's default: no TPOT target bounds a step"
    elif chunk:
        chunk_why = f"largest chunk whose step with {batch} running requests stays within {problem.tpot_ms:g} ms"
    else:
        chunk, chunk_why = CHUNK_STEP_TOKENS, "smallest useful chunk: no chunk fits beside the batch"
    return BatchChoice(
        batch=batch,
        batch_why=why,
        chunk=chunk,
        chunk_why=chunk_why,
        prefill_ms=problem.prefill_ms(batch),
        limit=limit,
        slo_reason=reason,
        slo_message=message,
        floor_ms=floor_ms,
    )
