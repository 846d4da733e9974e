"""The closed form of what a TPOT target costs a saturated engine, and the chunk that a step limit leaves.

An engine that mixes prefill into every step, with the step capped at T, prefills C(T) = (T - t0 - W - κ·B·L) / c tokens a step.
Against an unbounded chunk it loses the share tax(T) = (t0 + W + r + κ·B·L) / T, with r the all-reduce and pointwise work of
the decoding rows: it grows with context and concurrency until B·L fills the KV pool.
"""

from hlserve_capacity.roofline import Roofline
from hlserve_capacity.units import US_PER_MS, ms_from_us
from hlserve_capacity.verdicts import Infeasible, InfeasibleReason


def fixed_step_us(cost: Roofline, decode_sequences: int, context_tokens: int) -> float:
    """What a step of decoding sequences costs before any prefill: t0 + W + r + κ · B · L, in microseconds.

    The batch is cut to what the pool holds at `context_tokens` each.
    """
    batch = min(decode_sequences, cost.pool_tokens // context_tokens) if context_tokens else decode_sequences
    rows_us = cost.all_reduce_us(batch) + cost.pointwise_us(batch)
    return cost.t0_us + cost.weight_pass_us + rows_us + cost.kv_read_us_per_token * batch * context_tokens


def saturated_tax(
    cost: Roofline, *, step_limit_ms: float, decode_sequences: int, context_tokens: int
) -> float | Infeasible:
    """Share of prefill throughput that the step limit costs, in [0, 1); Infeasible if decoding alone exceeds the limit."""
    fixed_us = fixed_step_us(cost, decode_sequences, context_tokens)
    if fixed_us >= step_limit_ms * US_PER_MS:
        floor_ms = ms_from_us(fixed_us)
        message = (
            f"{decode_sequences} sequences of {context_tokens:,} tokens need {floor_ms:.1f} ms a step without any prefill: "
            f"a limit of {step_limit_ms:g} ms cannot be kept"
        )
        return Infeasible(InfeasibleReason.TPOT, floor_ms, message)
    return fixed_us / (step_limit_ms * US_PER_MS)


def chunk_tokens_within(
    step_limit_us: float, *, fixed_us: float, prefill_token_us: float, context_us: float = 0.0
) -> int:
    """C(T) = (T - fixed - context) / c for a linear cost, whole tokens, 0 if nothing is left."""
    return max(0, int((step_limit_us - fixed_us - context_us) / prefill_token_us))
