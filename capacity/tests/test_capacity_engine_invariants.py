"""Whatever is submitted and aborted: KV is conserved, every accepted request ends with its tokens or is aborted."""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.testing import EngineDriver, LinearCost
from hlserve_capacity.engine.types import EngineConfig, EngineRequest, FinishReason, SchedulePolicy

POOL_TOKENS = 160
COST = LinearCost(pool_tokens=POOL_TOKENS)
BASE = EngineConfig(pool_tokens=POOL_TOKENS, context_length=100, max_running_requests=6, session_idle_us=30_000)
CONFIGS = [
    BASE,
    replace(BASE, mixed_chunk=True, chunked_prefill_size=9),
    replace(BASE, mixed_chunk=True, chunked_prefill_size=9, reserve_output=False, new_token_ratio=0.1),
    replace(
        BASE,
        reserve_output=False,
        new_token_ratio=0.0,
        schedule_policy=SchedulePolicy.LPM,
        priority_scheduling=True,
        priority_retraction=True,
    ),
    replace(BASE, throughput_mode=True, kv_aware_admission=True, schedule_policy=SchedulePolicy.LPM),
    replace(BASE, throughput_mode=True, kv_aware_admission=True, two_stage=True, max_prefill_tokens=20),
    replace(BASE, throughput_mode=True, kv_aware_admission=True, reserve_output=False, new_token_ratio=0.0),
    replace(BASE, mixed_chunk=True, chunked_prefill_size=12, two_stage=True, two_stage_enter=0.6, two_stage_leave=0.4),
    replace(BASE, mixed_chunk=True, chunked_prefill_size=12, naive_two_stage=True),
    replace(BASE, chunked_prefill_size=None, disable_radix_cache=True, lpm_max_overtakes=2, max_age_us=50_000),
    replace(BASE, kv_aware_admission=True, disable_radix_cache=True, mixed_chunk=True, chunked_prefill_size=7),
]


@dataclass(frozen=True)
class Arrival:
    """A request after `gap_steps` further steps; `abort_after` steps later its client leaves (None: it stays)."""

    gap_steps: int
    prompt: tuple[int, ...]
    output_tokens: int
    replied: bool
    priority: int
    abort_after: int | None


PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=60),
    st.integers(1, 60).map(lambda tokens: [5] * tokens),
).map(tuple)
ARRIVALS = st.lists(
    st.builds(
        Arrival,
        gap_steps=st.integers(0, 4),
        prompt=PROMPTS,
        output_tokens=st.integers(0, 40),
        replied=st.booleans(),
        priority=st.integers(0, 2),
        abort_after=st.one_of(st.none(), st.none(), st.integers(0, 30)),
    ),
    min_size=1,
    max_size=14,
)


def request_of(number: int, arrival: Arrival) -> EngineRequest:
    reply = tuple(5 for _ in range(arrival.output_tokens)) if arrival.replied else None
    return EngineRequest(
        rid=f"r{number}",
        prompt=arrival.prompt,
        output_tokens=arrival.output_tokens,
        priority=arrival.priority,
        reply=reply,
    )


def check_kv(engine: Scheduler) -> None:
    gauges, pool = engine.gauges(), engine._pool
    assert gauges.kv_used_tokens + gauges.kv_cached_tokens + pool.free_tokens == POOL_TOKENS
    assert min(gauges.kv_used_tokens, gauges.kv_cached_tokens, pool.free_tokens, pool.private_tokens) >= 0
    assert pool.promised_tokens >= 0
    assert pool.unpromised_tokens >= 0, "more was promised than can be had"
    assert gauges.running <= engine.config.max_running_requests
    active = engine._sessions.active_tokens
    assert active == 0 if not engine.config.kv_aware_admission else active >= 0


def play(config: EngineConfig, arrivals: list[Arrival]) -> EngineDriver:
    driver = EngineDriver(Scheduler(config, COST))
    leaving: list[tuple[int, str]] = []
    for number, arrival in enumerate(arrivals):
        for _ in range(arrival.gap_steps):
            one_step(driver, leaving)
        driver.submit(request_of(number, arrival))
        check_kv(driver.engine)
        if arrival.abort_after is not None:
            leaving.append((len(driver.steps) + arrival.abort_after, f"r{number}"))
    for _ in range(5_000):
        if not one_step(driver, leaving) and not leaving:
            return driver
        if not driver.engine._known:
            leaving.clear()
    raise AssertionError("requests wait for ever")


def one_step(driver: EngineDriver, leaving: list[tuple[int, str]]) -> bool:
    """One step; clients that leave at it do so in its middle if their number is odd, else before it."""
    due = [item for item in leaving if item[0] <= len(driver.steps)]
    for item in due:
        leaving.remove(item)
    for _, rid in due:
        if int(rid[1:]) % 2 == 0 and driver.engine.abort(rid, driver.now_us):
            driver.served[rid].end = FinishReason.ABORT
    step = driver.engine.begin_step(driver.now_us)
    for _, rid in due:
        if int(rid[1:]) % 2 == 1 and driver.engine.abort(rid, driver.now_us) and step is None:
            driver.served[rid].end = FinishReason.ABORT
    check_kv(driver.engine)
    if step is None:
        wakeup_us = driver.engine.next_wakeup_us(driver.now_us)
        driver.now_us = max(driver.now_us + 1, wakeup_us or 0)
        return wakeup_us is not None
    driver.finish_step(step)
    check_kv(driver.engine)
    return True


@settings(max_examples=150, deadline=None)
@given(config=st.sampled_from(CONFIGS), arrivals=ARRIVALS)
def test_every_accepted_request_gets_exactly_its_tokens_or_is_aborted(
    config: EngineConfig, arrivals: list[Arrival]
) -> None:
    driver = play(config, arrivals)
    for number, arrival in enumerate(arrivals):
        served = driver.served[f"r{number}"]
        if served.refused is not None:
            assert len(arrival.prompt) + arrival.output_tokens > config.context_length
            continue
        assert served.indices == list(range(len(served.indices))), "tokens come once and in order, retractions or not"
        if served.end is FinishReason.LENGTH:
            assert len(served.indices) == arrival.output_tokens
        else:
            assert served.end is FinishReason.ABORT
            assert arrival.abort_after is not None
    assert driver.engine.gauges().running == driver.engine.gauges().queued == 0
    assert driver.engine._pool.private_tokens == driver.engine._pool.promised_tokens == 0
    assert driver.engine._tree.read_tokens == 0


@settings(max_examples=40, deadline=None)
@given(config=st.sampled_from(CONFIGS), arrivals=ARRIVALS)
def test_the_same_input_gives_the_same_run(config: EngineConfig, arrivals: list[Arrival]) -> None:
    first, second = play(config, arrivals), play(config, arrivals)
    assert first.steps == second.steps
    assert first.served == second.served
    assert first.engine.totals == second.engine.totals


@settings(max_examples=40, deadline=None)
@given(config=st.sampled_from(CONFIGS), arrivals=ARRIVALS)
def test_edge_events_are_the_full_events_without_the_middle_tokens(
    config: EngineConfig, arrivals: list[Arrival]
) -> None:
    full, edges = (EngineDriver(Scheduler(config, COST)) for _ in range(2))
    requests = [request_of(number, arrival) for number, arrival in enumerate(arrivals)]
    full.run(*requests)
    for request in requests:
        edges.engine.submit(request, 0)
    now_us = 0
    ends: dict[str, int] = {}
    while True:
        step = edges.engine.begin_step(now_us)
        if step is None:
            wakeup_us = edges.engine.next_wakeup_us(now_us)
            if wakeup_us is None:
                break
            now_us = max(wakeup_us, now_us + 1)
            continue
        now_us += step.duration_us
        for event in edges.engine.end_step_edges(now_us):
            ends[event.rid] = now_us
    assert {rid: item.end_us for rid, item in full.served.items() if item.end_us is not None} == ends
    assert full.engine.totals == edges.engine.totals


@settings(max_examples=60, deadline=None)
@given(config=st.sampled_from(CONFIGS), arrivals=ARRIVALS, data=st.data())
def test_the_order_of_aborts_between_two_steps_does_not_matter(
    config: EngineConfig, arrivals: list[Arrival], data: st.DataObject
) -> None:
    names = [f"r{number}" for number in range(len(arrivals))]
    victims = data.draw(st.lists(st.sampled_from(names), unique=True))
    shuffled = data.draw(st.permutations(victims))
    outcomes = []
    for order in (victims, shuffled):
        driver = EngineDriver(Scheduler(config, COST))
        driver.submit(*(request_of(number, arrival) for number, arrival in enumerate(arrivals)))
        driver.run_steps(3)
        for rid in order:
            driver.engine.abort(rid, driver.now_us)
        check_kv(driver.engine)
        driver.run()
        outcomes.append((driver.steps, driver.served))
    assert outcomes[0] == outcomes[1]
