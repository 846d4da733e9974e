"""What every run of the lab must keep, whatever the load."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_capacity.lab.arrivals import ClosedLoop
from hlserve_capacity.lab.batching import Batching, Chunked, Continuous, Static
from hlserve_capacity.lab.metrics import goodput_share, summarise
from hlserve_capacity.lab.records import LabRun
from hlserve_capacity.lab.scheduler import run_closed_loop, run_open_loop
from hlserve_capacity.lab.workload import (
    Burst,
    LabRequest,
    constant,
    exponential,
    lognormal,
    open_loop,
    uniform,
)
from hlserve_capacity.linear import LinearCost, batching_lab

requests_strategy = st.lists(
    st.builds(LabRequest, st.integers(0, 500_000), st.integers(0, 3000), st.integers(1, 60)), min_size=1, max_size=40
)
batching_strategy = st.one_of(
    st.builds(Static, st.integers(1, 9)),
    st.builds(Continuous, st.integers(1, 9)),
    st.builds(Chunked, st.integers(1, 9), st.integers(1, 2000)),
)


@dataclass(frozen=True)
class OneStepAtATime:
    """The lab's cost as a foreign cost model, for which equal steps are not taken at once."""

    pool_tokens: int = 2**62

    def step_us(
        self, decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]] = ()
    ) -> float:
        return batching_lab().step_us(decode_sequences, decode_context_tokens, chunks)


def facts(run: LabRun) -> list[tuple[int | None, ...]]:
    return [
        (record.slot, record.admitted_us, record.first_token_us, record.finished_us, record.released_us)
        for record in run.records
    ]


@given(requests=requests_strategy, batching=batching_strategy)
def test_a_drained_run_serves_everything_exactly_once(requests: list[LabRequest], batching: Batching) -> None:
    run = run_open_loop(requests, batching, batching_lab())
    assert run.tokens == sum(request.output_tokens for request in requests)
    assert sum(run.itl_counts.values()) == run.tokens - len(requests)
    assert run.not_arrived == run.waiting_at_end == 0
    for record in run.records:
        times = (
            record.request.arrival_us,
            record.admitted_us,
            record.first_token_us,
            record.finished_us,
            record.released_us,
        )
        known = [time for time in times if time is not None]
        assert len(known) == 5
        assert known == sorted(known)
    assert max(record.released_us or 0 for record in run.records) == run.end_us


@given(requests=requests_strategy, batching=batching_strategy)
def test_no_slot_holds_two_requests(requests: list[LabRequest], batching: Batching) -> None:
    run = run_open_loop(requests, batching, batching_lab())
    held: dict[int, int] = {}
    for record in sorted(run.records, key=lambda record: record.admitted_us or 0):
        assert record.slot is not None
        assert record.slot < batching.max_batch
        assert record.admitted_us is not None
        assert held.get(record.slot, 0) <= record.admitted_us
        held[record.slot] = record.released_us or 0


@settings(max_examples=300)
@given(requests=requests_strategy, batching=batching_strategy, horizon_us=st.one_of(st.none(), st.integers(1, 900_000)))
def test_taking_equal_steps_at_once_changes_nothing(
    requests: list[LabRequest], batching: Batching, horizon_us: int | None
) -> None:
    fast = run_open_loop(requests, batching, batching_lab(), horizon_us=horizon_us)
    slow = run_open_loop(requests, batching, OneStepAtATime(), horizon_us=horizon_us)
    assert facts(fast) == facts(slow)
    assert (fast.steps, fast.tokens, fast.end_us, fast.slot_steps) == (
        slow.steps,
        slow.tokens,
        slow.end_us,
        slow.slot_steps,
    )
    assert fast.itl_counts == slow.itl_counts
    assert (fast.not_arrived, fast.waiting_at_end, fast.max_waiting) == (
        slow.not_arrived,
        slow.waiting_at_end,
        slow.max_waiting,
    )


@given(requests=requests_strategy, slots=st.integers(1, 9))
def test_admission_is_first_come_first_served(requests: list[LabRequest], slots: int) -> None:
    run = run_open_loop(requests, Continuous(slots), batching_lab())
    admitted = [record.admitted_us or 0 for record in run.records]
    assert admitted == sorted(admitted)


@given(requests=requests_strategy, slots=st.integers(1, 9))
def test_static_batches_leave_together(requests: list[LabRequest], slots: int) -> None:
    run = run_open_loop(requests, Static(slots), batching_lab())
    batches: dict[int | None, set[int | None]] = {}
    for record in run.records:
        batches.setdefault(record.admitted_us, set()).add(record.released_us)
    assert all(len(released) == 1 for released in batches.values())


def test_a_budget_bounds_what_a_step_prefills() -> None:
    """Three prompts of 100 under a budget of 150: done after one, two and two steps."""
    run = run_open_loop([LabRequest(0, 100, 5)] * 3, Chunked(8, 150), batching_lab())
    first, second, third = (record.first_token_us for record in run.records)
    step_one = 8000 + 2 * 300 + 4 * 150
    step_two = 8000 + 3 * 300 + 4 * 150
    assert (first, second, third) == (step_one, step_one + step_two, step_one + step_two)


def test_contexts_make_steps_longer_where_they_cost() -> None:
    cost = LinearCost(t0_us=1000, sequence_us=0, context_token_us=1, prefill_token_us=0)
    run = run_open_loop([LabRequest(0, 100, 3)], Continuous(1), cost)
    assert run.end_us == 1000 + (1000 + 100) + (1000 + 101)


def test_a_cut_run_counts_what_it_left_behind() -> None:
    """One slot, replies of 83 ms: at 100 ms one is done, one runs, and two never arrived."""
    requests = [LabRequest(arrival, 0, 10) for arrival in (0, 0, 150_000, 900_000)]
    run = run_open_loop(requests, Continuous(1), batching_lab(), horizon_us=100_000)
    summary = summarise(run)
    assert (summary.arrivals, summary.finished, run.not_arrived) == (4, 1, 2)
    assert goodput_share(run, ttft_ms=1000, tpot_ms=16) == 0.25


def test_a_reply_of_one_token_is_judged_by_ttft_alone() -> None:
    run = run_open_loop([LabRequest(0, 0, 1)], Continuous(1), batching_lab())
    assert summarise(run).tpot.p50_ms is None
    assert goodput_share(run, ttft_ms=10, tpot_ms=0.001) == 1
    assert goodput_share(run, ttft_ms=8, tpot_ms=16) == 0


def test_an_empty_load_is_an_empty_run() -> None:
    summary = summarise(run_open_loop([], Continuous(1), batching_lab()))
    assert (summary.arrivals, summary.tokens_per_second, summary.useful_share) == (0, 0, 0)
    assert summary.ttft.p95_ms is None


def test_closed_loop_clients_wait_for_their_reply_and_think() -> None:
    loop = ClosedLoop(Random(0), clients=1, prompts=constant(0), outputs=constant(10), think_us=17_000)
    run = run_closed_loop(loop, Continuous(4), batching_lab(), horizon_us=1_000_000)
    arrivals = [record.request.arrival_us for record in run.records]
    assert arrivals[:4] == [0, 100_000, 200_000, 300_000]


def test_the_same_seed_gives_the_same_load_and_another_does_not() -> None:
    def load(seed: int) -> list[LabRequest]:
        outputs = lognormal(150, 1500)
        return open_loop(Random(seed), rate_per_second=5, seconds=20, prompts=uniform(1, 50), outputs=outputs)

    assert load(1) == load(1)
    assert load(1) != load(2)


def test_a_burst_adds_arrivals_only_while_it_lasts() -> None:
    def arrivals_us(burst: Burst | None) -> list[int]:
        load = open_loop(
            Random(3), rate_per_second=50, seconds=30, prompts=constant(1), outputs=constant(1), burst=burst
        )
        return [request.arrival_us for request in load]

    burst = arrivals_us(Burst(10, 20, 4))
    inside = sum(10_000_000 <= arrival < 20_000_000 for arrival in burst)
    assert inside == pytest.approx(2000, rel=0.1)
    assert len(burst) - inside == pytest.approx(1000, rel=0.1)
    assert len(arrivals_us(None)) == pytest.approx(1500, rel=0.1)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: Continuous(0), "at least one slot"),
        (lambda: Chunked(4, 0), "at least one token a step"),
        (lambda: LabRequest(0, 1, 0), "at least one token"),
        (lambda: LabRequest(-1, 1, 1), "cannot be negative"),
        (lambda: Burst(5, 5, 2), "start < end"),
        (lambda: uniform(5, 4), "low <= high"),
        (lambda: exponential(0), "above 0"),
        (lambda: lognormal(150, 100), "median < p99"),
        (lambda: ClosedLoop(Random(0), clients=0, prompts=constant(1), outputs=constant(1)), "at least one client"),
        (lambda: run_open_loop([], Continuous(1), batching_lab(), horizon_us=0), "above 0"),
        (lambda: open_loop(Random(0), rate_per_second=0, seconds=1, prompts=constant(1), outputs=constant(1)), "rate"),
        (lambda: LinearCost(t0_us=0, sequence_us=1, prefill_token_us=1), "must take time"),
        (lambda: LinearCost(t0_us=1, sequence_us=-1, prefill_token_us=1), "cannot be negative"),
    ],
)
def test_impossible_input_gets_a_sentence(mistake: object, message: str) -> None:
    assert callable(mistake)
    with pytest.raises(ValueError, match=message):
        mistake()
