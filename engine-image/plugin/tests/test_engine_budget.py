"""The prefill token budget: converges from both sides, heeds warm-up, never spirals."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_engine.budget import Budget, BudgetSettings, IterationKind, after_iteration, initial_budget

SETTINGS = BudgetSettings(target_seconds=0.8, warmup_iterations=0)


def run(settings: BudgetSettings, fixed_seconds: float, seconds_per_token: float, iterations: int) -> list[Budget]:
    """Budgets of an engine whose iterations take t0 + c·τ and always fill their budget."""
    budgets = [initial_budget(settings)]
    for _ in range(iterations):
        seconds = fixed_seconds + seconds_per_token * budgets[-1].exact_tokens
        budgets.append(after_iteration(budgets[-1], settings, IterationKind.PREFILL, seconds))
    return budgets


@pytest.mark.parametrize(
    ("seconds_per_token", "want_tokens"),
    [
        pytest.param(50e-6, 15_400, id="a fast engine's budget grows past its start"),
        pytest.param(250e-6, 3_080, id="a slow engine's budget shrinks below its start"),
    ],
)
def test_engine_budget_reaches_its_fixed_point(seconds_per_token: float, want_tokens: int) -> None:
    assert run(SETTINGS, 0.030, seconds_per_token, 400)[-1].tokens == pytest.approx(want_tokens, rel=0.001)


@given(
    seconds_per_token=st.floats(13e-6, 1.4e-3),
    fixed_seconds=st.floats(0.0, 0.05),
    alpha=st.floats(0.01, 0.99),
)
def test_engine_budget_approaches_its_fixed_point_monotonically(
    seconds_per_token: float, fixed_seconds: float, alpha: float
) -> None:
    settings = BudgetSettings(target_seconds=0.8, warmup_iterations=0, alpha=alpha)
    fixed_point = min(max((0.8 - fixed_seconds) / seconds_per_token, 512), 65_536)
    distances = [b.exact_tokens - fixed_point for b in run(settings, fixed_seconds, seconds_per_token, 60)]
    slack = 1e-6 * fixed_point
    for before, after in pairwise(distances):
        assert abs(after) <= abs(before) + slack
        assert before * after >= -slack * fixed_point, "no oscillation"


@given(st.lists(st.tuples(st.sampled_from(IterationKind), st.floats(1e-4, 1e3)), max_size=80))
def test_engine_budget_stays_within_its_bounds(iterations: list[tuple[IterationKind, float]]) -> None:
    budget = initial_budget(SETTINGS)
    for kind, seconds in iterations:
        budget = after_iteration(budget, SETTINGS, kind, seconds)
        assert SETTINGS.minimum_tokens <= budget.exact_tokens <= SETTINGS.maximum_tokens


def test_engine_budget_ignores_decode_iterations() -> None:
    budget = Budget(4000.0, 7)
    assert after_iteration(budget, SETTINGS, IterationKind.DECODE, 0.01) == budget


def test_engine_budget_ignores_slow_warmup_iterations() -> None:
    settings = BudgetSettings(target_seconds=0.8, warmup_iterations=10)
    budget = initial_budget(settings)
    for _ in range(10):
        budget = after_iteration(budget, settings, IterationKind.MIXED, 30.0)
    assert budget.exact_tokens == settings.initial_tokens
    assert after_iteration(budget, settings, IterationKind.MIXED, 30.0).exact_tokens < settings.initial_tokens


def test_engine_budget_recovers_after_a_slow_spell() -> None:
    budget = initial_budget(SETTINGS)
    for _ in range(300):
        budget = after_iteration(budget, SETTINGS, IterationKind.PREFILL, 10.0)
    assert budget.tokens == 512
    for _ in range(300):
        budget = after_iteration(budget, SETTINGS, IterationKind.PREFILL, 0.030 + 50e-6 * budget.exact_tokens)
    assert budget.tokens == pytest.approx(15_400, rel=0.01)


def test_engine_budget_old_ratchet_spirals_where_the_ema_does_not() -> None:
    """A rule that only cuts 5 % per slow iteration: from 8192 below 64 after 95 and below 1 after 176, never up again."""
    ratchet = [8192.0]
    while len(ratchet) <= 200:
        ratchet.append(ratchet[-1] * 0.95)
    assert next(i for i, tokens in enumerate(ratchet) if tokens < 64) == 95
    assert next(i for i, tokens in enumerate(ratchet) if tokens < 1) == 176

    budget = initial_budget(SETTINGS)
    for _ in range(200):
        budget = after_iteration(budget, SETTINGS, IterationKind.PREFILL, 2 * SETTINGS.target_seconds)
    assert budget.tokens == SETTINGS.minimum_tokens
    assert after_iteration(budget, SETTINGS, IterationKind.PREFILL, 0.1).tokens > SETTINGS.minimum_tokens


def test_engine_budget_refuses_a_clock_that_stands_still() -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        after_iteration(initial_budget(SETTINGS), SETTINGS, IterationKind.PREFILL, 0.0)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({"minimum_tokens": 0.0}, "minimum_tokens", id="no lower bound"),
        pytest.param({"minimum_tokens": 9000.0}, "minimum_tokens", id="a lower bound above the start"),
        pytest.param({"maximum_tokens": 8192.0}, "could only shrink", id="an upper bound tied to the start"),
        pytest.param({"target_seconds": 0.0}, "target_seconds", id="no target"),
        pytest.param({"alpha": 1.0}, "alpha", id="no memory"),
        pytest.param({"warmup_iterations": -1}, "warmup_iterations", id="negative warm-up"),
    ],
)
def test_engine_budget_settings_refuse(settings: dict[str, float], want: str) -> None:
    with pytest.raises(ValueError, match=want):
        BudgetSettings(**settings)  # type: ignore[arg-type]
