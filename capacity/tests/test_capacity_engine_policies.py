"""Each scheduling policy by example: order, chunks, mixing, bounds, aborts."""

from dataclasses import replace

import pytest

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.testing import EngineDriver, LinearCost, Served, first_tokens, repeat, words
from hlserve_capacity.engine.types import (
    EngineConfig,
    EngineRequest,
    Finished,
    FinishReason,
    RejectReason,
    SchedulePolicy,
    Token,
)

COST = LinearCost()
BASE = EngineConfig(pool_tokens=10_000, context_length=4_000, max_running_requests=8)
ONE_SLOT = replace(BASE, max_running_requests=1)


def ask(rid: str, prompt: list[int], output_tokens: int = 4, priority: int = 0) -> EngineRequest:
    return EngineRequest(rid=rid, prompt=prompt, output_tokens=output_tokens, priority=priority)


def driver_of(config: EngineConfig) -> EngineDriver:
    return EngineDriver(Scheduler(config, COST))


def chunks_of(driver: EngineDriver) -> list[list[tuple[str, int]]]:
    return [[(rid, tokens) for rid, tokens, _ in step.chunks] for step in driver.steps]


# -- time and tokens ---------------------------------------------------------------------------------------------------


def test_the_first_token_comes_with_the_step_that_ends_the_prefill_and_one_more_each_step() -> None:
    driver = driver_of(BASE)
    served = driver.run(ask("a", repeat(1, 100), output_tokens=3))["a"]
    prefill_us = 8_000 + 4 * 100
    assert served.token_us == [prefill_us, prefill_us + 8_300, prefill_us + 16_600]
    assert (served.end, served.end_us) == (FinishReason.LENGTH, prefill_us + 16_600)


@pytest.mark.parametrize(("output_tokens", "steps"), [(0, 1), (1, 1), (2, 2)], ids=["an embedding", "one token", "two"])
def test_a_reply_takes_one_step_a_token_and_the_prefill_makes_the_first(output_tokens: int, steps: int) -> None:
    driver = driver_of(BASE)
    served = driver.run(ask("a", [1], output_tokens=output_tokens))["a"]
    assert (len(served.token_us), len(driver.steps)) == (output_tokens, steps)
    assert served.end is FinishReason.LENGTH


def test_decode_context_grows_by_one_token_a_step() -> None:
    driver = driver_of(BASE)
    driver.run(ask("a", repeat(1, 10), 4), ask("b", repeat(2, 20), 2))
    assert [step.decode_context_tokens for step in driver.steps] == [0, 30, 11, 12]


def test_a_request_submitted_during_a_step_waits_for_the_next() -> None:
    driver = driver_of(replace(BASE, mixed_chunk=True))
    driver.submit(ask("a", [1], 5))
    step = driver.engine.begin_step(0)
    driver.submit(ask("b", [2], 1))
    assert step is not None
    driver.finish_step(step)
    driver.run()
    assert chunks_of(driver)[:2] == [[("a", 1)], [("b", 1)]]


# -- chunks and mixing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (replace(BASE, chunked_prefill_size=40), [[("a", 40)], [("a", 30), ("b", 10)], [("b", 40)]]),
        (replace(BASE, chunked_prefill_size=None), [[("a", 70), ("b", 50)]]),
        (replace(BASE, chunked_prefill_size=None, max_prefill_tokens=100), [[("a", 70)], [("b", 50)]]),
        (replace(BASE, chunked_prefill_size=40, max_prefill_tokens=30), [[("a", 30)], [("a", 30)], [("a", 10), ("b", 20)], [("b", 30)]]),
        (replace(BASE, throughput_mode=True, chunked_prefill_size=40), [[("a", 70), ("b", 50)]]),
        (replace(BASE, chunked_prefill_size=None, max_prefill_tokens=60), [[("a", 70)], [("b", 50)]]),
    ],
    ids=[
        "a chunk is filled up with the next prompt",
        "no bound: whole prompts together",
        "whole prompts never exceed max_prefill_tokens together",
        "max_prefill_tokens bounds a chunk too",
        "throughput mode lifts the bound on chunks",
        "one prompt above max_prefill_tokens runs alone and whole",
    ],
)  # fmt: skip
def test_prompts_are_cut_into_steps(config: EngineConfig, expected: list[list[tuple[str, int]]]) -> None:
    driver = driver_of(config)
    driver.run(ask("a", repeat(1, 70), 1), ask("b", repeat(2, 50), 1))
    assert chunks_of(driver) == expected


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (replace(BASE, chunked_prefill_size=40), [0, 0, 0]),
        (replace(BASE, chunked_prefill_size=41, mixed_chunk=True), [1, 1, 1]),
        (replace(BASE, chunked_prefill_size=40, mixed_chunk=True), [1, 1, 1, 1]),
        (replace(BASE, chunked_prefill_size=None, mixed_chunk=True), [0]),
        (replace(BASE, throughput_mode=True), [1]),
    ],
    ids=[
        "prefill first: decoding waits",
        "mixed: three chunks of 40 beside one row",
        "mixed: the row is charged to the chunk, so 40 leave 39",
        "no chunk size turns mixing off, as in SGLang",
        "throughput mode mixes whole prompts",
    ],
)
def test_decoding_goes_on_beside_a_prefill_only_when_mixed(config: EngineConfig, rows: list[int]) -> None:
    driver = driver_of(config)
    driver.submit(ask("decoding", [9], 50))
    driver.run_steps(2)
    driver.submit(ask("prompt", repeat(1, 120), 1))
    driver.run()
    with_chunks = [step for step in driver.steps[2:] if step.chunks]
    assert [step.decode_sequences for step in with_chunks] == rows
    assert driver.engine.totals.mixed_steps == sum(1 for row in rows if row)


def test_each_chunk_boundary_costs_delta() -> None:
    plain, with_delta = (
        driver_of(replace(BASE, chunked_prefill_size=25)),
        driver_of(replace(BASE, chunked_prefill_size=25, chunk_boundary_us=5_000)),
    )
    for driver in (plain, with_delta):
        driver.run(ask("a", repeat(1, 100), 1))
    assert with_delta.now_us - plain.now_us == 3 * 5_000
    assert with_delta.engine.totals.cost_us["chunk_boundary"] == 15_000
    assert with_delta.engine.totals.busy_us == sum(
        cost for kind, cost in with_delta.engine.totals.cost_us.items() if kind != "chunk_boundary"
    )


# -- order -------------------------------------------------------------------------------------------------------------

CACHED = words("a long prefix that is cached ")


def warm(config: EngineConfig, output_tokens: int = 8) -> EngineDriver:
    """One slot, taken by a request that decodes while the cache knows CACHED."""
    driver = driver_of(config)
    driver.run(ask("before", CACHED, 1))
    driver.submit(ask("busy", repeat(9, 5), output_tokens))
    driver.run_steps(1)
    return driver


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ONE_SLOT, "cold warm urgent"),
        (replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM), "warm cold urgent"),
        (replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM, disable_radix_cache=True), "cold warm urgent"),
        (replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM, lpm_max_waiting=2), "cold warm urgent"),
        (replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM, lpm_max_waiting=3), "warm cold urgent"),
        (replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM, max_age_us=1), "cold warm urgent"),
        (replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM, max_age_us=10**9), "warm cold urgent"),
        (replace(ONE_SLOT, priority_scheduling=True), "urgent cold warm"),
        (replace(ONE_SLOT, priority_scheduling=True, low_priority_values_first=True), "cold warm urgent"),
        (replace(ONE_SLOT, priority_scheduling=True, schedule_policy=SchedulePolicy.LPM), "urgent warm cold"),
    ],
    ids=[
        "FCFS: in order of arrival",
        "LPM: the longest cached prefix first",
        "LPM without a cache is FCFS",
        "LPM falls back above its number of waiting requests",
        "LPM holds up to its number of waiting requests",
        "LPM: what is older than the bound goes first",
        "LPM: nothing is that old",
        "priority: the higher value first",
        "priority: the lower value first where the flag says so",
        "priority before prefix",
    ],
)
def test_the_queue_is_served_in_the_policys_order(config: EngineConfig, expected: str) -> None:
    driver = warm(config)
    driver.submit(
        ask("cold", words("something else entirely"), 1),
        ask("warm", [*CACHED, 1], 1),
        ask("urgent", words("one more prompt"), 1, priority=5),
    )
    driver.run()
    order = [rid for rid in first_tokens(driver.served) if rid not in {"before", "busy"}]
    assert order == expected.split()


@pytest.mark.parametrize(("bound", "place"), [(None, 6), (3, 3), (1, 1)], ids=["no bound", "three", "one"])
def test_lpm_lets_a_cold_request_be_overtaken_only_so_many_times(bound: int | None, place: int) -> None:
    driver = warm(replace(ONE_SLOT, schedule_policy=SchedulePolicy.LPM, lpm_max_overtakes=bound))
    driver.submit(ask("cold", words("something else"), 1))
    driver.submit(*(ask(f"warm{number}", [*CACHED, number], 1) for number in range(6)))
    driver.run()
    order = [rid for rid in first_tokens(driver.served) if rid not in {"before", "busy"}]
    assert order.index("cold") == place


def test_a_cached_prefix_is_not_computed_again_and_is_reported_with_the_first_token() -> None:
    driver = driver_of(BASE)
    driver.run(ask("a", CACHED, 1))
    driver.run(ask("same", CACHED, 1), ask("longer", [*CACHED, 1, 2], 1))
    assert driver.served["same"].cached_tokens == len(CACHED) - 1, "the last token is always computed"
    assert driver.served["longer"].cached_tokens == len(CACHED)
    assert driver.engine.totals.cached_tokens == 2 * len(CACHED) - 1
    assert driver.engine.totals.prompt_tokens == 3 * len(CACHED) + 2


def test_a_reply_with_known_tokens_is_a_prefix_of_the_next_prompt() -> None:
    driver = driver_of(BASE)
    reply = words("answer")
    driver.run(EngineRequest(rid="a", prompt=CACHED, output_tokens=6, reply=reply))
    driver.run(ask("b", [*CACHED, *reply, 1], 1))
    assert driver.served["b"].cached_tokens == len(CACHED) + 5, "the last token's KV was never written"


def test_without_a_radix_cache_nothing_is_reused() -> None:
    driver = driver_of(replace(BASE, disable_radix_cache=True))
    driver.run(ask("a", CACHED, 1))
    driver.run(ask("b", CACHED, 1))
    assert driver.served["b"].cached_tokens == 0
    assert driver.engine.gauges().kv_cached_tokens == 0


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_no_more_requests_run_than_allowed() -> None:
    driver = driver_of(replace(BASE, max_running_requests=3))
    driver.submit(*(ask(f"r{number}", [number], 5) for number in range(7)))
    driver.run_steps(1)
    assert (driver.engine.gauges().running, driver.engine.gauges().queued) == (3, 4)
    driver.run()
    assert all(served.end is FinishReason.LENGTH for served in driver.served.values())


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ask("r", repeat(1, 3_999), 2), RejectReason.TOO_LONG),
        (ask("r", repeat(1, 3_999), 1), None),
        (ask("r", repeat(1, 2_000), 2_000), None),
    ],
    ids=["one token above the context", "just fits", "the reply counts"],
)
def test_a_request_that_can_never_fit_is_refused(request_: EngineRequest, reason: RejectReason | None) -> None:
    refused = driver_of_submit(BASE, request_).refused
    assert (refused.reason if refused else None) is reason


def test_a_request_larger_than_the_pool_is_refused() -> None:
    refused = driver_of_submit(replace(BASE, pool_tokens=100), ask("r", repeat(1, 90), 11)).refused
    assert refused is not None
    assert refused.reason is RejectReason.TOO_LONG
    assert "100" in refused.message


def driver_of_submit(config: EngineConfig, request: EngineRequest) -> Served:
    driver = driver_of(config)
    driver.submit(request)
    return driver.served[request.rid]


def test_a_full_queue_refuses() -> None:
    driver = driver_of(replace(ONE_SLOT, max_queued_requests=2))
    driver.submit(ask("runs", [1], 9))
    driver.run_steps(1)
    driver.submit(*(ask(f"q{number}", [number], 1) for number in range(3)))
    refused = driver.served["q2"].refused
    assert refused is not None
    assert refused.reason is RejectReason.QUEUE_FULL
    assert driver.served["q1"].refused is None


@pytest.mark.parametrize(
    ("request_", "match"),
    [(ask("taken", [1]), "in use"), (ask("r", []), "at least one prompt token"), (ask("r", [1], -1), "no negative")],
    ids=["an id in use", "an empty prompt", "a negative reply"],
)
def test_a_callers_mistake_is_an_error(request_: EngineRequest, match: str) -> None:
    driver = driver_of(BASE)
    driver.submit(ask("taken", [1]))
    with pytest.raises(ValueError, match=match):
        driver.engine.submit(request_, 0)


def test_steps_must_alternate() -> None:
    engine = Scheduler(BASE, COST)
    with pytest.raises(RuntimeError, match="no step is running"):
        engine.end_step(0)
    engine.submit(ask("a", [1]), 0)
    engine.begin_step(0)
    with pytest.raises(RuntimeError, match="a step is running"):
        engine.begin_step(0)


# -- abort and flush ---------------------------------------------------------------------------------------------------


def state_of(driver: EngineDriver) -> tuple[int, int]:
    gauges = driver.engine.gauges()
    return gauges.running, gauges.queued


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, (0, 1)), (1, (1, 0)), (4, (1, 0))],
    ids=["queued", "in prefill", "decoding"],
)
def test_an_abort_between_steps_frees_everything_at_once(steps: int, expected: tuple[int, int]) -> None:
    driver = driver_of(replace(BASE, chunked_prefill_size=40))
    driver.submit(ask("a", repeat(1, 100), 50))
    driver.run_steps(steps)
    assert state_of(driver) == expected
    assert driver.engine.abort("a", driver.now_us)
    assert state_of(driver) == (0, 0)
    assert driver.engine.gauges().kv_used_tokens == 0
    assert not driver.engine.abort("a", driver.now_us), "it is not here any more"
    assert driver.engine.begin_step(driver.now_us) is None
    assert driver.engine.totals.aborted == 1


@pytest.mark.parametrize("steps", [0, 1, 4], ids=["while it starts", "in prefill", "decoding"])
def test_an_abort_during_a_step_takes_effect_at_its_end_and_no_token_follows(steps: int) -> None:
    driver = driver_of(replace(BASE, chunked_prefill_size=40))
    driver.submit(ask("a", repeat(1, 100), 50))
    driver.run_steps(steps)
    step = driver.engine.begin_step(driver.now_us)
    assert step is not None
    assert driver.engine.abort("a", driver.now_us)
    assert driver.engine.gauges().running == 1
    events = driver.engine.end_step(step.start_us + step.duration_us)
    assert events == [Finished("a", FinishReason.ABORT)]
    assert state_of(driver) == (0, 0)
    assert driver.engine.gauges().kv_used_tokens == 0


def test_a_queued_request_aborted_during_a_step_is_reported_at_its_end() -> None:
    driver = driver_of(ONE_SLOT)
    driver.submit(ask("runs", [1], 9), ask("waits", [2], 1))
    step = driver.engine.begin_step(0)
    assert step is not None
    assert driver.engine.abort("waits", 0)
    assert driver.engine.gauges().queued == 0
    assert driver.engine.end_step(step.duration_us) == [Finished("waits", FinishReason.ABORT), Token("runs", 0)]


def test_an_abort_takes_the_exact_id_only() -> None:
    driver = driver_of(BASE)
    driver.submit(ask("r", [1]), ask("r-1", [2]))
    assert not driver.engine.abort("r-", 0)
    assert driver.engine.abort("r", 0)
    driver.run()
    assert driver.served["r-1"].end is FinishReason.LENGTH


def test_the_cache_can_be_flushed_only_when_idle() -> None:
    driver = driver_of(replace(BASE, kv_aware_admission=True))
    driver.submit(ask("a", CACHED, 3))
    assert not driver.engine.flush_cache()
    driver.run()
    assert driver.engine.gauges().kv_cached_tokens == len(CACHED)
    assert driver.engine.flush_cache()
    assert driver.engine.gauges().kv_cached_tokens == driver.engine.gauges().held_sessions == 0
    driver.run(ask("b", CACHED, 1))
    assert driver.served["b"].cached_tokens == 0


def test_progress_of_a_request_can_be_asked() -> None:
    driver = driver_of(ONE_SLOT)
    driver.submit(ask("a", [1], 9), ask("b", [2], 9))
    driver.run_steps(3)
    engine = driver.engine
    assert (engine.made_tokens("a"), engine.made_tokens("b"), engine.made_tokens("c")) == (3, 0, None)
    assert (engine.has_started("a"), engine.has_started("b"), engine.has_started("c")) == (True, False, False)
    assert engine.queued == 1
