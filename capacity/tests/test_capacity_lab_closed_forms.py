"""Arithmetic of the lab's engine, exact to a billionth, and simulated runs against it."""

from random import Random

import pytest

from hlserve_capacity.lab import closed_forms
from hlserve_capacity.lab.batching import Continuous
from hlserve_capacity.lab.metrics import summarise
from hlserve_capacity.lab.scheduler import run_open_loop
from hlserve_capacity.lab.workload import LabRequest, lognormal, lognormal_sigma
from hlserve_capacity.linear import batching_lab
from hlserve_capacity.sizing import replicas_for

EXACT = 1e-9


@pytest.mark.parametrize(
    ("batch", "step_ms", "tokens_per_second"),
    [(1, 8.3, 1000 / 8.3), (16, 12.8, 1250.0), (26, 15.8, 26_000 / 15.8), (32, 17.6, 32_000 / 17.6)],
)
def test_a_step_of_a_batch(batch: int, step_ms: float, tokens_per_second: float) -> None:
    cost = batching_lab()
    assert cost.step_us(batch, 0) / 1000 == pytest.approx(step_ms, rel=EXACT)
    throughput = closed_forms.saturated_tokens_per_second(cost, batch)
    assert throughput == pytest.approx(tokens_per_second, rel=EXACT)
    assert round(tokens_per_second, 2) in {120.48, 1250.00, 1645.57, 1818.18}


@pytest.mark.parametrize(("prompt_tokens", "spike_ms"), [(200, 0.8), (20_000, 80.0)])
def test_a_prompt_makes_its_step_longer(prompt_tokens: int, spike_ms: float) -> None:
    cost = batching_lab()
    spike_us = cost.step_us(16, 0, ((prompt_tokens, 0),)) - cost.step_us(17, 0)
    assert spike_us / 1000 == pytest.approx(spike_ms, rel=EXACT)


def test_offered_load_against_decode_capacity() -> None:
    capacity = closed_forms.saturated_tokens_per_second(batching_lab(), 16)
    assert 4 * 200 / capacity == pytest.approx(0.64, rel=EXACT)
    assert capacity < 10 * 200
    assert replicas_for(10, capacity / 200, utilisation=1.0) == 2


@pytest.mark.parametrize(("count", "expected"), [(4, 2.0833), (8, 2.7179), (16, 3.380729), (32, 4.0585), (64, 4.7439)])
def test_harmonic_numbers(count: int, expected: float) -> None:
    assert closed_forms.harmonic(count) == pytest.approx(expected, abs=5e-5)


def test_static_slots_are_useful_for_less_than_a_third() -> None:
    assert closed_forms.harmonic(16) == pytest.approx(2_436_559 / 720_720, rel=EXACT)
    assert closed_forms.static_useful_share(16) == pytest.approx(720_720 / 2_436_559, rel=EXACT)
    assert 16 * closed_forms.harmonic(16) == pytest.approx(54.09, abs=0.005)


@pytest.mark.parametrize(
    ("batch", "step_ms", "tokens_per_second", "requests_per_second"),
    [(16, 12.864, 1243.8, 6.219), (26, 15.904, 1634.8, 8.174)],
)
def test_capacity_with_prefill(
    batch: int, step_ms: float, tokens_per_second: float, requests_per_second: float
) -> None:
    cost = batching_lab()
    assert closed_forms.saturated_step_us(cost, batch, 200, 200) / 1000 == pytest.approx(step_ms, rel=EXACT)
    tokens = closed_forms.saturated_tokens_per_second(cost, batch, 200, 200)
    assert tokens == pytest.approx(1000 * batch / step_ms, rel=EXACT)
    assert tokens == pytest.approx(tokens_per_second, abs=0.05)
    requests = closed_forms.saturated_requests_per_second(cost, batch, 200, 200)
    assert requests == pytest.approx(requests_per_second, abs=0.001)


def test_capacity_with_prefill_solves_its_own_fixed_point() -> None:
    """step = (a + s·B) / (1 - c·P·λ) at λ = B / (E[o] · step)."""
    cost = batching_lab()
    step_us = closed_forms.saturated_step_us(cost, 16, 200, 200)
    rate_per_us = 16 / (200 * step_us)
    assert 12_800 / (1 - 4 * 200 * rate_per_us) == pytest.approx(step_us, rel=EXACT)


@pytest.mark.parametrize(
    ("tokens_per_second", "batch"),
    [(1150, 15), (1147.5, 14), (1147.6, 15), (120, 1), (4000, None)],
    ids=["mission 3 needs 15", "14 reach 1147.5", "and no more", "one is enough", "no batch reaches 1/s"],
)
def test_smallest_batch_for_a_throughput(tokens_per_second: float, batch: int | None) -> None:
    assert closed_forms.smallest_batch_for(batching_lab(), tokens_per_second) == batch


def test_a_steady_rate_of_ten_needs_forty_slots() -> None:
    assert closed_forms.smallest_batch_for(batching_lab(), 2000) == 40


def test_a_saturated_run_reaches_the_closed_form() -> None:
    load = [LabRequest(0, 200, 200) for _ in range(16 * 50)]
    summary = summarise(run_open_loop(load, Continuous(16), batching_lab()))
    closed = closed_forms.saturated_tokens_per_second(batching_lab(), 16, 200, 200)
    assert summary.tokens_per_second == pytest.approx(closed, rel=1e-6)


def test_the_long_tail_wastes_static_slots() -> None:
    """Lognormal with median 150 and p99 1500: a mean of 245, 1012 for the longest of 16."""
    assert lognormal_sigma(150, 1500) == pytest.approx(0.99, abs=0.005)
    random, draw = Random(1), lognormal(150, 1500)
    lengths = [draw(random) for _ in range(16 * 20_000)]
    mean = sum(lengths) / len(lengths)
    longest = sum(max(lengths[start : start + 16]) for start in range(0, len(lengths), 16)) / 20_000
    assert mean == pytest.approx(245, rel=0.02)
    assert longest == pytest.approx(1012, rel=0.02)
    assert mean / longest == pytest.approx(0.242, rel=0.02)
