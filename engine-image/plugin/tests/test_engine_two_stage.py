"""The two-stage rule: enters once, leaves with hysteresis, never deadlocks, never starves."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_engine.two_stage import PoolState, Reason, Stage, StageState, TwoStageSettings, next_stage

SETTINGS = TwoStageSettings()
FULL = PoolState(
    total_tokens=100_000, available_tokens=4_000, evictable_tokens=1_000, pending_tokens=20_000, running_requests=12
)
DRAINING = StageState(Stage.DRAIN, Reason.POOL_FULL, 3)


@dataclass(frozen=True, slots=True)
class Case:
    state: StageState
    pool: PoolState
    want: StageState


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(StageState(), FULL, StageState(Stage.DRAIN, Reason.POOL_FULL, 1)), id="a full pool with a queue drains"
        ),
        pytest.param(
            Case(StageState(), replace(FULL, available_tokens=9_000), StageState()),
            id="at the watermark it still mixes",
        ),
        pytest.param(
            Case(StageState(), replace(FULL, available_tokens=0, evictable_tokens=95_000), StageState()),
            id="a warm cache is not a full pool",
        ),
        pytest.param(
            Case(StageState(), replace(FULL, pending_tokens=900), StageState(Stage.MIXED, Reason.EVICTION_SUFFICES)),
            id="pending that eviction can hold goes on",
        ),
        pytest.param(
            Case(StageState(), replace(FULL, running_requests=0), StageState(Stage.MIXED, Reason.NOTHING_RUNS)),
            id="with nothing running it never drains",
        ),
        pytest.param(
            Case(DRAINING, replace(FULL, half_done_prompt=True), StageState(Stage.MIXED, Reason.HALF_DONE_PROMPT)),
            id="a half-done prompt ends draining",
        ),
        pytest.param(
            Case(DRAINING, replace(FULL, pending_tokens=0), StageState(Stage.MIXED, Reason.NOTHING_WAITS)),
            id="with nothing waiting it does not drain",
        ),
        pytest.param(
            Case(DRAINING, replace(FULL, available_tokens=14_000), StageState(Stage.DRAIN, Reason.STILL_FULL, 4)),
            id="between the watermarks it goes on draining",
        ),
        pytest.param(
            Case(DRAINING, replace(FULL, available_tokens=20_000), StageState(Stage.MIXED, Reason.DRAINED)),
            id="below the lower watermark it mixes again",
        ),
        pytest.param(
            Case(
                StageState(Stage.DRAIN, Reason.STILL_FULL, 2000), FULL, StageState(Stage.MIXED, Reason.STARVATION_BOUND)
            ),
            id="a drain that lasts too long ends",
        ),
    ],
)
def test_engine_two_stage_decides(case: Case) -> None:
    assert next_stage(case.state, case.pool, SETTINGS) == case.want


def flips(settings: TwoStageSettings) -> int:
    """Stage changes of a pool that gains 3 % a mixed iteration and loses 1 % a drained one."""
    state, usage, count = StageState(), 0.5, 0
    for _ in range(400):
        pool = replace(FULL, available_tokens=round(100_000 * (1 - usage)), evictable_tokens=0)
        after = next_stage(state, pool, settings)
        count += after.stage is not state.stage
        state = after
        usage = min(1.0, usage + 0.03) if state.stage is Stage.MIXED else usage - 0.01
    return count


def test_engine_two_stage_hysteresis_spares_flips() -> None:
    narrow = TwoStageSettings(enter_usage=0.90, leave_usage=0.8999)
    assert 2 < flips(SETTINGS) < flips(narrow) / 2


POOLS = st.builds(
    PoolState,
    total_tokens=st.just(100_000),
    available_tokens=st.integers(0, 50_000),
    evictable_tokens=st.integers(0, 50_000),
    pending_tokens=st.integers(0, 200_000),
    running_requests=st.integers(0, 64),
    half_done_prompt=st.booleans(),
)


@given(st.lists(POOLS, max_size=60))
def test_engine_two_stage_never_blocks_an_idle_engine(pools: list[PoolState]) -> None:
    state = StageState()
    for pool in pools:
        state = next_stage(state, pool, SETTINGS)
        if pool.running_requests == 0 or pool.half_done_prompt:
            assert state.stage is Stage.MIXED


@given(st.integers(1, 50))
def test_engine_two_stage_drains_no_longer_than_its_bound(bound: int) -> None:
    settings = TwoStageSettings(maximum_drain_iterations=bound)
    state, longest, current = StageState(), 0, 0
    for _ in range(3 * bound + 3):
        state = next_stage(state, FULL, settings)
        current = current + 1 if state.stage is Stage.DRAIN else 0
        longest = max(longest, current)
    assert longest == bound


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        pytest.param({"enter_usage": 0.8, "leave_usage": 0.8}, "watermarks", id="no hysteresis"),
        pytest.param({"enter_usage": 1.1}, "watermarks", id="a watermark above the pool"),
        pytest.param({"leave_usage": 0.0}, "watermarks", id="a drain that cannot end"),
        pytest.param({"maximum_drain_iterations": 0}, "at least 1", id="a drain of no iterations"),
    ],
)
def test_engine_two_stage_settings_refuse(settings: dict[str, float], want: str) -> None:
    with pytest.raises(ValueError, match=want):
        TwoStageSettings(**settings)  # type: ignore[arg-type]
