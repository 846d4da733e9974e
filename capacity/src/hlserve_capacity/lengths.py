"""Request lengths as sizing and derivation need them: means for load, 95th percentiles for memory and deadlines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hlserve_capacity.percentiles import nearest_rank

P95_OF_UNIT_EXPONENTIAL = math.log(20)
"""95th percentile of an exponential distribution in units of its mean (2.996)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Prompt and reply lengths of a kind of traffic, in tokens."""

    input_mean: float
    input_p95: float
    output_mean: float
    output_p95: float
    prefix_hit_rate: float = 0.0
    """Share of prompt tokens that need no prefill."""

    def __post_init__(self) -> None:
        if min(self.input_mean, self.input_p95) < 0 or min(self.output_mean, self.output_p95) < 1:
            raise ValueError(f"{self}: prompts cannot be negative, replies have at least one token")
        if not 0 <= self.prefix_hit_rate < 1:
            raise ValueError(f"the prefix hit rate is {self.prefix_hit_rate}, it must be in [0, 1)")

    @property
    def peak_tokens(self) -> float:
        """KV of a long request: P95 of the prompt plus P95 of the reply."""
        return self.input_p95 + self.output_p95

    @property
    def new_input_mean(self) -> float:
        """Prompt tokens that have to be prefilled, on average."""
        return self.input_mean * (1 - self.prefix_hit_rate)

    @property
    def decode_context_mean(self) -> float:
        """Mean context of a sequence that decodes, at a random time.

        A random step falls into long replies more often, so the reply so far is E[o²]/(2·E[o]), which is E[o] for
        exponential replies.
        """
        return self.input_mean + self.output_mean

    @property
    def prefill_tokens_per_output_token(self) -> float:
        """New prompt tokens that come with each output token in a steady state."""
        return self.new_input_mean / self.output_mean


def from_p95(input_p95: float, output_p95: float) -> Lengths:
    """Lengths of which only the 95th percentiles are known: means as if they were exponential, P95/ln 20.

    The public chat, code and agent traces have means of 0.28 to 0.49 of their P95; this rule says 0.33.
    """
    return Lengths(
        input_mean=input_p95 / P95_OF_UNIT_EXPONENTIAL,
        input_p95=input_p95,
        output_mean=max(1.0, output_p95 / P95_OF_UNIT_EXPONENTIAL),
        output_p95=output_p95,
    )


def from_samples(input_tokens: Sequence[int], output_tokens: Sequence[int], *, prefix_hit_rate: float = 0.0) -> Lengths:
    """Lengths as observed. Raises ValueError for an empty sample."""
    input_p95, output_p95 = nearest_rank(input_tokens, 95), nearest_rank(output_tokens, 95)
    if input_p95 is None or output_p95 is None:
        raise ValueError("no lengths were observed: give at least one request")
    return Lengths(
        input_mean=fmean(input_tokens),
        input_p95=input_p95,
        output_mean=fmean(output_tokens),
        output_p95=output_p95,
        prefix_hit_rate=prefix_hit_rate,
    )
