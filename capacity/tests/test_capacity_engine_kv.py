"""What happens when KV is short: session admission, two-stage mixing, retraction, eviction."""

from dataclasses import replace

import pytest

from hlserve_capacity.engine.mixing import KvPressure, NaiveStageGate, StageGate
from hlserve_capacity.engine.retraction import NewTokenRatio
from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.testing import EngineDriver, LinearCost, first_tokens, repeat, words
from hlserve_capacity.engine.types import EngineConfig, EngineRequest, FinishReason, SchedulePolicy

IDLE_US = 1_000_000
COST = LinearCost()
SESSIONS = EngineConfig(
    pool_tokens=1_000,
    context_length=1_000,
    max_running_requests=8,
    throughput_mode=True,
    kv_aware_admission=True,
    session_idle_us=IDLE_US,
)


def ask(rid: str, prompt: list[int], output_tokens: int = 10, priority: int = 0) -> EngineRequest:
    return EngineRequest(rid=rid, prompt=prompt, output_tokens=output_tokens, priority=priority)


def driver_of(config: EngineConfig) -> EngineDriver:
    return EngineDriver(Scheduler(config, COST))


def resting(config: EngineConfig = SESSIONS) -> EngineDriver:
    """Two sessions of 400 tokens that have finished a round and hold their KV."""
    driver = driver_of(config)
    driver.submit(ask("a1", repeat(1, 400)), ask("b1", repeat(2, 400)))
    while driver.served["a1"].end is None or driver.served["b1"].end is None:
        driver.step()
    return driver


def later(prompt: int, more: int) -> list[int]:
    return [*repeat(prompt, 400), *repeat(prompt + 100, more)]


# -- session admission -------------------------------------------------------------------------------------------------


def test_a_finished_request_keeps_its_prefix_for_the_session() -> None:
    driver = resting()
    gauges = driver.engine.gauges()
    assert (gauges.held_sessions, gauges.kv_used_tokens, gauges.kv_cached_tokens) == (2, 0, 800)


def test_a_new_session_waits_for_room_and_a_continuation_passes_it() -> None:
    driver = resting()
    driver.submit(ask("new", repeat(3, 200)))
    assert driver.engine.begin_step(driver.now_us) is None, "410 + 410 + 210 tokens are above 0.9 of the pool"
    driver.submit(ask("a2", later(1, 20)))
    driver.run_steps(1)
    assert (driver.engine.gauges().running, driver.engine.gauges().queued) == (1, 1)
    driver.run()
    assert driver.served["a2"].cached_tokens == 400
    assert first_tokens(driver.served)[-2:] == ["a2", "new"]


def test_the_hold_of_an_idle_session_expires_and_lets_the_next_in() -> None:
    driver = resting()
    rested_us = driver.now_us
    driver.submit(ask("new", repeat(3, 200)))
    assert driver.engine.begin_step(driver.now_us) is None
    wakeup_us = driver.engine.next_wakeup_us(driver.now_us)
    assert wakeup_us is not None
    assert wakeup_us <= rested_us + IDLE_US
    driver.run()
    assert driver.served["new"].token_us[0] >= wakeup_us
    assert driver.served["new"].end is FinishReason.LENGTH


def test_a_hold_that_expired_is_still_cached_until_someone_needs_the_room() -> None:
    driver = resting()
    driver.now_us += 2 * IDLE_US
    driver.submit(ask("a2", later(1, 20), 1))
    driver.run()
    assert driver.served["a2"].cached_tokens == 400


@pytest.mark.parametrize(
    ("prompt", "continues"),
    [
        (later(1, 5), True),
        ([*repeat(1, 380), *repeat(7, 60)], True),
        ([*repeat(1, 350), *repeat(7, 90)], False),
        (repeat(1, 390), True),
        (repeat(5, 410), False),
    ],
    ids=[
        "the whole former prompt and more",
        "the former prompt but its last twentieth",
        "less than nine tenths of it: a shared system prompt, not the session",
        "a shorter prompt with the same start",
        "another session",
    ],
)
def test_a_session_is_recognised_by_its_prefix(prompt: list[int], continues: bool) -> None:
    driver = resting()
    driver.submit(ask("next", prompt, 1))
    assert driver.engine.gauges().held_sessions == (1 if continues else 2)


def test_the_longest_continued_session_is_taken_over() -> None:
    driver = driver_of(SESSIONS)
    driver.submit(ask("long", repeat(1, 100), 1), ask("short", repeat(1, 50), 1))
    while driver.served["long"].end is None:
        driver.step()
    driver.submit(ask("next", repeat(1, 120), 1))
    held = [len(hold.required) // 8 for hold in driver.engine._sessions._idle.values()]
    assert held == [45], "the session of 100 tokens is in flight again, that of 50 rests"


def test_sessions_in_flight_stay_inside_the_bound_whatever_waits() -> None:
    driver = driver_of(SESSIONS)
    driver.submit(*(ask(f"r{number}", repeat(number, 190)) for number in range(20)))
    most = 0
    while driver.step():
        ledger = driver.engine._sessions
        most = max(most, ledger.active_tokens)
    assert most == 800, "four sessions of 200 tokens are inside 900, five are not"
    assert all(served.end is FinishReason.LENGTH for served in driver.served.values())


def test_new_sessions_enter_in_order_of_arrival_even_under_lpm() -> None:
    driver = driver_of(replace(SESSIONS, schedule_policy=SchedulePolicy.LPM, max_running_requests=1))
    driver.run(ask("seed", repeat(1, 300), 1))
    driver.now_us += 2 * IDLE_US
    driver.submit(ask("cold", repeat(2, 100), 1), ask("warm", [*repeat(1, 250), *repeat(3, 50)], 1))
    driver.run()
    assert first_tokens(driver.served) == ["seed", "cold", "warm"]


def test_a_request_above_the_bound_runs_when_nothing_else_does() -> None:
    driver = driver_of(SESSIONS)
    driver.run(ask("huge", repeat(1, 980), 10))
    assert driver.served["huge"].end is FinishReason.LENGTH


def test_an_aborted_queued_continuation_leaves_the_session_resting() -> None:
    driver = resting(replace(SESSIONS, max_running_requests=1))
    driver.submit(ask("other", repeat(9, 5), 50))
    driver.run_steps(1)
    driver.submit(ask("a2", later(1, 20)))
    assert driver.engine.gauges().held_sessions == 1
    driver.engine.abort("a2", driver.now_us)
    assert driver.engine.gauges().held_sessions == 2
    driver.submit(ask("a3", later(1, 30), 1))
    driver.run()
    assert driver.served["a3"].cached_tokens == 400


def test_an_aborted_running_request_ends_its_session() -> None:
    driver = driver_of(SESSIONS)
    driver.submit(ask("a", repeat(1, 100), 50))
    driver.run_steps(3)
    driver.engine.abort("a", driver.now_us)
    assert driver.engine.gauges().held_sessions == 0
    assert driver.engine._sessions.active_tokens == 0
    assert driver.engine.gauges().kv_cached_tokens == 100


def test_a_continuation_that_does_not_fit_takes_the_room_of_idle_sessions_when_nothing_runs() -> None:
    driver = resting()
    driver.submit(ask("a2", [*repeat(1, 400), *repeat(7, 400)]))
    driver.run_steps(1)
    assert driver.engine.gauges().running == 1
    assert driver.engine.gauges().held_sessions == 0
    assert driver.served["a2"].cached_tokens in {0, 400}


def test_two_continuations_that_do_not_fit_together_both_finish() -> None:
    driver = resting()
    driver.submit(ask("a2", [*repeat(1, 400), *repeat(7, 500)]), ask("b2", [*repeat(2, 400), *repeat(8, 500)]))
    driver.run()
    assert all(served.end is FinishReason.LENGTH for served in driver.served.values())


def test_without_admission_the_idle_sessions_lose_their_prefix_to_newcomers() -> None:
    kept, lost = resting(), resting(replace(SESSIONS, kv_aware_admission=False))
    for driver in (kept, lost):
        driver.submit(*(ask(f"new{number}", repeat(10 + number, 300), 1) for number in range(4)))
        driver.submit(ask("a2", later(1, 20), 1))
        driver.run()
    assert kept.served["a2"].cached_tokens == 400
    assert lost.served["a2"].cached_tokens == 0


# -- two stages --------------------------------------------------------------------------------------------------------


def pressure(resident: int, pending: int, reserved: int = 0) -> KvPressure:
    return KvPressure(pool=100, resident=resident, reserved=reserved, held=0, pending=pending)


def test_the_gated_rule_enters_high_leaves_low_and_needs_pending_work() -> None:
    gate = StageGate(0.9, 0.8)
    seen = [
        gate.update(pressure(90, pending=50)),
        gate.update(pressure(91, pending=9)),
        gate.update(pressure(91, pending=10)),
        gate.update(pressure(85, pending=50)),
        gate.update(pressure(80, pending=50)),
        gate.update(pressure(85, pending=50)),
    ]
    assert seen == [False, False, True, True, False, False]
    assert gate.flips == 2


def test_a_decode_only_stage_ends_after_its_longest_time_although_the_pool_is_full() -> None:
    gate = StageGate(0.9, 0.8, longest=3)
    seen = [gate.update(pressure(95, pending=50)) for _ in range(8)]
    assert seen == [True, True, True, False, True, True, True, False]


def test_the_naive_rule_counts_what_is_only_reserved() -> None:
    naive, gated = NaiveStageGate(0.9, 0.8), StageGate(0.9, 0.8)
    state = pressure(resident=20, pending=50, reserved=95)
    assert naive.update(state)
    assert not gated.update(state)


def test_kv_held_for_idle_sessions_is_no_room_for_a_prefill() -> None:
    state = pressure(resident=91, pending=8)
    assert not StageGate(0.9, 0.8).update(state)
    assert StageGate(0.9, 0.8).update(replace(state, held=5))


def test_nobody_decoding_ends_the_stage() -> None:
    gate = StageGate(0.9, 0.8)
    gate.update(pressure(95, pending=50))
    gate.idle()
    assert not gate.decode_only


@pytest.mark.parametrize(("enter", "leave"), [(0.8, 0.9), (1.1, 0.5), (0.5, 0.0)])
def test_marks_in_the_wrong_order_are_refused(enter: float, leave: float) -> None:
    with pytest.raises(ValueError, match="0 < leave <= enter <= 1"):
        StageGate(enter, leave)


def test_a_stage_of_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        StageGate(0.9, 0.8, longest=0)


def test_the_engine_stops_prefill_when_resident_kv_is_high_and_goes_on_below() -> None:
    config = EngineConfig(
        pool_tokens=1_000,
        context_length=1_000,
        mixed_chunk=True,
        chunked_prefill_size=100,
        two_stage=True,
        reserve_output=False,
        new_token_ratio=0.1,
    )
    driver = driver_of(config)
    driver.submit(*(ask(f"r{number}", repeat(number, 300), 60) for number in range(6)))
    driver.run()
    usage = [(step.decode_context_tokens, bool(step.chunks)) for step in driver.steps]
    assert driver.engine.totals.stage_flips >= 2
    assert not any(chunks for context, chunks in usage if context > 905)
    assert all(served.end is FinishReason.LENGTH for served in driver.served.values())


def test_kv_that_is_only_promised_does_not_stop_prefill() -> None:
    """950 of 1,000 tokens are promised, 150 at most are there: the second prompt's chunks go on beside the first's reply."""
    config = EngineConfig(
        pool_tokens=1_000, context_length=1_000, mixed_chunk=True, chunked_prefill_size=20, two_stage=True
    )
    driver = driver_of(config)
    driver.submit(ask("long reply", repeat(1, 50), 700), ask("next", repeat(2, 100), 100), ask("waits", repeat(3, 200)))
    driver.run_steps(12)
    assert (driver.engine.totals.stage_flips, driver.engine.gauges().queued) == (0, 1)
    assert driver.engine.made_tokens("next")


# -- retraction --------------------------------------------------------------------------------------------------------

TIGHT = EngineConfig(
    pool_tokens=300, context_length=300, mixed_chunk=True, chunked_prefill_size=400, reserve_output=False, new_token_ratio=0.0
)  # fmt: skip


def test_a_full_pool_retracts_and_every_reply_still_comes_once() -> None:
    driver = driver_of(TIGHT)
    driver.run(*(ask(f"r{number}", repeat(number, 60), 100) for number in range(4)))
    assert driver.engine.totals.retractions > 0
    for served in driver.served.values():
        assert served.indices == list(range(100))


def test_full_reservation_never_retracts() -> None:
    driver = driver_of(replace(TIGHT, reserve_output=True))
    driver.run(*(ask(f"r{number}", repeat(number, 60), 100) for number in range(4)))
    assert driver.engine.totals.retractions == 0
    assert max(step.decode_sequences for step in driver.steps) == 1


@pytest.mark.parametrize(
    ("config", "victim"),
    [
        (TIGHT, "young"),
        (replace(TIGHT, priority_scheduling=True), "young"),
        (replace(TIGHT, priority_scheduling=True, priority_retraction=True), "old"),
        (
            replace(TIGHT, priority_scheduling=True, priority_retraction=True, low_priority_values_first=True),
            "young",
        ),
    ],
    ids=[
        "the one with the fewest tokens",
        "the same where priorities decide only on the queue",
        "the least urgent",
        "the least urgent where low values are urgent",
    ],
)
def test_who_is_retracted_first(config: EngineConfig, victim: str) -> None:
    driver = driver_of(config)
    driver.submit(ask("old", repeat(1, 100), 100, priority=0))
    driver.run_steps(5)
    driver.submit(ask("young", repeat(2, 100), 100, priority=1))
    while not driver.engine.totals.retractions:
        driver.step()
    waiting = [
        rid for rid in ("old", "young") if driver.engine._known[rid].phase == 0 or driver.engine._known[rid].made
    ]
    assert waiting == [victim]


def test_the_ratio_decays_to_its_floor_and_is_estimated_anew_by_a_retraction() -> None:
    ratio = NewTokenRatio(0.7)
    for _ in range(1_000):
        ratio.decay()
    assert ratio.current == pytest.approx(0.098)
    ratio.after_retraction(made_tokens=100, requests=5, output_tokens=500)
    assert ratio.current == pytest.approx(0.4)
    ratio.reset()
    assert ratio.current == 0.7


@pytest.mark.parametrize("initial", [-0.1, 1.1])
def test_a_ratio_outside_its_range_is_refused(initial: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        NewTokenRatio(initial)


def test_admission_leaves_one_token_for_each_row_that_decodes_however_small_the_ratio() -> None:
    driver = driver_of(TIGHT)
    driver.submit(ask("a", repeat(1, 100), 50), ask("b", repeat(2, 100), 50))
    driver.run_steps(3)
    room = TIGHT.pool_tokens - driver.engine.gauges().kv_used_tokens
    driver.submit(ask("exact", repeat(3, room), 2))
    driver.run()
    assert all(served.end is FinishReason.LENGTH for served in driver.served.values())


@pytest.mark.parametrize(("ratio", "running"), [(1.0, 2), (0.0, 5)], ids=["careful", "bold"])
def test_the_ratio_decides_how_many_start(ratio: float, running: int) -> None:
    driver = driver_of(replace(TIGHT, new_token_ratio=ratio))
    driver.submit(*(ask(f"r{number}", repeat(number, 60), 80) for number in range(6)))
    driver.run_steps(1)
    assert driver.engine.gauges().running == running


# -- eviction ----------------------------------------------------------------------------------------------------------


def test_the_oldest_unused_prefix_is_evicted_for_a_new_prompt() -> None:
    driver = driver_of(EngineConfig(pool_tokens=300, context_length=300))
    driver.run(ask("first", words("x" * 100), 1))
    driver.run(ask("second", words("y" * 100), 1))
    driver.run(ask("third", words("z" * 140), 1))
    driver.run(ask("again2", words("y" * 100), 1))
    assert driver.served["again2"].cached_tokens == 99
    driver.run(ask("again1", words("x" * 100), 1))
    assert driver.served["again1"].cached_tokens == 0


def test_a_pool_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 0 tokens"):
        driver_of(EngineConfig(pool_tokens=0))
