"""From SLO and lengths to batch, chunk and replicas; what binds has a name."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_capacity import devices, lengths, shapes
from hlserve_capacity.batch_choice import BatchProblem, choose
from hlserve_capacity.lab.workload import constant, exponential, uniform
from hlserve_capacity.lengths import Lengths
from hlserve_capacity.limits import (
    admissions_quantile,
    batch_step_us,
    itl_ceiling,
    kv_ceiling,
    largest_that_fits,
    prefill_beside_batch_us,
    steady_step_us,
    tpot_ceiling,
)
from hlserve_capacity.linear import LinearCost, batching_lab
from hlserve_capacity.queue_check import QueueCheck
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.sizing import Sizing, replicas_for, size_human_less, size_interactive
from hlserve_capacity.verdicts import BatchLimit, CapacityLimit, Infeasible, InfeasibleReason, PrefillStyle, SloReason


def lab_lengths(prompt_tokens: float = 200) -> Lengths:
    return Lengths(input_mean=prompt_tokens, input_p95=prompt_tokens, output_mean=200, output_p95=600)


def lab_problem(
    *, max_batch: int = 64, ttft_ms: float | None = 1000, tpot_ms: float | None = 16, pool_tokens: int = 10**9
) -> BatchProblem:
    return BatchProblem(
        cost=LinearCost(t0_us=8000, sequence_us=300, prefill_token_us=4, pool_tokens=pool_tokens),
        lengths=lab_lengths(),
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        percentile=95,
        max_batch=max_batch,
        default_chunk_tokens=None,
        tpot_margin=0,
        prefill=PrefillStyle.WHOLE_PROMPTS,
    )


def lab_queue() -> QueueCheck:
    """The load and the six seeds behind the known rates."""
    return QueueCheck(
        prompts=uniform(200, 200),
        outputs=exponential(200),
        random_for_seed=Random,
        seeds=tuple(range(6)),
        seconds=600,
    )


def roofline(shape: str = "llama-3.1-8b", device: str = "A100-80G", tensor_parallel: int = 1) -> Roofline:
    return Roofline(shapes.by_name(shape), devices.by_name(device), tensor_parallel)


def roofline_problem(
    input_p95: float, output_p95: float, *, ttft_ms: float | None, tpot_ms: float | None, cost: Roofline | None = None
) -> BatchProblem:
    return BatchProblem(
        cost=cost or roofline(),
        lengths=lengths.from_p95(input_p95, output_p95),
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        percentile=95,
        max_batch=256,
        default_chunk_tokens=8192,
    )


def test_the_bare_ceiling_of_the_lab_is_26() -> None:
    """⌊(16 - 8) / 0.3⌋: 26 sequences take 15.8 ms, 27 take 16.1."""
    no_prompts = lab_lengths(0)
    assert tpot_ceiling(batching_lab(), 16_000, no_prompts, 64) == 26
    assert batch_step_us(batching_lab(), 27, no_prompts) == 16_100


@pytest.mark.parametrize(("prompt_tokens", "batch"), [(200, 24), (600, 18)])
def test_single_gaps_allow_fewer(prompt_tokens: float, batch: int) -> None:
    assert itl_ceiling(batching_lab(), 16_000, lab_lengths(prompt_tokens), 95, 64) == batch


def test_mean_steps_with_prefill_match_the_closed_form() -> None:
    for batch, step_us in ((16, 12_864), (26, 15_904)):
        assert steady_step_us(batching_lab(), batch, lab_lengths()) == pytest.approx(step_us, rel=1e-9)


@pytest.mark.parametrize(
    ("mean", "percent", "count"),
    [(0.12, 95, 1), (0.05, 95, 0), (0.12, 50, 0), (3, 95, 6), (0, 99, 0)],
    ids=["rare admissions show at p95", "rarer ones do not", "nor at the median", "three a step", "none at all"],
)
def test_admissions_a_step(mean: float, percent: float, count: int) -> None:
    assert admissions_quantile(mean, percent) == count


def test_sixteen_slots_need_three_replicas_for_ten_requests_a_second() -> None:
    sizing = size_interactive(lab_problem(max_batch=16), peak_rps=10, queue_check=lab_queue())
    assert isinstance(sizing, Sizing)
    assert (sizing.batch, sizing.batch_limit) == (16, BatchLimit.ENGINE)
    assert sizing.decode_capacity_rps == pytest.approx(6.22, abs=0.01)
    assert sizing.queue_capacity_rps == pytest.approx(4.95, abs=0.15)
    assert sizing.capacity_limit is CapacityLimit.TTFT_QUEUE
    assert sizing.replicas == 3


def test_by_decode_capacity_alone_two_would_do() -> None:
    sizing = size_interactive(lab_problem(max_batch=16), peak_rps=10, queue_check=None)
    assert isinstance(sizing, Sizing)
    assert (sizing.queue_capacity_rps, sizing.capacity_limit, sizing.replicas) == (None, CapacityLimit.DECODE, 2)


def test_at_the_ceiling_two_replicas_do() -> None:
    sizing = size_interactive(lab_problem(), peak_rps=10, queue_check=lab_queue())
    assert isinstance(sizing, Sizing)
    assert (sizing.batch, sizing.batch_limit, sizing.itl_batch) == (26, BatchLimit.TPOT, 24)
    assert sizing.capacity_rps == pytest.approx(6.84, abs=0.15)
    assert sizing.replicas == 2


@pytest.mark.parametrize(
    ("peak_rps", "capacity_rps", "utilisation", "replicas"),
    [(10, 4.95, 0.9, 3), (10, 6.84, 0.9, 2), (9, 4.95, 0.9, 3), (9, 4.95, 1.0, 2), (0.1, 4.95, 0.9, 1), (9, 3, 1.0, 3)],
)
def test_replicas_cover_the_peak_at_the_target_utilisation(
    peak_rps: float, capacity_rps: float, utilisation: float, replicas: int
) -> None:
    assert replicas_for(peak_rps, capacity_rps, utilisation) == replicas


def test_a_small_pool_binds_by_memory() -> None:
    sizing = size_interactive(lab_problem(pool_tokens=9000), peak_rps=1, queue_check=None)
    assert isinstance(sizing, Sizing)
    assert (sizing.batch, sizing.batch_limit) == (10, BatchLimit.KV_POOL)
    assert "9,000 KV tokens" in sizing.batch_why


@pytest.mark.parametrize(("pool_tokens", "batch"), [(10_000, 90), (10_111, 90), (10_112, 91), (111, 0)])
def test_nine_tenths_of_the_pool_bound_the_batch(pool_tokens: int, batch: int) -> None:
    assert kv_ceiling(pool_tokens, Lengths(input_mean=30, input_p95=80, output_mean=10, output_p95=20)) == batch


def test_eight_h20_hold_31_sequences_of_64k() -> None:
    cost = roofline("qwen2.5-32b", "H20", 8)
    long = Lengths(input_mean=60_000, input_p95=65_536, output_mean=182, output_p95=700)
    assert kv_ceiling(cost.pool_tokens, long) == 31


@pytest.mark.parametrize(
    ("problem", "limit"),
    [
        (roofline_problem(4000, 800, ttft_ms=1000, tpot_ms=20), BatchLimit.TPOT),
        (roofline_problem(4000, 800, ttft_ms=600, tpot_ms=20), BatchLimit.TTFT),
        (roofline_problem(2816, 512, ttft_ms=1000, tpot_ms=20), BatchLimit.PREFILL),
        (roofline_problem(30_000, 2000, ttft_ms=None, tpot_ms=400), BatchLimit.KV_POOL),
        (roofline_problem(300, 200, ttft_ms=None, tpot_ms=None), BatchLimit.ENGINE),
    ],
    ids=["the mean step", "prefill beside the batch", "prompts that the chunk must carry", "memory", "the engine"],
)
def test_what_binds_a_real_device_has_a_name(problem: BatchProblem, limit: BatchLimit) -> None:
    choice = choose(problem)
    assert choice.slo_reason is SloReason.ATTAINABLE
    assert choice.limit is limit
    assert choice.batch_why


@pytest.mark.parametrize(
    ("ttft_ms", "batch", "words"),
    [
        (600, 4, "prefilled within 80 % of TTFT 600 ms, beside 5 not"),
        (470, 1, "above 80 % of TTFT 470 ms: little is left"),
    ],
    ids=["a fifth is left for the queue", "one prompt alone leaves less"],
)
def test_a_batch_bound_by_ttft_says_what_is_left_for_the_queue(ttft_ms: float, batch: int, words: str) -> None:
    choice = choose(roofline_problem(4000, 800, ttft_ms=ttft_ms, tpot_ms=20))
    assert (choice.batch, choice.limit) == (batch, BatchLimit.TTFT)
    assert words in choice.batch_why


@given(
    input_p95=st.integers(50, 20_000),
    output_p95=st.integers(10, 4000),
    ttft_ms=st.one_of(st.none(), st.integers(100, 20_000)),
    tpot_ms=st.one_of(st.none(), st.integers(14, 200)),
)
def test_a_choice_keeps_every_promise_it_makes(
    input_p95: int, output_p95: int, ttft_ms: int | None, tpot_ms: int | None
) -> None:
    problem = roofline_problem(input_p95, output_p95, ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    choice = choose(problem)
    if choice.slo_reason is not SloReason.ATTAINABLE:
        assert choice.batch >= 1
        assert choice.floor_ms is not None
        return
    prompt_tokens = choice.chunk - (choice.batch - 1)
    assert choice.batch <= max(1, kv_ceiling(problem.cost.pool_tokens, problem.lengths))
    if tpot_ms is not None:
        assert steady_step_us(problem.cost, choice.batch, problem.lengths) <= 0.9 * 1000 * tpot_ms
        assert batch_step_us(problem.cost, choice.batch, problem.lengths, prompt_tokens) <= 1000 * tpot_ms
        assert prompt_tokens >= choice.batch * problem.lengths.prefill_tokens_per_output_token
    if ttft_ms is not None:
        prefill_us = prefill_beside_batch_us(problem.cost, choice.batch, problem.lengths, prompt_tokens)
        assert prefill_us <= 1000 * ttft_ms * (0.8 if choice.batch > 1 else 1), "a fifth is kept for the queue"


@given(tpot_ms=st.integers(14, 100), looser=st.integers(1, 50))
def test_a_looser_target_never_lowers_the_batch(tpot_ms: int, looser: int) -> None:
    tight = choose(roofline_problem(2000, 800, ttft_ms=None, tpot_ms=tpot_ms))
    loose = choose(roofline_problem(2000, 800, ttft_ms=None, tpot_ms=tpot_ms + looser))
    assert loose.batch >= tight.batch


@pytest.mark.parametrize(
    ("problem", "reason", "floor", "words"),
    [
        (roofline_problem(2000, 500, ttft_ms=None, tpot_ms=10), InfeasibleReason.TPOT, 12.6, "one request alone"),
        (roofline_problem(40_000, 500, ttft_ms=1000, tpot_ms=None), InfeasibleReason.TTFT, 5316, "idle engine"),
        (roofline_problem(8000, 800, ttft_ms=700, tpot_ms=16), InfeasibleReason.TTFT, 1001, "beside TPOT"),
        (
            roofline_problem(500_000, 500, ttft_ms=None, tpot_ms=100),
            InfeasibleReason.KV_POOL,
            373_123,
            "KV tokens",
        ),
        (
            roofline_problem(2000, 500, ttft_ms=None, tpot_ms=100, cost=roofline("llama-3.1-70b")),
            InfeasibleReason.WEIGHTS,
            0,
            "do not fit",
        ),
    ],
    ids=["TPOT", "TTFT alone", "TTFT beside TPOT", "a prompt larger than the pool", "weights larger than the device"],
)
def test_infeasible_is_a_value_with_a_floor_and_a_sentence(
    problem: BatchProblem, reason: InfeasibleReason, floor: float, words: str
) -> None:
    answer = size_interactive(problem, peak_rps=1, queue_check=None)
    assert isinstance(answer, Infeasible)
    assert answer.reason is reason
    assert answer.floor == pytest.approx(floor, rel=0.02)
    assert words in answer.message


def test_a_target_that_no_simulated_rate_keeps_is_infeasible() -> None:
    check = QueueCheck(prompts=constant(400), outputs=constant(2), random_for_seed=Random, seeds=(0,), seconds=60)
    problem = lab_problem(ttft_ms=8.95, tpot_ms=None)
    assert isinstance(size_interactive(problem, peak_rps=1, queue_check=None), Infeasible)
    problem = lab_problem(ttft_ms=9.105, tpot_ms=None)
    answer = size_interactive(problem, peak_rps=1, queue_check=check)
    assert isinstance(answer, Infeasible)
    assert "at any rate tried" in answer.message


def test_human_less_is_bound_by_memory_only() -> None:
    cost = roofline()
    sizing = size_human_less(cost, lengths.from_p95(32_000, 768), max_batch=256, peak_rps=1)
    assert isinstance(sizing, Sizing)
    assert (sizing.batch, sizing.batch_limit, sizing.chunk_tokens) == (11, BatchLimit.KV_POOL, None)
    assert sizing.sessions_per_replica == pytest.approx(0.9 * cost.pool_tokens / (32_768 / 2.996), abs=1)


def test_a_reused_prefix_is_still_attended_to() -> None:
    """A tenth of 20,000 tokens is new: cheaper than all of them, dearer than 2,000 tokens without a prefix."""
    whole, short = (
        Lengths(input_mean=size, input_p95=size, output_mean=100, output_p95=300) for size in (20_000, 2000)
    )
    reused = Lengths(input_mean=20_000, input_p95=20_000, output_mean=100, output_p95=300, prefix_hit_rate=0.9)
    times = [prefill_beside_batch_us(roofline(), 1, lengths, 8192) for lengths in (short, reused, whole)]
    assert times[0] * 1.1 < times[1] < times[2] / 3


def test_prefix_hits_raise_capacity() -> None:
    plain = Lengths(input_mean=8000, input_p95=16_000, output_mean=200, output_p95=600)
    reused = Lengths(input_mean=8000, input_p95=16_000, output_mean=200, output_p95=600, prefix_hit_rate=0.9)
    rates = []
    for traffic in (plain, reused):
        sizing = size_human_less(roofline(), traffic, max_batch=256, peak_rps=1)
        assert isinstance(sizing, Sizing)
        rates.append(sizing.capacity_rps)
    assert rates[1] > 2 * rates[0]


@pytest.mark.parametrize(
    ("peak_rps", "utilisation", "message"),
    [(0, 0.9, "peak rate is 0"), (1, 0, "utilisation is 0"), (1, 1.2, "at most 1")],
)
def test_impossible_questions_get_a_sentence(peak_rps: float, utilisation: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        size_human_less(roofline(), lab_lengths(), max_batch=8, peak_rps=peak_rps, utilisation=utilisation)


@pytest.mark.parametrize(("field", "value"), [("input_mean", -1), ("output_mean", 0.5), ("prefix_hit_rate", 1)])
def test_impossible_lengths_are_refused(field: str, value: float) -> None:
    numbers = {"input_mean": 1.0, "input_p95": 1.0, "output_mean": 1.0, "output_p95": 1.0, "prefix_hit_rate": 0.0}
    with pytest.raises(ValueError, match=r"replies have at least one|must be in"):
        Lengths(**{**numbers, field: value})


@given(largest=st.integers(0, 500), upper=st.integers(0, 600))
def test_the_search_finds_the_last_that_fits(largest: int, upper: int) -> None:
    assert largest_that_fits(lambda number: number <= largest, upper) == min(largest, upper)
