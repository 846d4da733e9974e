"""The closed form of the tax, and δ from chunked prefills."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_capacity import devices, shapes
from hlserve_capacity.fitting import PrefillSample, fit_chunk_boundary_us, fit_prefill, least_squares
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.tax import chunk_tokens_within, fixed_step_us, saturated_tax
from hlserve_capacity.verdicts import Infeasible


def eight_h20() -> Roofline:
    return Roofline(shapes.by_name("qwen2.5-32b"), devices.by_name("H20"), 8, 2500)


def tax(step_limit_ms: float, decode_sequences: int, context_tokens: int) -> float:
    value = saturated_tax(
        eight_h20(), step_limit_ms=step_limit_ms, decode_sequences=decode_sequences, context_tokens=context_tokens
    )
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(
    ("decode_sequences", "percents"),
    [(16, (19, 27, 39)), (32, (22, 39, 62)), (48, (25, 51, 66))],
    ids=["16 sequences", "32 sequences", "48 sequences, the pool is full at 64K"],
)
def test_the_tax_at_50_ms_has_the_known_values(decode_sequences: int, percents: tuple[int, int, int]) -> None:
    taxes = [tax(50, decode_sequences, context) for context in (8192, 32_768, 65_536)]
    assert [int(100 * value) for value in taxes] == list(percents)


def test_a_full_pool_pays_93_percent_at_36_ms() -> None:
    model = eight_h20()
    full = fixed_step_us(model, 10_000, 65_536)
    assert full / 1000 == pytest.approx(33.6, abs=0.5)
    assert model.kv_read_us_per_token * model.pool_tokens / 1000 == pytest.approx(25.4, abs=0.1)
    assert tax(36, 10_000, 65_536) == pytest.approx(0.93, abs=0.01)


def test_a_limit_below_the_decode_step_is_infeasible_with_its_floor() -> None:
    answer = saturated_tax(eight_h20(), step_limit_ms=5, decode_sequences=32, context_tokens=32_768)
    assert isinstance(answer, Infeasible)
    assert answer.floor == pytest.approx(fixed_step_us(eight_h20(), 32, 32_768) / 1000)
    assert "cannot be kept" in answer.message


@given(
    step_limit_ms=st.floats(60, 500),
    decode_sequences=st.integers(1, 70),
    context_tokens=st.integers(1, 32_000),
    more=st.integers(1, 1000),
)
def test_the_tax_grows_with_context_and_batch_and_falls_with_the_limit(
    step_limit_ms: float, decode_sequences: int, context_tokens: int, more: int
) -> None:
    base = tax(step_limit_ms, decode_sequences, context_tokens)
    assert tax(step_limit_ms + more, decode_sequences, context_tokens) < base
    if (decode_sequences + 1) * context_tokens <= eight_h20().pool_tokens:
        assert tax(step_limit_ms, decode_sequences + 1, context_tokens) > base
    if decode_sequences * (context_tokens + more) <= eight_h20().pool_tokens:
        assert tax(step_limit_ms, decode_sequences, context_tokens + more) > base


@pytest.mark.parametrize(
    ("limit_us", "tokens"), [(16_000, 800), (12_800, 0), (10_000, 0)], ids=["room", "no room", "less than none"]
)
def test_a_step_limit_leaves_a_chunk(limit_us: float, tokens: int) -> None:
    """The lab's engine with sixteen sequences: 12.8 ms of decode, 4 µs a prompt token."""
    assert chunk_tokens_within(limit_us, fixed_us=12_800, prefill_token_us=4) == tokens


@pytest.mark.parametrize("delta_us", [2000.0, 10_000.0, 50_000.0])
def test_the_chunk_boundary_cost_is_recovered_from_noisy_times(delta_us: float) -> None:
    model = eight_h20()
    random = Random(7)
    samples = [
        PrefillSample(
            tokens,
            chunk,
            model.prefill_us(tokens, chunk_tokens=chunk) * random.uniform(0.9995, 1.0005)
            + delta_us * (-(-tokens // chunk) - 1),
        )
        for tokens in (8192, 32_768)
        for chunk in (512, 2048, 8192, tokens)
        for _ in range(3)
    ]
    assert fit_chunk_boundary_us(samples, model) == pytest.approx(delta_us, rel=0.05)


def test_four_terms_are_recovered_from_exact_times() -> None:
    samples = [
        PrefillSample(tokens, chunk, 3000 + 20 * tokens + 4e-4 * tokens**2 + 7000 * (-(-tokens // chunk) - 1))
        for tokens in (4096, 8192, 16_384, 32_768)
        for chunk in (512, 2048, 40_000)
    ]
    fit = fit_prefill(samples)
    assert fit.intercept_us == pytest.approx(3000, rel=1e-6)
    assert fit.alpha_us_per_token == pytest.approx(20, rel=1e-6)
    assert fit.beta_us_per_token2 == pytest.approx(4e-4, rel=1e-6)
    assert fit.per_boundary_us == pytest.approx(7000, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "targets", "message"),
    [
        ([], [], "at least one"),
        ([[1.0]], [1.0, 2.0], "as many of both"),
        ([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0], "vary lengths"),
    ],
    ids=["no samples", "unequal numbers", "terms that vary together"],
)
def test_samples_that_determine_nothing_are_refused(
    rows: list[list[float]], targets: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        least_squares(rows, targets)
