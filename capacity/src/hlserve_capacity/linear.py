"""The linear step-cost model: a fixed part, a part per sequence, per context token and per prefilled token.

    step = t0 + W + s · sequences + κ · context tokens + c · prefilled tokens

The batching lab's model is the case κ = 0; a calibration of a real engine fits all of them. With integer coefficients
every step is an integer of microseconds, so that simulated times are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

UNBOUNDED_POOL_TOKENS = 2**62
"""KV pool of a model that does not limit memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """A StepCost that is linear in everything. Microseconds throughout."""

    t0_us: float
    """Host and launch time per iteration."""
    weight_pass_us: float = 0.0
    """W: one pass over the weights."""
    sequence_us: float
    """s: per sequence that takes part in the step."""
    context_token_us: float = 0.0
    """κ: per context token of the decoding sequences."""
    prefill_token_us: float
    """c: per prompt token prefilled in the step."""
    pool_tokens: int = UNBOUNDED_POOL_TOKENS

    def __post_init__(self) -> None:
        for name in ("t0_us", "weight_pass_us", "sequence_us", "context_token_us", "prefill_token_us", "pool_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: a cost cannot be negative")
        if self.t0_us + self.weight_pass_us <= 0:
            raise ValueError("t0_us + weight_pass_us is 0: a step must take time")

    def step_us(
        self, decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]] = ()
    ) -> float:
        """Microseconds of one iteration; `chunks` are (new tokens, tokens in KV before them)."""
        step = self.t0_us + self.weight_pass_us + self.sequence_us * (decode_sequences + len(chunks))
        step += self.context_token_us * decode_context_tokens
        for new_tokens, _ in chunks:
            step += self.prefill_token_us * new_tokens
        return step


def batching_lab() -> LinearCost:
    """The lab's engine: 8 ms a step, 0.3 ms a sequence, 4 µs a prompt token; integers, so times are exact."""
    return LinearCost(t0_us=8000, sequence_us=300, prefill_token_us=4)
