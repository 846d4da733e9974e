"""What bounds an engine's batch and chunk: the step-time arithmetic that sizing and derivation share. Microseconds."""

import math
from collections.abc import Callable

from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lengths import Lengths
from hlserve_capacity.units import US_PER_SECOND

KV_SHARE = 0.9
"""Share of the KV pool that admission fills; the rest absorbs lengths above P95."""
TPOT_MARGIN = 0.1
"""Share of the TPOT target kept free for the spread between the mean step and a percentile of requests."""
CHUNK_STEP_TOKENS = 64
"""Chunk sizes are multiples of this: GEMM kernels work in tiles, a ragged last tile costs as much as a full one."""


def largest_that_fits(fits: Callable[[int], bool], upper: int) -> int:
    """The largest n in 1..upper with fits(n), 0 if not even 1 fits. `fits` must be true up to some n and false after."""
    if upper < 1 or not fits(1):
        return 0
    low, high = 1, upper
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def kv_ceiling(pool_tokens: int, lengths: Lengths) -> int:
    """Sequences whose KV fits even if all are long: ⌊0.9 · pool / (P95 of prompt + P95 of reply)⌋."""
    return math.floor(KV_SHARE * pool_tokens / lengths.peak_tokens)


def batch_step_us(cost: StepCost, batch: int, lengths: Lengths, prefill_tokens: float = 0.0) -> float:
    """A step of `batch` sequences with mean contexts, of which one brings `prefill_tokens` of its prompt (0: all decode).

    Fractions of a token are interpolated, so that means over many steps are exact for linear costs.
    """
    context_tokens = round(batch * lengths.decode_context_mean)
    if prefill_tokens <= 0:
        return cost.step_us(batch, context_tokens, ())
    prefix_tokens = round(lengths.input_mean)
    low = math.floor(prefill_tokens)
    part = prefill_tokens - low

    def with_chunk(tokens: int) -> float:
        if not tokens:
            return cost.step_us(batch, context_tokens, ())
        return cost.step_us(batch - 1, context_tokens, ((tokens, prefix_tokens),))

    low_us = with_chunk(low)
    return low_us + part * (with_chunk(low + 1) - low_us) if part else low_us


def steady_step_us(cost: StepCost, batch: int, lengths: Lengths) -> float:
    """Mean step of a full batch in a steady state: each reply that ends is followed by a prompt that must be prefilled."""
    return batch_step_us(cost, batch, lengths, batch * lengths.prefill_tokens_per_output_token)


def completions_per_second(cost: StepCost, batch: int, lengths: Lengths) -> float:
    """Requests that a full batch finishes: B / (E[output] · mean step), prefill included."""
    return US_PER_SECOND * batch / (lengths.output_mean * steady_step_us(cost, batch, lengths))


def tpot_ceiling(cost: StepCost, step_limit_us: float, lengths: Lengths, upper: int) -> int:
    """Largest batch whose steady mean step fits, 0 if none. TPOT is a mean over a reply, so the mean step decides."""
    return largest_that_fits(lambda batch: steady_step_us(cost, batch, lengths) <= step_limit_us, upper)


def admissions_quantile(mean_per_step: float, percent: float) -> int:
    """Nearest-rank percentile of the number of admissions in a step, for Poisson admissions."""
    probability = math.exp(-mean_per_step)
    cumulative, count = probability, 0
    while cumulative * 100 < percent and count < 10_000:
        count += 1
        probability *= mean_per_step / count
        cumulative += probability
    return count


def itl_ceiling(cost: StepCost, step_limit_us: float, lengths: Lengths, percent: float, upper: int) -> int:
    """Largest batch whose step fits with the percentile of whole prompts that join a step, 0 if none.

    Inter-token latency counts every gap, so prompts that join show in it although TPOT averages them out.
    """

    def fits(batch: int) -> bool:
        admissions = min(batch, admissions_quantile(batch / lengths.output_mean, percent))
        chunks = ((round(lengths.new_input_mean), 0),) * admissions
        context_tokens = round(batch * lengths.decode_context_mean)
        return cost.step_us(batch - admissions, context_tokens, chunks) <= step_limit_us

    return largest_that_fits(fits, upper)


def prompt_tokens_beside(chunk_tokens: int, batch: int) -> int:
    """Prompt tokens in a full mixed step: the engine charges each decoding sequence as one token of the chunk."""
    return max(0, chunk_tokens - (batch - 1))


def largest_chunk(cost: StepCost, batch: int, lengths: Lengths, step_limit_us: float, upper: int) -> int:
    """Largest chunk size (a multiple of 64 tokens up to `upper`) whose mixed step with the whole batch fits, 0 if none."""

    def fits(pieces: int) -> bool:
        prompt_tokens = prompt_tokens_beside(pieces * CHUNK_STEP_TOKENS, batch)
        return batch_step_us(cost, batch, lengths, prompt_tokens) <= step_limit_us

    return min(upper, largest_that_fits(fits, max(1, upper // CHUNK_STEP_TOKENS)) * CHUNK_STEP_TOKENS)


def prefill_beside_batch_us(cost: StepCost, batch: int, lengths: Lengths, step_tokens: int) -> float:
    """Time to first token of a P95 prompt in an otherwise full batch, once it is admitted: all its mixed steps.

    Each step takes `step_tokens` of the prompt.
    """
    context_tokens = round((batch - 1) * lengths.decode_context_mean)
    left = math.ceil(lengths.input_p95 * (1 - lengths.prefix_hit_rate))
    prefix_tokens = math.ceil(lengths.input_p95) - left
    total_us = 0.0
    while left > 0:
        piece = min(step_tokens, left)
        total_us += cost.step_us(batch - 1, context_tokens, ((piece, prefix_tokens),))
        prefix_tokens += piece
        left -= piece
    return total_us


def prefill_alone_us(cost: StepCost, lengths: Lengths, step_tokens: int) -> float:
    """The floor of a P95 prompt's time to first token: an idle engine, no queue."""
    return prefill_beside_batch_us(cost, 1, lengths, step_tokens)
