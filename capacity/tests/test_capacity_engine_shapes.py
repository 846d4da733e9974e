"""The effects the policies are for, on the roofline of a real model: signs and orders, not decimals."""

from dataclasses import replace

import pytest

from hlserve_capacity import devices, shapes
from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.testing import EngineDriver, repeat
from hlserve_capacity.engine.types import EngineConfig, EngineRequest, SchedulePolicy
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.virtual.arms import Arm, PoolConfig
from hlserve_capacity.virtual.cluster import Timeline, simulate
from hlserve_capacity.virtual.testing import Slo, window_metrics
from hlserve_capacity.virtual.workload import AgentRound, AgentSession, Workload

A100 = Roofline(shapes.by_name("llama-3.1-8b"), devices.by_name("A100"))
SLO = Slo(ttft_us=1_000_000, tpot_us=20_000)
ROUNDS = 6


def sessions_of(context_tokens: int, output_tokens: int, count: int) -> tuple[AgentSession, ...]:
    """Sessions that grow from half of `context_tokens` to all of it; lengths differ a little so that they do not run in step."""
    made = []
    for number in range(count):
        size = context_tokens * (90 + number * 7 % 20) // 100
        rounds = [AgentRound(size // 2, output_tokens + number % 5)]
        for index in range(1, ROUNDS):
            grown = size // 2 + size // 2 * index // (ROUNDS - 1)
            rounds.append(
                AgentRound(grown, output_tokens + (number + index) % 7, 0, index - 1, rounds[-1].input_tokens)
            )
        made.append(AgentSession(f"s{number}", tuple(rounds)))
    return tuple(made)


def load(slots: int, context_tokens: int = 16_384, output_tokens: int = 150) -> Workload:
    return Workload(
        sessions=sessions_of(context_tokens, output_tokens, 3 * slots),
        slot_start_us=tuple(50_000 * slot for slot in range(slots)),
        first_rounds=tuple(slot % ROUNDS for slot in range(slots)),
    )


def engine(**flags: object) -> EngineConfig:
    base = EngineConfig(pool_tokens=A100.pool_tokens, max_running_requests=512)
    return replace(base, **flags)  # type: ignore[arg-type]


def tokens_per_second(config: EngineConfig, workload: Workload, seconds: int = 90) -> float:
    arm = Arm(name="one", pools=(PoolConfig(name="p", replicas=1, engine=config),), chat_pool="p", agent_pool="p")
    timeline = Timeline(warm_up_us=30_000_000, window_us=seconds * 1_000_000, drain_us=0)
    return window_metrics(simulate(arm, workload, A100, timeline), SLO).agent_tokens_per_second


@pytest.mark.parametrize("delta_us", [0, 5_000, 25_000])
@pytest.mark.parametrize("chunk_tokens", [512, 2_048, 8_192])
def test_greedy_prefill_of_long_prompts_is_never_slower_than_chunks(chunk_tokens: int, delta_us: int) -> None:
    greedy, chunked = (prefill_us(chunk, delta_us) for chunk in (None, chunk_tokens))
    boundaries = 32_768 // chunk_tokens - 1
    assert chunked > greedy + 3 * boundaries * delta_us


def prefill_us(chunk_tokens: int | None, delta_us: int) -> int:
    """Time of three prompts of 32K tokens, one after the other."""
    driver = EngineDriver(Scheduler(engine(chunked_prefill_size=chunk_tokens, chunk_boundary_us=delta_us), A100))
    driver.run(*(EngineRequest(rid=f"r{n}", prompt=repeat(n, 32_768), output_tokens=1) for n in range(3)))
    return driver.now_us


@pytest.mark.parametrize(("delta_us", "gain"), [(0, 0.99), (25_000, 1.03)])
def test_a_prefill_first_engine_gains_from_greedy_what_its_chunk_boundaries_cost(delta_us: int, gain: float) -> None:
    greedy, chunked = (
        tokens_per_second(engine(chunked_prefill_size=chunk, chunk_boundary_us=delta_us), load(12))
        for chunk in (None, 2_048)
    )
    assert greedy / chunked > gain


def test_small_mixed_chunks_beat_greedy_only_while_a_chunk_boundary_costs_nothing() -> None:
    """The model lets a small chunk hide behind the weights' read: a limit to know, not a finding."""
    greedy = tokens_per_second(engine(throughput_mode=True), load(12))
    free, priced = (
        tokens_per_second(engine(mixed_chunk=True, chunked_prefill_size=512, chunk_boundary_us=delta_us), load(12))
        for delta_us in (0, 25_000)
    )
    assert priced < greedy < free < 1.1 * greedy


def test_more_sessions_than_fit_lower_throughput_under_fcfs() -> None:
    fit, over = (tokens_per_second(engine(mixed_chunk=True), load(slots)) for slots in (24, 60))
    assert over < 0.8 * fit


def test_admission_and_lpm_each_keep_throughput_past_the_pool() -> None:
    crowd = load(60)
    fcfs = tokens_per_second(engine(throughput_mode=True), crowd)
    lpm = tokens_per_second(engine(throughput_mode=True, schedule_policy=SchedulePolicy.LPM), crowd)
    admitted = tokens_per_second(engine(throughput_mode=True, kv_aware_admission=True), crowd)
    assert lpm > 1.5 * fcfs
    assert admitted > 1.5 * fcfs


def test_a_short_age_bound_destroys_lpm_and_a_bound_in_requests_does_not() -> None:
    crowd = load(60)
    lpm = engine(throughput_mode=True, schedule_policy=SchedulePolicy.LPM)
    unbounded = tokens_per_second(lpm, crowd)
    by_age = tokens_per_second(replace(lpm, max_age_us=10_000_000), crowd)
    by_requests = tokens_per_second(replace(lpm, lpm_max_overtakes=200), crowd)
    assert by_age < 0.7 * unbounded
    assert by_requests > 0.85 * unbounded


def oversubscribed(**flags: object) -> float:
    lpm = engine(mixed_chunk=True, chunked_prefill_size=2_048, schedule_policy=SchedulePolicy.LPM)
    return tokens_per_second(replace(lpm, **flags), load(60, output_tokens=400), 120)  # type: ignore[arg-type]


def test_gated_two_stage_is_above_plain_mixing_when_oversubscribed_and_the_naive_rule_far_below() -> None:
    mixed = oversubscribed()
    assert oversubscribed(two_stage=True) > 1.05 * mixed
    assert oversubscribed(naive_two_stage=True) < 0.7 * mixed


def test_below_the_pool_two_stage_changes_nothing() -> None:
    flags = engine(mixed_chunk=True, chunked_prefill_size=2_048)
    assert tokens_per_second(flags, load(12)) == tokens_per_second(replace(flags, two_stage=True), load(12))


def test_the_tax_of_the_chunk_size_grows_as_the_chunk_shrinks() -> None:
    """Prefill first, as the stock engine runs: every chunk is a pass over the weights that no decode shares."""
    speeds = [tokens_per_second(engine(chunked_prefill_size=chunk), load(12)) for chunk in (8_192, 1_024, 256, 64)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] < 0.7 * speeds[0]


def test_the_tax_of_a_step_time_cap_grows_with_context_batch_and_tightness_below_the_pool() -> None:
    by_context = [capped_tax(50_000, 16, context) for context in (2_048, 8_192, 16_384)]
    by_batch = [capped_tax(50_000, batch, 8_192) for batch in (4, 16, 32)]
    by_cap = [capped_tax(cap_us, 16, 8_192) for cap_us in (200_000, 50_000, 30_000)]
    for taxes in (by_context, by_batch, by_cap):
        assert taxes == sorted(taxes)
        assert taxes[0] < taxes[-1]


def capped_tax(cap_us: int, batch: int, context_tokens: int) -> float:
    """Share of prefill speed lost when a mixed step of `batch` rows at `context_tokens` may take `cap_us`."""
    assert batch * context_tokens < A100.pool_tokens
    rows = A100.step_us(batch, batch * context_tokens, ())
    low, high = 0, 16_384
    while high - low > 1:
        middle = (low + high) // 2
        fits = A100.step_us(batch, batch * context_tokens, ((middle, 0),)) <= cap_us
        low, high = (middle, high) if fits else (low, middle)
    free_speed = 16_384 / A100.step_us(0, 0, ((16_384, 0),))
    assert rows < cap_us
    return 1 - low / cap_us / free_speed
