"""What the lab's engine must do by arithmetic alone: limits that simulated runs are held against.

Formulas are for a linear cost without contexts (κ = 0): a = t0 + W, s per sequence, c per prompt token.
"""

from hlserve_capacity.linear import LinearCost
from hlserve_capacity.units import US_PER_SECOND


def harmonic(count: int) -> float:
    """H_n = 1 + 1/2 + … + 1/n: the longest of n exponential lengths, in units of their mean."""
    return sum(1 / index for index in range(1, count + 1))


def static_useful_share(max_batch: int) -> float:
    """Useful share of static slots with exponential replies: 1/H_B."""
    return 1 / harmonic(max_batch)


def saturated_step_us(cost: LinearCost, batch: int, prompt_tokens: float, mean_output_tokens: float) -> float:
    """Mean step with all slots busy: a + s·B + c·P·B/E[o], since B/E[o] prompts join each step."""
    base_us = cost.step_us(batch, 0)
    return base_us + cost.prefill_token_us * prompt_tokens * batch / mean_output_tokens


def saturated_tokens_per_second(
    cost: LinearCost, batch: int, prompt_tokens: float = 0, mean_output_tokens: float = 1
) -> float:
    """Output throughput with all slots busy."""
    return US_PER_SECOND * batch / saturated_step_us(cost, batch, prompt_tokens, mean_output_tokens)


def saturated_requests_per_second(
    cost: LinearCost, batch: int, prompt_tokens: float, mean_output_tokens: float
) -> float:
    """Completed requests with all slots busy: decode capacity."""
    return saturated_tokens_per_second(cost, batch, prompt_tokens, mean_output_tokens) / mean_output_tokens


def smallest_batch_for(cost: LinearCost, tokens_per_second: float) -> int | None:
    """Smallest B with B/(a + s·B) at least the throughput, prefill left out; None if no batch reaches it."""
    per_us = tokens_per_second / US_PER_SECOND
    if per_us * cost.sequence_us >= 1:
        return None
    batch = max(1, int(per_us * (cost.t0_us + cost.weight_pass_us) / (1 - per_us * cost.sequence_us)))
    while batch > 1 and batch - 1 >= per_us * cost.step_us(batch - 1, 0):
        batch -= 1
    while batch < per_us * cost.step_us(batch, 0):
        batch += 1
    return batch
