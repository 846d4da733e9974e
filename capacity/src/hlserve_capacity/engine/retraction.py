"""Admission without full reservation: SGLang's estimate of new tokens, and whom to retract when it was wrong.

Constants as in SGLang: the ratio starts at 0.7 and decays in 600 steps to 0.14 of itself; a retraction frees 20 decode steps.
"""

from collections.abc import Iterable

from hlserve_capacity.engine.sequence import Sequence

RETRACT_DECODE_STEPS = 20
DECAY_STEPS = 600
MINIMUM_FACTOR = 0.14
CLIP_NEW_TOKENS = 4096
"""A longer reply counts as this many tokens in the estimate."""


class NewTokenRatio:
    """Share of a reply's remaining tokens that admission counts as needed."""

    def __init__(self, initial: float) -> None:
        if not 0 <= initial <= 1:
            raise ValueError(f"new_token_ratio is a share between 0 and 1, got {initial}")
        self._initial = initial
        self._minimum = initial * MINIMUM_FACTOR
        self._decay = (self._initial - self._minimum) / DECAY_STEPS
        self.current = initial

    def decay(self) -> None:
        self.current = max(self._minimum, self.current - self._decay)

    def reset(self) -> None:
        """The engine is idle: be careful again."""
        self.current = self._initial

    def after_retraction(self, made_tokens: int, requests: int, output_tokens: int) -> None:
        """Estimate anew from the requests that stayed."""
        self.current = min(1.0, (made_tokens + RETRACT_DECODE_STEPS * requests) / max(1, output_tokens))


def retraction_order(running: Iterable[tuple[Sequence, int]], *, priority: bool, low_first: bool) -> list[Sequence]:
    """First to go first: fewest reply tokens made, then the longest prompt; with `priority` the least urgent before all.

    `running` are (request, reply tokens made so far).
    """
    sign = 0 if not priority else (-1 if low_first else 1)
    ranked = sorted(
        running,
        key=lambda item: (sign * item[0].request.priority, item[1], -item[0].prompt_tokens, -item[0].order),
    )
    return [sequence for sequence, _ in ranked]
