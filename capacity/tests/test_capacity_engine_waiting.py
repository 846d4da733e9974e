"""What the engine says of its waiting queue, and that asking changes nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_capacity.engine.radix import RadixTree, token_key
from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.testing import EngineDriver, LinearCost, repeat
from hlserve_capacity.engine.types import EngineConfig, EngineRequest, SchedulePolicy
from hlserve_capacity.engine.waiting import Admission, Wait, WaitReason, matched_and_loose_tokens

PLAIN = EngineConfig(pool_tokens=1_000, context_length=1_000, max_running_requests=2, chunked_prefill_size=100)
SESSIONS = replace(PLAIN, max_running_requests=8, throughput_mode=True, kv_aware_admission=True)


def ask(rid: str, token: int, prompt_tokens: int, output_tokens: int = 10) -> EngineRequest:
    return EngineRequest(rid=rid, prompt=repeat(token, prompt_tokens), output_tokens=output_tokens)


def busy(config: EngineConfig, *requests: EngineRequest) -> EngineDriver:
    """An engine in the midst of its first step with these requests."""
    driver = EngineDriver(Scheduler(config, LinearCost()))
    driver.submit(*requests)
    assert driver.engine.begin_step(0) is not None
    return driver


@pytest.mark.parametrize(
    ("config", "running", "waiting", "expected"),
    [
        (PLAIN, [("a", 1, 50), ("b", 2, 50)], ("c", 3, 50), Wait(WaitReason.SLOTS, 0, 1)),
        (PLAIN, [("a", 1, 690)], ("c", 3, 400), Wait(WaitReason.KV, 300, 410)),
        (PLAIN, [("a", 1, 150)], ("c", 3, 50), Wait(WaitReason.BUDGET, 0, 50)),
        (PLAIN, [("a", 1, 50)], ("c", 3, 50), Wait(WaitReason.NONE, 940, 60)),
        (SESSIONS, [("a", 1, 690)], ("c", 3, 300), Wait(WaitReason.ADMISSION, 200, 310)),
        (SESSIONS, [("a", 1, 690)], ("c", 3, 150), Wait(WaitReason.NONE, 300, 160)),
        (
            replace(PLAIN, throughput_mode=True, max_prefill_tokens=200),
            [("a", 1, 150)],
            ("c", 3, 80),
            Wait(WaitReason.BUDGET, 50, 80),
        ),
    ],
    ids=[
        "a full batch",
        "too little KV",
        "the chunk is taken by a longer prompt",
        "nothing: it came during the step",
        "the admitted sessions fill the bound",
        "a new session within the bound",
        "a whole prompt that the step has no room for",
    ],
)
def test_the_first_waiting_request_tells_what_it_waits_for(
    config: EngineConfig, running: list[tuple[str, int, int]], waiting: tuple[str, int, int], expected: Wait
) -> None:
    driver = busy(config, *(ask(*one) for one in running))
    assert driver.engine.waits_for(driver.now_us) is None
    driver.submit(ask(*waiting))
    assert driver.engine.waits_for(driver.now_us) == expected


def test_a_prefix_in_the_cache_is_not_needed_again_and_not_counted_as_room() -> None:
    driver = EngineDriver(Scheduler(PLAIN, LinearCost()))
    driver.submit(ask("old", 1, 600))
    while driver.step():
        pass
    driver.submit(ask("run", 2, 350))
    driver.step()
    driver.submit(ask("again", 1, 650))
    # 1000 - 360 of the running one; 600 of its 660 tokens are there already, and they are most of what could be evicted.
    assert driver.engine.waits_for(driver.now_us) == Wait(WaitReason.KV, 40, 60)


def test_a_decode_only_stage_has_no_budget_for_a_request_whose_kv_would_fit() -> None:
    stages = replace(PLAIN, two_stage=True, two_stage_enter=0.5, two_stage_leave=0.4, chunked_prefill_size=None)
    driver = busy(replace(stages, reserve_output=False, new_token_ratio=0.0), ask("a", 1, 600, 100))
    driver.engine.end_step(10_000)
    driver.submit(ask("b", 2, 399, 1), ask("c", 3, 300, 1))
    step = driver.engine.begin_step(10_000)
    assert step is not None
    assert step.chunks == ()
    assert driver.engine.waits_for(10_000) == Wait(WaitReason.BUDGET, 0, 399)


def test_admission_counts_footprints_against_the_bound_or_what_runs_against_the_pool() -> None:
    assert busy(SESSIONS, ask("a", 1, 690)).engine.admission() == Admission(700, 900)
    assert busy(PLAIN, ask("a", 1, 690)).engine.admission() == Admission(700, 1_000)
    resting = EngineDriver(Scheduler(SESSIONS, LinearCost()))
    resting.submit(ask("a", 1, 400))
    while resting.served["a"].end is None:
        resting.step()
    assert resting.engine.admission() == Admission(400, 900)


PROMPTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 400), st.integers(0, 60), st.integers(0, 4)), min_size=1, max_size=12
)
CONFIGS = st.sampled_from(
    [
        PLAIN,
        SESSIONS,
        replace(SESSIONS, schedule_policy=SchedulePolicy.LPM, two_stage=True, lpm_max_overtakes=2),
        replace(PLAIN, reserve_output=False, mixed_chunk=True),
    ]
)


@given(CONFIGS, PROMPTS)
def test_asking_changes_no_decision(config: EngineConfig, prompts: list[tuple[int, int, int, int]]) -> None:
    asked, silent = (EngineDriver(Scheduler(config, LinearCost())) for _ in range(2))
    for number, (token, prompt, output, steps) in enumerate(prompts):
        for driver in (asked, silent):
            driver.submit(ask(f"r{number}", token, prompt, output))
        for _ in range(steps + 300 * (number == len(prompts) - 1)):
            asked.engine.waits_for(asked.now_us)
            if not asked.step():
                wait = asked.engine.waits_for(asked.now_us)
                assert wait is None or wait.reason in (WaitReason.KV, WaitReason.ADMISSION)
                break
            silent.step()
            asked.engine.waits_for(asked.now_us)
    assert asked.steps == silent.steps
    assert asked.served == silent.served


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.booleans()), max_size=6), st.data())
def test_matched_and_loose_tokens_are_what_a_lock_would_find(
    cached: list[tuple[list[int], bool]], data: st.DataObject
) -> None:
    tree = RadixTree()
    for tokens, locked in cached:
        leaf, _ = tree.insert(token_key(tokens))
        if locked:
            tree.acquire(leaf)
    key = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    limit = data.draw(st.integers(0, len(key)))
    told = matched_and_loose_tokens(tree, token_key(key), limit)
    before = tree.evictable_tokens
    found = tree.match(token_key(key), limit)
    tree.acquire(found.node)
    assert told == (found.tokens, before - tree.evictable_tokens)
