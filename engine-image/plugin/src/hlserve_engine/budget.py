"""The prefill token budget of one iteration, led by how long iterations take.

Rule: τ ← clip(τ · [(1−α) + α · t_target / t_forward], τ_min, τ_max), only after iterations that contained prefill, and not in
the first `warmup_iterations` of them (their times hold compilation and graph capture). For an iteration time t = t₀ + c·τ the
fixed point is τ* = (t_target − t₀)/c, and the local factor 1 − α·c·τ*/t_target lies in (0, 1): the budget approaches it from
either side without oscillating. τ_max lies above the starting value, so that the budget can grow past it.

Every tensor-parallel rank must use the same budget, or their collectives hang: one rank computes, the others are told.
"""

from dataclasses import dataclass, replace
from enum import StrEnum


class IterationKind(StrEnum):
    """What one forward pass held."""

    PREFILL = "prefill"
    MIXED = "mixed"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Bounds and gains. Tokens are uncached prompt tokens of one iteration.

    Raises ValueError, in one sentence, on values with which the budget could not move both ways.
    """

    initial_tokens: float = 8192.0
    minimum_tokens: float = 512.0
    maximum_tokens: float = 65_536.0
    target_seconds: float = 1.0
    alpha: float = 0.1
    warmup_iterations: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.minimum_tokens <= self.initial_tokens:
            raise ValueError(
                f"minimum_tokens must lie between 1 and initial_tokens ({self.initial_tokens:g}), not at {self.minimum_tokens:g}."
            )
        if self.maximum_tokens <= self.initial_tokens:
            raise ValueError(
                f"maximum_tokens must exceed initial_tokens ({self.initial_tokens:g}), or the budget could only shrink; "
                f"it is {self.maximum_tokens:g}."
            )
        if self.target_seconds <= 0:
            raise ValueError(f"target_seconds must be above 0, not {self.target_seconds:g}.")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie strictly between 0 and 1, not at {self.alpha:g}.")
        if self.warmup_iterations < 0:
            raise ValueError(f"warmup_iterations must not be negative, and is {self.warmup_iterations}.")


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget between two iterations: its exact value, and how many iterations with prefill were seen."""

    exact_tokens: float
    prefill_iterations: int = 0

    @property
    def tokens(self) -> int:
        """The bound for the scheduler: whole tokens, at least 1."""
        return max(1, int(self.exact_tokens))


def initial_budget(settings: BudgetSettings) -> Budget:
    """The budget before the first iteration."""
    return Budget(settings.initial_tokens)


def after_iteration(budget: Budget, settings: BudgetSettings, kind: IterationKind, forward_seconds: float) -> Budget:
    """The budget after one iteration of `kind` that took `forward_seconds` (> 0).

    Decode-only iterations say nothing about prefill and leave the budget as it is. Raises ValueError if the time is not
    positive: a clock that stands still must not become an infinite budget.
    """
    if kind is IterationKind.DECODE:
        return budget
    if forward_seconds <= 0:
        raise ValueError(f"An iteration takes more than 0 seconds; {forward_seconds:g} was measured.")
    seen = budget.prefill_iterations + 1
    if seen <= settings.warmup_iterations:
        return replace(budget, prefill_iterations=seen)
    factor = (1 - settings.alpha) + settings.alpha * settings.target_seconds / forward_seconds
    exact = min(max(budget.exact_tokens * factor, settings.minimum_tokens), settings.maximum_tokens)
    return Budget(exact, seen)
